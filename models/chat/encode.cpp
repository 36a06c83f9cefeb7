// The tokens of a rendered conversation.
#include "models/chat/encode.h"

namespace kvrun {

static std::vector<uint32_t> encode_text(const Tokenizer& t, const Rendered& r) {
	std::string text;
	std::vector<TextRange> ranges;
	for (const Rendered::Segment& s : r.segments) {
		if (s.from_template) ranges.push_back({text.size(), text.size() + s.text.size()});
		text += s.text;
	}
	return t.encode_ranges(text, ranges, /*bos=*/false);
}

std::vector<uint32_t> encode_chat(const Tokenizer& t, const Rendered& r, const ImageTokens& image) {
	std::vector<uint32_t> ids;
	for (const ChatPiece& piece : split_at_images(r)) {
		const std::vector<uint32_t> text = encode_text(t, piece.text);
		ids.insert(ids.end(), text.begin(), text.end());
		if (!piece.image || !image) continue;
		const std::vector<uint32_t> rows = image(*piece.image);
		ids.insert(ids.end(), rows.begin(), rows.end());
	}
	if (t.adds_bos() && (ids.empty() || ids[0] != t.bos())) ids.insert(ids.begin(), t.bos().value());
	return ids;
}

void set_token_texts(ChatInput& in, const Tokenizer& t) {
	in.bos_token = t.bos() ? t.text(*t.bos()) : "";
	in.eos_token = t.eos() ? t.text(*t.eos()) : "";
}

} // namespace kvrun
