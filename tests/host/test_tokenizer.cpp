// Tokenizers with small test vocabularies: joins, special tokens, hostile vocabularies and texts.
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include "tests/support/cpu_time.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <random>

using namespace kvrun;

// ---- test vocabularies

namespace {

Tokenizer make(const GgufBuilder& b) {
	const auto bytes = b.bytes();
	return Tokenizer(Gguf::parse("test.gguf", bytes));
}
std::string refusal(const GgufBuilder& b) {
	return refusal_by([&] { make(b); });
}

constexpr uint32_t kFirst = 259; // of the words of tiny_spm_tokens(): ▁ a b ▁a ab ▁ab aa é
enum : uint32_t { kSpace = kFirst, kA, kB, kSpaceA, kAb, kSpaceAb, kAa, kEAcute };

GgufBuilder spm(std::vector<std::string> more = {}, std::vector<int32_t> more_kinds = {}) {
	GgufBuilder b;
	std::vector<std::string> tokens = tiny_spm_tokens();
	tokens.insert(tokens.end(), more.begin(), more.end());
	add_spm(b, tokens);
	if (!more_kinds.empty()) {
		std::vector<int32_t> kinds(tokens.size(), 1);
		for (size_t i = 0; i < 259; ++i) kinds[i] = i == 0 ? 2 : i < 3 ? 3 : 6;
		std::copy(more_kinds.begin(), more_kinds.end(), kinds.end() - std::ptrdiff_t(more_kinds.size()));
		b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	}
	return b;
}

// 256 single bytes, then the words, with merges "left right".
GgufBuilder bpe(const std::vector<std::string>& words, const std::vector<std::string>& merges,
                const std::vector<int32_t>& word_kinds = {}, const char* pre = "gpt-2") {
	GgufBuilder b;
	std::vector<std::string> tokens;
	for (int i = 0; i < 256; ++i) tokens.push_back(byte_character(i));
	tokens.insert(tokens.end(), words.begin(), words.end());
	std::vector<int32_t> kinds(tokens.size(), 1);
	std::copy(word_kinds.begin(), word_kinds.end(), kinds.begin() + 256);
	b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre).texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds).texts("tokenizer.ggml.merges", merges);
	return b;
}

using Ids = std::vector<uint32_t>;

} // namespace

TEST_CASE("spm: the pair of the highest score is joined first, from the left") {
	const Tokenizer t = make(spm());
	CHECK(t.encode("ab") == Ids{1, kSpaceAb});
	CHECK(t.encode("ab", {.bos = false}) == Ids{kSpaceAb});
	CHECK(t.encode("b", {.bos = false}) == Ids{kSpace, kB});
	CHECK(t.encode("aab", {.bos = false}) == Ids{kSpaceA, kAb}); // ▁a (-3) before ab (-4), aa (-6)
	CHECK(t.encode("baaa", {.bos = false}) == Ids{kSpace, kB, kAa, kA});
	CHECK(t.encode("a a", {.bos = false}) == Ids{kSpaceA, kSpaceA});
	CHECK(t.encode("  a", {.bos = false}) == Ids{kSpace, kSpace, kSpaceA});
	CHECK(t.encode("é", {.bos = false}) == Ids{kSpace, kEAcute});
	CHECK(t.encode("ü", {.bos = false}) == Ids{kSpace, 3 + 0xc3, 3 + 0xbc}); // byte fallback
	CHECK(t.encode("", {.bos = false}) == Ids{});
	CHECK(t.encode("") == Ids{1});
	CHECK(t.bos() == 1u);
	CHECK(t.eos() == 2u);
	CHECK(t.adds_bos());
	CHECK(t.is_end(2));
	CHECK(!t.is_end(1));
	GgufBuilder b = spm();
	b.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
	CHECK(make(b).encode("ab a") == Ids{kAb, kSpaceA});
	CHECK(make(b).decode(Ids{kSpaceA}) == " a");
	CHECK(t.decode(Ids{kSpaceA}) == "a");
	CHECK(t.decode(Ids{1, kSpaceA, kSpaceA}) == "a a");
	CHECK(t.decode_one(1u, kSpaceA) == "a");
	CHECK(t.decode_one(kB, kSpaceA) == " a");
	CHECK(t.decode_one(std::nullopt, kSpaceA) == "a");
}

TEST_CASE("gemma4: merges apply in the order of their list, to characters; spaces are marks, the rest bytes") {
	const auto with = [](const std::vector<std::string>& merges) {
		GgufBuilder b = spm({"\n", "\n\n", "<turn|>"}, {1, 1, 4});
		b.text("tokenizer.ggml.model", "gemma4").erase("tokenizer.ggml.scores").texts("tokenizer.ggml.merges", merges);
		return b.flag("tokenizer.ggml.add_space_prefix", false).u32("tokenizer.ggml.bos_token_id", 1);
	};
	constexpr uint32_t kLine = kEAcute + 1, kLines = kLine + 1, kTurn = kLines + 1, kByte = 3;
	const Tokenizer t = make(with({"a b", "\xe2\x96\x81 a", "a a", "\n \n"}));
	CHECK(std::string(t.model()) == "spm");
	CHECK(t.encode("ab", {.bos = true}) == Ids{1, kAb});
	CHECK(make(with({"a b"}).flag("tokenizer.ggml.add_bos_token", false)).encode("ab") == Ids{1, kAb}); // older files
	CHECK(t.encode(" ab a", {.bos = false}) == Ids{kSpace, kAb, kSpaceA});
	CHECK(t.encode("aab", {.bos = false}) == Ids{kA, kAb});
	CHECK(t.encode("aaa", {.bos = false}) == Ids{kAa, kA});
	CHECK(t.encode("a\n\n\nb", {.bos = false}) == Ids{kA, kLines, kLine, kB});
	CHECK(t.encode("\xc3\xa9z\xff", {.bos = false}) == Ids{kEAcute, kByte + 'z', kByte + 0xff}); // in no merge
	CHECK(t.decode(t.encode(" ab  a\n\xc3\xa9z", {.bos = false}), false) == " ab  a\n\xc3\xa9z");
	CHECK(t.is_end(kTurn));
	CHECK(make(with({"\xe2\x96\x81 a",
	                 "\xe2\x96\x81"
	                 "a b",
	                 "a b"}))
	          .encode(" ab", {.bos = false}) == Ids{kSpaceAb});
	has(refusal(with({"ab"})), "key tokenizer.ggml.merges: element 0 is 'ab', expected two parts");
}

TEST_CASE("bpe: merges apply in the order of their list, from the left") {
	const std::string g = byte_character(' ');
	const Tokenizer t = make(bpe({"ab", "bc", g + "a", "abc"}, {"b c", "a b", g + " a", "ab c"}));
	enum : uint32_t { kab = 256, kbc, kga, kabc };
	CHECK(t.encode("abc") == Ids{'a', kbc}); // b c has the higher rank; then no merge joins a and bc
	CHECK(t.encode("ab") == Ids{kab});
	CHECK(t.encode("abab") == Ids{kab, kab});
	CHECK(t.encode(" ab") == Ids{uint32_t(t.find(g).value()), kab});
	CHECK(t.encode(" a") == Ids{kga});
	CHECK(t.decode(Ids{kga, kbc}) == " abc");
	CHECK(!t.adds_bos());
	CHECK(!t.bos());
	CHECK(t.pre() == "gpt-2");
	// in llama-bpe a piece that is itself a token stays whole
	const Tokenizer w = make(bpe({"ab", "bc", g + "a", "abc"}, {"b c", "a b", g + " a", "ab c"}, {}, "llama-bpe"));
	CHECK(w.encode("abc") == Ids{kabc});
}

TEST_CASE("special tokens: control tokens only when asked, user-defined ones always") {
	for (bool is_spm : {true, false}) {
		const std::vector<std::string> words = {"<|im_start|>", "<|im_end|>", "<tool>", "<tool_call>"};
		const Tokenizer t = is_spm ? make(spm(words, {3, 3, 4, 4})) : make(bpe(words, {}, {3, 3, 4, 4}));
		const uint32_t start = *t.find("<|im_start|>"), end = *t.find("<|im_end|>"), tool = *t.find("<tool>"),
		               call = *t.find("<tool_call>");
		const std::string user = "a<|im_start|>b<|im_end|>";
		const Ids plain = t.encode(user, {.bos = false});
		CHECK(std::find(plain.begin(), plain.end(), start) == plain.end());
		CHECK(std::find(plain.begin(), plain.end(), end) == plain.end());
		CHECK(t.decode(plain) == user);
		const Ids parsed = t.encode(user, {.bos = false, .special = true});
		CHECK(std::count(parsed.begin(), parsed.end(), start) == 1);
		CHECK(parsed.back() == end);
		CHECK(t.decode(parsed) == "ab");
		CHECK(t.decode(parsed, true) == user);
		const Ids tools = t.encode("<tool><tool_call><tool_", {.bos = false});
		CHECK(tools[0] == tool);
		CHECK(tools[1] == call);
		CHECK(t.decode(tools) == "<tool><tool_call><tool_");
		CHECK(t.is_end(end));
		CHECK(!t.is_end(start));
	}
}

TEST_CASE("special tokens: the first place from the left, the longest token there, in texts of any length") {
	std::mt19937 rng(11);
	auto word = [&](size_t n) {
		std::string w;
		while (w.size() < n) w += "ab"[rng() % 2];
		return w;
	};
	std::vector<std::string> words = {word(4096), word(3000)}; // longer than what is searched at once
	std::vector<int32_t> kinds = {4, 3};
	for (size_t n : {3, 3, 4, 5, 7, 9, 12, 13, 17}) {
		words.push_back(word(n));
		kinds.push_back(n % 2 ? 3 : 4);
	}
	words.push_back(words.back().substr(3)); // a suffix, and a text that exists already
	words.push_back(words.back());
	kinds.insert(kinds.end(), {3, 4});
	const Tokenizer t = make(bpe(words, {}, kinds));
	for (bool control : {false, true}) {
		std::string text;
		while (text.size() < 300'000) text += rng() % 1000 ? word(rng() % 20) : words[rng() % 2];
		for (size_t edge : {65536, 131072}) text.replace(edge - 2000, 4096, words[0]);
		Ids want;
		for (size_t at = 0; at < text.size();) {
			size_t best = words.size();
			for (size_t i = 0; i < words.size(); ++i)
				if ((control || kinds[i] == 4) && i + 1 != words.size() &&
				    text.compare(at, words[i].size(), words[i]) == 0 &&
				    (best == words.size() || words[i].size() > words[best].size()))
					best = i;
			want.push_back(best == words.size() ? uint32_t(text[at]) : 256 + uint32_t(best));
			at += best == words.size() ? 1 : words[best].size();
		}
		CHECK(std::count(want.begin(), want.end(), 256u) > 2);
		const bool same = t.encode(text, {.special = control}) == want;
		CHECK(same);
	}
}

TEST_CASE("special tokens: of a control token and a user-defined one at the same place the longer one") {
	const Tokenizer t = make(bpe({"<a>", "<a><b>", "<c>", "<c><d>"}, {}, {4, 3, 3, 4})); // 3: control, 4: user-defined
	CHECK(t.encode("<a><b>", {.special = true}) == Ids{257});
	CHECK(t.encode("<a><b>", {.special = false}).front() == 256);
	CHECK(t.encode("<c><d>", {.special = true}) == Ids{259});
	CHECK(t.encode("<c><d>", {.special = false}) == Ids{259});
}

TEST_CASE("special tokens: an end-of-turn marker listed as a word is a control token all the same") {
	const Tokenizer t = make(spm({"<|im_end|>", "<|eot_id|>"}, {1, 4}));
	const uint32_t end = *t.find("<|im_end|>");
	CHECK(t.kind(end) == TokenKind::Control);
	CHECK(t.end_ids() == Ids{2, end, *t.find("<|eot_id|>")});
	for (uint32_t id : t.encode("<|im_end|><|eot_id|>")) CHECK(id < kFirst + 8);
	const Tokenizer phi = make(spm({"<|end|>", "<|call|>"}, {3, 3}));
	CHECK(phi.is_end(*phi.find("<|end|>")));
	GgufBuilder gpt_oss = spm({"<|end|>", "<|call|>", "<|return|>"}, {3, 3, 3}); // a message is not an answer
	gpt_oss.u32("tokenizer.ggml.eot_token_id", kFirst + 8);
	const Tokenizer harmony = make(gpt_oss);
	CHECK(harmony.end_ids() == Ids{2, *harmony.find("<|call|>"), *harmony.find("<|return|>")});
	CHECK(harmony.kind(*harmony.find("<|end|>")) == TokenKind::Control);
	const Tokenizer solar = make(spm({"<|end|>", "<|calls|>", "<|flush|>"}, {3, 3, 3}));
	CHECK(solar.end_ids() == Ids{2, *solar.find("<|calls|>"), *solar.find("<|flush|>")});
	GgufBuilder b = spm();
	b.u32("tokenizer.ggml.eot_token_id", kA).u32("tokenizer.ggml.eom_token_id", kB);
	CHECK(make(b).end_ids() == Ids{2, kA, kB});
	b = spm();
	b.u32("tokenizer.ggml.eos_token_id", kA); // of a model that was trained further: </s> ends its answers, too
	CHECK(make(b).end_ids() == Ids{2, kA});
	b = spm({"<|tool_response>"}, {3});
	b.u32("tokenizer.ggml.eos_token_id", kA);
	CHECK(make(b).end_ids() == Ids{kA, *make(b).find("<|tool_response>")});
	const Tokenizer markup = make(spm({"<eos>"}, {1}));
	CHECK(!markup.is_end(*markup.find("<eos>")));
}

TEST_CASE("special tokens: those that a file says are never chosen") {
	CHECK(make(spm()).suppressed().empty());
	GgufBuilder b = spm();
	const auto never = [&](const std::vector<int32_t>& ids) {
		b.numbers("tokenizer.ggml.suppress_tokens", GgufType::I32, ids);
	};
	never({int32_t(kB), int32_t(kA), 1 << 30, -1});
	const Tokenizer t = make(b);
	CHECK(std::ranges::equal(t.suppressed(), Ids{kB, kA}));
	never(std::vector<int32_t>(1025, 1));
	has(refusal(b), "suppress_tokens has 1025 tokens, at most 1024 are accepted");
}

TEST_CASE("special tokens: user text cannot be joined into a control or byte token") {
	// every prefix of "<s>" is a token, so joining could produce it
	const Tokenizer t = make(spm({"<", "<s", ">", "s", "<0", "<0x", "<0x4", "<0x41", "<0x41>x"}));
	for (const char* text : {"<s>", "a<s>b", "<0x41>", "<unk>", "</s>"}) {
		const Ids ids = t.encode(text, {.bos = false});
		CHECK(t.decode(ids) == text);
		for (uint32_t id : ids) CHECK(t.kind(id) != TokenKind::Control);
		CHECK(std::find(ids.begin(), ids.end(), 3u + 0x41) == ids.end());
	}
}

TEST_CASE("special tokens: phi3 markers take the white space behind them") {
	GgufBuilder b = spm({"<|end|>", "<|user|>"}, {3, 3});
	b.text("general.architecture", "phi3");
	const Tokenizer phi = make(b), other = make(spm({"<|end|>", "<|user|>"}, {3, 3}));
	const uint32_t end = *phi.find("<|end|>"), user = *phi.find("<|user|>");
	CHECK(phi.encode("<|user|>\nab<|end|>\n", {.bos = false, .special = true}) == Ids{user, kSpaceAb, end});
	CHECK(other.encode("<|user|>\nab<|end|>", {.bos = false, .special = true}) ==
	      Ids{user, kSpace, 3 + '\n', kAb, end});
}

TEST_CASE("T19: vocabularies that cannot be are refused") {
	GgufBuilder b = spm();
	b.texts("tokenizer.ggml.tokens", {});
	has(refusal(b), "has 0 tokens");
	b = spm();
	b.numbers<float>("tokenizer.ggml.scores", GgufType::F32, {1, 2, 3});
	has(refusal(b), "tokenizer.ggml.scores has 3 elements, there are 267 tokens");
	b = spm();
	b.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {1, 2, 3});
	has(refusal(b), "tokenizer.ggml.token_type has 3 elements, there are 267 tokens");
	for (float bad : {NAN, INFINITY, -INFINITY}) {
		std::vector<float> scores(267);
		scores[kA] = bad;
		b = spm();
		b.numbers("tokenizer.ggml.scores", GgufType::F32, scores);
		has(refusal(b), fmt::format("token {} has score", uint32_t(kA)));
	}
	for (int32_t bad : {-1, 7, INT32_MAX, INT32_MIN}) {
		std::vector<int32_t> kinds(267, 1);
		kinds[kA] = bad;
		b = spm();
		b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
		has(refusal(b), fmt::format("token {} has type {}", uint32_t(kA), bad));
	}
	for (const char* bad : {"<0x-1>", "<0x1>", "<0x001>", "<0xGG>", "<0x 1>", "", "<0X41>", "<0x41", "0x41"}) {
		has(refusal(spm({bad}, {6})), fmt::format("byte token 267 is '{}', expected <0x00> to <0xFF>", bad));
	}
	for (const char* bad : {"ab", "", " ", "a ", "  "})
		has(refusal(bpe({}, {bad})), fmt::format("element 0 is '{}', expected two parts", bad));
	b = spm();
	b.text("tokenizer.ggml.model", "wavtokenizer");
	has(refusal(b),
	    "tokenizer is wavtokenizer; kvrun knows llama (SentencePiece-style), gemma4 (the same with merges), "
	    "gpt2 (byte-level BPE), bert (WordPiece), t5 (unigrams), plamo2 (PLaMo's) and rwkv (the longest token)");
	b = bpe({}, {});
	b.text("tokenizer.ggml.pre", "no-such");
	has(refusal(b), "pre-tokenizer is no-such; kvrun knows default gpt-2 mpt");
	b.erase("tokenizer.ggml.merges").text("tokenizer.ggml.pre", "gpt-2");
	has(refusal(b), "key tokenizer.ggml.merges is missing");
	has(refusal(spm(std::vector<std::string>(5000, std::string(4000, 'x')))), "bytes of text, at most");
	std::vector<std::string> controls;
	for (int i = 0; i < 300; ++i) controls.push_back(std::string(4000, 'x') + std::to_string(i));
	has(refusal(spm(controls, std::vector<int32_t>(300, 3))), "control and user-defined tokens have more than");
	for (int32_t kind : {1, 3, 4})
		has(refusal(spm({"ok", "long\n" + std::string(4092, 'x')}, {1, kind})),
		    "token 268, 'long\\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...', has 4097 bytes, at most 4096 are accepted");
}

TEST_CASE("T19: what is repaired: equal texts, empty texts, odd bytes, merges of unknown tokens") {
	const Tokenizer twice = make(spm({"ab", "", std::string("a\0b", 3), "\xff\xfe", "\xc3"}, {1, 1, 1, 1, 1}));
	CHECK(twice.encode("ab", {.bos = false}) == Ids{kSpaceAb});
	CHECK(twice.decode(Ids{267, 268}) == "ab");
	for (const std::string& text : {std::string("a\0b", 3), std::string("\xff\xfe\xc3"), std::string("é\xc3\xa9\xc3")})
		CHECK(twice.decode(twice.encode(text)) == text);
	// x y is an intermediate step to xyz, but not a token
	const Tokenizer step = make(bpe({"xyz"}, {"x y", "xy z", "no such"}));
	CHECK(step.encode("xyz") == Ids{256});
	CHECK(step.encode("xy") == Ids{'x', 'y'});
	CHECK(step.decode(step.encode("xy")) == "xy");
	// characters that do not stand for bytes are decoded as themselves
	CHECK(make(bpe({"<｜x｜>", "日"}, {}, {3, 1})).decode(Ids{257}) == "日");
}

TEST_CASE("T19: text without a token is an error that names the byte, or the unknown token") {
	GgufBuilder b;
	add_spm(b, {"<unk>", "<s>", "</s>", "a"});
	b.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {2, 3, 3, 1})
	    .flag("tokenizer.ggml.add_space_prefix", false);
	CHECK(make(b).encode("ab", {.bos = false}) == Ids{3, 0});
	b.numbers<int32_t>("tokenizer.ggml.token_type", GgufType::I32, {1, 3, 3, 1})
	    .erase("tokenizer.ggml.unknown_token_id");
	CHECK_THROWS_WITH_AS(make(b).encode("ab"), doctest::Contains("no token for byte 0x62"), Error);
	GgufBuilder few;
	few.text("tokenizer.ggml.model", "gpt2")
	    .text("tokenizer.ggml.pre", "gpt-2")
	    .texts("tokenizer.ggml.tokens", {"a"})
	    .texts("tokenizer.ggml.merges", {});
	CHECK(make(few).encode("aa") == Ids{0, 0});
	CHECK_THROWS_WITH_AS(make(few).encode("ab"), doctest::Contains("no token for byte 0x62"), Error);
}

TEST_CASE("T20: ids of special tokens outside the vocabulary are ignored") {
	// as llama.cpp does: its converter of early models wrote -1 for some
	for (const char* key : {"bos", "eos", "eot", "eom", "unknown", "seperator"})
		for (uint32_t bad : {267u, 268u, 0x80000000u, UINT32_MAX}) {
			GgufBuilder b = spm();
			const Ids want = make(b).encode("a b", {.bos = false});
			b.u32(fmt::format("tokenizer.ggml.{}_token_id", key), bad);
			CHECK(make(b).encode("a b", {.bos = false}) == want);
			CHECK(!make(b).is_end(bad));
		}
	GgufBuilder b = bpe({}, {});
	b.flag("tokenizer.ggml.add_bos_token", true);
	has(refusal(b), "add_bos_token is set, but no BOS token is named");
	const Tokenizer t = make(spm());
	for (uint32_t bad : {267u, UINT32_MAX}) {
		CHECK_THROWS_AS(t.decode(Ids{bad}), Error);
		CHECK_THROWS_AS(t.decode_one(bad, 1), Error);
		CHECK_THROWS_AS(t.text(bad), Error);
		CHECK(!t.is_end(bad));
	}
}

TEST_CASE("T21: ten megabytes of one character, of spaces, of patterns that invite backtracking: linear time") {
	const size_t n = 10 << 20, few = 1 << 20;
	std::string mixed, cased;
	while (mixed.size() < few) mixed += "  \n \t";
	while (cased.size() < few) cased += "AAAAa'";
	const std::vector<std::pair<const char*, std::string>> texts = {{"a", std::string(n, 'a')},
	                                                                {"spaces", std::string(few, ' ')},
	                                                                {"newlines", std::string(few, '\n')},
	                                                                {"digits", std::string(few, '7')},
	                                                                {"upper", std::string(few, 'A')},
	                                                                {"signs", std::string(few, '!')},
	                                                                {"invalid", std::string(few, '\xff')},
	                                                                {"mixed", mixed},
	                                                                {"cased", cased}};
	std::vector<std::pair<std::string, Tokenizer>> tokenizers;
	tokenizers.emplace_back("spm", make(spm({"aaaa", "aaaaaaaa"})));
	for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "default", "gpt-4o"})
		tokenizers.emplace_back(pre, make(bpe({"aa", "aaaa"}, {"a a", "aa aa"}, {}, pre)));
	for (const auto& [name, t] : tokenizers)
		for (const auto& [what, text] : texts) {
			const double start = cpu_seconds();
			const Ids ids = t.encode(text, {.bos = false});
			const double s = cpu_seconds() - start;
			const std::string shown = fmt::format("{} on {}: {} s, {} ids", name, what, s, ids.size());
			CAPTURE(shown);
			CHECK(s < 60); // a quadratic step would take days
			if (what == std::string("a") || what == std::string("mixed")) CHECK(t.decode(ids) == text);
		}
	CHECK_THROWS_WITH_AS(tokenizers[0].second.encode(std::string(Tokenizer::kMaxText + 1, 'a')),
	                     doctest::Contains("can be encoded at once"), Error);
}

TEST_CASE("T21: one megabyte through real vocabularies takes four times as long as a quarter of it") {
	for (const char* name : {"gpt-2", "deepseek-coder", "llama-spm"}) {
		const std::string path = shared_asset("vocab/ggml-vocab-" + std::string(name) + ".gguf");
		if (path.empty()) continue;
		const Tokenizer t(Gguf::open(path));
		std::mt19937 random(1);
		const auto letter = [&] { return char('a' + random() % 26); };
		const std::pair<const char*, std::function<std::string()>> kinds[] = {
		    {"a", [] { return "a"; }},
		    {"spaces", [] { return " "; }},
		    {"signs", [] { return "="; }},
		    {"letters", [&] { return std::string(1, letter()); }}, // one word of a megabyte
		    {"cases",
		     [&] {
			     return std::string{letter(), char(letter() - 32)};
		     }},
		    {"ideographs",
		     [&] {
			     return std::string{'\xe5', char(0x80 + random() % 64), char(0x80 + random() % 64)};
		     }},
		    {"joined tokens", [&] { // tokens that begin and end without a space
			     std::string out;
			     for (const char c : t.decode_one({}, uint32_t(random() % t.vocab())))
				     if (c >= 'a' && c <= 'z') out += c;
			     return out;
		     }}};
		for (const auto& kind : kinds) {
			const size_t n = 1 << 20;
			std::string text;
			while (text.size() < n) text += kind.second();
			const auto seconds = [&](size_t bytes) {
				double best = 1e9;
				for (int i = 0; i < 3; ++i) {
					const double start = cpu_seconds();
					(void)t.encode(std::string_view(text).substr(0, bytes / 3 * 3), {.bos = false});
					best = std::min(best, cpu_seconds() - start);
				}
				return best;
			};
			const double quarter = seconds(n / 4), whole = seconds(n);
			const std::string shown =
			    fmt::format("{} on {}: {:.3f} s, a quarter of it {:.3f} s", name, kind.first, whole, quarter);
			CAPTURE(shown);
			CHECK(whole < 3 * 4 * quarter); // with a quadratic step: 16 times
		}
	}
}

TEST_CASE("T21: a vocabulary of a million tokens opens in seconds") {
	std::vector<std::string> words, merges;
	for (int i = 0; i < 1'000'000; ++i) words.push_back(fmt::format("{:x}", i + 0x100000)); // as long as real tokens
	for (size_t i = 0; i < 500'000; ++i) merges.push_back(words[i].substr(0, 3) + " " + words[i].substr(3));
	for (bool is_spm : {true, false}) {
		const auto bytes = (is_spm ? spm(words) : bpe(words, merges)).bytes();
		const double start = cpu_seconds();
		const Tokenizer t(Gguf::parse("test.gguf", bytes));
		const double s = cpu_seconds() - start;
		INFO(t.model(), ": ", s, " s");
		CHECK(t.vocab() > 1'000'000);
		CHECK(s < 60); // a few tenths on an idle machine
	}
}

TEST_CASE("T22: any bytes come back: invalid UTF-8, overlong forms, surrogates, NUL, all 256 bytes, random ones") {
	std::vector<std::string> texts = {"\xc0\xaf",
	                                  "\xe0\x80\xaf",
	                                  "\xed\xa0\x80\xed\xb0\x80",
	                                  "\xf4\x8f\xbf\xbf",
	                                  "\xf4\x90\x80\x80",
	                                  "\xf8\x88\x80\x80\x80",
	                                  std::string("\0", 1),
	                                  std::string("a\0\0b", 4),
	                                  "e\xcc\x81\xcc\x82",
	                                  "\xef\xbb\xbf"
	                                  "bom",
	                                  "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9",
	                                  " ",
	                                  "  ",
	                                  " a",
	                                  "a ",
	                                  "\n",
	                                  "\r\n",
	                                  "\xe2\x96",
	                                  "\xe2\x96 ",
	                                  "\xe2",
	                                  "\xf0\x9f\x98"};
	std::string every, reverse;
	for (int i = 0; i < 256; ++i) every += char(i);
	for (int i = 255; i >= 0; --i) reverse += char(i);
	texts.push_back(every);
	texts.push_back(reverse);
	std::mt19937 rng(22);
	for (int i = 0; i < 400; ++i) {
		std::string t(rng() % 60, '\0');
		const int kind = int(rng() % 4); // bytes; few bytes; letters and spaces; lead and continuation bytes
		for (char& c : t)
			c = kind == 0   ? char(rng())
			    : kind == 1 ? "ab \xc3\xa9\xe2\x82\xac"[rng() % 8]
			    : kind == 2 ? "aab  \n<s>'1"[rng() % 11]
			                : char(0x80 | rng() % 128);
		if (t.find("\xe2\x96\x81") == t.npos) texts.push_back(t); // in a SentencePiece vocabulary that is a space
	}
	std::vector<Tokenizer> tokenizers;
	tokenizers.push_back(make(spm({"<tool>", "aab", "\xe2\x96\x81\xe2\x96\x81"}, {4, 1, 1})));
	for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "default", "smollm", "tekken", "gpt-4o"})
		tokenizers.push_back(make(bpe({"ab", "<tool>"}, {"a b"}, {1, 4}, pre)));
	for (const char* name : {"llama-spm", "gpt-2", "deepseek-coder"}) {
		const std::string path = shared_asset(fmt::format("vocab/ggml-vocab-{}.gguf", name));
		if (!path.empty()) tokenizers.emplace_back(Gguf::open(path));
	}
	for (const Tokenizer& t : tokenizers)
		for (const std::string& text : texts) {
			INFO(t.model(), " ", std::string(t.pre()), ": ", text);
			// deepseek-coder has no tokens for the 13 bytes that never occur in UTF-8
			const bool lacking = t.vocab() == 32256 && std::any_of(text.begin(), text.end(), [](char c) {
				                     return uint8_t(c) == 0xc0 || uint8_t(c) == 0xc1 || uint8_t(c) > 0xf4;
			                     });
			if (lacking) {
				CHECK_THROWS_WITH_AS(t.encode(text), doctest::Contains("has no token for byte 0x"), Error);
				continue;
			}
			const Ids ids = t.encode(text);
			for (uint32_t id : ids) REQUIRE(id < t.vocab());
			const bool same = t.decode(ids) == text;
			CHECK(same);
			const Ids special = t.encode(text, {.bos = false, .special = true});
			const bool same_special = t.decode(special, true) == text;
			CHECK(same_special);
		}
}

TEST_CASE("T59 utf8 stream: characters come out whole, broken bytes come out at once") {
	Utf8Stream s;
	CHECK(s.push("a") == "a");
	CHECK(s.push("\xe2") == "");
	CHECK(s.push("\x82") == "");
	CHECK(s.push("\xac!") == "\xe2\x82\xac!");
	CHECK(s.push("x\xf0\x9f") == "x");
	CHECK(s.push("\x98\x80") == "\xf0\x9f\x98\x80");
	CHECK(s.push("\xff") == "\xff");
	CHECK(s.push("\x80\x80") == "\x80\x80"); // without a lead byte
	CHECK(s.push("\xc0") == "\xc0");         // never a lead
	CHECK(s.push("\xe0\x80") == "\xe0\x80"); // overlong: no third byte makes it valid
	CHECK(s.push("\xed\xa0") == "\xed\xa0"); // surrogate
	CHECK(s.push("\xf4\x90") == "\xf4\x90"); // beyond U+10FFFF
	CHECK(s.push("\xe2\x82") == "");
	CHECK(s.push("a") == "\xe2\x82"
	                     "a"); // never completed
	CHECK(s.push("\xf0\x9f\x98") == "");
	CHECK(s.finish() == "\xf0\x9f\x98");
	CHECK(s.finish() == "");
	std::mt19937 rng(5); // any cut gives the same bytes, and all pieces but invalid ones are whole
	const std::string text = "naïve 日本語 😀 \xff\xe2\x82 ½";
	for (int i = 0; i < 200; ++i) {
		Utf8Stream cut;
		std::string out;
		for (size_t at = 0; at < text.size();) {
			const size_t n = 1 + rng() % 4;
			const std::string piece = cut.push(text.substr(at, n));
			CHECK((piece.empty() || (uint8_t(piece[0]) & 0xc0) != 0x80));
			out += piece;
			at += n;
		}
		CHECK(out + cut.finish() == text);
	}
}

TEST_CASE("tokenizer: real vocabularies know their special tokens") {
	const std::string path = shared_asset("vocab/ggml-vocab-deepseek-coder.gguf");
	if (!path.empty()) {
		const Tokenizer t(Gguf::open(path));
		CHECK(t.adds_bos());
		CHECK(t.bos() == 32013u);
		CHECK(t.is_end(32014));
		CHECK(t.encode("x")[0] == 32013);
		CHECK(std::string(t.model()) == "bpe");
	}
	const std::string gpt2 = shared_asset("vocab/ggml-vocab-gpt-2.gguf");
	if (!gpt2.empty()) {
		const Tokenizer t(Gguf::open(gpt2));
		CHECK(!t.adds_bos());
		CHECK(t.encode("<|endoftext|>", {.special = true}) == Ids{50256});
		CHECK(t.encode("<|endoftext|>").size() > 3);
	}
}
