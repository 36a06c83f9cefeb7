// What a grammar costs at each token of an answer, over a vocabulary: a mask of all tokens, and whether each of the
// likeliest 128 is allowed, which is what a constrained step mostly does.
//   kvrun_grammar_cost TOKENS SCHEMA ANSWER     TOKENS: the bytes of a token in hexadecimal digits on each line;
//                                               SCHEMA: a file; ANSWER: a file with a value of it
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

using namespace kvrun::grammar;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string text_of(const char* path) {
	std::ifstream in(path, std::ios::binary);
	std::ostringstream out;
	out << in.rdbuf();
	return out.str();
}

// The longest tokens that the text is made of.
std::vector<uint32_t> tokens_of(const TokenTrie& trie, const std::string& text) {
	std::vector<uint32_t> out;
	for (size_t at = 0; at < text.size();) {
		uint32_t best = TokenTrie::kNone, node = 0, end = uint32_t(trie.nodes().size());
		for (size_t i = at; i < text.size(); ++i) {
			while (node < end && trie.nodes()[node].byte != uint8_t(text[i])) node = trie.nodes()[node].next;
			if (node >= end) break;
			if (trie.nodes()[node].token != TokenTrie::kNone) best = trie.nodes()[node].token;
			end = trie.nodes()[node].next;
			++node;
		}
		if (best == TokenTrie::kNone) return {};
		out.push_back(best);
		at += trie.text(best).size();
	}
	return out;
}

void report(const char* what, std::vector<double> us) {
	double sum = 0;
	for (const double t : us) sum += t;
	std::ranges::sort(us);
	std::printf("%-28s mean %8.1f us, median %8.1f, p95 %8.1f, most %8.1f\n", what, sum / double(us.size()),
	            us[us.size() / 2], us[us.size() * 95 / 100], us.back());
}

} // namespace

int main(int argc, char** argv) {
	if (argc != 4) return std::fputs("kvrun_grammar_cost TOKENS SCHEMA ANSWER\n", stderr), 2;
	std::vector<std::string> texts;
	std::ifstream file(argv[1]);
	for (std::string line; std::getline(file, line);) {
		std::string bytes;
		for (size_t i = 0; i + 1 < line.size(); i += 2) bytes += char(std::stoi(line.substr(i, 2), nullptr, 16));
		texts.push_back(std::any_of(bytes.begin(), bytes.end(), [](char c) { return uint8_t(c) >= 0xf5; }) ? ""
		                                                                                                   : bytes);
	}
	double start = seconds();
	const auto trie = std::make_shared<TokenTrie>(texts, std::vector<uint32_t>{});
	std::printf("%u tokens, %zu nodes: tree %.1f ms\n", trie->vocab(), trie->nodes().size(), (seconds() - start) * 1e3);
	start = seconds();
	const auto g = std::make_shared<Grammar>(schema_grammar(text_of(argv[2])), trie);
	std::printf("grammar %.2f ms\n", (seconds() - start) * 1e3);
	const std::vector<uint32_t> answer = tokens_of(*trie, text_of(argv[3]));
	for (const char* round : {"first answer", "second answer"}) {
		std::vector<double> mask, likely;
		Matcher m(g);
		for (size_t i = 0; i < answer.size(); ++i) {
			start = seconds();
			size_t allowed = 0;
			for (uint32_t k = 0; k < 127; ++k) allowed += m.allows((answer[i] * 31 + k * 977) % trie->vocab());
			allowed += m.allows(answer[i]);
			likely.push_back((seconds() - start) * 1e6);
			start = seconds();
			const auto bits = m.allowed();
			mask.push_back((seconds() - start) * 1e6);
			if (!(bits[answer[i] / 64] >> answer[i] % 64 & 1) || !m.accept(answer[i]) || allowed == 0)
				return std::fprintf(stderr, "token %zu of the answer is not allowed\n", i), 1;
		}
		std::printf("%s, %zu tokens, whole: %d\n", round, answer.size(), m.may_end());
		report("  128 tokens tried", likely);
		report("  mask of all tokens", mask);
	}
}
