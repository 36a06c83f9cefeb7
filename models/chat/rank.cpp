// What a reranker reads: a query and a document, as tokens.
#include "models/chat/rank.h"

namespace kvrun {

RankPrompt::RankPrompt(const Gguf& g) : template_(g.text("tokenizer.chat_template.rerank", "")) {}

TextPair RankPrompt::by_template(const Tokenizer& t, std::string_view query, std::string_view document) const {
	const std::pair<std::string_view, std::string_view> kFields[] = {{"{query}", query}, {"{document}", document}};
	std::string text;
	std::vector<TextRange> own; // of the template
	for (size_t at = 0; at < template_.size();) {
		size_t next = template_.size();
		const std::pair<std::string_view, std::string_view>* field = nullptr;
		for (const auto& f : kFields)
			if (const size_t found = template_.find(f.first, at); found < next) next = found, field = &f;
		own.push_back({text.size(), text.size() + next - at});
		text.append(template_, at, next - at);
		if (!field) break;
		text += field->second;
		at = next + field->first.size();
	}
	return {t.encode_ranges(text, own, /*bos=*/false)};
}

TextPair RankPrompt::encode(const Tokenizer& t, std::string_view query, std::string_view document) const {
	if (!template_.empty()) return by_template(t, query, document);
	TextPair out;
	const auto add = [&](std::optional<uint32_t> token) {
		if (token) out.tokens.push_back(*token);
	};
	const auto add_text = [&](std::string_view text) {
		const std::vector<uint32_t> tokens = t.encode(text, {.bos = false});
		out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
	};
	if (t.adds_bos()) add(t.bos());
	add_text(query);
	add(t.text_end());
	add(t.between_pairs());
	out.second = uint32_t(out.tokens.size());
	add_text(document);
	add(t.text_end());
	return out;
}

} // namespace kvrun
