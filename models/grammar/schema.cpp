// JSON schemas as grammars of JSON texts.
#include "models/grammar/schema.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/utf8.h"
#include "models/grammar/formats.h"
#include "models/grammar/json_text.h"
#include "models/grammar/pattern.h"
#include "models/grammar/schema_apart.h"
#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_merge.h"
#include "models/grammar/schema_patterns.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>

namespace kvrun::grammar {
namespace {

constexpr int kDeepestSchemas = 100;             // nesting of schemas
constexpr size_t kMostSchemas = 20'000;          // visited schemas, merged ones included
constexpr size_t kMostMerged = size_t(32) << 20; // bytes of merged schemas as text
constexpr size_t kMostEnum = 10'000;
constexpr double kMostNumber = 1e15; // largest limit of numbers: beyond it doubles have no fractions
constexpr int64_t kMostInteger = 999'999'999'999'999'999;
constexpr const char* kKnown[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};

class Writer {
 public:
	Writer(Rules& r, const Json& root, const Dialect& d, const LeftOut& left_out)
	    : rules_(r), json_(r, d), root_(root), left_out_(left_out) {}

	ExprId schema(const Json& s, const std::string& at, int depth = 0) {
		if (depth > kDeepestSchemas)
			refuse_schema(at, "schemas are more than " + std::to_string(kDeepestSchemas) + " deep inside each other");
		if (++n_schemas_ > kMostSchemas)
			refuse_schema(at, "the schema grows to more than " + std::to_string(kMostSchemas) + " parts");
		if (s == Json(true)) return json_.value();
		if (s == Json(false)) refuse_schema(at, "no value is valid (false)");
		if (!s.is_object()) refuse_schema(at, "it is not an object, true or false");
		if (left_out_ && std::ranges::any_of(s.items(), [](const auto& i) { return is_limit(i.key(), i.value()); })) {
			Json kept = s;
			take_limits(kept, at);
			return schema(kept, at, depth);
		}
		check_keywords(s, at);
		if (const Json* ref = find(s, "$ref"); ref && is_alone(s, "$ref")) return rule_of(*ref, at, depth);
		if (s.contains("$ref") || s.contains("allOf")) return merged(s, at, depth);
		for (const char* key : {"anyOf", "oneOf"})
			if (const Json* list = find(s, key)) return alternatives(s, key, *list, at, depth);
		if (s.contains("enum") || s.contains("const")) return values(s, at);
		return typed(s, at, depth);
	}

 private:
	// Whether the schema has only annotations beside a keyword.
	static bool is_alone(const Json& s, const char* key) {
		return std::ranges::all_of(s.items(), [&](const auto& i) { return i.key() == key || is_annotation(i.key()); });
	}

	// For a keyword that only limits values further: it is not in the grammar.
	void leave_out(const std::string& at, const std::string& why) const {
		if (!left_out_) refuse_schema(at, why);
		left_out_(schema_fault(at, why));
	}
	static bool is_limit(const std::string& key, const Json& value) {
		if (std::ranges::count(kNotEnforced, key) > 0) return !(key == "uniqueItems" && value == Json(false));
		return !is_known(key) && !std::ranges::count(kOtherMeaning, key);
	}
	static bool is_known(const std::string& key) {
		const auto implies = [&](const auto& k) { return key == k.first; };
		return is_annotation(key) || std::ranges::count(kKnown, key) || std::ranges::any_of(kTypeOf, implies);
	}
	// Takes the keywords that are never enforced, and unknown ones, out of the schema.
	void take_limits(Json& s, const std::string& at) const {
		std::vector<std::string> found;
		for (const auto& item : s.items())
			if (is_limit(item.key(), item.value())) found.push_back(item.key());
		for (const std::string& key : found) {
			leave_out(at + "/" + escaped_key(key), one_line(key, 40) + " is not supported");
			s.erase(key);
		}
	}

	static void check_keywords(const Json& s, const std::string& at) {
		for (const auto& item : s.items()) {
			const std::string& key = item.key();
			if (is_known(key)) continue;
			refuse_schema(at + "/" + escaped_key(key), one_line(key, 40) + " is not supported");
		}
		if (const Json* u = find(s, "uniqueItems"); u && *u != Json(false))
			refuse_schema(at + "/uniqueItems", "uniqueItems is not supported");
	}

	const Json& target(const Json& ref, const std::string& at) {
		const std::string* text = ref.get_ptr<const std::string*>();
		if (!text) refuse_schema(at + "/$ref", "it is not a text");
		if (*text == "#") return root_;
		if (!text->starts_with("#/"))
			refuse_schema(at + "/$ref", "'" + one_line(*text, 60) + "' is not in this schema; #/... is");
		const Json* found = find_part(root_, *text);
		if (!found) refuse_schema(at + "/$ref", "'" + one_line(*text, 60) + "' is not there");
		return *found;
	}
	const Json& resolved(const Json& s, const std::string& at) {
		const Json* out = &s;
		for (int i = 0; i < 16 && out->is_object() && out->contains("$ref"); ++i) out = &target((*out)["$ref"], at);
		return *out;
	}

	ExprId rule_of(const Json& ref, const std::string& at, int depth) {
		const Json& to = target(ref, at);
		return shared(to, ref.get<std::string>().substr(1), depth);
	}

	// A schema as a rule, so that it may contain itself. Rules are found by the text of the schema.
	ExprId shared(const Json& s, const std::string& at, int depth) {
		std::string text = s.dump();
		if ((merged_bytes_ += text.size()) > kMostMerged) refuse_schema(at, "the schema grows too large");
		const auto [known, fresh] = rule_of_text_.try_emplace(std::move(text), 0);
		if (fresh) {
			const RuleId r = known->second = rules_.add_rule(at);
			rules_.set_body(r, schema(s, at, depth + 1));
		}
		return rules_.rule(known->second);
	}

	ExprId merged(const Json& s, const std::string& at, int depth) {
		Json rest = s;
		Json list = Json::array();
		if (const Json* ref = find(s, "$ref")) list.push_back(target(*ref, at)), rest.erase("$ref");
		if (const Json* all = find(s, "allOf")) {
			if (!all->is_array()) refuse_schema(at + "/allOf", "it is not an array");
			list.insert(list.end(), all->begin(), all->end());
			rest.erase("allOf");
		}
		for (const char* name : {"$defs", "definitions"}) rest.erase(name); // $ref resolves them in the document
		for (const Json& part : list) {
			if (part == Json(true)) continue;
			if (!part.is_object()) return schema(part, at, depth + 1);
			Json one = part;
			for (const char* name : {"$defs", "definitions"}) one.erase(name);
			if (left_out_) take_limits(one, at);
			check_keywords(one, at);
			rest = merge_schemas(rest, one, at);
		}
		return shared(rest, at, depth);
	}

	ExprId alternatives(const Json& s, const char* key, const Json& list, const std::string& at, int depth) {
		const std::string where = at + "/" + key;
		if (!list.is_array() || list.empty()) refuse_schema(where, "it is not an array of schemas");
		Json rest = s;
		rest.erase(key);
		for (const char* name : {"$defs", "definitions"}) rest.erase(name);
		const bool alone = is_alone(s, key);
		if (std::string_view(key) == "oneOf") { // also by what is said beside it, such as a property that is required
			Json whole = list;
			for (Json& one : whole)
				if (const Json& to = resolved(one, where); !alone && to.is_object())
					one = merge_schemas(rest, to, where);
			check_apart(whole, where, [&](const Json& one) -> const Json& { return resolved(one, where); });
		}
		std::vector<ExprId> parts;
		for (size_t i = 0; i < list.size(); ++i) {
			if (list[i] == Json(false)) continue;
			const std::string here = where + "/" + std::to_string(i);
			if (alone)
				parts.push_back(schema(list[i], here, depth + 1));
			else if (list[i] == Json(true))
				parts.push_back(schema(rest, here, depth + 1));
			else if (list[i].is_object())
				parts.push_back(schema(merge_schemas(rest, list[i], here), here, depth + 1));
			else
				refuse_schema(here, "it is not an object, true or false");
		}
		if (parts.empty()) refuse_schema(where, "no value is valid (false)");
		return rules_.choice(std::move(parts));
	}

	// ---- values

	ExprId values(const Json& s, const std::string& at) {
		const Json list = constants(s);
		if (!list.is_array() || list.empty()) refuse_schema(at + "/enum", "it is not an array of values");
		if (list.size() > kMostEnum)
			refuse_schema(at + "/enum", "it has more than " + std::to_string(kMostEnum) + " values");
		std::vector<ExprId> parts;
		for (const Json& v : list)
			if (holds(s, v, at)) parts.push_back(literal(v, at));
		if (parts.empty()) refuse_schema(at, "none of its values is valid");
		return rules_.choice(std::move(parts));
	}
	// A constant in the notation of the dialect.
	ExprId literal(const Json& v, const std::string& at) {
		const Dialect& d = json_.dialect();
		if (v.is_boolean()) return rules_.text(v.get<bool>() ? d.yes : d.no);
		if (v.is_null()) return rules_.text(d.null);
		if (v.is_string() && !d.escapes) return rules_.text(d.open + v.get<std::string>() + d.close);
		if (v.is_structured() && std::string_view(d.null) != "null")
			refuse_schema(at, "constants that are arrays or objects are not supported in this form of calls");
		return rules_.text(v.dump(-1, ' ', false, Json::error_handler_t::replace));
	}

	// Whether constant v satisfies all keywords of the schema.
	bool holds(const Json& s, const Json& v, const std::string& at) {
		for (const auto& [key, want] : s.items()) {
			if (is_annotation(key)) continue;
			const std::string where = at + "/" + key;
			if (key == "const" || key == "enum") {
				const Json list = key == "const" ? Json::array({want}) : want;
				if (!std::ranges::count(list, v)) return false;
			} else if (key == "type") {
				const std::vector<std::string> types = read_types(want, where);
				const bool whole = v.is_number() && std::floor(v.get<double>()) == v.get<double>();
				if (!std::ranges::count(types, type_of(v)) && !(whole && std::ranges::count(types, "integer")))
					return false;
			} else if (key == "minLength" || key == "maxLength") {
				if (!v.is_string()) continue;
				const std::string& t = v.get_ref<const std::string&>();
				const auto n = uint64_t(std::ranges::count_if(t, [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
				if (key == "minLength" ? n < count(want, where) : n > count(want, where)) return false;
			} else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum") {
				if (!v.is_number()) continue;
				if (!want.is_number()) refuse_schema(where, "it is not a number");
				const bool good = key == "minimum"            ? v >= want
				                  : key == "maximum"          ? v <= want
				                  : key == "exclusiveMinimum" ? v > want
				                                              : v < want;
				if (!good) return false;
			} else if (v.is_object() || v.is_array() || v.is_string()) {
				const std::string why = one_line(key, 40) + " beside enum or const is not supported";
				key == "pattern" || key == "format" ? leave_out(where, why) : refuse_schema(where, why);
			}
		}
		return true;
	}

	// ---- types

	static std::vector<std::string> read_types(const Json& given, const std::string& at) {
		std::vector<std::string> out;
		for (const Json& t : given.is_array() ? given : Json::array({given})) {
			const std::string* name = t.get_ptr<const std::string*>();
			if (!name || !std::ranges::count(kTypes, *name))
				refuse_schema(at, "it is not object, array, string, number, integer, boolean or null");
			if (!std::ranges::count(out, *name)) out.push_back(*name);
		}
		if (out.empty()) refuse_schema(at, "there is no type");
		return out;
	}

	ExprId typed(const Json& s, const std::string& at, int depth) {
		std::vector<std::string> types;
		if (const Json* t = find(s, "type")) {
			types = read_types(*t, at + "/type");
		} else {
			for (const auto& [key, type] : kTypeOf)
				if (s.contains(key) && !std::ranges::count(types, type)) types.push_back(type);
			if (types.empty()) return json_.value();
		}
		std::vector<ExprId> parts;
		for (const std::string& t : types) {
			if (t == "object")
				parts.push_back(inside().object(s, at, depth));
			else if (t == "array")
				parts.push_back(inside().array(s, at, depth));
			else if (t == "string")
				parts.push_back(string(s, at));
			else if (t == "boolean")
				parts.push_back(rules_.choice({literal(true, at), literal(false, at)}));
			else if (t == "null")
				parts.push_back(literal(nullptr, at));
			else if (t == "integer")
				parts.push_back(integer(s, at));
			else if (t == "number")
				parts.push_back(number(s, at));
		}
		return rules_.choice(std::move(parts));
	}

	// Strings in arrays and objects are JSON, also where the outermost one has no quotes.
	Writer& inside() {
		if (*json_.dialect().open) return *this;
		if (!inside_) inside_ = std::make_unique<Writer>(rules_, root_, kJsonDialect, left_out_);
		return *inside_;
	}

	static uint64_t count(const Json& v, const std::string& at) {
		const double x = v.is_number() ? v.get<double>() : -1;
		if (!(x >= 0 && x <= 1e18 && x == std::floor(x))) refuse_schema(at, "it is not a number of things");
		return uint64_t(x);
	}
	// Smallest and largest length; kNoLimit: no limit.
	static std::pair<uint32_t, uint32_t> counts(const Json& s, const char* least, const char* most,
	                                            const std::string& at) {
		std::pair<uint32_t, uint32_t> out{0, kNoLimit};
		const auto read = [&](const char* key, uint32_t& to) {
			const Json* v = find(s, key);
			if (!v) return;
			const uint64_t n = count(*v, at + "/" + key);
			if (n > Rules::kMostRepeats)
				refuse_schema(at + "/" + key, std::to_string(n) + " is more than " +
				                                  std::to_string(Rules::kMostRepeats) + ", the most");
			to = uint32_t(n);
		};
		read(least, out.first);
		read(most, out.second);
		if (out.first > out.second) refuse_schema(at + "/" + least, std::string(least) + " is more than " + most);
		return out;
	}

	ExprId quoted(ExprId inside) {
		return rules_.sequence({rules_.text(json_.dialect().open), inside, rules_.text(json_.dialect().close)});
	}

	std::string_view known_format(const Json& format, const std::string& at) const { // empty: it is left out
		const std::string* text = format.get_ptr<const std::string*>();
		const std::string_view f = text ? format_pattern(*text) : "";
		if (f.empty())
			leave_out(at + "/format",
			          "the format " + one_line(format.dump(), 40) + " is not supported; " + format_names() + " are");
		return f;
	}

	ExprId string(const Json& s, const std::string& at) {
		const Json *pattern = find(s, "pattern"), *format = find(s, "format");
		const bool length = s.contains("minLength") || s.contains("maxLength");
		const std::string why = "two of pattern, format and lengths together are not supported";
		const auto alone = [&](ExprId text) {
			if (length) leave_out(at + (s.contains("minLength") ? "/minLength" : "/maxLength"), why);
			return quoted(text);
		};
		if (const std::string_view f = format ? known_format(*format, at) : ""; !f.empty()) {
			if (pattern) leave_out(at + "/pattern", why);
			return alone(pattern_text(rules_, json_, f));
		}
		if (pattern) {
			const std::string* text = pattern->get_ptr<const std::string*>();
			if (!text) refuse_schema(at + "/pattern", "it is not a text");
			try {
				return alone(pattern_text(rules_, json_, *text));
			} catch (const Error& e) { leave_out(at + "/pattern", e.what()); }
		}
		const auto [least, most] = counts(s, "minLength", "maxLength", at);
		return json_.string(least, most);
	}

	ExprId integer(const Json& s, const std::string& at) {
		int64_t least = -kMostInteger, most = kMostInteger;
		bool limited = false;
		const auto limit = [&](const char* key, bool is_least, bool excluded) {
			const Json* v = find(s, key);
			if (!v) return;
			limited = true;
			if (!v->is_number()) refuse_schema(at + "/" + key, "it is not a number");
			const double x = v->get<double>();
			if (!(std::abs(x) < double(kMostInteger))) {
				if (is_least ? x < 0 : x > 0) return; // does not limit the numbers written here
				refuse_schema(at + "/" + key, "a limit beyond 18 digits is not supported");
			}
			int64_t n = v->is_number_integer() ? v->get<int64_t>() : int64_t(is_least ? std::ceil(x) : std::floor(x));
			if (excluded && double(n) == x) n += is_least ? 1 : -1;
			if (is_least)
				least = std::max(least, n);
			else
				most = std::min(most, n);
		};
		limit("minimum", true, false), limit("exclusiveMinimum", true, true);
		limit("maximum", false, false), limit("exclusiveMaximum", false, true);
		if (!limited) return json_.integer();
		const auto e = integer_between(rules_, least, most);
		if (!e) refuse_schema(at, "no integer is between its limits");
		return *e;
	}

	static std::string decimal(const Json& v, const std::string& at) {
		if (!v.is_number()) refuse_schema(at, "it is not a number");
		if (v.is_number_unsigned() ? v.get<uint64_t>() > uint64_t(kMostNumber)
		                           : !(std::abs(v.get<double>()) <= kMostNumber))
			refuse_schema(at, "a limit beyond 1e15 is not supported");
		if (v.is_number_integer()) return v.dump();
		char buffer[512];
		const auto end = std::to_chars(buffer, buffer + sizeof buffer, v.get<double>(), std::chars_format::fixed);
		return {buffer, end.ptr};
	}

	ExprId number(const Json& s, const std::string& at) {
		NumberLimits l;
		const auto limit = [&](const char* plain, const char* exclusive, std::optional<std::string>& to, bool& excluded,
		                       bool is_least) {
			const Json *a = find(s, plain), *b = find(s, exclusive);
			if (a) to = decimal(*a, at + "/" + plain);
			if (b) {
				const std::string text = decimal(*b, at + "/" + exclusive);
				if (!a || (is_least ? *b >= *a : *b <= *a)) to = text, excluded = true;
			}
		};
		limit("minimum", "exclusiveMinimum", l.least, l.least_excluded, true);
		limit("maximum", "exclusiveMaximum", l.most, l.most_excluded, false);
		if (!l.least && !l.most) return json_.number();
		const auto e = decimal_between(rules_, l);
		if (!e) refuse_schema(at, "no number is between its limits");
		return *e;
	}

	ExprId array(const Json& s, const std::string& at, int depth) {
		const auto [least, most] = counts(s, "minItems", "maxItems", at);
		const Json *prefix = find(s, "prefixItems"), *items = find(s, "items");
		if (items && items->is_array())
			refuse_schema(at + "/items", "a list of schemas is not supported; prefixItems is");
		if (prefix && !prefix->is_array()) refuse_schema(at + "/prefixItems", "it is not an array");
		const bool none = items && *items == Json(false); // after the prefix
		const size_t n = prefix ? prefix->size() : 0;
		if (n > 1000) refuse_schema(at + "/prefixItems", "it has more than 1000 schemas");
		if (none && least > n) refuse_schema(at + "/items", "minItems asks for more items than there may be");
		const auto rest = [&] { return items ? schema(*items, at + "/items", depth + 1) : json_.value(); };
		if (n == 0 && !none) return json_.list(most == 0 ? json_.value() : rest(), least, most);
		// built from the end: what may follow item i
		ExprId after = rules_.sequence({});
		if (!none && most > n) {
			const uint32_t more = most == kNoLimit ? kNoLimit : most - uint32_t(n);
			after = rules_.repeat(json_.comma(rest()), least > n ? least - uint32_t(n) : 0, more);
		}
		for (size_t i = std::min<size_t>(n, most); i-- > 0;) {
			const std::string where = at + "/prefixItems/" + std::to_string(i);
			if ((*prefix)[i] == Json(false)) {
				if (least > i) refuse_schema(where, "no value is valid (false)");
				after = rules_.sequence({});
				continue;
			}
			const ExprId item = schema((*prefix)[i], where, depth + 1);
			const ExprId one = i ? json_.comma(item) : rules_.sequence({item, json_.space()});
			const ExprId with = rules_.sequence({one, after});
			after = least > i ? with : rules_.optional(with);
			if (i % 16 == 0) after = json_.named("items", after); // a rule of its own limits nesting
		}
		return rules_.sequence({rules_.text("["), json_.space(), after, rules_.text("]")});
	}

	struct Property {
		std::string name;
		const Json* schema; // null: any value
		bool required;
	};

	static std::vector<std::string> required_names(const Json& s, const std::string& at) {
		std::vector<std::string> names;
		const Json* r = find(s, "required");
		if (!r) return names;
		if (!r->is_array()) refuse_schema(at + "/required", "it is not an array of names");
		for (const Json& n : *r) {
			if (!n.is_string()) refuse_schema(at + "/required", "it is not an array of names");
			if (!std::ranges::count(names, n.get<std::string>())) names.push_back(n.get<std::string>());
		}
		return names;
	}

	static NamePatterns read_patterns(const Json& s, const std::string& at) {
		const Json *patterns = find(s, "patternProperties"), *p = find(s, "properties");
		if (!patterns) return {};
		std::vector<std::string> names = required_names(s, at);
		if (p && p->is_object())
			for (const auto& item : p->items()) names.push_back(item.key());
		return NamePatterns(*patterns, std::move(names), at);
	}

	std::vector<Property> read_properties(const Json& s, const std::string& at, const Json* additional,
	                                      const NamePatterns& patterns) {
		std::vector<Property> out;
		const std::vector<std::string> names = required_names(s, at);
		std::map<std::string, bool> wanted;
		for (const std::string& n : names) wanted[n] = true;
		if (const Json* p = find(s, "properties")) {
			if (!p->is_object()) refuse_schema(at + "/properties", "it is not an object");
			for (const auto& [name, sub] : p->items()) {
				const bool required = wanted.erase(name) > 0;
				if (sub == Json(false) && !required) continue;
				out.push_back({name, &sub, required});
			}
		}
		for (const std::string& n : names) {
			if (!wanted.contains(n)) continue;
			if (!patterns.schemas_of(n).empty()) {
				out.push_back({n, nullptr, true});
				continue;
			}
			if (additional && *additional == Json(false))
				refuse_schema(at + "/required",
				              "'" + one_line(n, 40) + "' is required, but additionalProperties forbids it");
			out.push_back({n, additional, true});
		}
		return out;
	}

	ExprId object(const Json& s, const std::string& at, int depth) {
		const Json* additional = find(s, "additionalProperties");
		const NamePatterns patterns = read_patterns(s, at);
		const std::vector<Property> list = read_properties(s, at, additional, patterns);
		auto [least, most] = counts(s, "minProperties", "maxProperties", at);
		const Json* given = find(s, "properties");
		std::vector<ExprId> matching; // properties whose names match a pattern
		for (const NamePatterns::One& p : patterns.all()) {
			if (p.any() || *p.schema == Json(false)) continue; // else a name could come twice
			if (json_.dialect().bare_keys) refuse_schema(p.at, "it is not supported in this form of calls");
			matching.push_back(
			    json_.member(quoted(pattern_text(rules_, json_, p.pattern)), schema(*p.schema, p.at, depth + 1)));
		}
		// with patterns there are no others: a grammar does not have the names that match none
		const bool open = !patterns.all().empty() ? !matching.empty()
		                  : additional            ? *additional != Json(false)
		                                          : !given || given->empty();
		const auto required = uint32_t(std::ranges::count_if(list, &Property::required));
		bool limited = least > required || (most != kNoLimit && (open || most < list.size()));
		if (limited && !list.empty()) {
			leave_out(at + (s.contains("minProperties") ? "/minProperties" : "/maxProperties"),
			          "a number of properties beside names of them is not supported");
			limited = false, least = 0, most = kNoLimit;
		}
		if (limited && !open) refuse_schema(at, "it asks for properties that it forbids");
		if (list.empty() && open && !limited && !additional && matching.empty()) return json_.any_object();
		ExprId more = 0; // a property that the schema does not name
		if (!matching.empty()) {
			more = rules_.choice(std::move(matching));
		} else if (open) {
			std::vector<std::string> names;
			for (const Property& p : list) names.push_back(p.name);
			if (given)
				for (const auto& i : given->items())
					if (i.value() == Json(false)) names.push_back(i.key());
			if (json_.dialect().bare_keys)
				refuse_schema(at + "/additionalProperties", "other properties are not supported in this form of calls");
			const ExprId key = names.empty() ? json_.string() : json_.key_except(names);
			more = json_.member(key, additional ? schema(*additional, at + "/additionalProperties", depth + 1)
			                                    : json_.value());
		}
		std::vector<JsonText::Member> members;
		for (const Property& p : list) {
			const std::string where = at + "/properties/" + escaped_key(p.name);
			Json all = patterns.schemas_of(p.name);
			if (!p.required && std::ranges::count(all, Json(false))) continue;
			if (p.schema && !all.empty()) all.push_back(*p.schema);
			const ExprId value = !all.empty() ? schema({{"allOf", std::move(all)}}, where, depth + 1)
			                     : p.schema   ? schema(*p.schema, where, depth + 1)
			                                  : json_.value();
			members.push_back({json_.member(json_.key(p.name), value), p.required});
		}
		ExprId tail = open ? rules_.repeat(json_.comma(more), 0, most == kNoLimit || limited ? kNoLimit : most)
		                   : rules_.sequence({});
		if (limited)
			tail = rules_.repeat(json_.comma(more), least ? least - 1 : 0,
			                     most == kNoLimit ? kNoLimit
			                     : most           ? most - 1
			                                      : 0);
		ExprId head = rules_.sequence({});
		if (open && most > 0) {
			head = rules_.sequence({more, json_.space(), tail});
			if (least == 0 || !limited) head = rules_.optional(head);
		}
		head = json_.in_order(members, head, tail);
		return rules_.sequence({rules_.text("{"), json_.space(), head, rules_.text("}")});
	}

	Rules& rules_;
	JsonText json_;
	const Json& root_;
	const LeftOut& left_out_;
	std::map<std::string, RuleId> rule_of_text_;
	size_t n_schemas_ = 0, merged_bytes_ = 0;
	std::unique_ptr<Writer> inside_;
};

} // namespace

ExprId add_schema(Rules& r, const Json& schema, const LeftOut& left_out) {
	return Writer(r, schema, kJsonDialect, left_out).schema(schema, "");
}

ExprId add_schema(Rules& r, const Json& part, const std::string& pointer, const Json& whole, const Dialect& d,
                  const LeftOut& left_out) {
	return Writer(r, whole, d, left_out).schema(part, pointer);
}

Rules schema_grammar(std::string_view text) {
	Json schema;
	std::string why;
	if (!read_json(text, {.depth = 128, .values = 200'000, .keys = 100'000, .stop = {}}, schema, why))
		fail(Code::Format, "the JSON schema {}", why);
	Rules r;
	const RuleId root = r.add_rule("root");
	r.set_root(root);
	r.set_body(root, add_schema(r, schema));
	return r;
}

} // namespace kvrun::grammar
