// libFuzzer target: any vocabulary, and any text encoded and decoded. The first byte says how the rest is read: as a
// text and a GGUF file, or as a text and the words of an otherwise valid vocabulary.
#include "engine/core/error.h"
#include "models/pre_patterns.h"
#include "models/tokenizer.h"
#include "tests/support/gguf_builder.h"
#include <cstdlib>
#include <iterator>
#include <sstream>

using namespace kvrun;

namespace {

struct Input {
	std::string_view rest;
	uint8_t byte() {
		if (rest.empty()) return 0;
		const uint8_t b = uint8_t(rest[0]);
		rest.remove_prefix(1);
		return b;
	}
	std::string_view bytes(size_t n) {
		const std::string_view s = rest.substr(0, n);
		rest.remove_prefix(s.size());
		return s;
	}
};

std::string pre_name(size_t number) {
	static const std::vector<std::string> names = [] {
		std::istringstream all(pre_pattern_names());
		return std::vector<std::string>(std::istream_iterator<std::string>(all), {});
	}();
	return names[number % names.size()];
}

// 256 tokens for bytes, and words with kinds, scores and merges from the input.
GgufBuilder vocabulary(Input& in, bool spm) {
	GgufBuilder b;
	std::vector<std::string> tokens, merges;
	std::vector<int32_t> kinds;
	std::vector<float> scores;
	for (int i = 0; i < 256; ++i) {
		char hex[8];
		std::snprintf(hex, sizeof hex, "<0x%02X>", i);
		tokens.push_back(spm ? hex : byte_character(i));
		kinds.push_back(spm ? 6 : 1);
		scores.push_back(0);
	}
	const uint8_t flags = in.byte();
	const uint8_t n = in.byte();
	for (int i = 0; i < n && !in.rest.empty(); ++i) {
		const uint8_t kind = in.byte(), score = in.byte();
		std::string word(in.bytes(in.byte() % 16));
		if (spm && score % 4 == 0) word = "\xe2\x96\x81" + word;
		if (!spm && kind % 4 != 3) { // as characters, produced by a merge
			std::string characters;
			for (char c : word) characters += byte_character(uint8_t(c));
			const size_t cut = word.size() > 1 ? 1 + score % (word.size() - 1) : 0;
			if (cut > 0) {
				std::string left, right;
				for (size_t k = 0; k < word.size(); ++k) (k < cut ? left : right) += byte_character(uint8_t(word[k]));
				merges.push_back(left + " " + right);
			}
			word = characters;
		}
		tokens.push_back(word);
		kinds.push_back(kind % 4 == 3 ? (kind % 8 == 3 ? 4 : 3) : 1);
		scores.push_back(-float(score));
	}
	b.text("tokenizer.ggml.model", spm ? "llama" : "gpt2").text("tokenizer.ggml.pre", pre_name(flags));
	b.texts("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	if (spm)
		b.numbers("tokenizer.ggml.scores", GgufType::F32, scores).flag("tokenizer.ggml.add_space_prefix", flags & 8);
	else
		b.texts("tokenizer.ggml.merges", merges);
	return b;
}

// Words of a text encoder with kinds and scores from the input; for unigrams, also a normalizer.
GgufBuilder encoder_vocabulary(Input& in, bool unigrams) {
	GgufBuilder b;
	std::vector<std::string> tokens = {"[CLS]", "[SEP]", "[UNK]"};
	std::vector<int32_t> kinds = {3, 3, 2};
	std::vector<float> scores(3);
	const uint8_t flags = in.byte();
	const uint8_t n = in.byte();
	const std::string units(in.bytes(unigrams ? in.byte() * size_t(4) : 0));
	for (int i = 0; i < n && !in.rest.empty(); ++i) {
		const uint8_t kind = in.byte(), score = in.byte();
		tokens.push_back((score % 4 == 0 ? "\xe2\x96\x81" : "") + std::string(in.bytes(in.byte() % 16)));
		kinds.push_back(kind % 8 == 3 ? 4 : kind % 8 == 7 ? 5 : 1);
		scores.push_back(-float(score));
	}
	b.text("tokenizer.ggml.model", unigrams ? "t5" : "bert").texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds).u32("tokenizer.ggml.eos_token_id", 1);
	b.flag("tokenizer.ggml.add_space_prefix", flags & 1).flag("tokenizer.ggml.remove_extra_whitespaces", flags & 2);
	b.flag("tokenizer.ggml.normalizer.lowercase", flags & 4).flag("tokenizer.ggml.normalizer.strip_accents", flags & 8);
	if (unigrams) b.numbers("tokenizer.ggml.scores", GgufType::F32, scores);
	if (units.size() % 4 == 0 && !units.empty()) {
		const std::string map = GgufBuilder::raw(uint32_t(units.size())) + units + std::string("a\0 b \0\xff\0", 8);
		b.array("tokenizer.ggml.precompiled_charsmap", GgufType::U8, map.size(), map);
	}
	return b;
}

// `exact`: the vocabulary can encode every text, so that decoding must return it.
void through(const Gguf& g, std::string_view text, bool exact) {
	const Tokenizer t(g);
	if (t.model() == std::string("spm") && text.find("\xe2\x96\x81") != text.npos) exact = false; // means a space there
	for (bool special : {false, true}) {
		const std::vector<uint32_t> ids = t.encode(text, {.bos = false, .special = special});
		for (uint32_t id : ids) {
			if (id >= t.vocab()) std::abort();
			if (!special && t.kind(id) == TokenKind::Control) std::abort();
			(void)t.is_end(id);
		}
		const std::string back = t.decode(ids, special);
		if (exact && back != text) std::abort();
		Utf8Stream stream;
		std::string streamed;
		std::optional<uint32_t> prev;
		for (uint32_t id : ids) {
			streamed += stream.push(t.decode_one(prev, id, special));
			prev = id;
		}
		if (streamed + stream.finish() != back) std::abort();
	}
	(void)t.encode(text, {.eos = true}); // with BOS
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	Input in{{reinterpret_cast<const char*>(data), size}};
	const uint8_t mode = in.byte();
	const size_t n = in.byte();
	const std::string_view text = in.bytes(n);
	try {
		if (mode & 1) {
			through(Gguf::parse("fuzz", std::as_bytes(std::span(in.rest))), text, false);
		} else {
			const bool encoder = mode & 4; // else of a chat model
			const auto bytes = (encoder ? encoder_vocabulary(in, mode & 2) : vocabulary(in, mode & 2)).bytes();
			through(Gguf::parse("fuzz", bytes), text, !encoder);
		}
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort(); // a violated invariant of kvrun is a finding
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
	}
	return 0;
}
