// Values of calls without quotes: their types are those of the function's schema, in answers and in grammars.
#include "models/chat/call_grammar.h"
#include "models/grammar/grammar.h"
#include "tests/host/chat_calls.h"
#include <doctest/doctest.h>

using namespace kvrun;
using namespace kvrun::call_test;
using namespace kvrun::grammar;

namespace {

// Properties of a function, texts of their values, and what they are as JSON.
struct Typed {
	const char *schema, *text, *json;
};
constexpr Typed kTyped[] = {
    {R"({"type": "string"})", "12345", R"("12345")"},
    {R"({"type": "string"})", "null", R"("null")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "12345", R"("12345")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "null", "null"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "nullable", R"("nullable")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "{\"a\": 1}", R"("{\"a\": 1}")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "\"q\"", R"("\"q\"")"},
    {R"({"oneOf": [{"type": "null"}, {"type": "string"}]})", "1.5", R"("1.5")"},
    {R"({"type": ["string", "null"]})", "true", R"("true")"},
    {R"({"type": ["string", "null"]})", "null", "null"},
    {R"({"type": ["string", "integer"]})", "12", "12"},
    {R"({"type": ["string", "integer"]})", "1.5", R"("1.5")"},
    {R"({"type": ["string", "integer"]})", "12 days", R"("12 days")"},
    {R"({"type": ["string", "number"]})", "-1.5", "-1.5"},
    {R"({"type": ["string", "number"]})", "7", "7"},
    {R"({"type": ["string", "boolean"]})", "false", "false"},
    {R"({"type": ["string", "boolean"]})", "falsehood", R"("falsehood")"},
    {R"({"type": ["string", "array"]})", "[1, \"a\"]", R"([1,"a"])"},
    {R"({"type": ["string", "array"]})", "[draft] x", R"("[draft] x")"},
    {R"({"type": ["string", "object"]})", "{\"a\": 1}", R"({"a":1})"},
    {R"({"enum": ["1", "2"]})", "1", R"("1")"},
    {R"({"enum": ["on", true]})", "true", "true"},
    {R"({"const": "3"})", "3", R"("3")"},
    {R"({"type": ["string", "null"], "enum": ["1", null]})", "1", R"("1")"},
    {R"({"$ref": "#/$defs/id"})", "42", R"("42")"},
    {R"({"$ref": "#/$defs/maybe"})", "42", R"("42")"},
    {R"({"$ref": "#/$defs/maybe"})", "null", "null"},
    {R"({"allOf": [{"$ref": "#/$defs/maybe"}, {"type": "string"}]})", "null", R"("null")"},
    {R"({"minLength": 1})", "42", R"("42")"},
    // others are as they were: JSON if it is JSON
    {R"({"type": "integer"})", "12", "12"},
    {R"({"type": "integer"})", "x", R"("x")"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", "null", "null"},
    {R"({})", "12", "12"},
    {R"({"description": "d"})", "\"q\"", R"("q")"},
    {R"(true)", "12", "12"},
    {R"({"anyOf": [{"type": "string"}, {}]})", "12", "12"},
    {R"({"$ref": "#/$defs/none"})", "12", "12"},
    {R"({"$ref": "elsewhere"})", "12", "12"},
    {R"({"$ref": "#/$defs/loop"})", "12", "12"},
    {R"({"type": 5})", "12", "12"},
    {R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "12", "12"},
};
Json tools_with(const char* schema) {
	Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
	    "properties": {"a": {}}, "required": ["a"], "additionalProperties": false, "$defs": {
	        "id": {"type": "string"}, "maybe": {"anyOf": [{"$ref": "#/$defs/id"}, {"type": "null"}]},
	        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}}}}}])");
	tools[0]["function"]["parameters"]["properties"]["a"] = Json::parse(schema);
	return tools;
}
std::string call_of_f(ToolFormat f, const std::string& value) {
	const std::string mark = kMiniMaxMark;
	if (f == ToolFormat::MiniMax)
		return mark + "<tool_call>\n" + mark + "<invoke name=\"f\">" + mark + "<a>" + value + mark + "</a>" + mark +
		       "</invoke>\n" + mark + "</tool_call>";
	return f == ToolFormat::Glm
	           ? "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>" + value + "</arg_value>\n</tool_call>"
	           : "<tool_call>\n<function=f>\n<parameter=a>\n" + value + "\n</parameter>\n</function>\n</tool_call>";
}

} // namespace

TEST_CASE("calls: values without quotes have the types of the schema") {
	for (const ToolFormat format : {ToolFormat::QwenXml, ToolFormat::Glm, ToolFormat::MiniMax})
		for (const Typed& t : kTyped) {
			INFO(t.schema, " ", t.text);
			const Form f{"", format, "", "", false, "", ""};
			for (const size_t piece : {1, 3, 1000})
				CHECK(shown(parse(f, call_of_f(format, t.text), piece, tools_with(t.schema))) ==
				      " | f {\"a\":" + std::string(t.json) + "}");
		}
}

TEST_CASE("calls: lists and objects between tags") {
	const auto read = [&](const char* schema, std::string value) {
		for (size_t at = 0; (at = value.find('~', at)) != value.npos;) value.replace(at, 1, kMiniMaxMark);
		const Form f{"", ToolFormat::MiniMax, "", "", false, "", ""};
		const std::string answer = call_of_f(f.format, value), all = shown(parse(f, answer, 1000, tools_with(schema)));
		CHECK(shown(parse(f, answer, 1, tools_with(schema))) == all);
		return all.starts_with(" | f {\"a\":") ? all.substr(10, all.size() - 11) : all;
	};
	constexpr const char *kAny = "{}", *kTexts = R"({"type": "array", "items": {"type": "string"}})",
	                     *kObject = R"({"type": "object", "properties": {"n": {"type": "string"},
	                         "item": {"type": "integer"}}})";
	CHECK(read(kAny, "~<item>1~</item>~<item>x~</item>") == R"([1,"x"])");
	CHECK(read(kAny, "~<n>1~</n>~<m>~<item>2~</item>~</m>") == R"({"n":1,"m":[2]})");
	CHECK(read(kTexts, "~<item>1~</item>") == R"(["1"])");
	CHECK(read(kTexts, "") == "[]");
	CHECK(read(kObject, "~<n>1~</n>~<item>7~</item>") == R"({"n":"1","item":7})");
	CHECK(read(kObject, "~<item>7~</item>") == R"({"item":7})");
	CHECK(read(kObject, "") == "{}");
	CHECK(read(R"({"type": "string"})", "") == "\"\"");
}

TEST_CASE("calls: a text that may not become JSON of its types is told as it arrives") {
	const Form f{"", ToolFormat::QwenXml, "", "", false, "", ""};
	const auto told = [&](const char* schema, const std::string& begin) {
		const std::string answer = call_of_f(f.format, begin + std::string(500, 'x'));
		ReplyParser parser(options(f, tools_with(schema)));
		size_t n = 0;
		for (const char c : answer.substr(0, answer.find("x\n")))
			for (const ReplyParser::CallDelta& d : parser.push({&c, 1}).deltas) n += d.arguments.size();
		return n > 400;
	};
	CHECK(told(R"({"type": ["string", "null"]})", "no "));
	CHECK(told(R"({"type": ["string", "null"]})", "12"));
	CHECK(told(R"({"type": ["string", "integer"]})", "{"));
	CHECK(!told(R"({"type": ["string", "integer"]})", "12"));
	CHECK(!told(R"({})", ""));
}

// A grammar has the values that are read back with their types.
TEST_CASE("calls: answers that are held to types have strings without quotes where these are read") {
	const auto trie = bytes();
	const auto takes = [&](const char* schema, const std::string& value) {
		ChatFeatures features;
		features.tool_format = ToolFormat::QwenXml;
		Rules r;
		const Json tools = tools_with(schema);
		const ExprId e = add_calls(r, {features, tools, true, [](std::string_view s) { return std::string(s); }});
		r.set_root(r.add_rule("root"));
		r.set_body(r.root(), e);
		Matcher m(std::make_shared<Grammar>(r, trie));
		for (const char c : call_of_f(features.tool_format, value))
			if (!m.accept(uint8_t(c))) return false;
		return m.may_end();
	};
	CHECK(takes(R"({"enum": ["a", "b"]})", "a"));
	CHECK(!takes(R"({"enum": ["a", "b"]})", "\"a\""));
	CHECK(takes(R"({"type": ["string", "null"], "maxLength": 3})", "abc"));
	CHECK(takes(R"({"type": ["string", "null"], "maxLength": 3})", "null"));
	CHECK(!takes(R"({"type": ["string", "null"], "maxLength": 3})", "abcd"));
	CHECK(takes(R"({"$ref": "#/$defs/maybe"})", "any text"));
	const char* list = R"({"anyOf": [{"enum": ["all"]}, {"type": "array", "items": {"type": "string"}}]})";
	CHECK(takes(list, "all"));
	CHECK(takes(list, "[\"a\",\"b\"]"));
	CHECK(!takes(list, "[a]"));
	CHECK(!takes(list, "\"all\""));
	CHECK(takes(R"({"type": "integer"})", "12"));
	CHECK(!takes(R"({"type": "integer"})", "x"));
	CHECK(takes(R"({})", "\"x\"")); // JSON where the schema says nothing
	CHECK(!takes(R"({})", "x"));
}
