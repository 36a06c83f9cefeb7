// Abilities of templates, messages adapted to them, and answers split into reasoning, text, tool calls.
#include "engine/core/error.h"
#include "models/chat/builtin.h"
#include "models/chat/fit.h"
#include "models/chat/reply.h"
#include "tests/support/assets.h"
#include "tests/support/chat.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

struct Whole {
	std::string content, reasoning;
	std::vector<ToolCall> calls;
	void add(const ReplyParser::Part& p) {
		content += p.content;
		reasoning += p.reasoning;
		calls.insert(calls.end(), p.calls.begin(), p.calls.end());
	}
	std::string text() const {
		std::string out = "c=" + content + " r=" + reasoning;
		for (const ToolCall& c : calls) out += " " + c.id + ":" + c.name + c.arguments;
		return out;
	}
};
Whole parse(const ReplyParser::Options& o, const std::string& reply, size_t piece) {
	ReplyParser parser(o);
	Whole all;
	for (size_t at = 0; at < reply.size(); at += piece) all.add(parser.push(std::string_view(reply).substr(at, piece)));
	all.add(parser.finish());
	return all;
}
// The result is the same however the answer is cut into pieces.
void expect(const ReplyParser::Options& o, const std::string& reply, const std::string& expected) {
	INFO(reply);
	for (size_t piece : {size_t(1), size_t(2), size_t(3), size_t(7), size_t(1000)}) {
		INFO("pieces of ", piece);
		CHECK(parse(o, reply, piece).text() == expected);
	}
}
ReplyParser::Options options(ToolFormat f, bool think = false, bool in_reasoning = false) {
	ReplyParser::Options o;
	o.tools = f;
	if (think) o.think_begin = "<think>", o.think_end = "</think>";
	o.in_reasoning = in_reasoning;
	return o;
}

} // namespace

TEST_CASE("features: built-in templates take text and system messages, and have no place for tools") {
	for (std::string_view name : builtin_chat_templates()) {
		INFO(name);
		const ChatFeatures f = chat_features(ChatTemplate(std::string(builtin_chat_template(name))));
		CHECK(f.text_content);
		CHECK(!f.part_content);
		CHECK(f.system_role);
		CHECK(!f.tools);
		CHECK(!f.tool_calls);
		CHECK(!f.thinking_switch);
		CHECK(f.tool_format == ToolFormat::Hermes);
		CHECK(f.written_tools);
		CHECK(f.written_calls);
	}
}

TEST_CASE("features: gpt-oss's template is known by its channels, however it writes a call") {
	const ChatFeatures f = chat_features(ChatTemplate(
	    "{% for m in messages %}{% if m.tool_calls %}{{ '<|start|>assistant to=' }}{{ 'functions.' + "
	    "m.tool_calls[0].function.name + '<|channel|>commentary json<|message|>' }}{{ "
	    "m.tool_calls[0].function.arguments|tojson }}<|call|>{% else %}{{ '<|start|>' + m.role + '<|message|>' + "
	    "(m.content or '') + '<|end|>' }}{% endif %}{% endfor %}"));
	CHECK(f.tool_format == ToolFormat::Harmony);
	CHECK((f.tool_calls && f.object_arguments));
}

TEST_CASE("features: of the templates of real models") {
	const auto features = [](const std::string& name) -> std::optional<ChatFeatures> {
		const std::string path = shared_asset("chat_templates/" + name + ".jinja");
		if (path.empty()) return std::nullopt;
		return chat_features(ChatTemplate(file_text(path)));
	};
	if (const auto f = features("Qwen-Qwen3-0.6B")) {
		CHECK(f->tools);
		CHECK(f->tool_calls);
		CHECK(f->object_arguments);
		CHECK(!f->null_content);
		CHECK(f->thinking_switch);
		CHECK(f->think_begin == "<think>");
		CHECK(f->tool_format == ToolFormat::Hermes);
		CHECK(!f->part_content);
	}
	if (const auto f = features("Qwen-Qwen2.5-7B-Instruct")) {
		CHECK(f->tools);
		CHECK(f->object_arguments);
		CHECK(!f->thinking_switch);
		CHECK(f->think_end == "");
		CHECK(f->tool_format == ToolFormat::Hermes);
	}
	if (const auto f = features("Mistral-Small-3.2-24B-Instruct-2506")) {
		CHECK(f->tools);
		CHECK(f->tool_calls);
		CHECK(f->text_content);
		CHECK(f->part_content);
		CHECK(f->object_arguments);
		CHECK(f->system_role);
		CHECK(f->tool_format == ToolFormat::Mistral);
	}
	if (const auto f = features("deepseek-ai-DeepSeek-R1-Distill-Llama-8B")) {
		CHECK(!f->tools);
		CHECK(f->tool_calls);
		CHECK(!f->object_arguments);
		CHECK(f->null_content);
		CHECK(f->think_end == "</think>");
		CHECK(f->tool_format == ToolFormat::DeepSeek);
	}
}

TEST_CASE("features: a template in llama3's manner, one that takes parts only, and one that refuses everything") {
	CHECK(chat_features(ChatTemplate("{{ '<|eot_id|>' }}{{ '{\"name\": ' }}{{ '\"parameters\": ' }}")).tool_format ==
	      ToolFormat::Llama3);
	CHECK(chat_features(ChatTemplate("{{ '<|eot|>' }}{{ '{\"name\": ' }}{{ '\"parameters\": ' }}")).tool_format ==
	      ToolFormat::Llama3);
	CHECK(chat_features(ChatTemplate("{{ '[func_name1(param1=value1)]<|eot|>' }}")).tool_format ==
	      ToolFormat::Pythonic);
	CHECK(chat_features(ChatTemplate("{{ '[func_name1(param1=value1)]' }}")).tool_format == ToolFormat::None);
	const ChatFeatures parts =
	    chat_features(ChatTemplate("{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' "
	                               "%}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"));
	CHECK(parts.part_content);
	CHECK(!parts.text_content);
	CHECK(parts.system_role);
	const Json fitted = fit_messages(parts, Json::array({message("user", "x")}));
	CHECK(fitted.dump() == R"([{"role":"user","content":[{"type":"text","text":"x"}]}])");
	const ChatFeatures none = chat_features(ChatTemplate("{{ raise_exception('no') }}"));
	CHECK(!none.text_content);
	CHECK(!none.tool_calls);
	CHECK(chat_features(ChatTemplate("{{ enable_thinking }}")).thinking_switch);
	CHECK(!chat_features(ChatTemplate("enable_thinking {{ x.enable_thinking }}")).thinking_switch);
}

TEST_CASE("reasoning: Gemma 4's channel of thoughts") {
	const ChatFeatures f = chat_features(ChatTemplate("{{ '<|channel>thought\\n<channel|>' }}"));
	ReplyParser::Options o = options(ToolFormat::None);
	o.think_begin = f.think_begin, o.think_end = f.think_end;
	expect(o, "<|channel>thought\nhm <b>\n<channel|>yes", "c=yes r=hm <b>");
	expect(o, "<|channel|>analysis", "c=<|channel|>analysis r="); // of another family
}

TEST_CASE("fit_messages: parts to text, arguments to objects or text, null or empty content") {
	ChatFeatures f;
	f.text_content = f.tool_calls = f.object_arguments = true;
	const auto fit = [&](const char* messages) { return fit_messages(f, Json::parse(messages)).dump(); };
	CHECK(fit(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])") ==
	      R"([{"role":"user","content":"a\nb"}])");
	CHECK(fit(R"([{"role":"user"},{"role":"user","content":null}])") ==
	      R"([{"role":"user","content":""},{"role":"user","content":""}])");
	const char* kCall =
	    R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"a\": 1}"}}]}])";
	CHECK(fit(kCall) ==
	      R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}])");
	CHECK(
	    fit(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"no json"}}]}])") ==
	    R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"no json"}}]}])");
	f.object_arguments = false;
	f.null_content = true;
	CHECK(fit(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}])") ==
	      R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}])");
	for (const char* bad : {R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])", R"([5])", R"({})",
	                        R"([{"role":"user","content":[5]}])"}) {
		INFO(bad);
		CHECK_THROWS_AS(fit(bad), Error);
	}
	for (const char* odd : {R"([{"role":"a","tool_calls":5}])", R"([{"role":"a","tool_calls":[5,{},{"function":5}]}])"})
		CHECK_NOTHROW(fit(odd));
	f.part_content = true;
	CHECK(fit(R"([{"role":"user","content":[{"type":"image"}]}])") ==
	      R"([{"role":"user","content":[{"type":"image"}]}])");
}

namespace {

// Takes no system message, and wants the user and the assistant in turn.
constexpr const char* kNoSystem = "{% for m in messages %}{% if m.role != ('assistant' if loop.index0 % 2 else 'user') "
                                  "%}{{ raise_exception('turn') }}"
                                  "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
// Takes one system message, at the beginning.
constexpr const char* kOneSystem =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('not first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}";
// Drops system messages that are not the first one.
constexpr const char* kDropsSystem = "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ "
                                     "m.content }}{% endif %}{% endfor %}";
// Takes any roles.
constexpr const char* kAnySystem = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
// Takes parts only, and no system message.
constexpr const char* kPartsOnly =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}<{{ m.role }}>"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}({{ p.type }}){% endif %}{% endfor %}"
    "{% endfor %}";

// What a template makes of a conversation, given as alternating roles and texts.
std::string fitted_text(const char* text, const std::vector<const char*>& chat) {
	const ChatTemplate t(text);
	ChatInput in;
	in.messages = Json::array();
	for (size_t i = 0; i < chat.size(); i += 2) in.messages.push_back(message(chat[i], chat[i + 1]));
	in.messages = fit_messages(chat_features(t), std::move(in.messages));
	return t.render(in).text();
}

} // namespace

TEST_CASE("features: whether a template takes a system message, and several") {
	const auto takes = [](const char* text) {
		const ChatFeatures f = chat_features(ChatTemplate(text));
		return std::pair(f.system_role, f.several_system);
	};
	CHECK(takes(kNoSystem) == std::pair(false, false));
	CHECK(takes(kOneSystem) == std::pair(true, false));
	CHECK(takes(kDropsSystem) == std::pair(true, false));
	CHECK(takes(kAnySystem) == std::pair(true, true));
}

TEST_CASE("fit_messages: a system message where the template takes none stands before the user's first message") {
	CHECK(fitted_text(kNoSystem, {"system", "S", "user", "U", "assistant", "A", "user", "V"}) ==
	      "<user>S\n\nU<assistant>A<user>V");
	CHECK(fitted_text(kNoSystem, {"system", "S", "system", "T", "user", "U"}) == "<user>S\n\nT\n\nU");
	CHECK(fitted_text(kNoSystem, {"system", "S"}) == "<user>S");
	CHECK(fitted_text(kNoSystem, {"system", "S", "assistant", "A"}) == "<user>S<assistant>A");
	CHECK(fitted_text(kNoSystem, {"system", "", "user", "U"}) == "<user>U");
	CHECK(fitted_text(kNoSystem, {"user", "U"}) == "<user>U");
	CHECK(fitted_text(kPartsOnly, {"system", "S", "user", "U"}) == "<user>S\n\nU");
	CHECK(fitted_text(kPartsOnly, {"system", "", "user", "U"}) == "<user>U");

	ChatFeatures f;
	f.text_content = f.part_content = true;
	const Json parts = Json::parse(R"([{"role":"system","content":"S"},{"role":"user","content":[{"type":"image"},
		{"type":"text","text":"U"}]}])");
	CHECK(
	    fit_messages(f, parts).dump() ==
	    R"([{"role":"user","content":[{"type":"text","text":"S\n\n"},{"type":"image"},{"type":"text","text":"U"}]}])");
	const ChatFeatures none; // a template that refuses everything says why
	CHECK(fit_messages(none, Json::array({message("system", "S")}))[0]["role"] == "system");
}

TEST_CASE("fit_messages: system messages at the beginning become one only where the template does not take them") {
	const std::vector<const char*> chat{"system", "S", "system", "T", "user", "U"};
	CHECK(fitted_text(kOneSystem, chat) == "<system>S\n\nT<user>U");
	CHECK(fitted_text(kDropsSystem, chat) == "<system>S\n\nT<user>U");
	CHECK(fitted_text(kAnySystem, chat) == "<system>S<system>T<user>U");
	CHECK(fitted_text(kOneSystem, {"system", "S", "user", "U"}) == "<system>S<user>U");
	CHECK(fitted_text(kOneSystem, {"system", "S", "system", "T"}) == "<system>S\n\nT");
	CHECK_THROWS_AS(fitted_text(kOneSystem, {"system", "S", "user", "U", "system", "T"}), Error);
	for (const char* name : {"chatml", "llama3"})
		CHECK(chat_features(ChatTemplate(std::string(builtin_chat_template(name)))).several_system);
}

TEST_CASE("fit_messages: a conversation in OpenAI's form goes through every real template that knows calls") {
	const Json chat = Json::parse(R"([{"role":"user","content":[{"type":"text","text":"Weather?"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"abcdef123","type":"function",
			"function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}}]},
		{"role":"tool","tool_call_id":"abcdef123","content":"12"}])");
	for (const char* name : {"Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "Mistral-Small-3.2-24B-Instruct-2506",
	                         "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"}) {
		const std::string path = shared_asset("chat_templates/" + std::string(name) + ".jinja");
		if (path.empty()) continue;
		INFO(name);
		const ChatTemplate t(file_text(path));
		ChatInput in;
		in.messages = fit_messages(chat_features(t), chat);
		const std::string text = t.render(in).text();
		for (const char* part : {"Weather?", "get_weather", "\"city\"", "Oslo", "12"})
			CHECK(text.find(part) != text.npos);
		CHECK(text.find("\\\"city") == text.npos);
	}
}

TEST_CASE("opens_reasoning: the prompt ends behind the marker") {
	ChatFeatures f;
	f.think_begin = "<think>";
	const auto opens = [&](const char* end) { return opens_reasoning(f, Rendered{{{"x", false}, {end, true}}}); };
	CHECK(opens("<think>"));
	CHECK(opens("<think>\n"));
	CHECK(!opens("<think>\n\n</think>\n\n"));
	CHECK(!opens(""));
	f.think_begin.clear();
	CHECK(!opens("<think>"));
}

TEST_CASE("may_reason: the prompt has neither opened reasoning nor closed it") {
	ChatFeatures f;
	f.think_begin = "<think>", f.think_end = "</think>";
	const auto may = [&](const char* end) { return may_reason(f, Rendered{{{"x", false}, {end, true}}}); };
	CHECK(may("<|im_start|>assistant\n"));
	CHECK(may("<think>a</think>b<|im_end|>\n<|im_start|>assistant\n"));
	CHECK(!may("<think>\n"));
	CHECK(!may("<think>\n\n</think>\n\n"));
	f.think_begin.clear(), f.think_end.clear();
	CHECK(!may("<|im_start|>assistant\n"));
}

TEST_CASE("reply: reasoning is told from the answer") {
	const auto o = options(ToolFormat::None, true);
	expect(o, "plain", "c=plain r=");
	expect(o, "<think>\nhm\n</think>\n\nyes\n", "c=yes\n r=hm");
	expect(o, "\n <think>a\n\nb</think>c", "c=c r=a\n\nb");
	expect(o, "<thinker> <think>x", "c=<thinker> <think>x r="); // later in the answer it is text
	expect(o, "<think>never ends", "c= r=never ends");
	expect(o, "<think>a</thin", "c= r=a</thin");
	expect(o, "<think></think>x", "c=x r=");
	expect(o, "a</think>b", "c=a</think>b r=");
	expect(options(ToolFormat::None, true, true), "hm</think>\nyes", "c=yes r=hm");
	expect(options(ToolFormat::None, false, true), "<think>a</think>", "c=<think>a</think> r=");
}

TEST_CASE("reply: calls in the format of Hermes and Qwen") {
	const auto o = options(ToolFormat::Hermes, true);
	expect(o, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x}\\\"</tool_call>\"}}\n</tool_call>",
	       "c= r= call00000:f{\"a\":1,\"b\":\"x}\\\"</tool_call>\"}");
	expect(o,
	       "Sure.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
	       "tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"x\":[1,{}]}}</tool_call>\n",
	       "c=Sure. r= call00000:f{} call00001:g{\"x\":[1,{}]}");
	expect(o,
	       "<think>\nI call <tool_call>\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>done",
	       "c=done r=I call <tool_call> call00000:f{}");
	expect(o, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "c= r= call00000:f{}"); // ended by the end-of-turn token
	for (const char* text :
	     {"<tool_call>", "<tool_call>{\"name\":\"f\",\"arg", "<tool_call>no</tool_call>", "<tool_c",
	      "<tool_call>{\"name\":5}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>",
	      "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>", "a < b <tool", "<tool_call>{]}</tool_call>x"})
		expect(o, text, std::string("c=") + text + " r=");
	expect(o, "<tool_call>bad</tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
	       "c=<tool_call>bad</tool_call> r= call00000:f{}");
	const std::string deep = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":" + std::string(100'000, '[') +
	                         std::string(100'000, ']') + "}}</tool_call>";
	CHECK(parse(o, deep, 100).text() == "c=" + deep + " r=");
	auto later = o;
	later.first_call = 41;
	expect(later, "<tool_call>{\"name\":\"f\"}</tool_call>", "c= r= call00041:f{}");
}

TEST_CASE("reply: the end of an answer that was cut off inside a call is told from its text") {
	const auto shown = [](ToolFormat f, const std::string& reply) {
		ReplyParser parser(options(f));
		std::string text;
		for (const char c : reply) text += parser.push({&c, 1}).content;
		const ReplyParser::Part rest = parser.finish();
		CHECK(rest.unfinished <= rest.content.size());
		return text + rest.content.substr(0, rest.content.size() - rest.unfinished);
	};
	for (const char* end :
	     {"", "<", "<tool", "<tool_call>", "<tool_call>\n", "<tool_call>\n{\"name\": \"f\"", "\n<tool_"})
		CHECK(shown(ToolFormat::Hermes, std::string("Sure.") + end) == "Sure.");
	CHECK(shown(ToolFormat::Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<") == "");
	CHECK(shown(ToolFormat::Hermes, "{\"a\": 1") == "{\"a\": 1");
	CHECK(shown(ToolFormat::Hermes, "a < b") == "a < b");
	CHECK(shown(ToolFormat::None, "a <") == "a <");
	CHECK(shown(ToolFormat::Mistral, "Hm. [TOOL") == "Hm.");
	for (const char* call : {"{", "{\"na", "{\"name\": \"f\", \"par", "<|python"})
		CHECK(shown(ToolFormat::Llama3, call) == "");
	CHECK(shown(ToolFormat::Llama3, "{\"city\": \"Os") == "{\"city\": \"Os"); // the value of a schema
	CHECK(shown(ToolFormat::Pythonic, "[get_w") == "");
	CHECK(shown(ToolFormat::Pythonic, "[1, 2") == "[1, 2");
}

TEST_CASE("fit_messages: reasoning goes into the field that the template reads") {
	// as gpt-oss's, which shows it beside calls alone, and refuses a text there
	const char* thinking =
	    "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}"
	    "{% endif %}{{ m.content or '(' ~ m.thinking ~ ')' }}{{ m.tool_calls[0].function.name }}"
	    "{{ m.tool_calls[0].function.arguments|tojson }}{% else %}{{ m.content }}{% endif %};{% endfor %}";
	const char* reasoning = "{% for m in messages %}{% if m.reasoning %}({{ m.reasoning }}){% endif %}{{ m.content }};"
	                        "{% endfor %}";
	const char* usual = "{% for m in messages %}{{ m.thinking or '' }}{% if m.reasoning_content %}"
	                    "({{ m.reasoning_content }}){% endif %}{{ m.content }};{% endfor %}";
	const auto shown = [](const char* text, const char* answer) {
		const ChatTemplate t(text);
		ChatInput in;
		in.messages = Json::array({message("user", "U"), Json::parse(answer)});
		in.messages = fit_messages(chat_features(t), std::move(in.messages));
		return t.render(in).text();
	};
	const auto call = [](const std::string& fields) {
		return R"({"role":"assistant",)" + fields +
		       R"(,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]})";
	};
	CHECK(chat_features(ChatTemplate(thinking)).reasoning_field == "thinking");
	CHECK(chat_features(ChatTemplate(reasoning)).reasoning_field == "reasoning");
	CHECK(chat_features(ChatTemplate(usual)).reasoning_field == "reasoning_content");
	CHECK(chat_features(ChatTemplate(kAnySystem)).reasoning_field == "");
	CHECK(shown(thinking, call(R"("content":null,"reasoning_content":"R")").c_str()) == "U;(R)f{};");
	CHECK(shown(thinking, call(R"("content":"C","reasoning_content":"R")").c_str()) == "U;Cf{};");
	CHECK(shown(thinking, call(R"("content":"","reasoning_content":"R","thinking":"T")").c_str()) == "U;(T)f{};");
	CHECK(shown(thinking, R"({"role":"assistant","content":"C","reasoning_content":"R"})") == "U;C;");
	CHECK(shown(reasoning, R"({"role":"assistant","content":"C","reasoning_content":"R"})") == "U;(R)C;");
	CHECK(shown(reasoning, R"({"role":"assistant","content":"C","reasoning_content":""})") == "U;C;");
	CHECK(shown(reasoning, R"({"role":"assistant","content":"C","reasoning_content":null})") == "U;C;");
	CHECK(shown(usual, R"({"role":"assistant","content":"C","reasoning_content":"R"})") == "U;(R)C;");
}

TEST_CASE("fit_messages: ids of calls for templates that want nine letters") {
	ChatFeatures f;
	f.text_content = f.tool_calls = f.nine_letter_ids = true;
	const Json m = fit_messages(f, Json::parse(R"([{"role": "assistant", "content": "", "tool_calls": [
	    {"id": "call_abcdefghijklmnopqrstuvwx", "function": {"name": "f", "arguments": "{}"}},
	    {"id": "abcdef123", "function": {"name": "g", "arguments": "{}"}}]},
	    {"role": "tool", "tool_call_id": "call_abcdefghijklmnopqrstuvwx", "content": "1"}])"));
	const std::string id = m[0]["tool_calls"][0]["id"];
	CHECK(id.size() == 9);
	CHECK(id != "abcdef123");
	CHECK(m[0]["tool_calls"][1]["id"] == "abcdef123");
	CHECK(m[1]["tool_call_id"] == id);
}

TEST_CASE("reply: calls in Mistral's formats") {
	const auto o = options(ToolFormat::Mistral);
	expect(o, "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\"}", "c= r= call00000:get_weather{\"city\":\"Oslo\"}");
	expect(o, "Hm. [TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{\"a\":1}[TOOL_CALLS]g[ARGS]{}",
	       "c=Hm. r= abcdef123:f{\"a\":1} call00001:g{}");
	expect(o,
	       "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{\"a\":1},\"id\":\"xyz\"},{\"name\":\"g\",\"arguments\":{}}]",
	       "c= r= xyz:f{\"a\":1} call00001:g{}");
	for (const char* text :
	     {"[TOOL_CALLS]f[ARGS]{\"a\":", "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS][{\"name\":\"f\"},5]", "[TOOL",
	      "[1, 2]", "[TOOL_CALLS]f[ARGS]x", "[TOOL_CALLS]some\nwords"})
		expect(o, text, std::string("c=") + text + " r=");
}

TEST_CASE("reply: Qwen3-Coder's calls without their first marker") {
	auto o = options(ToolFormat::QwenXml);
	o.definitions = Json::parse(R"([{"function": {"name": "read"}}, {"function": {"name": "ls"}}])");
	const std::string read = "<function=read>\n<parameter=path>\na\n</parameter>\n</function>", end = "\n</tool_call>";
	expect(o, read + end, "c= r= call00000:read{\"path\":\"a\"}");
	expect(o, "I look.\n\n" + read + end + "\nDone.", "c=I look.Done. r= call00000:read{\"path\":\"a\"}");
	expect(o, "<function=ls>\n</function>" + end, "c= r= call00000:ls{}");
	expect(o, read, "c= r= call00000:read{\"path\":\"a\"}"); // ended by the end-of-turn token
	expect(o, read + end + "\n<tool_call>\n" + read + end + read + end,
	       "c= r= call00000:read{\"path\":\"a\"} call00001:read{\"path\":\"a\"} call00002:read{\"path\":\"a\"}");
	for (const char* text : {"Call `<function=read>` to read.", "<function=read>", "<function=read>\n<par",
	                         "a <function=re", "<function=", "#include <functional>",
	                         "<function=write>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"})
		expect(o, text, std::string("c=") + text + " r=");
	ReplyParser held(o);
	CHECK(held.push("Yes <function=re").content == "Yes");
	CHECK(held.push("st>").content == " <function=rest>");
	CHECK(held.push("\n<function=read>\n").content == "");
	CHECK(held.push("<parameter=path>\na\n</parameter>").deltas.size() == 1); // before the call has ended
	// without tools, and in other forms, it is text
	for (const ToolFormat f : {ToolFormat::None, ToolFormat::Hermes, ToolFormat::Glm}) {
		o.tools = f;
		expect(o, read + end, "c=" + read + end + " r=");
	}
	o.tools = ToolFormat::QwenXml, o.definitions = nullptr;
	expect(o, read + end, "c=" + read + end + " r=");
}

TEST_CASE("reply: Qwen3-Coder's calls inside reasoning that has no end") {
	auto o = options(ToolFormat::QwenXml, true, true);
	o.definitions = Json::parse(R"([{"function": {"name": "read"}}])");
	const auto call = [](const std::string& name) {
		return "<tool_call>\n<function=" + name + ">\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>";
	};
	expect(o, "I look.\n" + call("read"), "c= r=I look. call00000:read{\"path\":\"a\"}");
	expect(o, "I look.\n" + call("read") + "\n" + call("read") + "ok",
	       "c=ok r=I look. call00000:read{\"path\":\"a\"} call00001:read{\"path\":\"a\"}");
	expect(o, "hm " + call("read") + "\n</think>\nok", "c=ok r=hm call00000:read{\"path\":\"a\"}");
	expect(o, "hm</think>\n" + call("read"), "c= r=hm call00000:read{\"path\":\"a\"}");
	expect(o, "With <tool_call> I\ncall.</think>\n" + call("read"),
	       "c= r=With <tool_call> I\ncall. call00000:read{\"path\":\"a\"}");
	expect(o, call("write") + "</think>x", "c=x r=" + call("write")); // no such function
	expect(o, "It is <tool_call>\n<function=read>...</function>.</think>x",
	       "c=x r=It is <tool_call>\n<function=read>...</function>."); // no argument
	expect(o, "hm <tool_call>\n<function=read>\n</function>\n</tool_call>", "c= r=hm call00000:read{}");
	expect(o, "hm <tool_call>", "c= r=hm <tool_call>");
	expect(o, "hm <tool_", "c= r=hm <tool_");
	o.definitions = nullptr;
	expect(o, call("read") + "</think>x", "c=x r=" + call("read"));
	o.tools = ToolFormat::None;
	expect(o, call("read") + "</think>x", "c=x r=" + call("read"));
	o = options(ToolFormat::Hermes, true, true); // may speak of its marker
	o.definitions = Json::parse(R"([{"function": {"name": "read"}}])");
	const std::string json = "<tool_call>\n{\"name\": \"read\", \"arguments\": {}}\n</tool_call>";
	expect(o, json + "</think>x", "c=x r=" + json);
}

TEST_CASE("reply: calls in DeepSeek's formats") {
	const auto o = options(ToolFormat::DeepSeek, true, true);
	const std::string begin = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>";
	const auto call = [](const std::string& name, const std::string& json) {
		return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + json + "\n```<｜tool▁call▁end｜>";
	};
	expect(o, "why</think>\n\n" + begin + call("f", "{\"a\": 1}") + "\n" + call("g", "{}") + end,
	       "c= r=why call00000:f{\"a\":1} call00001:g{}");
	expect(o, "</think>ok" + begin + "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>" + end,
	       "c=ok r= call00000:f{\"a\":1}");
	for (const std::string& text :
	     {begin, begin + call("f", "{\"a\": 1}"), begin + call("f", "[1]") + end, begin + "x" + end})
		expect(o, "</think>" + text, "c=" + text + " r=");
}

TEST_CASE("reply: calls in Llama 3's format are the whole answer") {
	const auto o = options(ToolFormat::Llama3);
	expect(o, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "c= r= call00000:f{\"a\":1}");
	expect(o, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
	       "c= r= call00000:f{} call00001:g{}");
	expect(o, "\n\n{\"name\": \"f\", \"arguments\": {}}\n", "c= r= call00000:f{}");
	for (const char* text :
	     {"{\"a\": 1}", "{ is a brace", "The object {\"name\": \"f\", \"parameters\": {}}", "<|python", "{", "{}", ""})
		expect(o, text, std::string("c=") + text + " r=");
}

TEST_CASE("reply: text of gpt-oss that may become a recipient") {
	const auto o = options(ToolFormat::Harmony);
	for (const char* text : {"to", " today is", "t", "to=", " to=5 and more", "to be", "to\n", "to=functions.f"})
		expect(o, text, std::string("c=") + text + " r=");
	expect(o, " ", "c= r=");
	expect(o, "to<|return|>", "c=to r=");
	expect(o, "to=f<|end|><|start|>assistant<|channel|>final<|message|>x", "c=to=fx r=");
	expect(o, "to<|channel|>final<|message|>x", "c=tox r=");
	expect(o, "to=functions.f<|message|>{}", "c= r= call00000:f{}");
	ReplyParser cut(o); // by the token limit: nothing to show
	CHECK(cut.push(" to=functions.get_wea").content == "");
	const ReplyParser::Part end = cut.finish();
	CHECK(end.unfinished == end.content.size());
	CHECK(end.unfinished > 0);
}

TEST_CASE("reply: calls have OpenAI's form") {
	CHECK(ToolCall{"id1", "f", "{\"a\":1}"}.json().dump() ==
	      R"({"id":"id1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}})");
}

TEST_CASE("reply: text is shown as soon as it can be no marker") {
	ReplyParser p(options(ToolFormat::Hermes));
	CHECK(p.push("Hello <").content == "Hello");
	CHECK(p.push("b").content == " <b");
	CHECK(p.push("<tool_call").content == "");
	CHECK(p.push("s").content == "<tool_calls");
	CHECK(p.push(" \n").content == "");
	CHECK(p.finish().content == " \n");
}

TEST_CASE("reply: an answer without reasoning may begin with the marker of its end") {
	const auto o = options(ToolFormat::None, true);
	expect(o, "</think>ok", "c=ok r=");
	expect(o, "\n</think>\nok", "c=ok r=");
	expect(o, "ok</think>", "c=ok</think> r=");
	expect(o, "</thin air>", "c=</thin air> r=");
	expect(options(ToolFormat::None), "</think>ok", "c=</think>ok r=");
}

TEST_CASE("reply: markers around the text of an answer are not shown") {
	const auto marked = [](const std::string& shown, bool in_reasoning = false) {
		const ChatFeatures f = chat_features(ChatTemplate("{{ '" + shown + "' }}"));
		ReplyParser::Options o = options(ToolFormat::None, false, in_reasoning);
		o.think_begin = f.think_begin, o.think_end = f.think_end;
		o.content_begin = f.content_begin, o.content_end = f.content_end;
		return o;
	};
	const auto cohere = marked("<|END_THINKING|><|END_RESPONSE|>"), kimi = marked("<|end_of_msg|>", true);
	expect(cohere, "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b <c> <|END_RESPONSE|>", "c=b <c> r=a");
	expect(cohere, "b <|START_RESP", "c=b <|START_RESP r=");
	expect(cohere, "b <|END_RESPON", "c=b <|END_RESPON r=");
	expect(marked("<|END_TEXT|>"), "\n<|START_TEXT|>b<|END_TEXT|>\n", "c=b r=");
	expect(kimi, "a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|close|>message<|sep|>",
	       "c=b r=a");
	expect(marked("<|begin|>assistant<|think|>"), "<|think|>a<|end|><|begin|>assistant<|content|>b", "c=b r=a");
	expect(marked("<|start|>assistant to=self<|message|>"),
	       " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b", "c=b r=a");
	expect(marked("<|start|>assistant to=self<|message|>"), " to=user<|message|>b", "c=b r=");
	expect(marked("[BEGIN FINAL RESPONSE]", true), "a\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]\n", "c=b r=a");
}

TEST_CASE("reply: calls behind the marked text of an answer") {
	ReplyParser::Options o = options(ToolFormat::CommandR);
	o.content_begin = "<|START_RESPONSE|>", o.content_end = "<|END_RESPONSE|>";
	expect(
	    o,
	    "<|START_RESPONSE|>b<|END_RESPONSE|><|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>",
	    "c=b r= call00000:f{}");
}

TEST_CASE("features: reasoning between tags whose name the template puts together") {
	const ChatFeatures f = chat_features(ChatTemplate(
	    "{% set k = ':x' %}{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}{{ '<think' + k + '>' }}\n"
	    "{{ m.reasoning_content }}\n{{ '</think' + k + '>' }}{% endif %}{{ m.content }}{% endfor %}"));
	CHECK(f.think_begin == "<think:x>");
	CHECK(f.think_end == "</think:x>");
	const ChatFeatures none = chat_features(ChatTemplate(
	    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}</b>{{ m.content }}{% endfor %}"));
	CHECK(none.think_end == "");
}

TEST_CASE("features: tools under SmolLM3's name reach the prompt, and LFM2's calls are known without their marker") {
	const ChatFeatures f = chat_features(
	    ChatTemplate("{% for t in xml_tools or [] %}{{ t|string }}{% endfor %}<tool_call>{{ messages[0].content }}"));
	CHECK(f.tools);
	CHECK(f.tool_format == ToolFormat::Hermes);
	const ChatFeatures lfm = chat_features(ChatTemplate("<|im_start|>{{ 'List of tools: ' }}{{ tools|tojson }}"));
	CHECK(lfm.tools);
	CHECK(lfm.tool_format == ToolFormat::Pythonic);
	CHECK(lfm.tool_begin == "<|tool_call_start|>");
}
