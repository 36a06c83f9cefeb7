// Tests grammars of schemas from outside: one JSON object per line on stdin, one on stdout.
// {"schema": ..., "texts": [...]}: {"accepts": [true, ...]}, whether each is a complete text of the grammar.
// {"schema": ..., "samples": n, "seed": s}: {"texts": [...]}, complete ones, each token drawn from the allowed ones.
// {"refused": message} if the schema is not supported. With "vocabulary" (a GGUF file) its tokens are used, else bytes.
#include "engine/core/error.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include "models/model.h"
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

using namespace kvrun;
using Json = nlohmann::ordered_json;

namespace {

std::shared_ptr<const grammar::TokenTrie> vocabulary(const Json& j) {
	if (j.contains("vocabulary")) {
		static std::map<std::string, std::shared_ptr<const grammar::TokenTrie>> known;
		auto& trie = known[j["vocabulary"]];
		if (!trie) trie = std::make_shared<grammar::TokenTrie>(Tokenizer(Gguf::open(j["vocabulary"])));
		return trie;
	}
	std::vector<std::string> texts;
	for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
	texts.emplace_back();
	return std::make_shared<grammar::TokenTrie>(texts, std::vector<uint32_t>{256});
}

bool accepts(const std::shared_ptr<grammar::Grammar>& g, const std::string& text) {
	grammar::Matcher m(g); // of bytes
	for (const char c : text)
		if (!m.accept(uint8_t(c))) return false;
	return m.may_end();
}

// White space is chosen rarely, and an answer that may end usually ends.
std::optional<std::string> sample(const std::shared_ptr<grammar::Grammar>& g, std::mt19937_64& random) {
	grammar::Matcher m(g);
	std::string out;
	for (int n = 0; n < 3000; ++n) {
		if (m.is_finished() || (m.may_end() && random() % 4 == 0)) return out;
		const auto bits = m.allowed();
		std::vector<uint32_t> from;
		for (uint32_t t = 0; t < g->trie().vocab(); ++t) {
			if (!(bits[t / 64] >> t % 64 & 1) || g->trie().text(t).empty() || g->trie().is_end(t)) continue;
			const char c = g->trie().text(t)[0];
			const int weight = c == ' ' || c == '\n' || c == '\t' ? 1
			                   : c == '"' || c == '}' || c == ']' ? 40
			                   : c == '{' || c == '['             ? 2
			                                                      : 8;
			from.insert(from.end(), size_t(weight), t);
		}
		if (from.empty()) throw Error(Code::Internal, "no token is allowed after " + out);
		const uint32_t t = from[random() % from.size()];
		if (!m.accept(t)) throw Error(Code::Internal, "an allowed token is not accepted after " + out);
		out += g->trie().text(t);
	}
	return {};
}

Json answer(const Json& j) {
	Json out = Json::object();
	std::shared_ptr<grammar::Grammar> g;
	try {
		g = std::make_shared<grammar::Grammar>(grammar::schema_grammar(j["schema"].dump()), vocabulary(j));
	} catch (const Error& e) {
		out["refused"] = e.what();
		return out;
	}
	if (j.contains("texts")) {
		out["accepts"] = Json::array();
		for (const Json& t : j["texts"]) out["accepts"].push_back(accepts(g, t));
	}
	if (j.contains("samples")) {
		std::mt19937_64 random(j.value("seed", 1));
		out["texts"] = Json::array();
		for (int i = 0; i < j["samples"].get<int>(); ++i)
			if (const auto s = sample(g, random)) out["texts"].push_back(*s);
	}
	return out;
}

} // namespace

int main() {
	for (std::string line; std::getline(std::cin, line);)
		std::cout << answer(Json::parse(line)).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}
