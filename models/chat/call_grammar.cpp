// Calls of tools as rules of a grammar.
#include "models/chat/call_grammar.h"
#include "engine/core/error.h"
#include "models/chat/calls.h"
#include "models/grammar/schema.h"
#include "models/grammar/schema_merge.h"
#include <algorithm>
#include <tuple>

namespace kvrun {
namespace {

using namespace grammar;

class Writer {
 public:
	Writer(Rules& r, const CallRules& c) : rules_(r), calls_(c), json_(r), python_(r, kPythonDialect) {}

	ExprId all() {
		const ChatFeatures& f = calls_.features;
		switch (f.tool_format) {
		case ToolFormat::Hermes: return repeated(each("<tool_call>\n", "arguments", "\n</tool_call>"), "\n");
		case ToolFormat::Granite: return rules_.sequence({mark("<|tool_call|>"), list("name", "arguments")});
		case ToolFormat::Phi4:
			return rules_.sequence({mark(f.tool_begin), list("name", "arguments"), mark(f.tool_end)});
		case ToolFormat::CommandR:
			return rules_.sequence({mark("<|START_ACTION|>"), list("tool_name", "parameters"), mark("<|END_ACTION|>")});
		case ToolFormat::Llama3: return repeated(each("", "parameters", ""), "; ");
		case ToolFormat::Mistral:
			if (!f.tool_variant) return rules_.sequence({mark("[TOOL_CALLS]"), list("name", "arguments")});
			return repeated(
			    choice([&](const Json& t) {
				    return rules_.sequence({mark("[TOOL_CALLS]" + name(t) + "[ARGS]"), arguments(t, json_)});
			    }),
			    "");
		case ToolFormat::DeepSeek:
			return rules_.sequence({mark("<｜tool▁calls▁begin｜>"), repeated(deepseek(), f.tool_variant ? "\n" : ""),
			                        mark("<｜tool▁calls▁end｜>")});
		case ToolFormat::Kimi:
			return rules_.sequence(
			    {mark("<|tool_calls_section_begin|>"), repeated(kimi(), ""), mark("<|tool_calls_section_end|>")});
		case ToolFormat::Harmony:
			return choice([&](const Json& t) {
				return rules_.sequence(
				    {mark("<|channel|>commentary to=functions." + name(t) + " <|constrain|>json<|message|>"),
				     arguments(t, json_)});
			});
		case ToolFormat::QwenXml:
			return repeated(choice([&](const Json& t) {
				                return rules_.sequence({mark("<tool_call>\n<function=" + name(t) + ">\n"),
				                                        pairs(t, "<parameter=", ">\n", "\n</parameter>\n"),
				                                        mark("</function>\n</tool_call>")});
			                }),
			                "\n");
		case ToolFormat::Glm:
			return repeated(choice([&](const Json& t) {
				                return rules_.sequence(
				                    {mark("<tool_call>" + name(t) + "\n"),
				                     pairs(t, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
				                     mark("</tool_call>")});
			                }),
			                "\n");
		case ToolFormat::MiniMax: {
			const ExprId call = choice([&](const Json& t) {
				return rules_.sequence({tag("<invoke name=\"" + name(t) + "\">"), members(t), tag("</invoke>\n")});
			});
			return rules_.sequence({tag("<tool_call>\n"), repeated(call, ""), tag("</tool_call>")});
		}
		case ToolFormat::Gemma: {
			const std::string quote = calls_.marker(f.tool_variant ? "<|\"|>" : "<escape>");
			JsonText json(rules_, {quote.c_str(), quote.c_str(), false, true, false});
			return repeated(choice([&](const Json& t) {
				                return rules_.sequence({mark(f.tool_variant ? "<|tool_call>" : "<start_function_call>"),
				                                        rules_.text("call:" + name(t)), arguments(t, json),
				                                        mark(f.tool_variant ? "<tool_call|>" : "<end_function_call>")});
			                }),
			                "");
		}
		case ToolFormat::Pythonic: {
			const ExprId call = choice([&](const Json& t) {
				return rules_.sequence({rules_.text(name(t) + "("), keywords(t), rules_.text(")")});
			});
			return rules_.sequence(
			    {mark(f.tool_begin), rules_.text("["), repeated(call, ", "), rules_.text("]"), mark(f.tool_end)});
		}
		case ToolFormat::Shaped: return shaped(f.shape);
		case ToolFormat::None: break;
		}
		fail(Code::Unsupported,
		     "the form in which this model's template writes calls is not known, so that none can be asked for");
	}

 private:
	ExprId mark(const std::string& s) { return rules_.text(calls_.marker(s)); }
	static std::string name(const Json& t) { return t["function"]["name"].get<std::string>(); }

	template <class F> ExprId choice(F one) {
		std::vector<ExprId> parts;
		for (const Json& t : calls_.tools) parts.push_back(one(t));
		return json_.named("call", rules_.choice(std::move(parts)));
	}
	ExprId repeated(ExprId call, const char* between) {
		if (calls_.one_call) return call;
		return rules_.sequence({call, rules_.repeat(rules_.sequence({rules_.text(between), call}), 0)});
	}

	// {"name": ..., "arguments": {...}}
	ExprId object(const Json& t, const char* name_key, const char* key) {
		return rules_.sequence(
		    {rules_.text(std::string("{\"") + name_key + "\": " + Json(name(t)).dump() + ", \"" + key + "\": "),
		     arguments(t, json_), rules_.text("}")});
	}
	ExprId each(const char* begin, const char* key, const char* end) {
		return choice([&](const Json& t) { return rules_.sequence({mark(begin), object(t, "name", key), mark(end)}); });
	}
	ExprId list(const char* name_key, const char* key) {
		// families that number their calls need an id in each
		const bool counted = calls_.features.tool_format == ToolFormat::CommandR;
		const ExprId call = choice([&](const Json& t) {
			const ExprId o = object(t, name_key, key);
			if (!counted) return o;
			return rules_.sequence(
			    {rules_.text("{\"tool_call_id\": \""), json_.digits(1, 3),
			     rules_.text(std::string("\", \"") + name_key + "\": " + Json(name(t)).dump() + ", \"" + key + "\": "),
			     arguments(t, json_), rules_.text("}")});
		});
		return rules_.sequence({rules_.text("["), json_.space(), call, json_.space(),
		                        calls_.one_call ? rules_.sequence({}) : rules_.repeat(json_.comma(call), 0),
		                        rules_.text("]")});
	}
	ExprId deepseek() {
		return choice([&](const Json& t) {
			const bool fenced = calls_.features.tool_variant;
			return rules_.sequence(
			    {mark("<｜tool▁call▁begin｜>" +
			          (fenced ? "function<｜tool▁sep｜>" + name(t) + "\n```json\n" : name(t) + "<｜tool▁sep｜>")),
			     arguments(t, json_), mark(fenced ? "\n```<｜tool▁call▁end｜>" : "<｜tool▁call▁end｜>")});
		});
	}
	ExprId kimi() {
		return choice([&](const Json& t) {
			return rules_.sequence({mark("<|tool_call_begin|>functions." + name(t) + ":"), json_.digits(1, 3),
			                        mark("<|tool_call_argument_begin|>"), arguments(t, json_),
			                        mark("<|tool_call_end|>")});
		});
	}

	// ---- arguments

	static bool is_strict(const Json& t) {
		const Json& f = t["function"];
		return f.contains("strict") && f["strict"] == Json(true);
	}
	// A function that names no parameters has none, although a schema without properties allows every object.
	static Json parameters(const Json& t) {
		const Json& f = t["function"];
		Json out = f.contains("parameters") && f["parameters"].is_object() ? f["parameters"] : Json::object();
		const bool none = std::ranges::all_of(out.items(), [](const auto& i) {
			if (i.key() == "type") return i.value() == Json("object");
			return is_annotation(i.key()) || ((i.key() == "properties" || i.key() == "required") && i.value().empty());
		});
		if (none) out["type"] = "object", out["additionalProperties"] = false;
		return out;
	}
	static std::string where(const Json& t) { return "/tools/" + name(t) + "/parameters"; }

	// The result of add(). If the schema is not supported and the function is not strict, the result of without().
	template <class F, class G> ExprId supported(const Json& t, F add, G without) {
		if (is_strict(t)) return add(rules_, LeftOut());
		const LeftOut quiet = [](const std::string&) {};
		try {
			Rules trial;
			add(trial, quiet);
		} catch (const Error&) { return without(); }
		return add(rules_, quiet);
	}

	ExprId arguments(const Json& t, JsonText& json) {
		Json schema = parameters(t);
		if (!schema.contains("type") && !schema.contains("$ref") && !schema.contains("anyOf"))
			schema["type"] = "object";
		return supported(
		    t, [&](Rules& r, const LeftOut& l) { return add_schema(r, schema, where(t), schema, json.dialect(), l); },
		    [&] { return json.any_object(); });
	}

	struct Argument {
		std::string name;
		Json schema;
		bool required;
	};
	std::vector<Argument> argument_list(const Json& t) {
		const Json schema = parameters(t);
		std::vector<Argument> out;
		for (const auto& item : schema.items()) {
			constexpr const char* kRead[] = {"type",   "properties",  "required", "additionalProperties",
			                                 "$defs",  "definitions", "title",    "description",
			                                 "$schema"};
			if (is_strict(t) && !std::ranges::count(kRead, item.key()))
				fail(Code::Unsupported, "the parameters of the function {}: {} is not supported in this form of calls",
				     name(t), item.key());
		}
		const Json none = Json::array(), no_properties = Json::object();
		const Json& required = schema.contains("required") && schema["required"].is_array() ? schema["required"] : none;
		const Json& properties =
		    schema.contains("properties") && schema["properties"].is_object() ? schema["properties"] : no_properties;
		for (const auto& item : properties.items())
			out.push_back({item.key(), item.value(), std::ranges::count(required, Json(item.key())) > 0});
		return out;
	}
	ExprId value(const Json& t, const Argument& a, const Dialect& d) {
		const Json whole = parameters(t);
		return supported(
		    t,
		    [&](Rules& r, const LeftOut& l) {
			    return add_schema(r, a.schema, where(t) + "/properties/" + a.name, whole, d, l);
		    },
		    [&] {
			    JsonText any(rules_, d);
			    return *d.open ? any.value() : any.string();
		    });
	}
	// <parameter=key>\nvalue\n</parameter>: strings unquoted, other values as JSON.
	ExprId pairs(const Json& t, const char* begin, const char* middle, const char* end) {
		std::vector<ExprId> parts;
		for (const Argument& a : argument_list(t)) {
			const bool bare = bare_strings(allowed_types(a.schema, parameters(t)));
			const ExprId one = rules_.sequence(
			    {mark(begin + a.name + middle), value(t, a, bare ? kBareDialect : kJsonDialect), mark(end)});
			parts.push_back(a.required ? one : rules_.optional(one));
		}
		return rules_.sequence(std::move(parts));
	}
	ExprId shaped(const CallShape& s) {
		const ExprId call = choice([&](const Json& t) {
			const ExprId id = s.id_end.empty() ? rules_.sequence({}) : json_.digits(9, 9);
			const ExprId number = s.name_close.empty() ? rules_.sequence({}) : json_.digits(1, 3);
			std::vector<ExprId> inside;
			if (s.by_pairs())
				for (const Argument& a : argument_list(t)) inside.push_back(shaped_pair(t, a, s));
			else
				inside.push_back(arguments(t, json_));
			return rules_.sequence({mark(s.begin), id, mark(s.id_end + name(t) + s.name_end), number,
			                        mark(s.name_close), rules_.sequence(std::move(inside)), mark(s.end)});
		});
		const bool ends_turn = s.all_end.starts_with("<|"); // the token may end the answer by itself
		const ExprId end = ends_turn ? rules_.optional(mark(s.all_end)) : mark(s.all_end);
		return rules_.sequence({mark(s.all_begin), repeated(call, s.between.c_str()), end});
	}
	static constexpr Types kNumbers = kIntegers | kFractions;
	// What a schema allows of one kind of value, which `name` calls, where it says that itself or by alternatives.
	static Json narrowed(Json s, const Json& root, Types kind, const char* name) {
		bool plain = true;
		for (const char* key : {"anyOf", "oneOf"}) {
			if (!s.contains(key) || !s[key].is_array()) continue;
			plain = false;
			Json some = Json::array();
			for (const Json& way : s[key])
				if (const Types types = allowed_types(way, root); types & kind)
					some.push_back(types & ~kind ? narrowed(way, root, kind, name) : way);
			s[key] = std::move(some);
		}
		if (s.contains("enum") && s["enum"].is_array()) {
			plain = false;
			Json some = Json::array();
			for (const Json& x : s["enum"])
				if (has_type(x, kind)) some.push_back(x);
			s["enum"] = std::move(some);
		}
		if (plain || s.contains("type"))
			s["type"] = kind == kNumbers && !(allowed_types(s, root) & kFractions) ? "integer" : name;
		return s;
	}
	// A pair. Where types are written, it is one way for each type, or for strings and all others.
	ExprId shaped_pair(const Json& t, const Argument& a, const CallShape& s) {
		const Json root = parameters(t);
		const Types types = allowed_types(a.schema, root);
		const auto one = [&](const Json& schema, const std::string& kind, bool bare) {
			return rules_.sequence({mark(s.key_begin + a.name + s.key_end + kind + s.key_close),
			                        value(t, {a.name, schema, a.required}, bare ? kBareDialect : kJsonDialect),
			                        mark(s.value_end)});
		};
		std::vector<ExprId> ways;
		constexpr std::tuple<CallShape::Kind, Types, const char*> kTypes[] = {
		    {CallShape::String, kStrings, "string"},    {CallShape::Number, kNumbers, "number"},
		    {CallShape::Boolean, kBooleans, "boolean"}, {CallShape::Array, kArrays, "array"},
		    {CallShape::Object, kObjects, "object"},    {CallShape::Null, kNulls, "null"}};
		if (s.key_close.empty()) ways.push_back(one(a.schema, "", bare_strings(types)));
		for (const auto& [kind, of, type] : kTypes)
			if (!s.key_close.empty() && (types & of))
				ways.push_back(one(types & ~of ? narrowed(a.schema, root, of, type) : a.schema, s.kinds[kind],
				                   kind == CallShape::String && (s.tells_strings() || bare_strings(types))));
		const ExprId pair = rules_.choice(std::move(ways));
		return a.required ? pair : rules_.optional(pair);
	}
	ExprId tag(const std::string& s) { return mark(kMiniMaxMark + s); }
	// <key>value</key>: strings unquoted, lists as items between tags, other values as JSON.
	ExprId members(const Json& t) {
		std::vector<ExprId> parts;
		for (const Argument& a : argument_list(t)) {
			const ExprId one = tagged(t, a);
			parts.push_back(a.required ? one : rules_.optional(one));
		}
		return rules_.sequence(std::move(parts));
	}
	ExprId tagged(const Json& t, const Argument& a) {
		const Types types = allowed_types(a.schema, parameters(t));
		ExprId inside;
		if (types == kArrays && !is_strict(t) && a.schema.contains("items"))
			inside = rules_.repeat(tagged(t, {"item", a.schema["items"], true}), a.schema.value("minItems", 0u),
			                       a.schema.value("maxItems", kNoLimit));
		else
			inside = value(t, a, bare_strings(types) ? kBareDialect : kJsonDialect);
		return rules_.sequence({tag("<" + a.name + ">"), inside, tag("</" + a.name + ">")});
	}
	ExprId keywords(const Json& t) {
		std::vector<JsonText::Member> members;
		for (const Argument& a : argument_list(t))
			members.push_back({rules_.sequence({rules_.text(a.name + "="), value(t, a, kPythonDialect)}), a.required});
		return python_.in_order(members, rules_.sequence({}), rules_.sequence({}));
	}

	Rules& rules_;
	const CallRules& calls_;
	JsonText json_, python_;
};

} // namespace

ExprId add_calls(Rules& r, const CallRules& c) { return Writer(r, c).all(); }

std::string call_marker(const ChatFeatures& f) {
	switch (f.tool_format) {
	case ToolFormat::Hermes:
	case ToolFormat::QwenXml:
	case ToolFormat::Glm: return "<tool_call>";
	case ToolFormat::Mistral: return "[TOOL_CALLS]";
	case ToolFormat::DeepSeek: return "<｜tool▁calls▁begin｜>";
	case ToolFormat::Granite: return "<|tool_call|>";
	case ToolFormat::CommandR: return "<|START_ACTION|>";
	case ToolFormat::Kimi: return "<|tool_calls_section_begin|>";
	case ToolFormat::MiniMax: return std::string(kMiniMaxMark) + "<tool_call>";
	case ToolFormat::Shaped: return f.shape.marker();
	case ToolFormat::Gemma: return f.tool_variant ? "<|tool_call>" : "<start_function_call>";
	case ToolFormat::Harmony: return "<|channel|>commentary to=";
	case ToolFormat::Phi4:
	case ToolFormat::Pythonic: return f.tool_begin;
	case ToolFormat::Llama3:
	case ToolFormat::None: break;
	}
	return {};
}

} // namespace kvrun
