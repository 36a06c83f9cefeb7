// Tokenizers of text encoders, WordPiece and unigrams: the ids of the models' own tokenizers, roles of tokens, damaged
// files, and time. Expectations: tools/dev/make_encoder_tokens.py.
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include "tests/support/cpu_time.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <functional>
#include <random>
#include <sstream>

using namespace kvrun;

namespace {

using Ids = std::vector<uint32_t>;

std::string golden(const std::string& name) { return test_root() + "/tests/golden/tokenize/encoder/" + name; }

std::vector<std::string> golden_texts() {
	std::vector<std::string> out;
	const std::string all = file_text(golden("texts.inp")), mark = "\n__ggml_vocab_test__\n";
	for (size_t at = 0, end; (end = all.find(mark, at)) != all.npos; at = end + mark.size())
		out.push_back(all.substr(at, end - at));
	return out;
}

std::vector<Ids> golden_ids(const std::string& name) {
	std::vector<Ids> out;
	std::istringstream lines(file_text(golden(name)));
	for (std::string line; std::getline(lines, line);) {
		std::istringstream numbers(line);
		out.emplace_back();
		for (uint32_t id; numbers >> id;) out.back().push_back(id);
	}
	return out;
}

// A golden vocabulary, to be changed.
GgufBuilder copy_of(const std::string& name) {
	const Gguf g = Gguf::open(golden(name));
	return GgufBuilder::copy_as(g, std::string(g.text("general.architecture")));
}

Tokenizer make(const GgufBuilder& b) {
	const auto bytes = b.bytes();
	return Tokenizer(Gguf::parse("test.gguf", bytes));
}
std::string refusal(const GgufBuilder& b) {
	return refusal_by([&] { make(b); });
}

void check_all(const Tokenizer& t, const std::string& out, EncodeOptions options) {
	CAPTURE(out);
	const std::vector<std::string> texts = golden_texts();
	const std::vector<Ids> ids = golden_ids(out);
	REQUIRE(texts.size() > 300);
	REQUIRE(ids.size() == texts.size());
	for (size_t i = 0; i < texts.size(); ++i) {
		CAPTURE(i);
		CAPTURE(texts[i]);
		CHECK(t.encode(texts[i], options) == ids[i]);
	}
}

constexpr const char* kMark = "\xe2\x96\x81";
std::string begins(const std::string& word) { return kMark + word; }

enum : uint32_t { kPad, kUnk, kCls, kSep, kHello, kWorld, kS, kDot, kUn, kAble };

GgufBuilder wpm(std::vector<std::string> more = {}) {
	std::vector<std::string> tokens = {"[PAD]",         "[UNK]", "[CLS]",     "[SEP]",      begins("hello"),
	                                   begins("world"), "s",     begins("."), begins("un"), "able"};
	tokens.insert(tokens.end(), more.begin(), more.end());
	std::vector<int32_t> kinds(tokens.size(), 1);
	std::fill(kinds.begin(), kinds.begin() + 4, 3);
	GgufBuilder b;
	b.text("tokenizer.ggml.model", "bert").texts("tokenizer.ggml.tokens", tokens);
	return b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
}

// <pad> </s> <unk>, then tokens with scores.
GgufBuilder ugm(const std::vector<std::pair<std::string, float>>& more, std::vector<int32_t> more_kinds = {}) {
	std::vector<std::string> tokens = {"<pad>", "</s>", "<unk>"};
	std::vector<float> scores(3);
	std::vector<int32_t> kinds = {3, 3, 2};
	for (const auto& [text, score] : more) {
		tokens.push_back(text);
		scores.push_back(score);
	}
	more_kinds.resize(more.size(), 1);
	kinds.insert(kinds.end(), more_kinds.begin(), more_kinds.end());
	GgufBuilder b;
	b.text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.scores", GgufType::F32, scores);
	return b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
}

// A normalizer: units of its double array, then texts.
GgufBuilder& charsmap(GgufBuilder& b, const std::vector<uint32_t>& units, const std::string& texts) {
	std::string all = GgufBuilder::raw(uint32_t(units.size() * 4));
	for (uint32_t u : units) all += GgufBuilder::raw(u);
	all += texts;
	return b.array("tokenizer.ggml.precompiled_charsmap", GgufType::U8, all.size(), all);
}

} // namespace

// ---- the models' own tokenizers

TEST_CASE("wpm: the ids of Hugging Face's tokenizer, with CLS and SEP") {
	const EncodeOptions whole{.bos = true, .eos = true};
	const Tokenizer t(Gguf::open(golden("wpm.gguf")));
	CHECK(std::string(t.model()) == "wpm");
	check_all(t, "wpm.out", whole);
	check_all(t, "wpm_special.out", {.bos = true, .eos = true, .special = true});
	GgufBuilder b = copy_of("wpm.gguf");
	b.flag("tokenizer.ggml.normalizer.lowercase", false);
	check_all(make(b), "wpm_cased.out", whole);
	b.flag("tokenizer.ggml.normalizer.lowercase", true).flag("tokenizer.ggml.normalizer.strip_accents", false);
	check_all(make(b), "wpm_accents.out", whole);
}

TEST_CASE("wpm: the texts that Hugging Face's tokenizer makes of ids") {
	const Tokenizer t(Gguf::open(golden("wpm.gguf")));
	std::istringstream lines(file_text(golden("wpm.txt")));
	const std::vector<Ids> ids = golden_ids("wpm.out");
	size_t same = 0;
	for (size_t i = 0; i < ids.size(); ++i) {
		std::string line;
		REQUIRE(std::getline(lines, line));
		if (std::count(ids[i].begin(), ids[i].end(), *t.find("[UNK]"))) continue; // leaves a space
		CAPTURE(i);
		CHECK(t.decode(ids[i]) == line);
		++same;
	}
	CHECK(same > 100);
}

TEST_CASE("ugm: the ids of SentencePiece") {
	const Tokenizer t(Gguf::open(golden("ugm.gguf")));
	CHECK(std::string(t.model()) == "ugm");
	check_all(t, "ugm.out", {});
	GgufBuilder b = copy_of("ugm.gguf");
	b.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.remove_extra_whitespaces", false);
	check_all(make(b), "ugm_bare.out", {});
	check_all(Tokenizer(Gguf::open(golden("ugm_bytes.gguf"))), "ugm_bytes.out", {});
}

TEST_CASE("plamo2: the ids of PLaMo's own code") {
	const Tokenizer t(Gguf::open(golden("plamo.gguf")));
	CHECK(std::string(t.model()) == "plamo2");
	CHECK((!t.adds_bos() && t.bos() == 1u && t.eos() == 2u && t.is_end(4)));
	check_all(t, "plamo.out", {});
	for (const std::string& text : golden_texts()) CHECK(t.decode(t.encode(text)) == text); // no byte is lost
	CHECK(t.encode("<|plamo:op|>", {.special = true}) == Ids{4});
	CHECK(t.encode("<|plamo:op|>").size() > 1);
	std::string words; // nothing parts it: memory and time are those of its length
	for (int i = 0; i < 20000; ++i) words += "the ";
	CHECK(t.decode(t.encode(words)) == words);
}

// ---- roles and options

TEST_CASE("wpm: words, unknown words, and tokens with a role") {
	const Tokenizer t = make(wpm());
	CHECK(t.adds_bos());
	CHECK(t.text_end());
	CHECK(t.bos() == kCls);
	CHECK(t.sep() == kSep);
	CHECK(!t.eos());
	CHECK(t.encode("Hello worlds.", {.eos = true}) == Ids{kCls, kHello, kWorld, kS, kDot, kSep});
	CHECK(t.encode("Hello") == Ids{kCls, kHello});
	CHECK(t.encode("", {.eos = true}) == Ids{kCls, kSep});
	CHECK(t.encode("unable unhello able hellox", {.bos = false}) == Ids{kUn, kAble, kUnk, kUnk, kUnk});
	CHECK(t.encode("hello[SEP]", {.bos = false}) == Ids{kHello, kUnk, kUnk, kUnk});
	CHECK(t.encode("hello[SEP]world", {.bos = false, .special = true}) == Ids{kHello, kSep, kWorld});
	CHECK(t.encode(std::string("h\xff\0e\xc3llo", 8), {.bos = false}) == Ids{kHello}); // dropped, inside a word too
	CHECK(t.decode(Ids{kCls, kHello, kWorld, kS, kDot, kSep}) == "hello worlds.");
	CHECK(t.decode(Ids{kCls, kHello, kSep}, true) == "[CLS] hello [SEP]");
	CHECK(t.decode(Ids{kHello, kUnk, kWorld}) == "hello world");
	CHECK(t.decode_one(std::nullopt, kWorld) == "world");
	CHECK(t.decode_one(kHello, kWorld) == " world");
	CHECK(t.decode_one(kHello, kS) == "s");
	// U+2581 in a text is a character like any other: not the mark that tokens have in the file
	CHECK(t.encode(begins("hello"), {.bos = false}) == Ids{kUnk});
	CHECK(t.encode("un" + begins("hello"), {.bos = false}) == Ids{kUnk});
	CHECK(make(wpm({kMark, begins(kMark)})).encode(kMark, {.bos = false}) == Ids{kAble + 2});
}

TEST_CASE("wpm: which ends the file wants, and which tokens they are") {
	const auto encoded = [](const GgufBuilder& b) { return make(b).encode("hello", {.eos = true}); };
	const std::string add = "tokenizer.ggml.add_";
	CHECK(encoded(wpm().flag(add + "bos_token", false)) == Ids{kHello, kSep});
	CHECK(encoded(wpm().flag(add + "eos_token", false)) == Ids{kCls, kHello});
	CHECK(encoded(wpm().flag(add + "eos_token", false).flag(add + "sep_token", true)) == Ids{kCls, kHello, kSep});
	// what llama.cpp's conversion writes: two texts have no separator between them
	CHECK(encoded(wpm().flag(add + "eos_token", true).flag(add + "sep_token", false)) == Ids{kCls, kHello, kSep});
	CHECK(encoded(wpm().flag(add + "sep_token", false)) == Ids{kCls, kHello, kSep});
	GgufBuilder named = wpm();
	named.u32("tokenizer.ggml.cls_token_id", kPad).u32("tokenizer.ggml.seperator_token_id", kWorld);
	CHECK(encoded(named) == Ids{kPad, kHello, kWorld});
	named.u32("tokenizer.ggml.bos_token_id", kUnk).erase("tokenizer.ggml.cls_token_id");
	CHECK(encoded(named) == Ids{kUnk, kHello, kWorld});
	GgufBuilder plain = wpm();
	plain.erase("tokenizer.ggml.token_type");
	CHECK(encoded(plain) == Ids{kCls, kHello, kSep});
	CHECK(make(plain).decode(Ids{kCls, kHello, kSep}) == "hello");
	for (const char* key : {"cls", "seperator", "unknown"}) // there are 10 tokens
		CHECK(encoded(wpm().u32(fmt::format("tokenizer.ggml.{}_token_id", key), 10)) == Ids{kCls, kHello, kSep});
	GgufBuilder none;
	none.text("tokenizer.ggml.model", "bert").texts("tokenizer.ggml.tokens", {begins("a"), "[SEP]"});
	has(refusal(none), "no token is named CLS, with which texts begin");
	none.texts("tokenizer.ggml.tokens", {begins("a"), "[CLS]"});
	has(refusal(none), "no token is named SEP, with which texts end");
	none.texts("tokenizer.ggml.tokens", {begins("a"), "[CLS]", "[SEP]"});
	CHECK_THROWS_WITH_AS(make(none).encode("b"), doctest::Contains("no tokens for a word, and no unknown token"),
	                     Error);
}

TEST_CASE("ugm: the best sum of scores, unknown characters, and tokens with a role") {
	const std::vector<std::pair<std::string, float>> words = {{kMark, -4},  {"a", -3},         {"b", -3},  {"ab", -5},
	                                                          {"abc", -20}, {begins("a"), -6}, {"<x>", -9}};
	enum : uint32_t { kSpace = 3, kA, kB, kAb, kAbc, kSpaceA, kX };
	GgufBuilder b = ugm(words, {1, 1, 1, 1, 1, 1, 4});
	const Tokenizer t = make(b);
	CHECK(t.text_end());
	CHECK(!t.adds_bos());
	CHECK(t.eos() == 1u);
	CHECK(t.encode("ab", {.eos = true}) == Ids{kAb, 1});
	CHECK(t.encode("ab") == Ids{kAb});   // -5 before -3 - 3
	CHECK(t.encode("abc") == Ids{kAbc}); // -20 before -5 - 30
	CHECK(t.encode("cab") == Ids{2, kAb});
	CHECK(t.encode("a\xe4\xb8\xad"
	               "cc\xff"
	               "b") == Ids{kA, 2, kB}); // neighbours are one unknown token
	CHECK(t.encode("cacc") == Ids{2, kA, 2});
	CHECK(t.encode(" a  a ") == Ids{kSpaceA, kSpace, kSpaceA, kSpace});
	CHECK(t.encode("a<x>b") == Ids{kA, kX, kB});
	CHECK(t.encode("<unk></s>", {.special = true}) == Ids{2, 1});
	b.flag("tokenizer.ggml.add_space_prefix", true).flag("tokenizer.ggml.remove_extra_whitespaces", true);
	const Tokenizer s = make(b);
	CHECK(s.encode(" b  a ") == Ids{kSpace, kB, kSpaceA});
	CHECK(s.encode("   ") == Ids{});
	CHECK(s.encode("a<x> b") == Ids{kSpaceA, kX, kSpace, kB});
	CHECK(s.decode(s.encode(" b  a")) == "b a");
	b.flag("tokenizer.ggml.add_eos_token", false);
	CHECK(make(b).encode("a", {.eos = true}) == Ids{kSpaceA});
	b.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 2);
	b.flag("tokenizer.ggml.add_bos_token", true).flag("tokenizer.ggml.add_eos_token", true);
	CHECK(make(b).encode("a", {.eos = true}) == Ids{0, kSpaceA, 2});
	// the unknown token need not be named
	CHECK(make(ugm({{"a", -3}, {"?", 0}}, {1, 2})
	               .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {3, 3, 1, 1, 2}))
	          .encode("b") == Ids{4});
	// tokens of kind Unused are in no text, and the lowest id of equal texts counts
	CHECK(make(ugm({{"a", -3}, {"ab", -1}, {"b", -3}, {"a", -1}}, {1, 5, 1, 1})).encode("ab") == Ids{3, 5});
}

TEST_CASE("ugm: a text of bytes that the normalizer replaces") {
	// The root's children are at 0 xor their byte, so 'a' is at 97. It has a value, at 256: the text at 2. That of 'b'
	// is at 98 xor 512, which is stored in steps of 256: the text at 0.
	std::vector<uint32_t> units(1024);
	units['a'] = 'a' | 1u << 8 | (uint32_t('a') ^ 256) << 10;
	units[256] = 1u << 31 | 2;
	units['b'] = 'b' | 3u << 8 | 2u << 10;
	units['b' ^ 512] = 1u << 31;
	GgufBuilder b = ugm({{"a", -1}, {"x", -1}, {"y", -1}, {"z", -1}});
	charsmap(b, units, std::string("z\0xy\0", 5));
	CHECK(make(b).encode("a") == Ids{4, 5});
	CHECK(make(b).encode("xax") == Ids{4, 4, 5, 4});
	CHECK(make(b).encode("bx") == Ids{6, 4});
	// the same array, of signed bytes
	GgufBuilder s = b;
	for (auto& k : s.keys)
		if (k.name == "tokenizer.ggml.precompiled_charsmap") k.value[0] = char(GgufType::I8);
	CHECK(make(s).encode("a") == Ids{4, 5});
}

TEST_CASE("eos: only where it is asked for, also in vocabularies of chat models") {
	GgufBuilder b;
	add_spm(b, tiny_spm_tokens());
	CHECK(!make(b).text_end());
	CHECK(make(b).encode("", {.eos = true}) == Ids{1});
	CHECK(make(b.flag("tokenizer.ggml.add_eos_token", true)).encode("", {.eos = true}) == Ids{1, 2});
	CHECK(make(b).encode("") == Ids{1});
	std::vector<std::string> tokens;
	for (int i = 0; i < 256; ++i) tokens.push_back(byte_character(i));
	tokens.push_back("<|endoftext|>");
	GgufBuilder q;
	q.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2").texts("tokenizer.ggml.tokens", tokens);
	q.texts("tokenizer.ggml.merges", {}).flag("tokenizer.ggml.add_eos_token", true);
	CHECK(!make(q).text_end()); // no EOS is named
	q.u32("tokenizer.ggml.eos_token_id", 256);
	CHECK(make(q).text_end());
	CHECK(make(q).encode("a", {.eos = true}) == Ids{'a', 256});
	CHECK(make(q).encode("a") == Ids{'a'});
}

// ---- damaged files

TEST_CASE("T19: unigram vocabularies and normalizers that cannot be are refused") {
	const std::string key = "tokenizer.ggml.precompiled_charsmap";
	GgufBuilder b = ugm({{"a", -1}});
	has(refusal(b.text(key, "x")), "key " + key + " is no array of bytes");
	has(refusal(b.numbers<uint32_t>(key, GgufType::U32, {1})), "key " + key + " is no array of bytes");
	has(refusal(b.array(key, GgufType::U8, 3, "abc")), "has 3 bytes, expected 4 to");
	has(refusal(b.array(key, GgufType::U8, 4, "\xff\xff\xff\xff")), "has an array of 4294967295 bytes in 4");
	has(refusal(b.array(key, GgufType::U8, 6, std::string("\2\0\0\0\0\0", 6))), "has an array of 2 bytes in 6");
	has(refusal(charsmap(b, {0}, "abc")), "ends inside a text");
	has(refusal(charsmap(b, {0, 1u << 31 | 4}, std::string("abc\0", 4))), "unit 1 has a text at 4 of 4 bytes");
	has(refusal(charsmap(b, {0, 1u << 31}, "")), "unit 1 has a text at 0 of 0 bytes");
	has(refusal(charsmap(b, {1u << 31}, std::string(257, 'x') + '\0')), "unit 0 has a text of more than 256 bytes");
	CHECK(make(b.array(key, GgufType::U8, 0, "")).encode("a") == Ids{3});
	CHECK(make(charsmap(b, {}, "")).encode("a") == Ids{3});
	has(refusal(ugm({{"a", -1}, {std::string(513, 'x'), -1}})), "token 4, 'xxx");
	b = ugm({{"a", -1}});
	b.erase("tokenizer.ggml.scores");
	has(refusal(b), "key tokenizer.ggml.scores is missing");
	GgufBuilder none = ugm({{"a", -1}}, {1});
	none.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {1, 1, 1, 1});
	has(refusal(none), "no token is named EOS, with which texts end");
	none.flag("tokenizer.ggml.add_eos_token", false);
	CHECK_THROWS_WITH_AS(make(none).encode("z"), doctest::Contains("no token for 'z', and no unknown token"), Error);
}

TEST_CASE("T19: any damage to a normalizer gives ids or an error") {
	GgufBuilder b = copy_of("ugm.gguf");
	GgufBuilder::Key* map = nullptr;
	for (auto& k : b.keys)
		if (k.name == "tokenizer.ggml.precompiled_charsmap") map = &k;
	REQUIRE(map);
	const std::string good = map->value;
	const std::vector<std::string> texts = golden_texts();
	std::mt19937 rng(3);
	size_t accepted = 0;
	for (int i = 0; i < 60; ++i) {
		map->value = good;
		for (int n = 0; n < (i < 40 ? 2000 : 1); ++n) {
			const size_t at = 4 + 8 + 4 + rng() % ((good.size() - 16) / 4) * 4; // behind type, number and size
			const bool is_value = uint8_t(good[at + 3]) >= 128;
			const uint32_t unit = i < 40 ? rng() & 0x7fffffff : rng(); // without, with texts anywhere
			if (i >= 40 || !is_value) std::memcpy(map->value.data() + at, &unit, sizeof unit);
		}
		try {
			const Tokenizer t = make(b);
			for (size_t k = 0; k < texts.size(); k += 3)
				for (uint32_t id : t.encode(texts[k])) REQUIRE(id < t.vocab());
			++accepted;
		} catch (const Error& e) {
			CHECK(e.code == Code::Format);
			CHECK(std::string(e.what()).starts_with("test.gguf: key tokenizer.ggml.precompiled_charsmap"));
		}
	}
	CHECK(accepted >= 40);
	CHECK(accepted < 60);
}

// ---- time

TEST_CASE("T21: text encoders: four times the text takes four times as long") {
	GgufBuilder cycles = ugm({{"a", -1}, {"aa", -1.5f}});
	// every byte leads from the root to itself and on, for ever
	std::vector<uint32_t> units(256);
	for (uint32_t c = 1; c < 256; ++c) units[c] = c | c << 10;
	charsmap(cycles, units, "");
	std::vector<std::pair<std::string, float>> long_words;
	for (size_t n = 1; n <= 512; ++n) long_words.emplace_back(std::string(n, 'a'), -1.f / float(n));
	std::vector<std::pair<std::string, Tokenizer>> tokenizers;
	tokenizers.emplace_back("wpm", Tokenizer(Gguf::open(golden("wpm.gguf"))));
	tokenizers.emplace_back("ugm", Tokenizer(Gguf::open(golden("ugm.gguf"))));
	tokenizers.emplace_back("bytes", Tokenizer(Gguf::open(golden("ugm_bytes.gguf"))));
	tokenizers.emplace_back("cycles", make(cycles));
	tokenizers.emplace_back("long words", make(ugm(long_words)));
	std::mt19937 rng(1);
	const std::pair<const char*, std::function<std::string()>> kinds[] = {
	    {"a", [] { return "a"; }},
	    {"letters", [&] { return std::string(1, char('a' + rng() % 26)); }}, // one word of a megabyte
	    {"words", [&] { return std::string(1, rng() % 6 ? char('a' + rng() % 26) : ' '); }},
	    {"spaces", [] { return " "; }},
	    {"marks", [&] { return rng() % 2 ? "\xcc\x81" : "\xcc\x96"; }}, // combining marks of two classes
	    {"tone marks", [&] { return rng() % 2 ? "\xe3\x80\xae" : "\xf0\x9d\x85\xa5"; }}, // these are not dropped
	    {"ideographs",
	     [&] {
		     return std::string{'\xe5', char(0x80 + rng() % 64), char(0x80 + rng() % 64)};
	     }},
	    {"invalid", [] { return "\xff"; }}};
	for (const auto& [name, t] : tokenizers)
		for (const auto& kind : kinds) {
			std::string text;
			while (text.size() < (name == "long words" ? 1u << 18 : 1u << 20)) text += kind.second();
			const auto seconds = [&, &t = t](size_t bytes) {
				double best = 1e9;
				for (int i = 0; i < 3 && best > 0.2; ++i) {
					const double start = cpu_seconds();
					(void)t.encode(std::string_view(text).substr(0, bytes / 12 * 12));
					best = std::min(best, cpu_seconds() - start);
				}
				return best;
			};
			const double quarter = seconds(text.size() / 4), whole = seconds(text.size());
			const std::string shown =
			    fmt::format("{} on {}: {:.3f} s, a quarter of it {:.3f} s", name, kind.first, whole, quarter);
			CAPTURE(shown);
			if (std::getenv("KVRUN_TEST_TIMES")) MESSAGE(shown);
			CHECK(whole < 3 * 4 * quarter + 0.05); // with a quadratic step: 16 times
			CHECK(whole < 60);
		}
}

TEST_CASE("T21: a vocabulary of 250000 tokens opens in tenths of a second") {
	std::mt19937 rng(2);
	std::vector<std::pair<std::string, float>> words;
	std::vector<std::string> tokens;
	while (words.size() < 250'000) {
		std::string w = rng() % 2 ? kMark : "";
		for (size_t n = 2 + rng() % 8; n > 0; --n) w += char('a' + rng() % 26);
		words.emplace_back(w, -float(words.size()) * 1e-4f);
		tokens.push_back(w);
	}
	for (const GgufBuilder& b : {ugm(words), wpm(tokens)}) {
		const auto bytes = b.bytes();
		const double start = cpu_seconds();
		const Tokenizer t(Gguf::parse("test.gguf", bytes));
		const double s = cpu_seconds() - start;
		if (std::getenv("KVRUN_TEST_TIMES")) MESSAGE(std::string(t.model()), ": ", s, " s");
		CHECK(t.vocab() > 250'000);
		CHECK(s < 10); // two tenths on an idle machine
	}
}
