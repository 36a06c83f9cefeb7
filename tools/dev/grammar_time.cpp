// Time of a grammar per token of an answer: the mask over the vocabulary, and the step after the token.
//   grammar_time VOCAB.gguf SCHEMA.json ANSWER.json [ANSWERS]
// ANSWER.json is tokenized and read ANSWERS [20] times, each time by a new matcher of one grammar, like answers of a
// server. The first one fills the caches that the others use. Build it in the project's root, after tools/try.sh:
//   g++ -std=c++20 -O2 -I. -Ibuild tools/dev/grammar_time.cpp -o build/grammar_time build/models/libkvrun_models.a
//       build/engine/libkvrun_core.a -lfmt -lpcre2-8 -lutf8proc -lxxhash
#include "models/gguf.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include "models/tokenizer.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

using namespace kvrun;
using namespace kvrun::grammar;

namespace {

std::string text_of(const char* path) {
	std::ifstream f(path, std::ios::binary);
	if (!f) {
		std::fprintf(stderr, "error: %s: cannot be read\n", path);
		std::exit(1);
	}
	return {std::istreambuf_iterator<char>(f), {}};
}
double ms(std::chrono::steady_clock::time_point from) {
	return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count();
}

} // namespace

int main(int argc, char** argv) try {
	if (argc < 4) {
		std::fprintf(stderr, "usage: grammar_time VOCAB.gguf SCHEMA.json ANSWER.json [ANSWERS]\n");
		return 2;
	}
	const Gguf file = Gguf::open(argv[1]);
	const Tokenizer tokenizer(file);
	const int answers = argc > 4 ? std::atoi(argv[4]) : 20;
	const std::vector<uint32_t> tokens = tokenizer.encode(text_of(argv[3]), {.bos = false});
	auto now = std::chrono::steady_clock::now();
	const auto trie = std::make_shared<TokenTrie>(tokenizer);
	std::printf("%u tokens of the vocabulary, %zu of the answer; tree of the vocabulary %.1f ms, ", trie->vocab(),
	            tokens.size(), ms(now));
	now = std::chrono::steady_clock::now();
	const auto g = std::make_shared<Grammar>(schema_grammar(text_of(argv[2])), trie);
	std::printf("grammar %.1f ms\n", ms(now));
	for (int a = 0; a < answers; ++a) {
		Matcher m(g);
		std::vector<double> times;
		for (const uint32_t t : tokens) {
			now = std::chrono::steady_clock::now();
			m.allowed();
			const bool ok = m.accept(t);
			times.push_back(ms(now));
			if (ok) continue;
			std::fprintf(stderr, "error: %s: token %zu, '%s', is not allowed by %s\n", argv[3], times.size(),
			             std::string(trie->text(t)).c_str(), argv[2]);
			return 1;
		}
		if (a > 1 && a + 1 < answers) continue;
		double sum = 0;
		for (const double t : times) sum += t;
		std::sort(times.begin(), times.end());
		std::printf("answer %d: mean %.4f ms per token, median %.4f, 99 %% below %.4f, most %.4f\n", a + 1,
		            sum / double(times.size()), times[times.size() / 2], times[times.size() * 99 / 100], times.back());
	}
	return 0;
} catch (const std::exception& e) {
	std::fprintf(stderr, "error: %s\n", e.what());
	return 1;
}
