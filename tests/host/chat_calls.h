// Answers with calls of tools, read in pieces, for tests.
#pragma once
#include "models/chat/reply.h"
#include "models/grammar/grammar.h"
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace kvrun::call_test {

inline const Json kTools = Json::parse(R"([
	{"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": {"type": "object",
		"properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 30}},
		"required": ["city"], "additionalProperties": false}}},
	{"type": "function", "function": {"name": "set-mode", "parameters": {"type": "object", "properties": {
		"on": {"type": "boolean"}, "level": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
		"mode": {"enum": ["a", "b"]}, "note": {"type": ["string", "null"], "maxLength": 20},
		"list": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
		"required": ["on", "mode"], "additionalProperties": false}}}])");

struct Form {
	const char* name;
	ToolFormat format;
	const char *begin, *end; // ChatFeatures::tool_begin, tool_end
	bool variant;
	const char* answer;   // as the family's template writes it
	const char* expected; // "content | name arguments | ..."
	CallShape shape = {}; // ToolFormat::Shaped
};
inline ReplyParser::Options options(const Form& f, const Json& tools) {
	ReplyParser::Options o;
	o.tools = f.format;
	o.tool_begin = f.begin, o.tool_end = f.end, o.tool_variant = f.variant;
	o.shape = f.shape;
	o.definitions = tools;
	return o;
}

struct Shown {
	std::string content, reasoning;
	std::vector<ToolCall> calls;
	std::vector<ToolCall> told; // from the deltas alone
	size_t told_early = 0;      // bytes of arguments reported before their call had ended
};
inline Shown parse(const Form& f, std::string_view answer, size_t piece, const Json& tools = kTools) {
	ReplyParser parser(options(f, tools));
	Shown all;
	const auto add = [&](ReplyParser::Part p) {
		all.content += p.content, all.reasoning += p.reasoning;
		for (const ReplyParser::CallDelta& d : p.deltas) {
			REQUIRE(d.index <= all.told.size());
			if (d.index == all.told.size()) all.told.push_back({d.id, d.name, ""});
			all.told[d.index].arguments += d.arguments;
		}
		all.calls.insert(all.calls.end(), p.calls.begin(), p.calls.end());
		if (all.told.size() > all.calls.size())
			all.told_early = std::max(all.told_early, all.told.back().arguments.size());
	};
	for (size_t at = 0; at < answer.size(); at += piece) add(parser.push(answer.substr(at, piece)));
	add(parser.finish());
	REQUIRE(all.told.size() == all.calls.size());
	for (size_t i = 0; i < all.calls.size(); ++i) CHECK(all.told[i].json() == all.calls[i].json());
	return all;
}
inline std::string shown(const Shown& s) {
	std::string out = s.content;
	for (const ToolCall& c : s.calls) out.append(" | ").append(c.name).append(" ").append(c.arguments);
	if (!s.reasoning.empty()) out.append(" ~ ").append(s.reasoning);
	return out;
}

inline std::shared_ptr<const grammar::TokenTrie> bytes() {
	std::vector<std::string> texts;
	for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
	return std::make_shared<grammar::TokenTrie>(texts, std::vector<uint32_t>{});
}

} // namespace kvrun::call_test
