// libFuzzer target: a grammar in GBNF or a JSON schema, a zero byte, and bytes that choose tokens. Only one-line errors
// of known kinds; tokens are accepted exactly if the mask allows them; complete texts of a schema are JSON.
#include "engine/core/error.h"
#include "models/grammar/gbnf.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include <cstdlib>
#include <nlohmann/json.hpp>

using namespace kvrun;
using namespace kvrun::grammar;

namespace {

constexpr std::string_view kCall = "<|call|>"; // the only control token

std::string token_of_vocabulary(std::string_view name) {
	if (name != kCall) fail(Code::Format, "there is no such token");
	return control_bytes(name);
}

std::shared_ptr<const TokenTrie> vocabulary() {
	static const auto trie = [] {
		std::vector<std::string> texts;
		for (int b = 0; b < 256; ++b) texts.emplace_back(b < 0xf5 ? 1 : 0, char(b));
		for (const char* t : {"ab", "abc", "\":", "\",\"", "{\"", "}}", "12", "true", "nul", "\xc3\xa9", "[[", "  "})
			texts.emplace_back(t);
		texts.push_back(control_bytes(kCall));
		return std::make_shared<TokenTrie>(texts, std::vector<uint32_t>{});
	}();
	return trie;
}

void walk(const Rules& rules, std::string_view choices, bool is_json) {
	const auto g = std::make_shared<Grammar>(rules, vocabulary());
	Matcher m(g);
	std::string text;
	for (const char choice : choices) {
		if (m.is_finished()) break;
		const auto bits = m.allowed();
		std::vector<uint32_t> good;
		for (uint32_t t = 0; t < vocabulary()->vocab(); ++t) {
			const bool allowed = bits[t / 64] >> t % 64 & 1;
			if (allowed != m.allows(t)) std::abort();
			if (allowed) good.push_back(t);
		}
		if (good.empty()) { // all bytes are tokens, so there is no dead end
			if (!m.may_end()) std::abort();
			break;
		}
		const uint32_t t = good[uint8_t(choice) % good.size()];
		if (!m.accept(t)) std::abort();
		text += vocabulary()->text(t);
	}
	if (is_json && m.may_end() && !nlohmann::json::accept(text)) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	const std::string_view all(reinterpret_cast<const char*>(data), size);
	const size_t cut = std::min({all.find('\0'), all.size(), size_t(1000)});
	const std::string_view text = all.substr(0, cut), choices = all.substr(cut).substr(0, 40);
	const size_t first = text.find_first_not_of(" \t\n");
	const bool is_json = first != text.npos && text[first] == '{';
	try {
		walk(is_json ? schema_grammar(text) : parse_gbnf(text, token_of_vocabulary), choices, is_json);
	} catch (const Error& e) {
		if (e.code != Code::Format && e.code != Code::Unsupported) std::abort();
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
	}
	return 0;
}
