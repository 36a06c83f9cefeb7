// JSON schemas as grammars: which texts are values of a schema, and which keywords are refused by name.
#include "engine/core/error.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

using namespace kvrun;
using namespace kvrun::grammar;

namespace {

std::shared_ptr<const TokenTrie> bytes() {
	static const auto trie = [] {
		std::vector<std::string> texts;
		for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
		return std::make_shared<TokenTrie>(texts, std::vector<uint32_t>{});
	}();
	return trie;
}

bool takes(const std::shared_ptr<Grammar>& g, const std::string& text) {
	Matcher m(g);
	for (const char c : text)
		if (!m.accept(uint8_t(c))) return false;
	return m.may_end();
}

struct Row {
	const char* schema;
	std::vector<std::string> good, bad;
};
const Row kRows[] = {
    {"true", {"1", "{\"a\": [1, null]}", "\"\\u00e9\\n\""}, {"", "{", "\"\\ud800\"", "01", "{'a': 1}"}},
    {"{}", {"false", "-0.5e3"}, {"-", "1.", "tru"}},
    {R"({"type": "object"})", {"{}", "{\"a\":1}", "{\n  \"a\": {}\n}"}, {"[]", "{\"a\"}", "{\"a\":1,}"}},
    {R"({"type": ["integer", "null"]})", {"1", "null", "-20"}, {"1.5", "-0", "\"1\""}},
    {R"({"type": "boolean"})", {"true", "false"}, {"0", "null"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"],
       "additionalProperties": false})",
     {"{\"a\": 1, \"b\": \"x\"}", "{\"a\":1,\"b\":\"\"}"},
     {"{\"b\":\"\",\"a\":1}", "{\"a\":1}", "{}", "{\"a\":1,\"b\":\"\",\"c\":1}", "{\"a\":\"1\",\"b\":\"\"}"}},
    {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}})",
     {"{}", "{\"a\":null}", "{\"b\":null,\"c\":null}", "{\"c\":null}", "{\"a\":null,\"c\":null}"},
     {"{,\"a\":null}", "{\"c\":null,\"a\":null}", "{\"a\":null,}"}},
    {R"({"type": "object", "properties": {"ab": {"type": "null"}}, "required": ["ab", "q"],
        "additionalProperties": {"type": "integer"}})",
     {"{\"ab\":null,\"q\":1}", "{\"ab\":null,\"q\":1,\"a\":2,\"abc\":3}"},
     {"{\"ab\":null}", "{\"ab\":null,\"q\":1,\"ab\":2}", "{\"ab\":null,\"q\":1,\"x\":null}",
      "{\"ab\":null,\"q\":1,\"\\u0061b\":2}"}},
    {R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":null}"}},
    {R"({"patternProperties": {"^s_": {"type": "string"}, "^i_[0-9]+$": {"type": "integer"}},
        "additionalProperties": false})",
     {"{}", "{\"s_\":\"\"}", "{\"i_1\":1,\"s_x\":\"\",\"i_22\":2}"},
     {"{\"a\":1}", "{\"s_\":1}", "{\"i_\":1}", "{\"i_1\":\"\"}", "{\"\\u0073_\":1}"}},
    {R"({"patternProperties": {"^a": {"maximum": 5}}, "properties": {"ab": {"type": "integer"}, "b": {"type": "null"}},
        "required": ["ab", "ac"]})",
     {"{\"ab\":5,\"ac\":1.5}", "{\"ab\":1,\"b\":null,\"ac\":5}"},
     {"{\"ab\":6,\"ac\":1}", "{\"ab\":1,\"ac\":6}", "{\"ab\":1}", "{\"ab\":1,\"ac\":1,\"ad\":6}",
      "{\"ab\":1,\"ac\":1,\"ab\":6}"}},
    {R"({"type": "object", "patternProperties": {"x": {"type": "null"}}, "minProperties": 1})",
     {"{\"axb\":null}", "{\"x\":null,\"xx\":null}"},
     {"{}", "{\"a\":null}", "{\"x\":1}"}},
    {R"({"patternProperties": {"^a": false}, "properties": {"ab": {}, "b": {}}})", {"{}", "{\"b\":1}"}, {"{\"ab\":1}"}},
    {R"({"oneOf": [
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": false},
        {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"], "additionalProperties": false}]})",
     {"{\"a\":null}", "{\"b\":null}"},
     {"{}"}},
    {R"({"type": "object", "patternProperties": {}})", {"{}", "{\"a\":1}"}, {"1"}},
    {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
     {"[1]", "[1, 2, 3]"},
     {"[]", "[1,2,3,4]", "[1,]", "[null]"}},
    {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
    {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 1})",
     {"[1]", "[1,\"a\"]"},
     {"[]", "[\"a\"]", "[1,\"a\",2]"}},
    {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}})",
     {"[]", "[1]", "[1,null,null]"},
     {"[null]", "[1,1]"}},
    {R"({"enum": ["a", 1, null, {"x": [1]}, "\u00e9\""]})",
     {"\"a\"", "1", "null", "{\"x\":[1]}", "\"\xc3\xa9\\\"\""},
     {"\"b\"", "2", "true"}},
    {R"({"enum": ["a", "bb", 3], "type": "string", "maxLength": 1})", {"\"a\""}, {"\"bb\"", "3"}},
    {R"({"const": "x"})", {"\"x\""}, {"\"y\""}},
    {R"({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]}]})",
     {"7", "{\"k\":1}"},
     {"{}", "\"7\""}},
    {R"({"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]},
        {"properties": {"b": {"type": "null"}}, "required": ["b"]}]})",
     {"{\"a\":null}", "{\"a\":null,\"b\":null}", "{\"b\":null}"},
     {"{}"}},
    {R"({"oneOf": [{"type": "string"}, {"type": "integer"}]})", {"\"\"", "1"}, {"null"}},
    {R"({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "integer"}},
                    "required": ["t", "v"]},
                   {"type": "object", "properties": {"t": {"const": "b"}, "v": {"type": "string"}},
                    "required": ["t", "v"]}]})",
     {"{\"t\":\"a\",\"v\":1}", "{\"t\":\"b\",\"v\":\"\"}"},
     {"{\"t\":\"a\",\"v\":\"\"}"}},
    {R"({"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "allOf": [{"oneOf": [
        {"properties": {"k": {"const": "x"}}}, {"properties": {"k": {"const": "y"}}}]}]})",
     {"{\"k\":\"x\"}", "{\"k\":\"y\"}"},
     {"{\"k\":\"z\"}", "{}"}},
    {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                   {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"]}]})",
     {"{\"a\":3,\"b\":null}"},
     {"{\"a\":2,\"b\":null}", "{\"a\":3}"}},
    {R"({"allOf": [{"type": "number"}, {"type": "integer", "minimum": 1}, {"maximum": 2}]})",
     {"1", "2"},
     {"0", "3", "1.5"}},
    {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next":
       {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}})",
     {"{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
    {R"({"$ref": "#/$defs/a~1b%25", "minimum": 2, "$defs": {"a/b%": {"type": "integer"}}})", {"2"}, {"1"}},
    {R"({"type": "string", "minLength": 2, "maxLength": 3})",
     {"\"ab\"", "\"\xc3\xa9\xe2\x82\xac\\n\"", "\"\\u0041bc\""},
     {"\"a\"", "\"abcd\""}},
    {R"({"type": "string", "pattern": "^[a-c]+(-[0-9]{2})?$"})", {"\"ab\"", "\"c-12\""}, {"\"d\"", "\"a-1\"", "\"\""}},
    {R"({"pattern": "b|^c$"})", {"\"abc\"", "\"c\""}, {"\"a\"", "\"cd\""}},
    {R"({"pattern": "^(a|b)$"})", {"\"a\""}, {"\"ab\"", "\"c\""}},
    {R"({"pattern": "^\\d{3}\\s\\w[^\"x]\"\\\\$"})",
     {"\"123 a.\\\"\\\\\"", "\"123\\ta.\\\"\\\\\""},
     {"\"12 a.\\\"\\\\\""}},
    {R"({"format": "date"})", {"\"2024-02-28\""}, {"\"2024-02-30\"", "\"2024-13-01\""}},
    {R"({"format": "date-time"})",
     {"\"2024-02-28T23:59:59.5Z\"", "\"2024-12-31T00:00:00+02:00\""},
     {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\""}},
    {R"({"format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
    {R"({"type": "integer", "minimum": -12, "maximum": 105})",
     {"-12", "-9", "0", "99", "105"},
     {"-13", "106", "200", "-0", "00"}},
    {R"({"type": "integer", "exclusiveMinimum": 9, "maximum": 10})", {"10"}, {"9", "11"}},
    {R"({"type": "integer", "minimum": 100})", {"100", "123456"}, {"99", "5", "-100"}},
    {R"({"type": "number", "minimum": 0, "maximum": 1})",
     {"0", "1", "0.5", "1.0", "0.123"},
     {"1.1", "-0.1", "2", "1.01"}},
    {R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2.5})",
     {"0.1", "2", "2.4999", "1", "0.001"},
     {"0", "0.0", "2.5", "2.50", "3", "-1"}},
    {R"({"type": "number", "minimum": -1.25, "maximum": -0.5})",
     {"-1.25", "-0.5", "-1", "-0.75"},
     {"-1.26", "-0.4", "0", "-2", "1"}},
    {R"({"type": "number", "exclusiveMaximum": 0})", {"-1", "-0.1"}, {"0", "-0", "0.1"}},
};

struct Refused {
	const char *schema, *message;
};
const Refused kRefused[] = {
    {R"({"patternProperties": {"^a": {}, "b$": {"type": "null"}}})",
     "#/patternProperties/b$: a name may also match the pattern ^a"},
    {R"({"patternProperties": {"(": {}}})", "#/patternProperties/(: the pattern '(' is wrong"},
    {R"({"oneOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]},
        {"type": "object", "properties": {"b": {}}, "required": ["b"], "patternProperties": {"^a": {}},
         "additionalProperties": false}]})",
     "#/oneOf: schemas 0 and 1"},
    {R"({"patternProperties": 1})", "#/patternProperties: it is not an object"},
    {R"({"properties": {"x": {}}, "required": ["x"], "additionalProperties": false,
        "allOf": [{"patternProperties": {"^a": {}}}]})",
     "#/patternProperties: additionalProperties of another schema"},
    {R"({"patternProperties": {"^a": false}, "properties": {"ab": {}}, "required": ["ab"]})", "no value is valid"},
    {R"({"type": "object", "properties": {"a/b": {"not": {}}}})", "#/properties/a~1b/not: not is not supported"},
    {R"({"if": {}})", "#/if"},
    {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
    {R"({"type": "array", "contains": {}})", "contains"},
    {R"({"type": "integer", "multipleOf": 2})", "multipleOf"},
    {R"({"dependentRequired": {}})", "dependentRequired"},
    {R"({"unevaluatedProperties": false})", "unevaluatedProperties"},
    {R"({"frobnicate": 1})", "#/frobnicate"},
    {R"({"type": "strin"})", "#/type"},
    {R"({"type": []})", "no type"},
    {R"({"$ref": "http://example.com/x"})", "is not in this schema"},
    {R"({"$ref": "#/$defs/none"})", "'#/$defs/none' is not there"},
    {R"({"format": "phone"})", "#/format: the format \"phone\" is not supported; date, date-time"},
    {R"({"pattern": "(?=a)b"})", "#/pattern: the pattern '(?=a)b' has (?="},
    {R"({"pattern": "(a)\\1"})", "\\1"},
    {R"({"pattern": "a\\b"})", "\\b"},
    {R"({"pattern": "("})", "a group has no end"},
    {R"({"pattern": "a", "maxLength": 3})", "together"},
    {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#/oneOf: schemas 0 and 1 of oneOf are not told apart"},
    {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "no value has both types"},
    {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no integer is between"},
    {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength is more than maxLength"},
    {R"({"type": "string", "maxLength": 100000000})", "#/maxLength"},
    {R"({"type": "object", "required": ["x"], "additionalProperties": false})", "'x' is required"},
    {R"({"anyOf": []})", "#/anyOf"},
    {R"({"properties": {"a": false}, "required": ["a"]})", "#/properties/a: no value is valid"},
    {"false", "no value is valid"},
    {"[1]", "not an object"},
    {"{", "JSON schema"},
    {R"({"$ref": "#"})", "no text"},
};

} // namespace

TEST_CASE("T41 grammar: what the grammar of JSON objects lets pass is JSON, and every object passes") {
	const auto g = std::make_shared<Grammar>(schema_grammar(R"({"type": "object"})"), bytes());
	const auto passes = [&](const std::string& text) { return takes(g, text); };
	const char* objects[] = {R"({})", R"({ "a" : [ ] } )",
	                         R"({"a": [1, -0.5e+10, 0, "\u00e9\n", true, false, null, {"b": {}}]})",
	                         "{\"\u00e9\U0001F642\": 1E5, \"\": -0}", "{\n\t\"x\": \"\\\\\\\"\"\n}"};
	for (std::string text : objects) {
		while (text.back() == ' ') text.pop_back(); // nothing follows an object
		CHECK_MESSAGE(passes(text), text);
		CHECK(nlohmann::json::accept(text));
		for (size_t cut = 0; cut < text.size(); ++cut) CHECK_FALSE(passes(text.substr(0, cut)));
	}
	for (const char* text : {"",
	                         "[]",
	                         "1",
	                         "{]",
	                         "{\"a\"}",
	                         "{\"a\":}",
	                         "{\"a\":1,}",
	                         "{,}",
	                         "{\"a\":01}",
	                         "{\"a\":1.}",
	                         "{\"a\":.5}",
	                         "{\"a\":+1}",
	                         "{\"a\":-}",
	                         "{\"a\":1e}",
	                         "{\"a\":[1 2]}",
	                         "{\"a\":nul}",
	                         "{\"a\":tru e}",
	                         "{\"\x01\":1}",
	                         "{\"\\x\":1}",
	                         "{\"\\u12g4\":1}",
	                         "{\"\xff\":1}",
	                         "{\"\xc0\x80\":1}",
	                         "{\"\xed\xa0\x80\":1}",
	                         " {}",
	                         "{}x"})
		CHECK_MESSAGE(!passes(text), text);
	// random walks: any allowed bytes, with a preference for bytes that end values
	std::mt19937 random(1);
	for (int walk = 0; walk < 300; ++walk) {
		Matcher m(g);
		std::string text;
		for (int i = 0; i < 4000 && !m.is_finished(); ++i) {
			const uint8_t c = random() % 3 ? uint8_t("{}[]\",:0 t"[random() % 11]) : uint8_t(random());
			if (m.accept(c)) text += char(c);
		}
		if (m.is_finished()) CHECK_MESSAGE(nlohmann::json::accept(text), text);
	}
}

TEST_CASE("schema: texts that are values, and texts that are not") {
	for (const Row& row : kRows) {
		INFO(row.schema);
		const auto g = std::make_shared<Grammar>(schema_grammar(row.schema), bytes());
		for (const std::string& t : row.good) CHECK_MESSAGE(takes(g, t), t);
		for (const std::string& t : row.bad) CHECK_MESSAGE(!takes(g, t), t);
	}
}

TEST_CASE("schema: keywords that only limit values further can be left out, others cannot") {
	struct Loose {
		const char* schema;
		std::vector<std::string> left, good, bad;
	};
	const Loose rows[] = {
	    {R"({"properties": {"a/b": {"type": "integer", "not": {}, "multipleOf": 2}}, "required": ["a/b"]})",
	     {"#/properties/a~1b/not: not is not supported", "#/properties/a~1b/multipleOf"},
	     {"{\"a/b\":3}"},
	     {"{\"a/b\":\"\"}"}},
	    {R"({"allOf": [{"uniqueItems": true}, {"type": "array", "uniqueItems": false}]})",
	     {"#/uniqueItems"},
	     {"[1,1]"},
	     {"1"}},
	    {R"({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null", "if": {}, "then": {}}}})",
	     {"#/$defs/x/if", "#/$defs/x/then"},
	     {"null"},
	     {"1"}},
	    {R"({"format": "phone", "pattern": "^a$"})", {"#/format: the format"}, {"\"a\""}, {"\"b\""}},
	    {R"({"format": "date", "pattern": "^a$", "minLength": 50})",
	     {"#/pattern: two of", "#/minLength"},
	     {"\"2024-02-28\""},
	     {"\"a\""}},
	    {R"({"pattern": "(?=a)b", "maxLength": 1})", {"#/pattern: the pattern"}, {"\"b\""}, {"\"bb\""}},
	    {R"({"enum": ["a", "b"], "pattern": "a"})",
	     {"#/pattern: pattern beside enum", "#/pattern"},
	     {"\"b\""},
	     {"\"c\""}},
	    {R"({"type": "string", "nullable": true, "a/b": {}})",
	     {"#/nullable: nullable is not supported", "#/a~1b"},
	     {"\"a\""},
	     {"1", "null"}},
	    {R"({"$ref": "#/$defs/x", "propertyOrdering": [], "$defs": {"x": {"type": "null"}}})",
	     {"#/propertyOrdering"},
	     {"null"},
	     {"1"}},
	    {R"({"properties": {"a": {"type": "null"}}, "minProperties": 1})", {"#/minProperties"}, {"{}"}, {"{\"b\":1}"}},
	};
	for (const Loose& row : rows) {
		INFO(row.schema);
		std::vector<std::string> told;
		Rules r;
		r.set_root(r.add_rule("root"));
		r.set_body(r.root(), add_schema(r, nlohmann::ordered_json::parse(row.schema),
		                                [&](const std::string& line) { told.push_back(line); }));
		const auto g = std::make_shared<Grammar>(r, bytes());
		for (const std::string& t : row.good) CHECK_MESSAGE(takes(g, t), t);
		for (const std::string& t : row.bad) CHECK_MESSAGE(!takes(g, t), t);
		REQUIRE(told.size() == row.left.size());
		for (size_t i = 0; i < told.size(); ++i)
			CHECK_MESSAGE(told[i].starts_with("the JSON schema at " + row.left[i]), told[i]);
	}
	Rules r;
	CHECK_THROWS_AS(add_schema(r, {{"type", "strin"}}, [](const std::string&) {}), Error);
}

TEST_CASE("schema: what is not supported is refused by its name and place") {
	for (const Refused& r : kRefused) {
		INFO(r.schema);
		std::string message;
		try {
			Automaton{schema_grammar(r.schema)};
		} catch (const Error& e) { message = e.what(); }
		INFO(message);
		CHECK(message.find(r.message) != message.npos);
		CHECK(message.find('\n') == message.npos);
	}
}

TEST_CASE("schema: what is made to explode ends with one clear error, or works") {
	std::string deep = "true", wide = R"({"type": "object", "properties": {)", refs = R"({"$defs": {)", all = "{}";
	for (int i = 0; i < 60; ++i) deep = fmt::format(R"({{"items": {}}})", deep);
	for (int i = 0; i < 1000; ++i) wide += fmt::format(R"({}"p{}": {{"type": "integer"}})", i ? "," : "", i);
	wide += "}}";
	for (int i = 0; i < 40; ++i) // the size doubles each time
		refs += fmt::format(R"({}"d{}": {{"allOf": [{{"anyOf": [{{"$ref": "#/$defs/d{}"}}, {{"type": "null"}}]}},
		{{"anyOf": [{{"$ref": "#/$defs/d{}"}}, {{"minimum": {}}}]}}]}})",
		                    i ? "," : "", i, i + 1, i + 1, i);
	refs += R"(,"d40": {"type": "integer"}}, "$ref": "#/$defs/d0"})";
	for (int i = 0; i < 12; ++i) all = fmt::format(R"({{"allOf": [{},{}]}})", all, all);
	std::string more = R"({"$defs": {"x": {"allOf": [{"$ref": "#/$defs/x"}, {"minimum": 1}]}}, "$ref": "#/$defs/x"})";
	for (const std::string& schema :
	     {deep, wide, refs, all, more, std::string(R"({"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"})"),
	      std::string(R"({"type": "string", "pattern": "(a*)*(a*)*(a|a)*b"})"),
	      std::string(R"({"type": "string", "maxLength": 99999})"),
	      std::string(
	          R"({"type": "array", "maxItems": 999, "items":
	             {"type": "array", "maxItems": 999, "items": {"type": "string", "maxLength": 999}}})")}) {
		INFO(schema.substr(0, 60));
		try {
			const auto g = std::make_shared<Grammar>(schema_grammar(schema), bytes());
			Matcher m(g);
			for (int i = 0; i < 50 && !m.is_finished(); ++i) {
				const auto bits = m.allowed();
				uint32_t t = 255;
				while (t > 0 && !(bits[t / 64] >> t % 64 & 1)) --t;
				if (!m.accept(t)) break;
			}
		} catch (const Error& e) {
			INFO(e.what());
			CHECK(std::string(e.what()).size() < 400);
			CHECK(e.code != Code::Internal);
		}
	}
}

TEST_CASE("schema: nesting ends where it must, and never in a dead end") {
	// a schema without a finite value is refused
	const auto endless = [] {
		Automaton{schema_grammar(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})")};
	};
	CHECK_THROWS_AS(endless(), Error);
	const auto any = std::make_shared<Grammar>(schema_grammar(R"({"type": "object"})"), bytes());
	Matcher deep(any);
	int levels = 0;
	const auto all = [&](const char* s) {
		for (; *s; ++s)
			if (!deep.accept(uint8_t(*s))) return false;
		return true;
	};
	while (levels < 2000 && all("{\"a\":")) ++levels;
	CHECK(levels > 60);
	CHECK(levels < 2000);
	CHECK(!deep.allows('{'));
	CHECK(all("0"));
	for (int i = 0; i < levels; ++i) REQUIRE(all("}"));
	CHECK(deep.is_finished());
}
