// Chat templates that are hostile, broken, or refuse a conversation; which template is used for a model.
#include "engine/core/error.h"
#include "models/chat/builtin.h"
#include "tests/support/assets.h"
#include "tests/support/chat.h"
#include "tests/support/cpu_time.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include <doctest/doctest.h>
#include <sstream>

using namespace kvrun;

namespace {

std::string repeat(const std::string& s, size_t n) {
	std::string out;
	for (size_t i = 0; i < n; ++i) out += s;
	return out;
}

struct Outcome {
	std::string text, error;
	Code code = Code::Internal;
};
Outcome render(const std::string& text, const Json& chat = {{"messages", Json::array()}}, ChatLimits limits = {}) {
	Outcome out;
	const double start = cpu_seconds();
	try {
		out.text = ChatTemplate(text).render(chat_input(chat), limits).text();
	} catch (const Error& e) {
		out.error = e.what();
		out.code = e.code;
		CHECK(out.error.find('\n') == out.error.npos);
		CHECK((e.code == Code::Format || e.code == Code::Invalid));
	}
	CHECK(cpu_seconds() - start < 10); // a rendering takes at most 0.5; the rest is for sanitizers
	return out;
}
Json chat(const Json& messages) { return {{"messages", messages}, {"bos_token", "<s>"}, {"eos_token", "</s>"}}; }

} // namespace

TEST_CASE("chat template: append() and pop() change a list under all its names, and no copy of it") {
	const char* names = "{% set n = namespace(l=[]) %}{% set l = n.l %}{% set c = l.copy() %}{% set d = l|list %}";
	CHECK(render(std::string(names) + "{{ l.append('a') }}{% for i in range(40) %}{% set _ = n.l.append(i) %}"
	                                  "{% endfor %} {{ l|length }} {{ n.l[40] }} {{ c }} {{ d }}")
	          .text == "None 41 39 [] []");
	CHECK(render("{% for i in [1, 2] %}{% set l = [0] %}{% set _ = l.append(i) %}{{ l }}{% endfor %}").text ==
	      "[0, 1][0, 2]");
	CHECK(render("{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}").error != ""); // has no end
	CHECK(render("{% set l = [1, 2, 3, 4] %}{{ l.pop() }}{{ l.pop(0) }}{{ l.pop(-2) }}{% set _ = l.append(5) %}{{ l }}")
	          .text == "412[3, 5]");
	for (const char* none : {"{{ [].pop() }}", "{{ [1].pop(1) }}", "{{ [1].pop(-2) }}", "{{ [1].pop('a') }}"})
		CHECK_MESSAGE(render(none).error != "", none);
	CHECK(render("{% set l = [] %}{{ l.append() }}").error != "");
	CHECK(render("{% set l = [] %}{{ l.append(1, 2) }}").error != "");
	for (const char* use : {"{{ l }}", "{{ l|tojson }}", "{{ l|string }}", "{{ l|sort }}", "{{ l|join }}",
	                        "{{ l|unique|list }}", "{% for x in l %}{{ x }}{% endfor %}"}) {
		CAPTURE(use);
		const Outcome o = render(std::string("{% set l = [] %}{% set _ = l.append(l) %}") + use); // holds itself
		CHECK(o.error != "");
	}
	CHECK(render("{% set l = [] %}{% for i in range(100000) %}{% for j in range(1000) %}{% set _ = l.append(l) %}"
	             "{% endfor %}{% endfor %}")
	          .error != ""); // memory is limited
}

TEST_CASE("T24: templates that are too deep are refused, wherever the depth is") {
	constexpr size_t kMany = 100'000; // the text itself is below the limit
	for (const std::string& text :
	     {"{{ " + repeat("(", kMany) + "1" + repeat(")", kMany) + " }}",
	      "{{ " + repeat("[", kMany) + repeat("]", kMany) + " }}",
	      "{{ " + repeat("{1:", kMany) + "2" + repeat("}", kMany) + " }}",
	      "{{ " + repeat("-", kMany) + "1 }}",
	      "{{ " + repeat("not ", kMany) + "1 }}",
	      "{{ " + repeat("f(", kMany) + repeat(")", kMany) + " }}",
	      "{{ x" + repeat("[x", kMany) + repeat("]", kMany) + " }}",
	      "{{ x" + repeat("|e", kMany) + " }}",
	      "{{ x" + repeat(".a", kMany) + " }}",
	      "{{ x" + repeat("()", kMany) + " }}",
	      "{{ 1" + repeat(" if 1 else 1", 20'000) + " }}",
	      "{{ 1" + repeat(" if 1", 20'000) + " }}",
	      repeat("{% if 1 %}", 40'000),
	      repeat("{% for x in y %}", 30'000),
	      repeat("{% set x %}", 40'000),
	      repeat("{% macro m() %}", 30'000),
	      repeat("{% filter e %}", 30'000),
	      "{% set " + repeat("(", kMany) + "a" + repeat(")", kMany) + " = 1 %}",
	      std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
	      std::string("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}"),
	      std::string("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"),
	      std::string("{% macro m(x=m()) %}{% endmacro %}{{ m() }}")}) {
		INFO(text.substr(0, 80));
		has(render(text).error, "too deep");
	}
	// long but not deep is accepted
	CHECK(render("{{ 1" + repeat(" + 1", 10'000) + " }}").text == "10001");
	CHECK(render("{{ ''" + repeat(" ~ 'a'", 10'000) + " }}").text == repeat("a", 10'000));
	CHECK(render(repeat("{% if 1 %}a{% endif %}", 10'000)).text == repeat("a", 10'000));
	CHECK(render("{% if 0 %}" + repeat("{% elif 0 %}", 10'000) + "{% else %}x{% endif %}").text == "x");
	CHECK(render("{{ " + repeat("(", 200) + "7" + repeat(")", 200) + " }}").text == "7");
}

TEST_CASE("T24: values inside each other are too deep for printing, comparing and JSON alike") {
	const std::string nest = "{% set n = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}"
	                         "{% set n.y = [n.y] %}{% endfor %}";
	for (const char* use : {"{{ n.x }}", "{{ n.x|tojson }}", "{{ n.x == n.y }}", "{{ n.x < n.y }}", "{{ {'a': n.x} }}",
	                        "{{ n.x in [n.y] }}", "{{ [n.x, n.y]|sort }}", "{{ n.x|string }}", "{{ n.x|join }}"}) {
		INFO(use);
		has(render(nest + use).error, "too deep");
	}
	has(render("{% set n = namespace() %}{% set n.n = n %}{{ n }}").error, "too deep"); // a value inside itself
	Json deep = Json::array();
	for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
	has(render("x", {{"messages", Json::array()}, {"tools", deep}}).error, "too deep");
}

TEST_CASE("T25: loops and large values end with an error that says which limit it was") {
	const auto nested = [](int n, const char* body) {
		std::string s = body;
		for (int i = 0; i < n; ++i) s = "{% for i in range(10000) %}" + s + "{% endfor %}";
		return s;
	};
	const auto limited = [](const std::string& text) { // by one of the limits
		INFO(text.substr(0, 200));
		const std::string error = render(text).error;
		CHECK((error.find(" steps;") != error.npos || error.find(" bytes;") != error.npos ||
		       error.find("width") != error.npos));
	};
	has(render(nested(3, "x")).error, "steps");
	has(render(nested(2, "")).error, "steps");
	has(render("{% for i in range(100000) %}" + repeat("x", 100) + "{% endfor %}").error, "4194304 bytes");
	has(render("{{ 'x' * 5000000 }}").error, "steps");
	has(render("{{ ('x' * 1000) * 10000 }}").error, "4194304 bytes");
	has(render("{{ ('x' * 1000) * 1000 * 1000 }}").error, "bytes");
	limited("{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}");
	limited("{% set n = namespace(s='ab') %}{% for i in range(64) %}{% set n.s = n.s|replace('a', n.s) %}{% endfor %}");
	limited("{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}");
	limited("{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}");
	limited("{{ [0] * 1000000000000 }}");
	limited("{{ 'x'.center(9000000000000000000) }}");
	limited("{{ '%9000000000000000000d' % 1 }}");
	limited("{{ '{:9000000000000000000}'.format(1) }}");
	has(render("{{ '%.1000000000f' % 1 }}").error, "digits");
	has(render("{{ range(100001) }}").error, "100000");
	limited("{{ 'a\nb'|indent(1000000000000) }}");
	has(render("{{ [1]|batch(1000000000000, 0)|list }}").error, "steps");
	has(render("{{ [1]|slice(1000000000000)|list }}").error, "steps");
	has(render("{{ {'a': 1}|tojson(indent=1000000000000) }}").text, "\"a\"");
	has(render("{{ strftime_now('%Y' * 1000)|length }}").text, "4000");
	limited("{{ strftime_now('%Y' * 100000) * 100 }}");
	// a repeated search for something that almost matches
	limited("{% set a = 'a' * 100000 %}{% for i in range(100000) %}{% if a + 'b' in a %}{% endif %}{% endfor %}");
	ChatLimits small;
	small.steps = 100;
	has(render("{% for i in range(100) %}{% endfor %}", chat(Json::array()), small).error, "more than 100 steps");
	small = {};
	small.output_bytes = 10;
	CHECK(render("0123456789", chat(Json::array()), small).text == "0123456789");
	has(render("0123456789x", chat(Json::array()), small).error, "more than 10 bytes");
	has(render(repeat("x", 600'000)).error, "at most 524288");
}

TEST_CASE("T25: work inside one expression counts as steps too") {
	const std::string setup = "{% set b = 'ab' * 50000 %}{% set l = range(9000)|list %}";
	std::istringstream works("b.strip(b);b|trim(b);b.startswith((b, b));b.removeprefix(b);b is sameas b;b in {b: 1};"
	                         "b == b;b < b;b in b;b|length;b.find('c');b.rfind('ba');b.count('a');b|upper;b[5:];b[::2];"
	                         "b.split('b');b.rsplit('b');b.splitlines();b|wordcount;b|tojson;b|string|list;"
	                         "b.replace('c', '');b|urlencode;b.isalpha();b is lower;b.zfill(5);l == l + [];l|sort;"
	                         "l|unique|list;l|join;l + l;l[:];l|sum;l|max;99 in l|reverse;l.count(-1);"
	                         "dict(l|map('string')|batch(2))");
	ChatLimits limits;
	limits.steps = 100'000;
	for (std::string work; std::getline(works, work, ';');) {
		const std::string text = setup + "{% for i in range(90000) %}{% if " + work + " %}{% endif %}{% endfor %}";
		INFO(text);
		has(render(text, chat(Json::array()), limits).error, "steps");
	}
	std::string variables;
	for (int i = 0; i < 2'000; ++i) variables += "{% set v" + std::to_string(i) + " = 1 %}";
	has(render(variables + "{% for i in range(90000) %}{{ none_such }}{% endfor %}").error, "steps");
}

TEST_CASE("T25: every walk costs a step per value, however values share their parts") {
	// a pair of pairs of pairs ... has 2^n values to visit but takes only n in memory
	const auto pairs = [](int n, const std::string& use) {
		return "{% set n = namespace(x=('a',), y=('a',)) %}{% for i in range(" + std::to_string(n) +
		       ") %}{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}{% endfor %}{% if " + use + " %}{% endif %}";
	};
	for (const char* use : {"{n.x: 1}", "{(n.x, 1): 1}.get(n.y)", "n.x == n.y", "n.x < n.y", "n.x in [n.y]",
	                        "[n.x, n.y]|unique|list", "[n.x, n.y]|sort", "n.x|string", "n.x|tojson", "[n.x].count(n.y)",
	                        "n.x in {1: 2}", "dict([(n.x, 1)])", "[n.x, n.y]|groupby(0)"})
		for (const int n : {27, 60}) {
			INFO(std::string(use));
			const std::string error = render(pairs(n, use)).error;
			CHECK((error.find(" steps;") != error.npos || error.find(" bytes;") != error.npos));
		}
}

TEST_CASE("T25: every filter and method is charged for the bytes of a text") {
	// m: a conversation of one megabyte; each of these expressions reads at least a quarter of it
	std::istringstream works(
	    "m|upper;m|lower;m|capitalize;m|title;m.title();m.swapcase();m.upper();m.capitalize();m|trim;m.strip('x');"
	    "'z' in m;m.find('z');m.rfind('z');m.index('é');m.count('z');m.count('ab');m.replace('z', '');m|replace('a', "
	    "'b');"
	    "m.split('z');m.split();m.rsplit('z');m.rsplit();m.splitlines();m.partition('z');m.rpartition('z');m|wordcount;"
	    "m|length;m[600000];m[-1];m[:-1];m[::2];m[::-1];m|reverse;m|escape;m|urlencode;m|tojson;[m]|string;m|indent;"
	    "m|truncate(300000);m.isalnum();m is lower;m is upper;m.isprintable();m.zfill(9);m.ljust(9);m.center(9);m|list;"
	    "m ~ 'x';m + 'x';m * 2;'%s' % m;'%r' % m;'{}'.format(m);'{:.600000}'.format(m);m == m[1:] ~ 'z';m < m[:-1] ~ "
	    "'z';"
	    "m.startswith(m[:600000]);m.endswith(m[400000:]);m.removeprefix(m);m.removesuffix(m);[m]|join;'x'.join([m, m]);"
	    "{m: 1}[m[1:] ~ 'a'];m in {m ~ '': 1};[m, m ~ '']|unique|list;[m, m ~ '']|sort;[m, m ~ '']|max;m|float;m|int;"
	    "m|filesizeformat;namespace(**{m: 1})[m ~ ''];m % "
	    "1;m.format();strftime_now(m);m|map('upper')|list;m|batch(2)|list");
	const Json messages = Json::array({message("user", repeat("abcd\xc3\xa9", (1 << 20) / 6))});
	const std::string setup = "{% set m = messages[0].content %}{% if ";
	ChatLimits limits;
	limits.steps = 300; // and 1000 for the message: more than 256 bytes take more than one step
	for (std::string work; std::getline(works, work, ';');) {
		INFO(work);
		has(render(setup + work + " %}{% endif %}", chat(messages), limits).error, "steps");
	}
	// one step per 8 characters that are looked up one by one
	const Json shorter = Json::array({Json{{"role", "user"}, {"content", std::string(100'000, 'a')}}});
	limits.steps = 10'000;
	for (const std::string work : {"m|upper", "m|lower", "m.swapcase()"}) {
		INFO(work);
		has(render(setup + work + " %}{% endif %}", chat(shorter), limits).error, "steps");
	}
	// all of them are within the limits of a rendering
	CHECK(render("{{ messages[0].content|title|length }}", chat(messages)).error == "");
	CHECK(render("{{ messages[0].content|tojson|length }}", chat(messages)).error == "");
}

TEST_CASE("T25: many small messages do not buy more than ten times the steps") {
	Json many = Json::array();
	for (int i = 0; i < 60'000; ++i) many.push_back(Json{{"role", "user"}});
	has(render("{% for i in range(90000) %}{% if 99 in messages %}{% endif %}{% endfor %}", chat(many)).error,
	    "more than 10000000 steps");
	// numbers with hundreds of digits, whose conversion needs long arithmetic
	for (const char* e : {"'%.0f' % 1e308", "'%.1000f' % 1e308", "1e308|round(300)", "'{:.0f}'.format(1e308)"})
		has(render("{% for i in range(90000) %}{% if " + std::string(e) + " %}{% endif %}{% endfor %}", chat(many))
		        .error,
		    "steps");
}

TEST_CASE("T26: arithmetic that has no result is an error of the template") {
	for (const char* e : {"1/0",
	                      "1//0",
	                      "1%0",
	                      "1.0/0",
	                      "0 ** -1",
	                      "0.0 ** -1",
	                      "2 ** 64",
	                      "(-8) ** 0.5",
	                      "9223372036854775807 + 1",
	                      "-9223372036854775807 - 2",
	                      "9223372036854775807 * 2",
	                      "(-9223372036854775807 - 1) // -1",
	                      "-(-9223372036854775807 - 1)",
	                      "9223372036854775808",
	                      "(-9223372036854775807 - 1)|abs",
	                      "'99999999999999999999'|int",
	                      "1e300|int",
	                      "2.0 ** 5000",
	                      "[1, 2][::0]",
	                      "range(1, 2, 0)",
	                      "range(9223372036854775807, -9223372036854775807)",
	                      "[1]|slice(0)|list",
	                      "'x' * 9223372036854775807",
	                      "1e999"}) {
		INFO(e);
		const Outcome out = render("\n{{ " + std::string(e) + " }}");
		CHECK(out.text == "");
		CHECK(out.error.starts_with("chat template, line 2: "));
	}
	CHECK(render("{{ (-9223372036854775807 - 1) % -1 }} {{ (-9223372036854775807 - 1) / -1 }}").text ==
	      "0 9.223372036854776e+18");
	CHECK(render("{{ [1][9223372036854775807] is defined }}{{ 'abc'[-9223372036854775807:] }}").text == "Falseabc");
	CHECK(render("{{ [1, 2, 3][::9223372036854775807] }}{{ [1, 2, 3][::-9223372036854775807] }}").text == "[1][3]");
	CHECK(render("{{ '12345678901234567890' }}").text == "12345678901234567890");
	Json big = chat(Json::array());
	big["variables"] = {{"n", uint64_t(INT64_MAX) + 1}};
	CHECK(render("{{ n }}", big).text == "9.223372036854776e+18"); // limits of schemas may be this large
}

TEST_CASE("T27: an error names the line and what is unknown") {
	const std::pair<std::string, std::string> kCases[] = {
	    {"a\nb\n{{ x|nofilter }}", "line 3: unknown filter 'nofilter'"},
	    {"{{ 'a'|map('nofilter')|list }}", "line 1: unknown filter 'nofilter'"},
	    {"\n{% if 1 is notest %}{% endif %}", "line 2: unknown test 'notest'"},
	    {"{% if [1]|select('notest')|list %}{% endif %}", "unknown test 'notest'"},
	    {"\n\n{{ nofunction(1) }}", "line 3: unknown function 'nofunction'"},
	    {"{{ 'a'.nomethod() }}", "'str object' has no attribute 'nomethod'"},
	    {"{{ {}.a.b }}", "'dict object' has no attribute 'a'"},
	    {"{{ x.y }}", "'x' is undefined"},
	    {"\n{% nosuchtag %}", "line 2: unknown tag 'nosuchtag'"},
	    {"{% include 'other' %}", "tag 'include' is refused"},
	    {"{% import 'other' as o %}", "tag 'import' is refused"},
	    {"{% from 'other' import x %}", "tag 'from' is refused"},
	    {"{% extends 'other' %}", "tag 'extends' is refused"},
	    {"{% block x %}{% endblock %}", "tag 'block' is refused"},
	    {"{% autoescape true %}{% endautoescape %}", "unknown tag 'autoescape'"},
	    {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
	    {"{% if x %}", "{% endif %} is missing"},
	    {"{% if x %}{% endfor %}", "'endfor'"},
	    {"a\n{{ x", "line 2: a tag has no end"},
	    {"{{ 'x }}", "no closing quote"},
	    {"{{ 1 + }}", "expected an expression, found }}"},
	    {"{{ x y }}", "expected }}, found 'y'"},
	    {"{{ \"\\ud83d\" }}", "U+D83D"},
	    {"{{ [1].clear() }}", "lists have append() and pop() alone"},
	    {"\xff", "byte 0 is not UTF-8"},
	};
	for (const auto& row : kCases) { // no bindings: clang 14 does not capture them in INFO
		INFO(row.first);
		has(render(row.first).error, row.second);
	}
	// names are looked up when they are used
	CHECK(render("{% if false %}{{ x|nofilter }}{{ f() }}{% endif %}ok").text == "ok");
	CHECK(render("{{ x|nofilter }}").code == Code::Format);
	CHECK(render("{{ f() }}").code == Code::Format);
	CHECK(render("{% nosuchtag %}").code == Code::Format);
}

TEST_CASE("T27: what raise_exception says reaches the user, on one line") {
	const Outcome out = render("\n{{ raise_exception('no system role,\nsorry: ' ~ messages[0].role) }}",
	                           chat(Json::array({message("critic", "x")})));
	CHECK(out.error == "chat template, line 2: no system role,\\nsorry: critic");
	CHECK(out.code == Code::Invalid);
}

TEST_CASE("T28: roles and contents of all kinds are rendered or refused with a reason") {
	const std::string chatml(builtin_chat_template("chatml"));
	const auto with = [&](const Json& messages) { return render(chatml, chat(messages)); };
	CHECK(with(Json::array()).text == "");
	CHECK(with(Json::array({message("user", "")})).text == "<|im_start|>user\n<|im_end|>\n");
	CHECK(with(Json::array({message("critic", "x")})).text == "<|im_start|>critic\nx<|im_end|>\n");
	CHECK(with(Json::array({message("system", "a"), message("system", "b")})).text ==
	      "<|im_start|>system\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n");
	Json m = message("user", "x");
	m["content"] = nullptr;
	has(with(Json::array({m})).error, "'+' does not work on str and NoneType");
	m["content"] = Json::array({Json{{"type", "text"}, {"text", "x"}}});
	has(with(Json::array({m})).error, "'+' does not work on str and list");
	m["content"] = 5;
	has(with(Json::array({m})).error, "'+' does not work on str and int");
	m.erase("content");
	has(with(Json::array({m})).error, "'dict object' has no attribute 'content'");
	has(with(Json::array({Json::object()})).error, "messages[0] has no role");
	has(with(Json::array({message("user", "x"), Json(5)})).error, "messages[1] is not an object");
	has(with(Json::array({Json{{"role", 5}}})).error, "messages[0] has no role");
	has(with(Json::object()).error, "messages is not an array");
	has(with(Json()).error, "messages is not an array");
	has(with(Json::array({message("user", "a\xff")})).error, "not UTF-8: byte 1");
	const auto broken = [&](const char* key, const Json& value) {
		Json c = chat(Json::array());
		c[key] = value;
		return render(chatml, c).error;
	};
	has(broken("tools", Json::object()), "tools is not an array");
	has(broken("documents", "x"), "documents is not an array");
	has(broken("variables", 5), "variables are not an object");
	Json many = Json::array();
	for (int i = 0; i < 10'000; ++i)
		many.push_back(message(i % 2 ? "assistant" : "user", "message " + std::to_string(i)));
	CHECK(with(many).text.ends_with("<|im_start|>assistant\nmessage 9999<|im_end|>\n"));
	has(with(Json::array({message("user", std::string(5 << 20, 'x'))})).error, "4194304 bytes");
}

TEST_CASE("T28: ten thousand messages through the templates of real models") {
	Json many = Json::array({message("system", "s")});
	for (int i = 0; i < 10'000; ++i)
		many.push_back(message(i % 2 ? "assistant" : "user", "message " + std::to_string(i)));
	for (const char* name : {"Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "Mistral-Small-3.2-24B-Instruct-2506",
	                         "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"}) {
		const std::string path = shared_asset("chat_templates/" + std::string(name) + ".jinja");
		if (path.empty()) continue;
		INFO(name);
		const Outcome out = render(file_text(path), chat(many));
		CHECK(out.error == "");
		has(out.text, "message 9999");
	}
}

TEST_CASE("templates of a file: the default, a variant, one for tools, and built-in ones by name") {
	GgufBuilder b;
	const auto choose = [&](const char* name, bool tools) -> std::string {
		const auto bytes = b.bytes();
		try {
			return choose_chat_template(Gguf::parse("m.gguf", bytes), name, tools).text();
		} catch (const Error& e) {
			CHECK(e.code == Code::NotFound);
			return e.what();
		}
	};
	has(choose("", false), "m.gguf: the file has no chat template; choose one with --chat-template: chatml, deepseek");
	has(choose("nosuch", false), "there is no chat template 'nosuch'; there are chatml");
	CHECK(choose("zephyr", false) == builtin_chat_template("zephyr"));
	b.text("tokenizer.chat_template", "D").text("tokenizer.chat_template.tool_use", "T");
	b.text("tokenizer.chat_template.rag", "R").text("tokenizer.chat_template.zephyr", "Z");
	CHECK(choose("", false) == "D");
	CHECK(choose("", true) == "T");
	CHECK(choose("rag", true) == "R");
	CHECK(choose("zephyr", false) == "Z"); // the file's template comes first
	CHECK(choose("default", true) == "D");
	has(choose("nosuch", false), "there are default, tool_use, rag, zephyr, chatml");
	b.text("tokenizer.chat_template", "rwkv-world"); // a name in place of a template
	CHECK(choose("", false) == builtin_chat_template("rwkv-world"));
	b.text("tokenizer.chat_template", "{{ x|");
	const auto bytes = b.bytes();
	try {
		choose_chat_template(Gguf::parse("m.gguf", bytes), "", false);
		CHECK(false);
	} catch (const Error& e) {
		CHECK(e.code == Code::Format);
		has(e.what(), "m.gguf: tokenizer.chat_template, line 1: ");
	}
	for (std::string_view name : builtin_chat_templates()) {
		INFO(name);
		const Json one = chat(Json::array({message("user", "What?")}));
		has(render(std::string(builtin_chat_template(name)), one).text, "What?");
	}
}

TEST_CASE("strftime_now tells the clock's time, and refuses what is no conversion") {
	const ChatTemplate t("{{ strftime_now('%Y') }}");
	ChatInput in;
	in.messages = Json::array();
	const int year = std::stoi(t.render(in).text());
	CHECK(year >= 2025);
	CHECK(year < 2200);
	has(render("{{ strftime_now('%Q') }}").error, "unknown conversion");
	has(render("{{ strftime_now('%999999Y') }}").error, "unknown conversion");
	has(render("{{ strftime_now('x%') }}").error, "unknown conversion");
}
