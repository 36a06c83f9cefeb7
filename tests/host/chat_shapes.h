// Templates that write calls in the manner of families whose form is found by rendering, for tests.
#pragma once
#include "models/chat/features.h"
#include "tests/host/chat_calls.h"

namespace kvrun::call_test {

// `calls`: the part of a template that writes m.tool_calls.
inline std::string template_with(const std::string& calls, const std::string& end = "<|end|>") {
	return "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}" + calls + "{% endif %}" + end +
	       "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
}
inline std::string each_call(const std::string& call) {
	return "{% for c in m.tool_calls %}{% set f = c.function %}" + call + "{% endfor %}";
}
inline std::string each_pair(const std::string& pair) {
	return "{% for k, v in f.arguments.items() %}" + pair + "{% endfor %}";
}
constexpr const char* kPlainValue = "{{ v if v is string else v|tojson }}";

struct ShapedFamily {
	const char* name;
	std::string text;     // a template
	const char* answer;   // as the family's models write it
	const char* expected; // as of Form
};
inline const std::vector<ShapedFamily>& shaped_families() {
	static const std::string v = kPlainValue;
	static const std::vector<ShapedFamily> all{
	    {"Seed-OSS",
	     template_with(each_call("\n<seed:tool_call>\n<function={{ f.name }}>\n" +
	                             each_pair("<parameter={{ k }}>" + v + "</parameter>\n") +
	                             "</function>\n</seed:tool_call>")),
	     "I look.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>New \"York\" "
	     "</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n"
	     "<seed:tool_call>\n<function=set-mode>\n<parameter=on>True</parameter>\n<parameter=mode>a</parameter>\n"
	     "<parameter=list>['x', 'it\\'s']</parameter>\n</function>\n</seed:tool_call>",
	     "I look. | get_weather {\"city\":\"New \\\"York\\\" \",\"days\":3} | set-mode "
	     "{\"on\":true,\"mode\":\"a\",\"list\":[\"x\",\"it's\"]}"},
	    {"MiniMax-M2",
	     template_with("\n<minimax:tool_call>\n" +
	                   each_call("<invoke name=\"{{ f.name }}\">\n" +
	                             each_pair("<parameter name=\"{{ k }}\">" + v + "</parameter>\n") + "</invoke>\n") +
	                   "</minimax:tool_call>"),
	     "On it.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">a<b\n"
	     "\"c\"</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"set-mode\">\n"
	     "<parameter name=\"on\">false</parameter>\n<parameter name=\"mode\">b</parameter>\n"
	     "<parameter name=\"level\">null</parameter></invoke></minimax:tool_call>",
	     "On it. | get_weather {\"city\":\"a<b\\n\\\"c\\\"\",\"days\":3} | set-mode "
	     "{\"on\":false,\"mode\":\"b\",\"level\":null}"},
	    {"DeepSeek V3.2, V4",
	     template_with(
	         "\n\n<｜DSML｜tool_calls>\n" +
	             each_call("<｜DSML｜invoke name=\"{{ f.name }}\">\n" +
	                       each_pair("<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else "
	                                 "'false' }}\">" +
	                                 v + "</｜DSML｜parameter>\n") +
	                       "</｜DSML｜invoke>\n") +
	             "</｜DSML｜tool_calls>",
	         "<｜end▁of▁sentence｜>"),
	     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
	     "string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
	     "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
	     " | get_weather {\"city\":\"12\",\"days\":3}"},
	    {"Kimi K3",
	     template_with(
	         "<|open|>tools<|sep|>" +
	             each_call("<|open|>call tool=\"{{ f.name }}\" index=\"{{ loop.index }}\"<|sep|>" +
	                       each_pair("<|open|>argument key=\"{{ k }}\" type=\"{% if v is string %}string{% elif "
	                                 "v is boolean %}boolean{% elif v is number %}number{% elif v is none "
	                                 "%}null{% elif v is mapping %}object{% else %}array{% endif %}\"<|sep|>" +
	                                 v + "<|close|>argument<|sep|>") +
	                       "<|close|>call<|sep|>") +
	             "<|close|>tools<|sep|>",
	         "<|close|>message<|sep|>"),
	     "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" "
	     "type=\"string\"<|sep|>[\"Oslo\"]<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"set-mode\" "
	     "index=\"2\"<|sep|><|open|>argument key=\"on\" "
	     "type=\"boolean\"<|sep|>true<|close|>argument<|sep|><|open|>argument "
	     "key=\"mode\" type=\"string\"<|sep|>a<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
	     " | get_weather {\"city\":\"[\\\"Oslo\\\"]\"} | set-mode {\"on\":true,\"mode\":\"a\"}"},
	    {"Hunyuan 3",
	     template_with("<tool_calls:x>\n" +
	                   each_call("<tool_call:x>{{ f.name }}<tool_sep:x>\n" +
	                             each_pair("<arg_key:x>{{ k }}</arg_key:x>\n<arg_value:x>" + v + "</arg_value:x>\n") +
	                             "</tool_call:x>\n") +
	                   "</tool_calls:x>"),
	     "<tool_calls:x>\n<tool_call:x>get_weather<tool_sep:x>\n<arg_key:x>city</arg_key:x>\n<arg_value:x>Lima"
	     "</arg_value:x>\n</tool_call:x>\n</tool_calls:x>",
	     " | get_weather {\"city\":\"Lima\"}"},
	    {"MiniCPM 5",
	     template_with(
	         each_call("{{ '\n' if not loop.first }}<function name=\"{{ f.name }}\">" +
	                   each_pair("<param name=\"{{ k }}\">{% if v is string and '<' in v %}<![CDATA[{{ v }}]]>"
	                             "{% else %}" +
	                             v + "{% endif %}</param>") +
	                   "</function>")),
	     "<function name=\"get_weather\"><param name=\"city\"><![CDATA[a</param>\nb]]></param><param name=\"days\">3"
	     "</param></function>\n<function name=\"set-mode\"><param name=\"on\">true</param><param "
	     "name=\"mode\">a</param>"
	     "</function>",
	     " | get_weather {\"city\":\"a</param>\\nb\",\"days\":3} | set-mode {\"on\":true,\"mode\":\"a\"}"},
	    {"Apertus",
	     template_with("<|tools_prefix|>[" +
	                       each_call("{{ ', ' if not loop.first }}{\"{{ f.name }}\": {{ f.arguments|tojson }}}") +
	                       "]<|tools_suffix|>",
	                   ""),
	     "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Bern\"}}, {\"set-mode\": {\"on\": true, \"mode\": "
	     "\"a\"}}]<|tools_suffix|>",
	     " | get_weather {\"city\":\"Bern\"} | set-mode {\"on\":true,\"mode\":\"a\"}"},
	    {"Solar Open",
	     template_with("<|tool_calls|>" +
	                   each_call("<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
	                             "{{ f.arguments|tojson }}<|tool_call:end|>") +
	                   "<|calls|>"),
	     "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": "
	     "\"Seoul\"}<|tool_call:end|>",
	     " | get_weather {\"city\":\"Seoul\"}"},
	    {"Functionary 3.1", template_with(each_call("<function={{ f.name }}>{{ f.arguments|tojson }}</function>")),
	     "<function=get_weather>{\"city\": \"Kobe\"}</function>", " | get_weather {\"city\":\"Kobe\"}"},
	    {"MiniMax-M1",
	     template_with("<tool_calls>\n" +
	                   each_call("{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments|tojson }}}\n") +
	                   "</tool_calls>"),
	     "<tool_calls>\n{\"name\":\"get_weather\",\"arguments\": {\"city\": \"Wuhan\"}}\n</tool_calls>",
	     " | get_weather {\"city\":\"Wuhan\"}"},
	};
	return all;
}

} // namespace kvrun::call_test
