// Tokenizers: every reference vector, the pre-tokenizers on hand-made cases, and hostile vocabularies and texts.
#include "models/tokenizer.h"
#include "models/pretokenize.h"
#include "tests/assets.h"
#include "tests/gguf_builder.h"
#include <chrono>
#include <doctest/doctest.h>
#include <sstream>

using namespace kvrun;

namespace {

// The texts of an .inp file, between lines `__ggml_vocab_test__`, and the ids of each, a line per text.
struct Vectors {
	std::vector<std::string> texts;
	std::vector<std::vector<uint32_t>> ids;
};
Vectors read_vectors(const std::string& stem) {
	Vectors v;
	std::string inp = file_text(stem + ".inp");
	const std::string mark = "\n__ggml_vocab_test__\n";
	for (size_t at; (at = inp.find(mark)) != inp.npos; inp.erase(0, at + mark.size())) v.texts.push_back(inp.substr(0, at));
	std::istringstream out(file_text(stem + ".out"));
	for (std::string line; std::getline(out, line);) {
		std::istringstream numbers(line);
		v.ids.emplace_back();
		for (uint32_t id; numbers >> id;) v.ids.back().push_back(id);
	}
	return v;
}

} // namespace

TEST_CASE("tokenizer: every reference vector, exactly, and back") {
	for (const char* name : {"llama-spm", "gpt-2", "deepseek-coder"}) {
		CAPTURE(name);
		const std::string path = shared_asset(fmt::format("vocab/ggml-vocab-{}.gguf", name));
		if (path.empty()) continue;
		const Tokenizer tokenizer(Gguf::open(path));
		const Vectors v = read_vectors(path);
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
