// The tokenizer that takes the longest token at each place.
#include "models/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

namespace {

using Ids = std::vector<uint32_t>;

Tokenizer make(const GgufBuilder& b) {
	const auto bytes = b.bytes();
	return Tokenizer(Gguf::parse("test.gguf", bytes));
}

// The bytes from 1 on, then these texts, as files have them.
GgufBuilder longest(const std::vector<std::string>& more, uint32_t bytes = 256) {
	std::vector<std::string> tokens = {"<s>"};
	for (uint32_t b = 0; b < bytes; ++b) tokens.push_back(fmt::format("\\x{:02x}", b));
	std::vector<int32_t> kinds(tokens.size() + more.size(), 1);
	kinds[0] = 3;
	tokens.insert(tokens.end(), more.begin(), more.end());
	if (!more.empty() && more.back().starts_with("[PAD")) kinds.back() = 5;
	GgufBuilder b;
	b.text("tokenizer.ggml.model", "rwkv").texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	return b;
}

} // namespace

TEST_CASE("longest: escapes of tokens, the longest at each place, and back") {
	const std::vector<std::string> texts = {
	    "ab",         "abcd",  "cd", "\\n\\n", "\\t", "\\\\n", "it\\'s", "\\xe6\\x97\\xa5",
	    "\\xe6\\x97", "\\xzz", "\\", "\\x4",   "<s",  "[PAD9]"};
	const Tokenizer t = make(longest(texts));
	const auto word = [](uint32_t i) { return 257 + i; };
	const auto byte = [](char c) { return 1 + uint32_t(uint8_t(c)); };
	CHECK(t.encode("abcab") == Ids{word(0), byte('c'), word(0)});
	CHECK(t.encode("abcd") == Ids{word(1)});
	CHECK(t.encode("\n\n\n") == Ids{word(3), byte('\n')});
	CHECK(t.encode("\\n") == Ids{word(5)}); // a backslash and n
	CHECK(t.encode("it's") == Ids{word(6)});
	CHECK(t.encode("\xe6\x97\xa5\xe6\x97") == Ids{word(7), word(8)});
	CHECK(t.text(word(9)) == "xzz"); // no digits: as other characters behind a backslash
	CHECK(t.text(word(10)) == "\\");
	CHECK(t.text(word(11)) == "x4");
	CHECK(t.decode(Ids{word(8), byte('\xa5')}) == "\u65e5");
	CHECK_FALSE(t.adds_bos());
	CHECK(t.eos() == 0); // token 0 ends a text
	CHECK(t.is_end(0));
	// what a user writes is never a control token, nor one that is not in use
	CHECK(t.encode("<s>[PAD9]").size() == 8);
	CHECK(t.encode("<s>", {.special = true}) == Ids{0});
	CHECK(t.decode(Ids{0, word(0)}) == "ab");
	CHECK(t.encode("").empty());
}

TEST_CASE("longest: any bytes are what a search of all tokens gives") {
	std::mt19937 random(5);
	std::vector<std::string> plain, escaped;
	for (int i = 0; i < 300; ++i) {
		std::string text, as_file;
		for (uint32_t n = 2 + random() % 5; n > 0; --n) text += "abc\xff\n\\'\0"[random() % 8];
		for (const char c : text) as_file += fmt::format("\\x{:02x}", unsigned(uint8_t(c)));
		if (std::ranges::find(plain, text) != plain.end()) continue;
		plain.push_back(text), escaped.push_back(as_file);
	}
	const Tokenizer t = make(longest(escaped));
	for (int i = 0; i < 200; ++i) {
		std::string text;
		for (uint32_t n = random() % 80; n > 0; --n) text += "abc\xff\n\\'\0"[random() % 8];
		Ids want;
		for (size_t at = 0; at < text.size();) {
			size_t best = 1;
			uint32_t id = 1 + uint32_t(uint8_t(text[at]));
			for (uint32_t w = 0; w < plain.size(); ++w)
				if (plain[w].size() > best && text.compare(at, plain[w].size(), plain[w]) == 0)
					best = plain[w].size(), id = 257 + w;
			want.push_back(id), at += best;
		}
		CHECK(t.encode(text) == want);
		CHECK(t.decode(want) == text);
	}
}

TEST_CASE("longest: a byte without a token is unknown or an error; too long tokens are refused") {
	GgufBuilder b = longest({}, 128);
	const Tokenizer without = make(b);
	CHECK_THROWS_WITH_AS(without.encode("a\x80"), doctest::Contains("no token for byte 128"), Error);
	b.u32("tokenizer.ggml.unknown_token_id", 0);
	CHECK(make(b).encode("a\x80") == Ids{98, 0});
	has(refusal_by([] { make(longest({std::string(513, 'a')})); }), "has 513 bytes, at most 512");
}
