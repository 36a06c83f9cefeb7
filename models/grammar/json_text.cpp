// JSON as rules.
#include "models/grammar/json_text.h"
#include <map>
#include <nlohmann/json.hpp>

namespace kvrun::grammar {
namespace {

constexpr uint32_t kMostIndent = 40; // consecutive white space is limited, so that a model cannot write it endlessly

} // namespace

ExprId JsonText::named(const char* name, ExprId body) {
	const RuleId r = rules_.add_rule(name);
	rules_.set_body(r, body);
	return rules_.rule(r);
}

ExprId JsonText::space() {
	if (!dialect_.spaces) return rules_.sequence({});
	if (!space_) {
		const ExprId indent = rules_.repeat(rules_.chars({{' ', ' '}, {'\t', '\t'}}), 0, kMostIndent);
		space_ = named(
		    "space", rules_.optional(rules_.choice({rules_.text(" "), rules_.sequence({rules_.text("\n"), indent})})));
	}
	return *space_;
}

// Without escapes of surrogates, which must come in pairs: the character itself can be written instead.
ExprId JsonText::character() {
	if (character_) return *character_;
	Rules& r = rules_;
	if (!dialect_.escapes) return *(character_ = r.chars({{'<', '<'}}, /*inverted=*/true));
	const ExprId hex = r.chars({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
	const ExprId low = r.chars({{'0', '9'}, {'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}});
	const ExprId d = r.sequence({r.chars({{'d', 'd'}, {'D', 'D'}}), r.chars({{'0', '7'}}), hex, hex});
	const ExprId code = r.sequence({r.text("u"), r.choice({r.sequence({low, hex, hex, hex}), d})});
	const ExprId plain = r.chars({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, /*inverted=*/true);
	const ExprId one =
	    r.chars({{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}});
	character_ = r.choice({plain, r.sequence({r.text("\\"), r.choice({one, code})})});
	return *character_;
}

ExprId JsonText::characters(const std::vector<CharRange>& given) {
	if (!dialect_.escapes) {
		std::vector<CharRange> others = tidy_ranges(given, true);
		others.push_back({'<', '<'});
		return rules_.chars(std::move(others), true);
	}
	std::vector<CharRange> plain;
	std::vector<ExprId> parts;
	for (const CharRange& r : tidy_ranges(given, false)) {
		uint32_t first = r.first;
		for (uint32_t c : {0x1fu, uint32_t('"'), uint32_t('\\')}) { // ends of the ranges that need escapes
			const uint32_t begin = c == 0x1f ? 0 : c;
			if (r.last < begin || first > c) continue;
			if (first < begin) plain.push_back({first, begin - 1});
			for (uint32_t e = std::max(first, begin); e <= std::min(c, r.last); ++e) {
				constexpr std::pair<char, const char*> kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"},
				                                                   {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"},
				                                                   {'\t', "\\t"}};
				std::string text;
				for (const auto& [ch, escape] : kShort)
					if (e == uint32_t(ch)) text = escape;
				constexpr char kHex[] = "0123456789abcdef";
				if (text.empty()) text = std::string("\\u00") + kHex[e >> 4] + kHex[e & 15];
				parts.push_back(rules_.text(text));
			}
			first = c + 1;
		}
		if (first <= r.last) plain.push_back({first, r.last});
	}
	if (!plain.empty() || parts.empty()) parts.push_back(rules_.chars(plain));
	return rules_.choice(std::move(parts));
}

ExprId JsonText::string(uint32_t least, uint32_t most) {
	const auto make = [&] {
		return rules_.sequence({text(dialect_.open), rules_.repeat(character(), least, most), text(dialect_.close)});
	};
	if (least > 0 || most != kNoLimit) return make();
	if (!string_) string_ = named("string", make());
	return *string_;
}

// A trie of the names' characters: at each node any other character may follow, and the string may end unless a name
// ends there.
ExprId JsonText::key_except(const std::vector<std::string>& names) {
	struct Node {
		std::map<std::string, size_t> next; // by character
		bool is_name = false;
	};
	std::vector<Node> nodes(1);
	for (const std::string& name : names) {
		size_t at = 0;
		for (size_t i = 0; i < name.size();) {
			size_t n = 1;
			while (i + n < name.size() && (uint8_t(name[i + n]) & 0xc0) == 0x80) ++n;
			const auto [to, fresh] = nodes[at].next.try_emplace(name.substr(i, n), nodes.size());
			at = to->second;
			if (fresh) nodes.emplace_back();
			i += n;
		}
		nodes[at].is_name = true;
	}
	const std::vector<CharRange> special{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
	const ExprId rest = rules_.sequence({rules_.repeat(rules_.chars(special, true), 0), text("\"")});
	std::vector<ExprId> made(nodes.size());
	for (size_t i = nodes.size(); i-- > 0;) { // children have larger numbers
		std::vector<CharRange> taken = special;
		std::vector<ExprId> parts;
		for (const auto& [c, to] : nodes[i].next) {
			uint32_t code = uint8_t(c[0]);
			if (c.size() > 1) code &= 0x3fu >> (c.size() - 1);
			for (size_t k = 1; k < c.size(); ++k) code = code << 6 | (uint8_t(c[k]) & 0x3f);
			taken.push_back({code, code});
			if (code >= 0x20 && code != '"' && code != '\\') parts.push_back(rules_.sequence({text(c), made[to]}));
		}
		parts.push_back(rules_.sequence({rules_.chars(std::move(taken), true), rest}));
		if (!nodes[i].is_name) parts.push_back(text("\""));
		made[i] = rules_.choice(std::move(parts));
		const RuleId r = rules_.add_rule("key");
		rules_.set_body(r, made[i]);
		made[i] = rules_.rule(r);
	}
	return rules_.sequence({text("\""), made[0]});
}

ExprId JsonText::comma(ExprId item) { return rules_.sequence({text(","), space(), item, space()}); }

ExprId JsonText::list(ExprId item, uint32_t least, uint32_t most) {
	std::vector<ExprId> parts{text("["), space()};
	if (most > 0) {
		const uint32_t more = most == kNoLimit ? kNoLimit : most - 1;
		const ExprId items =
		    rules_.sequence({item, space(), rules_.repeat(comma(item), least > 0 ? least - 1 : 0, more)});
		parts.push_back(least > 0 ? items : rules_.optional(items));
	}
	parts.push_back(text("]"));
	return rules_.sequence(std::move(parts));
}

ExprId JsonText::member(ExprId key, ExprId value) { return rules_.sequence({key, space(), text(":"), space(), value}); }

ExprId JsonText::any_object() {
	value();
	return *object_;
}

ExprId JsonText::any_array() {
	value();
	return *array_;
}

ExprId JsonText::value() {
	if (value_) return *value_;
	const RuleId r = rules_.add_rule("value"), object = rules_.add_rule("object"), array = rules_.add_rule("array");
	value_ = rules_.rule(r);
	object_ = rules_.rule(object), array_ = rules_.rule(array);
	const std::vector<CharRange> name{{'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {'0', '9'}};
	const ExprId one = member(dialect_.bare_keys ? rules_.repeat(rules_.chars(name), 1) : string(), *value_);
	rules_.set_body(
	    object,
	    rules_.sequence({text("{"), space(),
	                     rules_.optional(rules_.sequence({one, space(), rules_.repeat(comma(one), 0)})), text("}")}));
	rules_.set_body(array, list(*value_));
	rules_.set_body(r, rules_.choice({*object_, *array_, string(), number(), text(dialect_.yes), text(dialect_.no),
	                                  text(dialect_.null)}));
	return *value_;
}

ExprId JsonText::key(const std::string& name) {
	return text(dialect_.bare_keys
	                ? name
	                : nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// Built from the end: what may follow if members have been written, and if none has.
ExprId JsonText::in_order(const std::vector<Member>& members, ExprId head, ExprId tail) {
	for (size_t i = members.size(); i-- > 0;) {
		const auto& [one, required] = members[i];
		tail = named("members", tail); // used twice
		const ExprId first = rules_.sequence({one, space(), tail});
		head = required ? first : rules_.choice({first, head});
		tail = rules_.sequence({required ? comma(one) : rules_.optional(comma(one)), tail});
		if (!required) head = named("members", head);
	}
	return head;
}

ExprId JsonText::integer() {
	if (!integer_)
		integer_ =
		    named("integer", rules_.choice({text("0"), rules_.sequence({rules_.optional(text("-")),
		                                                                rules_.chars({{'1', '9'}}), digits(0, 17)})}));
	return *integer_;
}

ExprId JsonText::number() {
	if (number_) return *number_;
	const ExprId whole = rules_.choice({text("0"), rules_.sequence({rules_.chars({{'1', '9'}}), digits(0, 17)})});
	const ExprId fraction = rules_.optional(rules_.sequence({text("."), digits(1, 17)}));
	const ExprId power =
	    rules_.optional(rules_.sequence({rules_.chars({{'e', 'e'}, {'E', 'E'}}),
	                                     rules_.optional(rules_.chars({{'+', '+'}, {'-', '-'}})), digits(1, 2)}));
	number_ = named("number", rules_.sequence({rules_.optional(text("-")), whole, fraction, power}));
	return *number_;
}

} // namespace kvrun::grammar
