// Pre-tokenizers and whole vocabularies: every reference vector, llama.cpp's ids of odd texts, hand-made cases.
#include "models/pretokenize.h"
#include "models/tokenizer.h"
#include "tests/support/assets.h"
#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <map>
#include <sstream>

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
	return v;
}

} // namespace

TEST_CASE("tokenizer: every reference vector, exactly, and back") {
	for (const std::string name : {"llama-spm", "gpt-2", "deepseek-coder"}) {
		CAPTURE(name);
		const std::string path = shared_asset(fmt::format("vocab/ggml-vocab-{}.gguf", name));
		if (path.empty()) continue;
		const Tokenizer tokenizer(Gguf::open(path));
		const Vectors v = read_vectors(path + ".inp", path + ".out");
		REQUIRE(v.texts.size() > 30);
		REQUIRE(v.texts.size() == v.ids.size());
		for (size_t i = 0; i < v.texts.size(); ++i) {
			CAPTURE(v.texts[i]);
			const auto ids = tokenizer.encode(v.texts[i], {.bos = false});
			CHECK(ids == v.ids[i]);
			CHECK(tokenizer.decode(ids) == v.texts[i]);
		}
	}
}

// A vocabulary under the name of another pre-tokenizer, as tools/dev/make_peer_tokens.sh made it for llama.cpp.
TEST_CASE("tokenizer: every pre-tokenizer gives the ids of llama.cpp") {
	const std::string folder = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tokenize/";
	const std::string path = shared_asset("vocab/ggml-vocab-gpt-2.gguf");
	if (path.empty()) return;
	const std::string file = file_text(path), key = "tokenizer.ggml.pre";
	const size_t at = file.find(key) + key.size(); // u32 type, u64 length, text
	for (const std::string name :
	     {"default", "gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "smollm", "tekken", "gpt-4o", "dbrx"}) {
		CAPTURE(name);
		const uint64_t length = name.size();
		std::string renamed = file.substr(0, at + 4);
		renamed.append(reinterpret_cast<const char*>(&length), 8);
		renamed += name + file.substr(at + 12 + std::strlen("gpt-2"));
		const Tokenizer tokenizer(Gguf::parse("test.gguf", std::as_bytes(std::span(renamed))));
		CHECK(tokenizer.pre() == name);
		const Vectors v = read_vectors(folder + "texts.inp", folder + name + ".out");
		REQUIRE(v.texts.size() == 89);
		REQUIRE(v.ids.size() == v.texts.size());
		for (size_t i = 0; i < v.texts.size(); ++i) {
			CAPTURE(v.texts[i]);
			const auto ids = tokenizer.encode(v.texts[i], {.bos = false});
			CHECK(ids == v.ids[i]);
			CHECK(tokenizer.decode(ids) == v.texts[i]);
		}
	}
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
	for (const char* pre :
	     {"default", "gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "smollm", "tekken", "gpt-4o", "dbrx"}) {
		for (const std::string& t : texts) {
			std::string joined;
			for (std::string_view p : split(pre, t)) {
				CHECK(!p.empty());
				joined += p;
			}
			CHECK(joined == t);
		}
	}
	CHECK_THROWS_WITH_AS(split("bert-bge", "x"),
	                     "test.gguf: pre-tokenizer is bert-bge; kvrun knows default gpt-2 llama-bpe qwen2 "
	                     "deepseek-coder smollm tekken gpt-4o dbrx",
	                     Error);
}

// The ids of a vocabulary that is not here still say how many pieces a text has at least, and that equal pieces have
// equal ids.
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
		// a text whose pieces but one are known tells the ids of that one, and so on
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
