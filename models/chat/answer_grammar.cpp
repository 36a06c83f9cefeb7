// The grammar of an answer to a conversation.
#include "models/chat/answer_grammar.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/chat/call_grammar.h"
#include "models/grammar/gbnf.h"
#include "models/tokenizer.h"
#include <algorithm>
#include <set>

namespace kvrun {
namespace {

using namespace grammar;

bool is_name(char c) {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
	       c == '.';
}

// The functions that may be called, or the single one that must be called.
Json chosen_tools(const AnswerRules& a) {
	const bool named =
	    !a.tool_choice.empty() && a.tool_choice != "auto" && a.tool_choice != "required" && a.tool_choice != "none";
	const bool none = !a.tools.is_array() || a.tools.empty();
	if (none && (named || a.tool_choice == "required"))
		fail(Code::Invalid, "tool_choice asks for a call, but there are no tools");
	if (none || a.tool_choice == "none") return Json::array();
	Json out = Json::array();
	for (const Json& t : a.tools) {
		if (!t.is_object() || !t.contains("function") || !t["function"].is_object() ||
		    !t["function"].contains("name") || !t["function"]["name"].is_string())
			fail(Code::Invalid, "tools has an entry that is not a function with a name");
		const std::string name = t["function"]["name"].get<std::string>();
		if (name.empty() || !std::all_of(name.begin(), name.end(), is_name))
			fail(Code::Invalid, "the name of a function is '{}', expected letters, digits, _, - and .",
			     one_line(name, 60));
		if (!named || name == a.tool_choice) out.push_back(t);
	}
	if (out.empty())
		fail(Code::Invalid, "tool_choice is '{}', which none of the tools is called", one_line(a.tool_choice, 60));
	return out;
}

// Text up to the first `end`, with it. marker: `end` with control tokens, at which the text ends, too.
ExprId up_to(Rules& r, const std::string& end, const std::string& marker) {
	std::vector<RuleId> states; // by the number of bytes of `end` that the text ends with
	for (size_t i = 0; i < end.size(); ++i) states.push_back(r.add_rule("reasoning"));
	const auto then = [&](ExprId e, size_t state) { return r.sequence({e, r.rule(states[state])}); };
	for (size_t i = 0; i < end.size(); ++i) {
		std::vector<CharRange> own;
		std::vector<ExprId> parts;
		for (const char c : std::set<char>(end.begin(), end.end())) {
			const std::string read = end.substr(0, i) + c;
			size_t n = read.size();
			while (!read.ends_with(std::string_view(end).substr(0, n))) --n;
			own.push_back({uint8_t(c), uint8_t(c)});
			const ExprId one = r.text({&c, 1});
			parts.push_back(n == end.size() ? one : then(one, n));
		}
		parts.push_back(then(r.chars(own, /*inverted=*/true), 0));
		if (marker != end) parts.push_back(r.text(marker));
		r.set_body(states[i], r.choice(std::move(parts)));
	}
	return r.rule(states[0]);
}

ExprId behind_reasoning(Rules& r) { return r.repeat(r.chars({{'\n', '\n'}, {' ', ' '}}), 0, 4); }

bool is_strict(const Json& t) { return t["function"].contains("strict") && t["function"]["strict"] == Json(true); }

} // namespace

std::shared_ptr<Grammar> answer_grammar(const AnswerRules& a, const Tokenizer& tok,
                                        std::shared_ptr<const TokenTrie> trie) {
	Json tools = chosen_tools(a);
	const ChatFeatures& f = a.features;
	const bool must_call = !tools.empty() && !a.tool_choice.empty() && a.tool_choice != "auto";
	if (!must_call && f.tool_format == ToolFormat::None) tools.clear(); // calls are text, because their form is unknown
	const bool has_text = !a.gbnf.empty() || !a.schema.is_null();
	const bool harmony = f.tool_format == ToolFormat::Harmony;
	const bool strict = a.one_call || std::ranges::any_of(tools, is_strict);
	if (!must_call && !has_text && (tools.empty() || !strict)) return nullptr;
	if (must_call && has_text)
		fail(Code::Invalid, "tool_choice asks for a call, and a grammar for a text; give one of them");

	const auto marker = [&](std::string_view s) { return marker_bytes(tok, s); };
	Rules r =
	    a.gbnf.empty() ? Rules() : parse_gbnf(a.gbnf, [&](std::string_view name) { return named_token(tok, name); });
	std::vector<ExprId> parts;
	const auto optional = [&](const std::string& m) {
		return m.empty() ? r.sequence({}) : r.optional(r.text(marker(m)));
	};
	const auto add_text = [&](ExprId e) {
		const ExprId begin = harmony ? r.text(marker("<|channel|>final<|message|>")) : optional(f.content_begin);
		parts.push_back(r.sequence({begin, e, optional(f.content_end)}));
	};
	if (!a.gbnf.empty()) add_text(r.rule(r.root()));
	if (!a.schema.is_null()) add_text(add_schema(r, a.schema, a.left_out));
	if (!tools.empty()) { // perhaps behind an empty text
		const bool around = !f.content_begin.empty() && !f.content_end.empty();
		const ExprId empty = around ? r.sequence({optional(f.content_begin), optional(f.content_end)}) : r.sequence({});
		parts.push_back(r.sequence({empty, add_calls(r, {f, tools, a.one_call, marker})}));
	}

	Begin begin;
	if (!must_call && !has_text) { // text is free; calls must have their form
		const std::string first = call_marker(f);
		const std::vector<CharRange> opening{{'{', '{'}, {'[', '['}};
		const ExprId any = r.repeat(r.chars({}, true), 0);
		if (first.empty())
			parts.push_back(r.optional(r.sequence({r.chars(opening, true), any})));
		else
			begin = {{marker(first)}, /*with_marker=*/true, /*may_end=*/true};
	}
	ExprId body = r.choice(std::move(parts));
	if (harmony && begin.markers.empty()) { // reasoning may come first
		const ExprId text = r.repeat(r.chars({}, true), 0);
		body = r.sequence({r.optional(r.sequence({r.text(marker("<|channel|>analysis<|message|>")), text,
		                                          r.text(marker("<|end|><|start|>assistant"))})),
		                   body});
	} else if (a.in_reasoning && begin.markers.empty()) {
		begin = {{marker(f.think_end)}, /*with_marker=*/false, /*may_end=*/false};
		if (begin.markers[0] != f.think_end) begin.markers.push_back(f.think_end); // as ordinary text
		body = r.sequence({behind_reasoning(r), body});
	} else if (a.may_reason && (must_call || has_text)) {
		const ExprId thought = r.sequence({r.text(marker(f.think_begin)), up_to(r, f.think_end, marker(f.think_end))});
		body = r.sequence({r.optional(r.sequence({thought, behind_reasoning(r)})), body});
	}
	const RuleId root = r.add_rule("answer");
	r.set_body(root, body);
	r.set_root(root);
	return std::make_shared<Grammar>(r, std::move(trie), std::move(begin));
}

} // namespace kvrun
