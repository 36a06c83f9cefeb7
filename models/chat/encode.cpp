// The tokens of a rendered conversation.
#include "models/chat/encode.h"

namespace kvrun {

std::vector<uint32_t> encode_chat(const Tokenizer& t, const Rendered& r) {
	std::string text;
	std::vector<TextRange> ranges;
	for (const Rendered::Segment& s : r.segments) {
		if (s.from_template) ranges.push_back({text.size(), text.size() + s.text.size()});
		text += s.text;
	}
	std::vector<uint32_t> ids = t.encode_ranges(text, ranges, /*bos=*/false);
	if (t.adds_bos() && (ids.empty() || ids[0] != t.bos())) ids.insert(ids.begin(), t.bos().value());
	return ids;
}

void set_token_texts(ChatInput& in, const Tokenizer& t) {
	in.bos_token = t.bos() ? t.text(*t.bos()) : "";
	in.eos_token = t.eos() ? t.text(*t.eos()) : "";
}

} // namespace kvrun
