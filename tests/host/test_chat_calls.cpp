// Tool calls in the forms of several families: parsed from answers, and answers constrained to them.
#include "engine/core/error.h"
#include "models/chat/call_grammar.h"
#include "models/chat/fit.h"
#include "models/chat/json_prefix.h"
#include "models/chat/reply.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"
#include "tests/host/chat_shapes.h"
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;
using namespace kvrun::call_test;
using namespace kvrun::grammar;

namespace {

const Form kForms[] = {
    {"Qwen 2.5, Qwen 3, Hermes", ToolFormat::Hermes, "", "", false,
     "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": "
     "2}}\n</tool_call>\n<tool_call>\n{\"name\": \"set-mode\", \"arguments\": {\"on\": true, \"mode\": "
     "\"a\"}}\n</tool_call>",
     "Let me see. | get_weather {\"city\":\"Paris\",\"days\":2} | set-mode {\"on\":true,\"mode\":\"a\"}"},
    {"Qwen3-Coder", ToolFormat::QwenXml, "", "", false,
     "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n12\nNew "
     "\"York\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "I look. | get_weather {\"city\":\"12\\nNew \\\"York\\\"\",\"days\":3}"},
    {"Llama 3.1", ToolFormat::Llama3, "", "", false,
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}", " | get_weather {\"city\":\"Rome\"}"},
    {"Llama 3.1, with its tag", ToolFormat::Llama3, "", "", false,
     "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"name\": \"set-mode\", "
     "\"parameters\": {\"on\": false, \"mode\": \"b\"}}",
     " | get_weather {\"city\":\"Rome\"} | set-mode {\"on\":false,\"mode\":\"b\"}"},
    {"Llama 3.2, Llama 4", ToolFormat::Pythonic, "", "", false,
     "[get_weather(city='San \"F\" \\'x', days=4), set-mode(on=True, level=None, mode=\"a\", list=[\"x\", \"y\"])]",
     " | get_weather {\"city\":\"San \\\"F\\\" 'x\",\"days\":4} | set-mode "
     "{\"on\":true,\"level\":null,\"mode\":\"a\",\"list\":[\"x\",\"y\"]}"},
    {"Llama 4, as its template writes", ToolFormat::Llama3, "", "", false,
     "<|python_start|><|python_end|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}{\"name\": "
     "\"set-mode\", \"parameters\": {\"on\": false, \"mode\": \"b\"}}",
     " | get_weather {\"city\":\"Rome\"} | set-mode {\"on\":false,\"mode\":\"b\"}"},
    {"Llama 4, between its markers", ToolFormat::Llama3, "", "", false,
     "<|python_start|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}<|python_end|>",
     " | get_weather {\"city\":\"Rome\"}"},
    {"LFM2", ToolFormat::Pythonic, "<|tool_call_start|>", "<|tool_call_end|>", false,
     "<|tool_call_start|>[get_weather(city=\"Oslo\")]<|tool_call_end|>Checking.",
     "Checking. | get_weather {\"city\":\"Oslo\"}"},
    {"OLMo 3", ToolFormat::Pythonic, "<function_calls>", "</function_calls>", false,
     "<function_calls>\nget_weather(city=\"Oslo\")\nset-mode(on=False, mode=\"b\")\n</function_calls>",
     " | get_weather {\"city\":\"Oslo\"} | set-mode {\"on\":false,\"mode\":\"b\"}"},
    {"Mistral, as a list", ToolFormat::Mistral, "", "", false,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Nice\"}}]",
     " | get_weather {\"city\":\"Nice\"}"},
    {"Mistral, since v11", ToolFormat::Mistral, "", "", true,
     "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Nice\"}[TOOL_CALLS]set-mode[ARGS]{\"on\": true, \"mode\": \"b\"}",
     " | get_weather {\"city\":\"Nice\"} | set-mode {\"on\":true,\"mode\":\"b\"}"},
    {"DeepSeek V3, R1", ToolFormat::DeepSeek, "", "", true,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": "
     "\"Bonn\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     " | get_weather {\"city\":\"Bonn\"}"},
    {"Hermes, two objects without tags", ToolFormat::Hermes, "", "", false,
     "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n{\"name\": \"set-mode\", \"arguments\": "
     "{\"on\": true, "
     "\"mode\": \"a\"}}",
     " | get_weather {\"city\":\"Oslo\"} | set-mode {\"on\":true,\"mode\":\"a\"}"},
    {"Hermes, in a fence", ToolFormat::Hermes, "", "", false,
     "```json\n{\n  \"name\": \"get_weather\",\n  \"arguments\": {\n    \"city\": \"Oslo\"\n  }\n}\n```",
     " | get_weather {\"city\":\"Oslo\"}"},
    {"Hermes, other tags", ToolFormat::Hermes, "", "", false,
     "\n<tools>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tools>",
     " | get_weather {\"city\":\"Oslo\"}"},
    {"DeepSeek V3.1", ToolFormat::DeepSeek, "", "", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": "
     "\"Bonn\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     " | get_weather {\"city\":\"Bonn\"}"},
    {"FunctionGemma", ToolFormat::Gemma, "", "", false,
     "<start_function_call>call:get_weather{city:<escape>Kyiv, \"UA\"<escape>,days:3}<end_function_call>",
     " | get_weather {\"city\":\"Kyiv, \\\"UA\\\"\",\"days\":3}"},
    {"Gemma 4", ToolFormat::Gemma, "", "", true,
     "<|tool_call>call:set-mode{on:true,level:null,mode:<|\"|>a<|\"|>,list:[<|\"|>x<|\"|>]}<tool_call|>",
     " | set-mode {\"on\":true,\"level\":null,\"mode\":\"a\",\"list\":[\"x\"]}"},
    {"GLM 4.5", ToolFormat::Glm, "", "", false,
     "Sure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Lima</arg_value>\n<arg_key>days</"
     "arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
     "Sure. | get_weather {\"city\":\"Lima\",\"days\":5}"},
    {"Granite 3", ToolFormat::Granite, "", "", false,
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}, {\"name\": \"set-mode\", "
     "\"arguments\": {\"on\": true, \"mode\": \"a\"}}]",
     " | get_weather {\"city\":\"Bern\"} | set-mode {\"on\":true,\"mode\":\"a\"}"},
    {"gpt-oss", ToolFormat::Harmony, "", "", false,
     "<|channel|>analysis<|message|>Need the tool.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}<|call|>",
     " | get_weather {\"city\":\"Ulm\"} ~ Need the tool."},
    {"gpt-oss, an answer", ToolFormat::Harmony, "", "", false,
     "<|channel|>analysis<|message|>2 < 3<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
     "Yes. ~ 2 < 3"},
    {"gpt-oss, the recipient in the role", ToolFormat::Harmony, "", "", false,
     "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Ulm\"}<|call|>",
     " | get_weather {\"city\":\"Ulm\"}"},
    {"gpt-oss, the recipient first", ToolFormat::Harmony, "", "", false,
     " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Ulm\"}<|call|>",
     " | get_weather {\"city\":\"Ulm\"}"},
    {"Command R7B, Command A", ToolFormat::CommandR, "", "", false,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": "
     "\"York\"}}\n]<|END_ACTION|>",
     " | get_weather {\"city\":\"York\"}"},
    {"Phi-4-mini", ToolFormat::Phi4, "<|tool_call|>", "<|/tool_call|>", false,
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Riga\"}}]<|/tool_call|>",
     " | get_weather {\"city\":\"Riga\"}"},
    {"Nemotron Nano 2", ToolFormat::Phi4, "<TOOLCALL>", "</TOOLCALL>", false,
     "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Riga\"}}, {\"name\": \"set-mode\", "
     "\"arguments\": {\"on\": true, \"mode\": \"a\"}}]</TOOLCALL>",
     " | get_weather {\"city\":\"Riga\"} | set-mode {\"on\":true,\"mode\":\"a\"}"},
    {"Kimi K2", ToolFormat::Kimi, "", "", false,
     "On "
     "it.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": "
     "\"Xi'an\"}<|tool_call_end|><|tool_calls_section_end|>",
     "On it. | get_weather {\"city\":\"Xi'an\"}"},
    {"MiniMax-M3", ToolFormat::MiniMax, "", "", false,
     "On it.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>12 "
     "\"Q\"]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke "
     "name=\"set-mode\">]<]minimax[>[<on>true]<]minimax[>[</on>]<]minimax[>[<mode>a]<]minimax[>[</"
     "mode>]<]minimax[>[<list>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</"
     "item>]<]minimax[>[</list>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
     "On it. | get_weather {\"city\":\"12 \\\"Q\\\"\",\"days\":3} | set-mode "
     "{\"on\":true,\"mode\":\"a\",\"list\":[\"x\",\"2\"]}"},
};

// These, and those that rendering finds.
const std::vector<Form>& forms() {
	static const std::vector<Form> all = [] {
		std::vector<Form> out(std::begin(kForms), std::end(kForms));
		for (const ShapedFamily& s : shaped_families()) {
			ChatFeatures f = chat_features(ChatTemplate(s.text, s.name));
			out.push_back({s.name, f.tool_format, "", "", false, s.answer, s.expected, std::move(f.shape)});
		}
		return out;
	}();
	return all;
}
} // namespace

TEST_CASE("calls: the forms that rendering finds") {
	for (const Form& f : forms()) {
		INFO(f.name);
		CHECK(f.format != ToolFormat::None);
		CHECK((f.format == ToolFormat::Shaped) == bool(f.shape));
	}
	const auto form = [](const std::string& text) {
		return chat_features(ChatTemplate("{% if tools %}{{ tools|tojson }}{% endif %}" + text)).tool_format;
	};
	const std::string call = "<call name=\"{{ f.name }}\">{{ f.arguments|tojson }}</call>";
	CHECK(form(template_with(each_call(call))) == ToolFormat::Shaped);
	// else tools are written as text: the name twice, no marker, no arguments
	for (const std::string& unknown :
	     {each_call("<call of=\"{{ f.name }} {{ f.name }}\">{{ f.arguments|tojson }}</call>"),
	      each_call("{{ f.name }}: {{ f.arguments|tojson }};"),
	      std::string("<call name=\"{{ m.tool_calls[0].function.name }}\"></call>")})
		CHECK(form(template_with(unknown)) == ToolFormat::Hermes);
}

TEST_CASE("calls: the forms of families, however answers are cut into pieces") {
	for (const Form& f : forms()) {
		INFO(f.name);
		for (const size_t piece : {1, 2, 3, 7, 1000}) CHECK(shown(parse(f, f.answer, piece)) == f.expected);
	}
}

// Arguments are reported as they arrive: all but the last few bytes, in any form.
TEST_CASE("calls: arguments are told before they have ended") {
	const std::string city(500, 'x');
	for (const Form& f : forms()) {
		const Shown whole = parse(f, f.answer, 1);
		if (whole.calls.empty() || whole.calls[0].name != "get_weather") continue;
		INFO(f.name);
		CHECK(whole.told_early > 0);
		const Json arguments = Json::parse(whole.calls[0].arguments);
		if (!arguments.contains("city")) continue;
		std::string answer = f.answer;
		const std::string was = arguments["city"];
		const size_t at = answer.find(was);
		if (at == answer.npos) continue;
		answer.replace(at, was.size(), city);
		const Shown longer = parse(f, answer, 1);
		REQUIRE(longer.calls.size() == whole.calls.size());
		CHECK(Json::parse(longer.calls[0].arguments)["city"] == Json(city));
		CHECK(longer.told_early >= 400);
		// the limit on tokens comes in the middle: the reported part stays a call, whose arguments are not valid JSON
		const Shown cut = parse(f, std::string_view(answer).substr(0, at + 300), 1);
		REQUIRE(cut.calls.size() == 1);
		CHECK(cut.calls[0].arguments.find(std::string(200, 'x')) != std::string::npos);
		CHECK(!Json::accept(cut.calls[0].arguments));
		for (const size_t piece : {2, 3, 7, 1000})
			CHECK(shown(parse(f, std::string_view(answer).substr(0, at + 300), piece)) == shown(cut));
	}
}

TEST_CASE("calls: of functions that are not defined nothing is told before the call has ended") {
	for (const Form& f : forms()) {
		INFO(f.name);
		std::string answer = f.answer;
		for (const std::string name : {"get_weather", "set-mode"})
			for (size_t at; (at = answer.find(name)) != answer.npos;) answer.replace(at, 3, "her");
		for (const size_t piece : {1, 3}) CHECK(parse(f, answer, piece).told_early == 0);
	}
}

// Each prefix of a JSON text gives a prefix of the result of the whole text.
TEST_CASE("calls: beginnings of JSON texts") {
	const std::string text = R"( {"a" : [1, -2.50e1, true , null,[ ], {}], "b\"c": "q\n\ud83d\ude00 \u00e9)"
	                         "\xc3\xbc\xf0\x9f\x98\x80"
	                         R"(\\ end", "d": {"e": {"f": "" } } } tail)";
	const std::string dumped = Json::parse(text.substr(0, text.size() - 5)).dump();
	size_t said = 0;
	for (size_t n = 1; n <= text.size(); ++n) {
		const JsonPrefix p = json_prefix(std::string_view(text).substr(0, n), 1);
		CHECK(p.valid);
		CHECK(p.end <= n);
		CHECK(dumped.starts_with(p.text));
		CHECK(p.text.size() >= said);
		said = p.text.size();
		CHECK(p.whole == (n >= text.size() - 5));
	}
	CHECK(said == dumped.size());
	for (const char* wrong :
	     {"{a", "{\"a\" 1", "[1 2", "{\"a\": tru,", "[1,]", "{\"a\":1,}", "[}", "{\"a\":\"\x01", "[nan,"}) {
		INFO(wrong);
		CHECK(!json_prefix(wrong, 0).valid);
	}
	CHECK(!json_prefix(std::string(size_t(kMaxCallNesting) + 1, '['), 0).valid);
	CHECK(json_prefix(std::string(size_t(kMaxCallNesting), '['), 0).valid);
}

TEST_CASE("calls: what is no call stays text, and a call that is cut off before its arguments is none") {
	for (const Form& f : forms()) {
		INFO(f.name);
		if (f.format == ToolFormat::Harmony) continue; // its control tokens are never text
		const std::string answer = f.answer;
		for (size_t cut = 1; cut + 1 < answer.size(); cut += 3) {
			const Shown s = parse(f, std::string_view(answer).substr(0, cut), 4);
			CHECK(shown(parse(f, std::string_view(answer).substr(0, cut), 1)) == shown(s));
		}
		for (const char* text :
		     {"plain <b>text</b>", "[1, 2]", "{\"a\": 1}", "[f(", "call:x{", "<tool_call>", "<tool_call>x"}) {
			const Shown s = parse(f, text, 1);
			CHECK(s.calls.empty());
			CHECK(s.content.find_first_not_of(" \n") != s.content.npos);
		}
	}
}

// Any answer that a grammar of calls allows is parsed as calls of these tools that their schemas allow.
TEST_CASE("calls: answers that are held to a form are read back as calls with valid arguments") {
	const auto trie = bytes();
	for (const Form& f : forms()) {
		INFO(f.name);
		ChatFeatures features;
		features.tool_format = f.format;
		features.tool_begin = f.begin, features.tool_end = f.end, features.tool_variant = f.variant;
		features.shape = f.shape;
		for (const bool one_call : {true, false}) {
			Rules r;
			const ExprId e =
			    add_calls(r, {features, kTools, one_call, [](std::string_view s) { return std::string(s); }});
			r.set_root(r.add_rule("root"));
			r.set_body(r.root(), e);
			const auto g = std::make_shared<Grammar>(r, trie);
			std::vector<std::shared_ptr<Grammar>> arguments;
			for (const Json& t : kTools)
				arguments.push_back(
				    std::make_shared<Grammar>(schema_grammar(t["function"]["parameters"].dump()), trie));
			std::mt19937_64 random(7);
			int whole = 0;
			for (int sample = 0; sample < 12; ++sample) {
				Matcher m(g);
				std::string text;
				for (int i = 0; i < 1500 && !m.is_finished() && !(m.may_end() && random() % 3 == 0); ++i) {
					std::vector<uint32_t> from;
					for (uint32_t t = 1; t < 128; ++t) // no zero bytes
						if (m.allows(t))
							from.insert(from.end(),
							            t == '"' || t == '<' || t == '}' || t == ']' ? 30
							            : t >= 32                                    ? 3
							                                                         : 1,
							            t);
					for (uint32_t t = 128; t < 256 && from.empty(); ++t) // for markers
						if (m.allows(t)) from.push_back(t);
					REQUIRE(!from.empty());
					const uint32_t t = from[random() % from.size()];
					REQUIRE(m.accept(t));
					text += char(t);
				}
				if (!m.may_end()) continue;
				++whole;
				INFO(text);
				const Shown s = parse(f, text, 5);
				CHECK(s.content == "");
				CHECK((one_call ? s.calls.size() == 1 : !s.calls.empty()));
				for (const ToolCall& c : s.calls) {
					const size_t tool = c.name == "get_weather" ? 0 : 1;
					CHECK(c.name == kTools[tool]["function"]["name"].get<std::string>());
					Matcher fits(arguments[tool]);
					bool good = true;
					for (const char b : c.arguments) good = good && fits.accept(uint8_t(b));
					CHECK_MESSAGE((good && fits.may_end()), c.arguments);
				}
			}
			CHECK(whole >= 4);
		}
	}
}

TEST_CASE(
    "calls: a schema that is not supported is refused where the function is strict, and is any object elsewhere") {
	ChatFeatures f;
	f.tool_format = ToolFormat::Hermes;
	Json tools = Json::parse(
	    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}])");
	const auto make = [&] {
		Rules r;
		add_calls(r, {f, tools, true, [](std::string_view s) { return std::string(s); }});
	};
	CHECK_NOTHROW(make());
	const auto takes = [&](const std::string& arguments) {
		Rules r;
		const ExprId e = add_calls(r, {f, tools, true, [](std::string_view s) { return std::string(s); }});
		r.set_root(r.add_rule("root"));
		r.set_body(r.root(), e);
		Matcher m(std::make_shared<Grammar>(r, bytes()));
		for (const char c : "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>")
			if (!m.accept(uint8_t(c))) return false;
		return m.may_end();
	};
	tools[0]["function"]["parameters"] =
	    Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}})");
	CHECK(takes("{\"a\": 3}")); // what is said beside it holds
	CHECK(!takes("{\"a\": \"\"}"));
	tools[0]["function"]["parameters"] = Json::parse(R"({"type": "object", "not": {}})");
	tools[0]["function"]["strict"] = true;
	CHECK_THROWS_WITH_AS(make(), doctest::Contains("/tools/f/parameters/not"), Error);
}

TEST_CASE("calls: a function that names no parameters is called with none") {
	ChatFeatures f;
	f.tool_format = ToolFormat::Hermes;
	for (const auto& row :
	     {std::pair(R"(null)", false), std::pair(R"({"type": "object", "properties": {}, "required": []})", false),
	      std::pair(R"({"description": "d"})", false),
	      std::pair(R"({"type": "object", "additionalProperties": {}})", true),
	      std::pair(R"({"type": "object", "properties": {"a": {}}})", true)}) {
		INFO(row.first);
		const Json tools = Json::array(
		    {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::parse(row.first)}}}}});
		Rules r;
		const ExprId e = add_calls(r, {f, tools, true, [](std::string_view s) { return std::string(s); }});
		r.set_root(r.add_rule("root"));
		r.set_body(r.root(), e);
		const auto g = std::make_shared<Grammar>(r, bytes());
		const auto takes = [&](const std::string& arguments) {
			Matcher m(g);
			bool good = true;
			for (const char c : "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>")
				good = good && m.accept(uint8_t(c));
			return good && m.may_end();
		};
		CHECK(takes("{}"));
		CHECK(takes("{\"a\": 1}") == row.second);
	}
}

namespace {

// The forms in which families write calls, whose keys have no quotes: each refuses arguments that are a text, or copies
// them.
constexpr const char* kQwenXml =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n"
    "<function=' + c.function.name + '>\n' }}{% for key, value in c.function.arguments|items %}{{ '<parameter=' + key "
    "+ '>\n' }}{{ value if value is string else value|tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n"
    "</tool_call>' }}{% endfor %}<|end|>{% endfor %}";
constexpr const char* kGlm =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + "
    "c.function.name }}{% for key, value in c.function.arguments.items() %}{{ '\n<arg_key>' + key + '</arg_key>\n"
    "<arg_value>' }}{{ value if value is string else value|tojson }}</arg_value>{% endfor %}{{ '\n</tool_call>' }}"
    "{% endfor %}<|end|>{% endfor %}";
constexpr const char* kGemma4 =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{% set a = "
    "c.function.arguments %}{{ '<|tool_call>call:' + c.function.name + '{' }}{% if a is mapping %}{% for key, value in "
    "a|items %}{{ ',' if not loop.first }}{{ key }}:{% if value is string %}{{ '<|\"|>' + value + '<|\"|>' }}"
    "{% else %}{{ value }}{% endif %}{% endfor %}{% else %}{{ a }}{% endif %}{{ '}<tool_call|>' }}{% endfor %}<|end|>"
    "{% endfor %}";
constexpr const char* kMiniMax =
    "{% set mark = ']<]minimax[>[' %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}"
    "{{ mark }}<tool_call>\n{% for c in m.tool_calls %}{{ mark }}<invoke name=\"{{ c.function.name }}\">"
    "{% for key, value in c.function.arguments.items() %}{{ mark }}<{{ key }}>{{ value }}{{ mark }}</{{ key }}>"
    "{% endfor %}{{ mark }}</invoke>\n{% endfor %}{{ mark }}</tool_call>{% endif %}<|end|>{% endfor %}";
constexpr const char* kPythonic =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<|tool_call_start|>[' +"
    " c.function.name + '(' }}{% for key, value in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ key }}"
    "={{ \"'\" + value + \"'\" if value is string else value }}{% endfor %}{{ ')]<|tool_call_end|>' }}{% endfor %}"
    "<|end|>{% endfor %}";

} // namespace

TEST_CASE("calls: those whose keys have no quotes reach the prompt, and are read back as they were") {
	std::vector<std::pair<std::string, ToolFormat>> rows{{kQwenXml, ToolFormat::QwenXml},
	                                                     {kGlm, ToolFormat::Glm},
	                                                     {kGemma4, ToolFormat::Gemma},
	                                                     {kPythonic, ToolFormat::Pythonic},
	                                                     {kMiniMax, ToolFormat::MiniMax}};
	for (const ShapedFamily& s : shaped_families())
		if (s.text.find("<|end|>") != s.text.npos) rows.emplace_back(s.text, ToolFormat::Shaped);
	for (const auto& row : rows) {
		INFO(row.first);
		const ChatTemplate t(row.first);
		const ChatFeatures f = chat_features(t);
		CHECK(f.tool_format == row.second);
		CHECK((f.tool_calls && f.object_arguments));
		const auto rendered = [&](const char* arguments) {
			ChatInput in;
			in.messages = Json::parse(R"([{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[
				{"id":"a","type":"function","function":{"name":"get_weather"}}]}])");
			in.messages[1]["tool_calls"][0]["function"]["arguments"] = arguments;
			in.messages = fit_messages(f, std::move(in.messages));
			std::string text = t.render(in).text();
			text = text.substr(text.find("<|assistant|>") + 13);
			return text.substr(0, text.rfind("<|end|>"));
		};
		const Form form{"", f.tool_format, f.tool_begin.c_str(), f.tool_end.c_str(), f.tool_variant, "", "", f.shape};
		const std::string call = R"({"city":"Paris","days":2})";
		CHECK(shown(parse(form, rendered(call.c_str()), 1000)) == " | get_weather " + call);
		for (const char* empty : {"", " \n", "{}"})
			CHECK(shown(parse(form, rendered(empty), 1000)) == " | get_weather {}");
	}
	// Python's notation is no family's
	const ChatFeatures f = chat_features(
	    ChatTemplate("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ "
	                 "c.function.arguments }}{% endfor %}{% endfor %}"));
	CHECK((f.tool_calls && !f.object_arguments));
}

TEST_CASE("calls: answers that only look like calls without tags are text") {
	for (const char* answer :
	     {"{\"name\": \"Bob\", \"arguments\": {}}", "{\"city\": \"Oslo\"}", "{}", "{", "{\"name\": \"get_",
	      "```json\n{\"a\": 1}\n```", "```python\nprint(1)\n```", "```", "<b>x</b>", "<tools>", "<to",
	      "{\"name\": [\"get_weather\"]}", "{\"name\": \"get_weather\", 1}",
	      "`{\"name\": \"get_weather\", \"arguments\": {}}`", "Yes: {\"name\": \"get_weather\", \"arguments\": {}}"})
		for (const size_t piece : {1, 2, 100}) {
			INFO(answer);
			const Form form{"", ToolFormat::Hermes, "", "", false, "", ""};
			const Shown shown = parse(form, answer, piece);
			CHECK(shown.content == answer);
			CHECK(shown.told.empty());
		}
	// a name that is none of a function's shows at once that this is text
	ReplyParser parser(options({"", ToolFormat::Hermes, "", "", false, "", ""}, kTools));
	CHECK(parser.push("{\"name\": \"Bob\", \"age\": ").content == "{\"name\": \"Bob\", \"age\":");
}
