// Pre-tokenizers and whole vocabularies: every reference vector, llama.cpp's ids of unusual texts, manual cases.
#include "engine/core/utf8.h"
#include "models/pre_patterns.h"
#include "models/pretokenize.h"
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include "tests/support/cpu_time.h"
#include "tests/support/gguf_builder.h"
#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <map>
#include <random>
#include <sstream>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

using namespace kvrun;

namespace {

// The texts of an .inp file, between lines `__ggml_vocab_test__`, and the ids of each, a line per text.
struct Vectors {
	std::vector<std::string> texts;
	std::vector<std::vector<uint32_t>> ids;
};
Vectors read_vectors(const std::string& inp_path, const std::string& out_path) {
	Vectors v;
	std::string inp = file_text(inp_path);
	const std::string mark = "\n__ggml_vocab_test__\n";
	for (size_t at; (at = inp.find(mark)) != inp.npos; inp.erase(0, at + mark.size()))
		v.texts.push_back(inp.substr(0, at));
	std::istringstream out(file_text(out_path));
	for (std::string line; std::getline(out, line);) {
		std::istringstream numbers(line);
		v.ids.emplace_back();
		for (uint32_t id; numbers >> id;) v.ids.back().push_back(id);
	}
	if (v.ids.size() == v.texts.size() + 1) v.texts.push_back(inp); // no line behind the last text
	return v;
}

void check_vectors(const Tokenizer& tokenizer, const Vectors& v) {
	REQUIRE(v.texts.size() == v.ids.size());
	for (size_t i = 0; i < v.texts.size(); ++i) {
		CAPTURE(v.texts[i]);
		const auto ids = tokenizer.encode(v.texts[i], {.bos = false});
		CHECK(ids == v.ids[i]);
		CHECK(tokenizer.decode(ids) == v.texts[i]);
	}
}

} // namespace

TEST_CASE("tokenizer: every reference vector, exactly, and back") {
	const std::string folder = shared_asset("vocab");
	if (folder.empty()) return;
	size_t n = 0; // more with the vocabularies of llama.cpp's sources, in a folder that KVRUN_SHARED names
	for (const auto& e : std::filesystem::directory_iterator(folder)) {
		const std::string path = e.path().string();
		if (e.path().extension() != ".gguf" || !std::filesystem::exists(path + ".out")) continue;
		CAPTURE(path);
		const Gguf g = Gguf::open(path);
		if (g.text("tokenizer.ggml.model") == "bert") continue;
		const Tokenizer tokenizer(g);
		const Vectors v = read_vectors(path + ".inp", path + ".out");
		REQUIRE(v.texts.size() > 30);
		check_vectors(tokenizer, v);
		++n;
	}
	CHECK(n >= 3);
}

namespace {

const std::string kTokenize = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tokenize/";

// The pre-tokenizers with expectations, by the first name of their patterns.
std::vector<std::string> pre_names() {
	std::vector<std::string> out;
	for (const auto& e : std::filesystem::directory_iterator(kTokenize))
		if (e.path().extension() == ".out") out.push_back(e.path().stem().string());
	std::sort(out.begin(), out.end());
	return out;
}

} // namespace

// A vocabulary under the name of another pre-tokenizer, made by tools/dev/make_peer_tokens.sh for llama.cpp.
TEST_CASE("tokenizer: every pre-tokenizer gives the ids of llama.cpp") {
	// Texts on which llama.cpp differs from the models' own patterns: words are cut where case changes, and digits
	// before a letter are counted from the left.
	const std::map<std::string, std::vector<size_t>> on_purpose = {
	    {"kimi-k2", {50}}, {"tiny_aya", {32, 45, 50, 89, 90}}, {"youtu", {50}}};
	const std::string path = shared_asset("vocab/ggml-vocab-gpt-2.gguf");
	if (path.empty()) return;
	const std::string file = file_text(path), key = "tokenizer.ggml.pre";
	const size_t at = file.find(key) + key.size(); // u32 type, u64 length, text
	for (const std::string& name : pre_names()) {
		CAPTURE(name);
		const uint64_t length = name.size();
		std::string renamed = file.substr(0, at + 4);
		renamed.append(reinterpret_cast<const char*>(&length), 8);
		renamed += name + file.substr(at + 12 + std::strlen("gpt-2"));
		const Tokenizer tokenizer(Gguf::parse("test.gguf", std::as_bytes(std::span(renamed))));
		CHECK(tokenizer.pre() == name);
		const Vectors v = read_vectors(kTokenize + "texts.inp", kTokenize + name + ".out");
		REQUIRE(v.texts.size() == 112);
		REQUIRE(v.ids.size() == v.texts.size());
		std::vector<size_t> different;
		for (size_t i = 0; i < v.texts.size(); ++i) {
			const auto ids = tokenizer.encode(v.texts[i], {.bos = false});
			if (ids != v.ids[i]) different.push_back(i);
			CHECK(tokenizer.decode(ids) == v.texts[i]);
		}
		CAPTURE(fmt::format("texts {}", fmt::join(different, " ")));
		CHECK(different == (on_purpose.contains(name) ? on_purpose.at(name) : std::vector<size_t>()));
	}
}

// Llama's vocabulary as changed by make_peer_tokens.sh: without a leading space, with user-defined tokens like Gemma's.
TEST_CASE("tokenizer: SentencePiece vocabularies with the options of other models give the ids of llama.cpp") {
	const std::string path = shared_asset("vocab/ggml-vocab-llama-spm.gguf");
	if (path.empty()) return;
	const Gguf g = Gguf::open(path);
	for (const std::string name : {"plain", "bare", "gemma"}) {
		CAPTURE(name);
		std::vector<std::string> texts;
		for (std::string_view t : g.texts("tokenizer.ggml.tokens")) texts.emplace_back(t);
		std::vector<float> scores = g.floats("tokenizer.ggml.scores");
		std::vector<int32_t> kinds;
		for (int64_t k : g.ints("tokenizer.ggml.token_type")) kinds.push_back(int32_t(k));
		const std::string mark = "\u2581";
		for (size_t i = 0; name == "gemma" && i < texts.size(); ++i) {
			std::string marks;
			for (size_t n = texts[i].size() / mark.size(); n > 0; --n) marks += mark;
			if (texts[i] != marks || texts[i] == mark) continue;
			texts[i] = std::string(texts[i].size() / mark.size(), ' ');
			kinds[i] = int32_t(TokenKind::UserDefined);
		}
		for (const char* t : {"\n\n", "\n\n\n", "<b>", "</b>"}) {
			if (name != "gemma") break;
			texts.push_back(t);
			scores.push_back(0);
			kinds.push_back(int32_t(TokenKind::UserDefined));
		}
		GgufBuilder b;
		b.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", texts);
		b.numbers("tokenizer.ggml.scores", GgufType::F32, scores);
		b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
		if (name != "plain") b.flag("tokenizer.ggml.add_space_prefix", false);
		const auto bytes = b.bytes();
		const Tokenizer tokenizer(Gguf::parse("test.gguf", bytes));
		const Vectors v = read_vectors(kTokenize + "texts.inp", kTokenize + "spm/" + name + ".out");
		REQUIRE(v.texts.size() == 112);
		check_vectors(tokenizer, v);
	}
}

// The vocabulary of make_rwkv_models.py, with the ids of llama.cpp (make_peer_tokens.sh).
TEST_CASE("tokenizer: the longest token at each place gives the ids of llama.cpp") {
	const std::string root = std::string(KVRUN_SOURCE_DIR);
	const Tokenizer tokenizer(Gguf::open(root + "/tests/golden/tiny/rwkv7.gguf"));
	CHECK(std::string(tokenizer.model()) == "rwkv");
	const Vectors v = read_vectors(kTokenize + "texts.inp", kTokenize + "rwkv/tiny.out");
	REQUIRE(v.texts.size() == 112);
	check_vectors(tokenizer, v);
}

// ---- pre-tokenizers

namespace {

using Pieces = std::vector<std::string_view>;

Pieces split(std::string_view pre, std::string_view text) { return PreTokenizer(pre, "test.gguf").split(text); }

} // namespace

TEST_CASE("pretokenize: gpt-2") {
	CHECK(split("gpt-2", "Hello world") == Pieces{"Hello", " world"});
	CHECK(split("gpt-2", "I'm here, you're THERE'S") ==
	      Pieces{"I", "'m", " here", ",", " you", "'re", " THERE", "'", "S"});
	CHECK(split("gpt-2", "a  b   c ") == Pieces{"a", " ", " b", "  ", " c", " "});
	CHECK(split("gpt-2", "x1234 5.6") == Pieces{"x", "1234", " 5", ".", "6"});
	CHECK(split("gpt-2", "a\n\n b\t") == Pieces{"a", "\n\n", " b", "\t"});
	CHECK(split("gpt-2", "é\xcc\x81 日本 ½") == Pieces{"é", "\xcc\x81", " 日本", " ½"});
	CHECK(split("gpt-2", "  ") == Pieces{"  "});
	CHECK(split("gpt-2", "") == Pieces{});
}

TEST_CASE("pretokenize: llama-bpe") {
	CHECK(split("llama-bpe", "Hello world") == Pieces{"Hello", " world"});
	CHECK(split("llama-bpe", "I'm, I'M 'LL x'Ve") == Pieces{"I", "'m", ",", " I", "'M", " '", "LL", " x", "'Ve"});
	CHECK(split("llama-bpe", "12345678 9") == Pieces{"123", "456", "78", " ", "9"});
	CHECK(split("llama-bpe", "(word) .dot\ttab") == Pieces{"(word", ")", " .", "dot", "\ttab"});
	CHECK(split("llama-bpe", "end!!\r\n\nnext") == Pieces{"end", "!!\r\n\n", "next"});
	CHECK(split("llama-bpe", "a \n \n  b") == Pieces{"a", " \n \n", " ", " b"});
	CHECK(split("llama-bpe", "a   b") == Pieces{"a", "  ", " b"});
	CHECK(split("llama-bpe", "tail   ") == Pieces{"tail", "   "});
	CHECK(split("llama-bpe", "٣٤٥٦Ⅷ") == Pieces{"٣٤٥", "٦Ⅷ"}); // digits and numerals of any script
	CHECK(split("llama-bpe", "naïve—café") == Pieces{"naïve", "—café"});
	CHECK(split("llama-bpe", "\xe2\x80\x83"
	                         "em") == Pieces{"\xe2\x80\x83"
	                                         "em"});                         // U+2003 is neither letter nor number
	CHECK(split("llama-bpe", "!\xe1\xa0\x8e!") == Pieces{"!\xe1\xa0\x8e!"}); // U+180E is not white space
}

TEST_CASE("pretokenize: qwen2 takes digits one by one, smollm apart from words") {
	CHECK(split("qwen2", "I'Ve 12345 x9") == Pieces{"I", "'Ve", " ", "1", "2", "3", "4", "5", " x", "9"});
	CHECK(split("qwen2", "a.b\n\n c") == Pieces{"a", ".b", "\n\n", " c"});
	CHECK(split("qwen2", "😀 ok!!\n") == Pieces{"😀", " ok", "!!\n"});
	CHECK(split("deepseek-r1-qwen", "x12") == Pieces{"x", "1", "2"});
	CHECK(split("smollm", "ab 12'll c") == Pieces{"ab", " ", "1", "2", "'ll", " c"});
}

TEST_CASE("pretokenize: deepseek-coder and default apply several patterns in turn") {
	CHECK(split("deepseek-coder", "if x:\n\treturn 42") == Pieces{"if", " x", ":", "\n", "\treturn", " ", "4", "2"});
	CHECK(split("deepseek-coder", "a, 你好 한글!?") == Pieces{"a", ",", " ", "你好", " ", "한글", "!?"});
	CHECK(split("deepseek-coder", "$x += 1") == Pieces{"$", "x", " += ", "1"});
	CHECK(split("default", "pi=3.14159, a+b") == Pieces{"pi", "=", "3", ".", "141", "59", ",", " a", "+", "b"});
	CHECK(split("default", "don't 12 1234") == Pieces{"don", "'", "t", " ", "12", " ", "123", "4"});
}

TEST_CASE("pretokenize: tekken and gpt-4o split where case changes") {
	CHECK(split("tekken", "HelloWorld 123 fooBAR/\n") ==
	      Pieces{"Hello", "World", " ", "1", "2", "3", " foo", "BAR", "/\n"});
	CHECK(split("gpt-4o", "HelloWorld's 1234 DON'T") == Pieces{"Hello", "World's", " ", "123", "4", " DON'T"});
}

TEST_CASE("pretokenize: pieces are the text, whatever bytes it has") {
	std::string every;
	for (int i = 0; i < 256; ++i) every += char(i);
	const std::vector<std::string> texts = {every,
	                                        "a\xff"
	                                        "b \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82",
	                                        std::string("a\0b", 3), "\xf4\x8f\xbf\xbf", "   \xff   x"};
	for (const std::string& pre : pre_names()) {
		for (const std::string& t : texts) {
			std::string joined;
			for (std::string_view p : split(pre, t)) {
				CHECK(!p.empty());
				joined += p;
			}
			CHECK(joined == t);
		}
	}
}

namespace {

// The matches of a pattern and the text in between, one search per position.
Pieces split_by(const char* pattern, std::string_view text) {
	int error = 0;
	PCRE2_SIZE at = 0;
	pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
	                                 PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
	REQUIRE(code);
	pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
	const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match);
	Pieces out;
	size_t done = 0;
	for (at = 0; at <= text.size();) {
		if (pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, match, nullptr) < 0) break;
		if (found[0] > done) out.push_back(text.substr(done, found[0] - done));
		if (found[1] > found[0]) out.push_back(text.substr(found[0], found[1] - found[0]));
		done = found[1];
		at = found[1] > found[0] ? done : done + std::max<size_t>(utf8_char(text, done), 1); // an empty match also cuts
	}
	if (done < text.size()) out.push_back(text.substr(done));
	pcre2_match_data_free(match);
	pcre2_code_free(code);
	return out;
}

} // namespace

// The models' own patterns, but usable only for short texts like these.
TEST_CASE("pretokenize: patterns that were rewritten to take linear time split as before") {
	const std::string cased =
	    "[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{sc:Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])*(?:(?!\\p{sc:Han})"
	    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{sc:Han})"
	    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])+(?:(?!\\p{sc:Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])*(?i:'s|'t|'re|'ve|"
	    "'m|'ll|'d)?";
	const std::string tail = " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
	const std::map<std::string, std::vector<std::string>> own = {
	    {"kimi-k2", {"[\\p{sc:Han}]+|" + cased + "|\\p{N}{1,3}|" + tail}},
	    {"jais-2",
	     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
	      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
	      "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
	    {"exaone-moe",
	     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
	      "?[^\\s\\p{L}\\p{N}]+[\\r\\n/"
	      "]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
	    {"afmoe", {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?:\\P{N}|$))"}}, // the first of its patterns
	    {"tiny_aya", {"\\d{1,3}(?=(?:\\d{3})*\\b)"}},
	    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
	    {"deepseek-llm", {"[\r\n]", "\\s?[A-Za-zé]+", "\\s?[!-/:-~\\x{3000}-\\x{3002}]+", "\\s+$"}},
	};
	const char* alphabet[] = {"a",  "b",  "A",      "B",  "é",  "1",  "2",      "3", "4", "½",  " ", " ",  " ", "\n",
	                          "\r", "\t", "\u00a0", "漢", "々", "か", "\u0301", "!", "/", "'s", "'", "。", "😀"};
	std::mt19937 rng(29);
	for (const auto& [tokenizer, patterns] : own) {
		const std::string name(tokenizer);
		const PrePatterns row = *find_pre_patterns(name);
		for (int round = 0; round < 3000; ++round) {
			std::string text;
			const uint32_t few = round % 3 ? std::size(alphabet) : 4 + rng() % 8, first = rng() % std::size(alphabet);
			for (uint32_t n = rng() % 30; n > 0; --n) {
				const std::string_view c = alphabet[(first + rng() % few) % std::size(alphabet)];
				if (name != "superbpe" || c != "½") text += c; // numerals that are not digits are not in its groups
			}
			Pieces want = {text}, got = {text};
			for (size_t i = 0; i < patterns.size(); ++i) {
				Pieces next_want, next_got;
				for (std::string_view p : want)
					for (std::string_view q : split_by(patterns[i].c_str(), p)) next_want.push_back(q);
				for (std::string_view p : got)
					for (std::string_view q : split_by(row.patterns[i], p)) next_got.push_back(q);
				want = next_want;
				got = next_got;
			}
			INFO(name, ": ", text);
			const bool same = text.empty() || want == got;
			CHECK(same);
		}
	}
}

TEST_CASE("T21: every pre-tokenizer takes linear time, whatever it looks for in vain") {
	const size_t n = 1 << 18;
	auto times = [&](const std::string& unit, const std::string& end = "") {
		std::string s;
		while (s.size() < n) s += unit;
		return s + end;
	};
	const std::vector<std::string> texts = {
	    times("a"),           times("a", " b"),    times("A"),      times("A", "'"),      times(" "),
	    times(" ", "5"),      times(" ", "\n"),    times(" ", "ก"), times("\t", "x"),     times("\n"),
	    times("\n", "x"),     times("\n \t", "5"), times("7"),      times("7", "x"),      times("½"),
	    times("½", "x"),      times("!"),          times("!", "a"), times("ก"),           times("ก", "A"),
	    times("漢"),          times("漢", "a"),    times("漢ก"),    times("\u0301"),      times("a\u0301"),
	    times("a b "),        times("aA"),         times("AAAAa'"), times("<sentinel:1"), times("IMGIMGA"),
	    times("\u3000", "5"), times("1,"),         times("'"),      times("\r"),          times("  \n \t"),
	    times("ʰ", "!")};
	for (const std::string& pre : pre_names()) {
		const PreTokenizer p(pre, "test.gguf");
		for (const std::string& text : texts) {
			const double start = cpu_seconds();
			size_t bytes = 0;
			for (std::string_view piece : p.split(text)) bytes += piece.size();
			const double s = cpu_seconds() - start;
			CHECK(bytes == text.size());
			INFO(pre, " on ", text.substr(0, 12), " ... ", text.substr(text.size() - 3), ": ", s, " s");
			CHECK(s < 8); // a few hundredths; hours if each position of a run searched the whole run
		}
	}
}

TEST_CASE("pretokenize: every name of the list is known and tested, any other is refused with the list") {
	std::istringstream names(pre_pattern_names());
	std::map<const PrePatterns*, std::string> rows; // with the expectations of one of their names
	for (const std::string& name : pre_names()) {
		REQUIRE(find_pre_patterns(name));
		CHECK(rows.emplace(find_pre_patterns(name), name).second);
	}
	size_t n = 0;
	for (std::string name; names >> name; ++n) {
		CAPTURE(name);
		if (find_pre_patterns(name)->composes) continue; // llama.cpp does not: test_encoder_files.cpp has these
		CHECK(rows.contains(find_pre_patterns(name)));
	}
	CHECK(n > 70);
	for (const char* name : {"bert-bge", "", " ", "gpt-2 mpt", "GPT-2", "gpt-", "t", "llama-bpe "})
		CHECK_THROWS_WITH_AS(split(name, "x"), doctest::Contains("; kvrun knows default gpt-2 mpt olmo "), Error);
}

// The ids of an unavailable vocabulary still give the least number of pieces of a text, and equal pieces have equal
// ids.
TEST_CASE("pretokenize: llama-bpe and qwen2 agree with the ids of their vectors") {
	for (const std::string name : {"llama-bpe", "qwen2"}) {
		CAPTURE(name);
		const std::string path = shared_asset(fmt::format("vocab/ggml-vocab-{}.gguf.inp", name));
		if (path.empty()) continue;
		const Vectors v = read_vectors(path, path.substr(0, path.size() - 4) + ".out");
		REQUIRE(v.texts.size() == v.ids.size());
		std::map<std::string, std::vector<uint32_t>, std::less<>> ids_of; // of pieces that were a whole text
		for (size_t i = 0; i < v.texts.size(); ++i) {
			const Pieces p = split(name, v.texts[i]);
			CHECK(v.ids[i].size() >= p.size());
			if (p.size() == 1) ids_of.emplace(p[0], v.ids[i]);
		}
		// a text with all but one piece known gives the ids of that piece, and so on
		size_t known = 0, rounds = 0;
		std::vector<bool> done(v.texts.size());
		for (bool more = true; more && rounds < 50; ++rounds) {
			more = false;
			for (size_t i = 0; i < v.texts.size(); ++i) {
				if (done[i]) continue;
				const Pieces p = split(name, v.texts[i]);
				size_t front = 0, back = 0, from = 0, to = v.ids[i].size();
				bool fits = true;
				auto take = [&](std::string_view piece, bool left) {
					const auto k = ids_of.find(piece);
					if (k == ids_of.end()) return false;
					const size_t n = k->second.size();
					fits = fits && to - from >= n;
					const size_t at = left ? from : to - std::min(n, to);
					fits =
					    fits && std::equal(k->second.begin(), k->second.end(), v.ids[i].begin() + std::ptrdiff_t(at));
					if (fits) (left ? from += n : to -= n);
					return fits;
				};
				while (front < p.size() && take(p[front], true)) ++front;
				while (back < p.size() - front && take(p[p.size() - 1 - back], false)) ++back;
				INFO(v.texts[i]);
				CHECK(fits);
				const size_t unknown = p.size() - front - back;
				if (unknown == 0) CHECK(from == to);
				if (unknown == 1)
					ids_of.emplace(p[front], std::vector(v.ids[i].begin() + std::ptrdiff_t(from),
					                                     v.ids[i].begin() + std::ptrdiff_t(to)));
				if (unknown <= 1) {
					done[i] = more = true;
					++known;
				}
			}
		}
		MESSAGE(std::string(name), ": ", known, " of ", v.texts.size(), " texts are explained piece by piece");
		CHECK(known >= v.texts.size() / 2);
	}
}
