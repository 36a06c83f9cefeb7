// Runs a libFuzzer target without libFuzzer: on every file of some folders, then on mutants of them.
//   fuzz_replay_NAME SECONDS FOLDER...          KVRUN_TEST_SEED chooses the mutants [1]
// Findings are written to found-SEED in the current folder.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::string;
constexpr size_t kLongest = 1 << 16;

Bytes now; // the current input
uint64_t seed = 1;

extern "C" void on_finding(int signal) {
	char name[64];
	std::snprintf(name, sizeof name, "found-%llu", static_cast<unsigned long long>(seed));
	if (std::FILE* f = std::fopen(name, "wb")) {
		std::fwrite(now.data(), 1, now.size(), f);
		std::fclose(f);
	}
	std::fprintf(stderr, "finding: signal %d, %zu bytes are in %s\n", signal, now.size(), name);
	std::signal(signal, SIG_DFL);
	raise(signal);
}

void run(Bytes input) {
	now = std::move(input);
	alarm(20); // no input takes that long
	LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(now.data()), now.size());
	alarm(0);
}

Bytes mutant(const std::vector<Bytes>& corpus, std::mt19937_64& random) {
	const auto below = [&](size_t n) { return size_t(random() % std::max<size_t>(n, 1)); };
	Bytes b = corpus[below(corpus.size())];
	for (size_t n = 1 + below(8); n > 0; --n) {
		const size_t at = below(b.size());
		switch (below(6)) {
		case 0:
			if (!b.empty()) b[at] = char(b[at] ^ 1 << below(8));
			break;
		case 1:
			if (!b.empty()) b[at] = char(random());
			break;
		case 2: // boundary numbers
			for (size_t i = 0, width = size_t(1) << below(4), v = below(2) ? 0 : ~size_t(0); i < width; ++i)
				if (at + i < b.size()) b[at + i] = char(v >> 8 * i);
			break;
		case 3: b.resize(at); break;
		case 4: b.insert(at, 1 + below(16), char(random())); break;
		default: { // a piece of another input
			const Bytes& o = corpus[below(corpus.size())];
			const size_t from = below(o.size()), length = below(64);
			b.insert(at, o, from, length);
		}
		}
	}
	b.resize(std::min(b.size(), kLongest));
	return b;
}

} // namespace

int main(int argc, char** argv) {
	if (argc < 3) {
		std::fputs("usage: fuzz_replay_NAME SECONDS FOLDER...\n", stderr);
		return 2;
	}
	if (const char* s = std::getenv("KVRUN_TEST_SEED")) seed = std::strtoull(s, nullptr, 10);
	for (const int s : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(s, on_finding);
	std::vector<Bytes> corpus;
	for (int i = 2; i < argc; ++i)
		for (const auto& e : std::filesystem::directory_iterator(argv[i])) {
			std::ifstream in(e.path(), std::ios::binary);
			corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
		}
	if (corpus.empty()) {
		std::fputs("no seeds\n", stderr);
		return 1;
	}
	std::sort(corpus.begin(), corpus.end()); // folders are not ordered
	for (const Bytes& b : corpus) run(b);
	uint64_t n = corpus.size();
	std::mt19937_64 random(seed);
	const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[1]));
	for (; std::chrono::steady_clock::now() < end; ++n) run(mutant(corpus, random));
	std::printf("%llu executions, seed %llu\n", static_cast<unsigned long long>(n),
	            static_cast<unsigned long long>(seed));
}
