// Fill in the middle: the text between a prefix and a suffix.
#include "tools/serve/infill.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr size_t kMostInputFiles = 256; // of a request

struct Marker {
	std::vector<const char*> keys, texts; // of the model's metadata; of the token, by family
};
const Marker kPrefix{{"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
                     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "<|code_prefix|>"}};
const Marker kSuffix{{"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
                     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "<|code_suffix|>"}};
const Marker kMiddle{{"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"},
                     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "<|code_middle|>"}};
const Marker kRepository{{"tokenizer.ggml.fim_rep_token_id"},
                         {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}};
const Marker kFile{{"tokenizer.ggml.fim_sep_token_id"}, {"<|file_sep|>"}};

std::optional<uint32_t> marker_token(const Model& m, const Marker& marker) {
	for (const char* key : marker.keys)
		if (const std::optional<uint32_t> id = m.marker_id(key)) return id;
	for (const char* text : marker.texts) { // files do not always name the ids
		const std::vector<uint32_t> t = m.tokens(text, KVRUN_TOKENS_NO_BOS | KVRUN_TOKENS_SPECIAL);
		if (t.size() == 1) return t[0];
	}
	return {};
}

std::string infill_field(const Fields& f, const char* name) { return f.text(name).value_or(""); }

std::vector<InfillFile> input_files(const Fields& f) {
	std::vector<InfillFile> out;
	const Json* list = f.find("input_extra");
	if (!list) return out;
	if (!list->is_array() || list->size() > kMostInputFiles)
		throw ApiError(400, "input_extra is not an array of at most " + std::to_string(kMostInputFiles) + " files",
		               "input_extra");
	for (const Json& one : *list) {
		if (!one.is_object()) throw ApiError(400, "input_extra has an element that is no object", "input_extra");
		const Fields file(one, "input_extra.");
		const std::optional<std::string> text = file.text("text");
		if (!text) throw ApiError(400, "input_extra has an element without text", "input_extra");
		out.push_back({file.text("filename").value_or("tmp"), *text});
	}
	return out;
}

} // namespace

InfillMarkers infill_markers(const Model& m) {
	return {marker_token(m, kPrefix), marker_token(m, kSuffix), marker_token(m, kMiddle), marker_token(m, kRepository),
	        marker_token(m, kFile)};
}

InfillRequest infill_request(Json body, const Defaults& d) {
	std::vector<InfillFile> files = input_files(Fields(body));
	body.erase("input_extra");
	const Fields f(body);
	InfillRequest r{{common_fields(f, d)}, {}};
	r.text = {infill_field(f, "input_prefix") + infill_field(f, "prompt"), infill_field(f, "input_suffix"),
	          std::move(files)};
	read_max_tokens(f, {"n_predict"}, d.sampling.max_tokens, r);
	if (r.n > 1) throw ApiError(400, "n is " + std::to_string(r.n) + ", but /infill has one answer", "n");
	r.native = native_form(f);
	f.check_unknown(harmless_fields(), d);
	return r;
}

std::vector<uint32_t> infill_tokens(const Model& m, const InfillMarkers& markers, const InfillText& t, size_t most) {
	const auto [pre, suf, mid, repository, file] = markers;
	if (!pre || !suf || !mid)
		throw ApiError(400,
		               "the model has no tokens for filling in the middle (" +
		                   std::string(!pre   ? "prefix"
		                               : !suf ? "suffix"
		                                      : "middle") +
		                   "); use one that was trained for it, such as Qwen2.5-Coder",
		               "", "unsupported_parameter");
	std::vector<uint32_t> out = m.tokens("", 0); // bos, where texts begin with it
	const auto add = [](std::vector<uint32_t>& to, const std::vector<uint32_t>& x) {
		to.insert(to.end(), x.begin(), x.end());
	};
	const auto plain = [&](const std::string& text) { return m.tokens(text, KVRUN_TOKENS_NO_BOS); };
	std::vector<uint32_t> prefix = plain(t.prefix), suffix = plain(t.suffix);
	const size_t room = most > out.size() + 3 ? most - out.size() - 3 : 0;
	if (prefix.size() + suffix.size() > room) {
		suffix.resize(std::min(suffix.size(), std::max(room / 4, room - std::min(room, prefix.size()))));
		const size_t kept = std::min(prefix.size(), room - suffix.size());
		prefix.erase(prefix.begin(), prefix.end() - ptrdiff_t(kept));
	}
	if (!t.files.empty()) {
		std::vector<uint32_t> head, own;
		if (repository) head = {*repository}, add(head, plain("myproject\n"));
		if (file) own = {*file}, add(own, plain("filename\n"));
		size_t left = room - prefix.size() - suffix.size();
		std::vector<std::vector<uint32_t>> files;
		if (left > head.size() + own.size()) {
			left -= head.size() + own.size();
			for (auto f = t.files.rbegin(); f != t.files.rend(); ++f) { // the newest are the last
				std::vector<uint32_t> one;
				if (file) one = {*file};
				add(one, plain(file ? f->name + "\n" + f->text : "\n\n--- snippet ---\n\n" + f->text));
				if (one.size() > left) break;
				left -= one.size();
				files.push_back(std::move(one));
			}
			add(out, head);
			for (auto f = files.rbegin(); f != files.rend(); ++f) add(out, *f);
			add(out, own);
		}
	}
	out.push_back(*pre), add(out, prefix);
	out.push_back(*suf), add(out, suffix);
	out.push_back(*mid);
	return out;
}

} // namespace kvrun::serve
