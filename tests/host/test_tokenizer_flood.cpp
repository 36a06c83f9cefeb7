// Files that try to be slow: keys, tokens and merges whose hashes collide under any hash known to the file's author.
#include "models/model.h"
#include "tests/support/cpu_time.h"
#include "tests/support/gguf_builder.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

double seconds_of(const auto& f) {
	const double start = cpu_seconds();
	f();
	return cpu_seconds() - start;
}

// Inverse of an odd number modulo 2^64, by Newton's iteration.
constexpr uint64_t inverse(uint64_t odd) {
	uint64_t x = odd;
	for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
	return x;
}

// ---- pairs that collide in a multiplicative hash, h = k * m, h ^= h >> 32, low bits taken, with k = a << 32 | b

constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio, the usual choice

uint32_t low_bits(uint32_t a, uint32_t b, uint32_t bits) {
	uint64_t h = (uint64_t(a) << 32 | b) * kMultiplier;
	h ^= h >> 32;
	return uint32_t(h & ((1u << bits) - 1));
}

// The number below 2^bits that makes low_bits(a, b, bits) == target.
uint32_t colliding(uint32_t b, uint32_t target, uint32_t bits) {
	const uint64_t of_b = b * kMultiplier;
	const uint32_t from_a = (target ^ uint32_t(of_b)) - uint32_t(of_b >> 32);
	return (from_a * uint32_t(inverse(kMultiplier))) & ((1u << bits) - 1);
}

void put_utf8(std::string& s, uint32_t c) {
	if (c < 0x80)
		s += char(c);
	else if (c < 0x800)
		s += {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
	else if (c < 0x10000)
		s += {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
	else
		s += {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
}
bool is_character(uint32_t c) { return c > 0x20 && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff); }

// ---- texts of 16 bytes that collide in std::hash of libstdc++, which is MurmurHash64A with a known seed

constexpr uint64_t kMurmur = 0xc6a4a7935bd1e995u;
uint64_t shift_mix(uint64_t v) { return v ^ v >> 47; } // its own inverse

std::vector<std::string> same_hash(size_t n) {
	std::vector<std::string> out;
	for (uint64_t first = 1; first <= n; ++first) {
		uint64_t state = 0xc70f6907u ^ 16 * kMurmur;
		state = (state ^ shift_mix(first * kMurmur) * kMurmur) * kMurmur;
		const uint64_t second = shift_mix(state * inverse(kMurmur)) * inverse(kMurmur); // sets the state to zero
		std::string s(16, '\0');
		std::memcpy(s.data(), &first, 8);
		std::memcpy(s.data() + 8, &second, 8);
		out.push_back(s);
	}
	if (std::hash<std::string_view>()(out.front()) != std::hash<std::string_view>()(out.back()))
		MESSAGE("this library's std::hash is another one: these texts do not collide in it");
	return out;
}

} // namespace

TEST_CASE("T21: neighbouring characters that collide do not slow a SentencePiece vocabulary down") {
	constexpr uint32_t kBits = 20;
	std::vector<std::string> tokens = tiny_spm_tokens();
	for (uint32_t b = 0x21; tokens.size() < 600'000 && b <= 0x10ffff; ++b) {
		const uint32_t a = colliding(b, 0, kBits);
		if (!is_character(a) || !is_character(b) || low_bits(a, b, kBits) != 0) continue;
		put_utf8(tokens.emplace_back(), a);
		put_utf8(tokens.back(), b);
	}
	REQUIRE(tokens.size() == 600'000);
	GgufBuilder b;
	add_spm(b, tokens);
	const auto bytes = b.bytes();
	const double s = seconds_of([&] {
		const Tokenizer t(Gguf::parse("test.gguf", bytes));
		CHECK(t.vocab() == 600'000);
		CHECK(t.encode(tokens.back(), {.bos = false}).back() == t.vocab() - 1);
	});
	INFO(s, " s");
	CHECK(s < 20); // minutes with a predictable hash
}

TEST_CASE("T21: merges that collide do not slow a byte-level vocabulary down") {
	constexpr uint32_t kBits = 21, kWindow = 1024; // collisions within a window of linear probing are enough
	std::vector<std::string> symbols;              // in the order of their ids: bytes, then all pairs of bytes
	std::vector<std::string> merges;
	for (int i = 0; i < 256; ++i) symbols.push_back(byte_character(i));
	for (int i = 0; i < 256; ++i)
		for (int k = 0; k < 256; ++k) {
			merges.push_back(symbols[size_t(i)] + " " + symbols[size_t(k)]);
			symbols.push_back(symbols[size_t(i)] + symbols[size_t(k)]);
		}
	const size_t pairs = merges.size();
	for (uint32_t b = 256; b < symbols.size() && merges.size() < 900'000; ++b)
		for (uint32_t target = 0; target < kWindow; ++target) {
			const uint32_t a = colliding(b, target, kBits);
			if (a >= 256 && a < symbols.size()) merges.push_back(symbols[a] + " " + symbols[b]);
		}
	REQUIRE(merges.size() - pairs > 500'000);
	GgufBuilder g;
	g.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2").texts("tokenizer.ggml.merges", merges);
	g.texts("tokenizer.ggml.tokens", symbols);
	const auto bytes = g.bytes();
	const double s = seconds_of([&] {
		const Tokenizer t(Gguf::parse("test.gguf", bytes));
		CHECK(t.encode("ab") == std::vector<uint32_t>{256 + 256 * 'a' + 'b'});
	});
	INFO(s, " s");
	CHECK(s < 20);
}

TEST_CASE("T19 T21: texts that collide do not slow tokens, merges, keys and names of tensors down") {
	const std::vector<std::string> texts = same_hash(900'000);
	GgufBuilder tokens, keys;
	add_spm(tokens, texts);
	tokens.erase("tokenizer.ggml.token_type").erase("tokenizer.ggml.unknown_token_id");
	for (size_t i = 0; i < 65'000; ++i) {
		keys.keys.push_back({texts[i], uint32_t(GgufType::U8), "\1"});
		keys.tensors.push_back({texts[i], {1}, 0, std::string(4, '\0')});
	}
	for (const GgufBuilder* b : {&tokens, &keys}) {
		const auto bytes = b->bytes();
		const double s = seconds_of([&] {
			const Gguf g = Gguf::parse("test.gguf", bytes);
			if (b == &keys) {
				CHECK(g.find(texts[64'999]) == &g.entries().back());
				CHECK(g.find_tensor(texts[64'999]) == &g.tensors().back());
				CHECK(!g.find(texts[65'000]));
			} else {
				CHECK(Tokenizer(g).find(texts.back()) == 899'999u);
			}
		});
		INFO(s, " s");
		CHECK(s < 20);
	}
}

// Long tokens that nearly match everywhere: a simple search takes time for every byte of the text times every byte of
// the token.
TEST_CASE("T21: long tokens cost nothing where they do not occur, and little where they do") {
	const size_t n = 3800, text_bytes = 4 << 20;
	const std::string text(text_bytes, 'a');
	for (int32_t kind : {3, 4}) {
		GgufBuilder b;
		std::vector<std::string> tokens;
		std::vector<int32_t> kinds;
		for (int i = 0; i < 256; ++i) tokens.push_back(byte_character(i));
		kinds.assign(256, 1);
		for (int i = 0; i < 200; ++i) { // all have the same beginning, none ends in a
			tokens.push_back(std::string(n + size_t(i), 'a') + char('b' + i % 25));
			kinds.push_back(kind);
		}
		b.text("tokenizer.ggml.model", "gpt2")
		    .text("tokenizer.ggml.pre", "gpt-2")
		    .texts("tokenizer.ggml.tokens", tokens);
		b.texts("tokenizer.ggml.merges", {}).numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
		const auto bytes = b.bytes();
		const Tokenizer t(Gguf::parse("test.gguf", bytes));
		const double s = seconds_of([&] {
			CHECK(t.encode(text, {.bos = false, .special = true}).size() == text_bytes);
			const auto ids = t.encode(text + "b", {.bos = false, .special = true});
			CHECK(ids.size() == text_bytes - n - 175 + 1);
			CHECK(ids.back() == 256 + 175); // the longest of those with a b
		});
		INFO(s, " s");
		CHECK(s < 20); // minutes if every position is searched anew
	}
	// words of 1, 2, ... n letters, the longest with the best score: the left symbol grows one letter at a time
	std::vector<std::string> tokens = tiny_spm_tokens();
	for (size_t i = n; i > 1; --i) tokens.push_back(std::string(i, 'a'));
	GgufBuilder b;
	add_spm(b, tokens);
	b.flag("tokenizer.ggml.add_space_prefix", false);
	const auto bytes = b.bytes();
	const Tokenizer t(Gguf::parse("test.gguf", bytes));
	const double s = seconds_of([&] { CHECK(t.encode(text, {.bos = false}).size() == text_bytes / n + 1); });
	INFO(s, " s");
	CHECK(s < 40);
}

TEST_CASE("T21: a text full of special tokens takes no more than its bytes do") {
	std::vector<std::string> tokens;
	for (int i = 0; i < 256; ++i) tokens.push_back(byte_character(i));
	tokens.push_back("<b>");
	std::vector<int32_t> kinds(256, 1);
	kinds.push_back(4);
	GgufBuilder b;
	b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe").texts("tokenizer.ggml.merges", {});
	b.texts("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	const auto bytes = b.bytes();
	const Tokenizer t(Gguf::parse("test.gguf", bytes));
	std::string text;
	while (text.size() < 16 << 20) text += "a<b>";
	const double s = seconds_of([&] { CHECK(t.encode(text, {.bos = false}).size() == text.size() / 2); });
	INFO(s, " s");
	CHECK(s < 15); // more than a minute if each piece of text sets up its own search
}
