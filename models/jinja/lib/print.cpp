// Values as text: Python's str(), repr() and json.dumps().
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvrun::jinja {

std::string float_text(double d) {
	if (std::isnan(d)) return "nan";
	if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
	char buffer[40];
	const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
	const std::string_view s(buffer, size_t(end - buffer)); // [-]D[.DDD]e[+-]EE
	const size_t e = s.find('e');
	int exponent = 0;
	std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), end, exponent);
	if (exponent < -4 || exponent >= 16) return std::string(s);
	std::string digits;
	for (char c : s.substr(0, e))
		if (c >= '0' && c <= '9') digits += c;
	const std::string sign = d < 0 || (d == 0 && std::signbit(d)) ? "-" : "";
	if (exponent < 0) return sign + "0." + std::string(size_t(-exponent - 1), '0') + digits;
	const size_t whole = size_t(exponent) + 1;
	if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
	return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

void spend_digits(Run& run, double d, int64_t precision) {
	constexpr uint64_t kShort = 16, kLong = 1000; // steps; more digits than a machine word holds need long arithmetic
	run.spend((std::fabs(d) < 1e17 ? kShort : kLong) + uint64_t(std::max<int64_t>(precision, 0)));
}

namespace {

// Writes one value, and records whether any part of it is derived from the conversation.
class Printer {
 public:
	explicit Printer(Run& run) : run_(run), out_(run) {}
	Value take() {
		Value v = out_.take();
		v.data = data_;
		return v;
	}
	void add(std::string_view s) { out_.add(s, false); }
	void add_char(char c) { add({&c, 1}); }
	void repr(const Value&);
	void json(const Value&, const JsonStyle&, size_t level);

 private:
	void note(const Value& v) {
		if (v.is(Kind::Text)) run_.spend_chars(v.size); // also charges for work per character
		data_ |= v.is(Kind::Text) ? tainted(v) : v.data;
	}
	void repr_text(const Value&);
	void repr_items(std::string_view open, std::span<const Value>, std::string_view close);
	void repr_view(const View&);
	void repr_space(const Namespace&);
	void json_text(const Value&, bool ascii);
	void json_key(const Value&, const JsonStyle&);
	void json_dict(const Dict&, const JsonStyle&, size_t level);
	void new_line(const JsonStyle& style, size_t level) {
		if (!style.indent) return;
		add_char('\n');
		for (size_t i = 0; i < level; ++i) add(*style.indent);
	}
	Run& run_;
	TextBuilder out_;
	bool data_ = false;
};

void Printer::repr_text(const Value& v) {
	const std::string_view s = v.str();
	const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
	std::string q(1, quote);
	size_t done = 0;
	for (size_t at = 0; at < s.size();) {
		const size_t start = at;
		const char32_t c = next_char(s, at);
		std::string shown;
		if (c == '\n')
			shown = "\\n";
		else if (c == '\r')
			shown = "\\r";
		else if (c == '\t')
			shown = "\\t";
		else if (c == '\\' || c == char32_t(quote))
			shown = {'\\', char(c)};
		else if (!is_printable(c))
			shown = c < 0x100     ? fmt::format("\\x{:02x}", uint32_t(c))
			        : c < 0x10000 ? fmt::format("\\u{:04x}", uint32_t(c))
			                      : fmt::format("\\U{:08x}", uint32_t(c));
		else
			continue;
		q += s.substr(done, start - done);
		q += shown;
		done = at;
		if (q.size() > 4096) {
			add(q);
			q.clear();
		}
	}
	add(q);
	add(s.substr(done));
	add_char(quote);
}

void Printer::repr_items(std::string_view open, std::span<const Value> items, std::string_view close) {
	add(open);
	for (size_t i = 0; i < items.size(); ++i) {
		if (i > 0) add(", ");
		repr(items[i]);
	}
	add(close);
}

void Printer::repr_view(const View& view) {
	constexpr const char* kNames[] = {"dict_keys([", "dict_values([", "dict_items(["};
	add(kNames[view.part]);
	for (size_t i = 0; i < view.dict->n; ++i) {
		if (i > 0) add(", ");
		if (view.part == View::Pairs) add("(");
		if (view.part != View::Values) repr(view.dict->keys[i]);
		if (view.part == View::Pairs) add(", ");
		if (view.part != View::Keys) repr(view.dict->values[i]);
		if (view.part == View::Pairs) add(")");
	}
	add("])");
}

void Printer::repr_space(const Namespace& space) {
	add("<Namespace {");
	for (const Namespace::Entry* e = space.first; e; e = e->next) {
		if (e != space.first) add(", ");
		repr(e->name);
		add(": ");
		repr(e->value);
	}
	add("}>");
}

void Printer::repr(const Value& v) {
	const Deeper deeper(run_);
	run_.spend();
	note(v);
	switch (v.kind) {
	case Kind::Undefined: return add("Undefined");
	case Kind::None: return add("None");
	case Kind::Bool: return add(v.truth ? "True" : "False");
	case Kind::Int: return add(std::to_string(v.integer));
	case Kind::Float: return add(float_text(v.number));
	case Kind::Text: return repr_text(v);
	case Kind::List: return repr_items("[", v.items->all(), "]");
	case Kind::Tuple: return repr_items("(", v.items->all(), v.items->n == 1 ? ",)" : ")");
	case Kind::Dict: {
		add("{");
		for (size_t i = 0; i < v.dict->n; ++i) {
			if (i > 0) add(", ");
			repr(v.dict->keys[i]);
			add(": ");
			repr(v.dict->values[i]);
		}
		return add("}");
	}
	case Kind::View: return repr_view(*v.view);
	case Kind::Range:
		add(fmt::format("range({}, {}", v.range->start, v.range->stop));
		return add(v.range->step == 1 ? ")" : fmt::format(", {})", v.range->step));
	case Kind::Namespace: return repr_space(*v.space);
	default: run_.fail("a {} cannot be printed; print what it gives", type_name(v));
	}
}

void Printer::json_text(const Value& v, bool ascii) {
	const std::string_view s = v.str();
	add_char('"');
	size_t done = 0;
	for (size_t at = 0; at < s.size();) {
		const size_t start = at;
		const char32_t c = next_char(s, at);
		std::string shown;
		switch (c) {
		case '"': shown = "\\\""; break;
		case '\\': shown = "\\\\"; break;
		case '\n': shown = "\\n"; break;
		case '\r': shown = "\\r"; break;
		case '\t': shown = "\\t"; break;
		case '\b': shown = "\\b"; break;
		case '\f': shown = "\\f"; break;
		default:
			if (c >= 0x20 && (!ascii || c < 0x7f)) continue;
			if (c < 0x10000)
				shown = fmt::format("\\u{:04x}", uint32_t(c));
			else
				shown = fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (uint32_t(c) >> 10), 0xdc00 + (uint32_t(c) & 0x3ff));
		}
		add(s.substr(done, start - done));
		add(shown);
		done = at;
	}
	add(s.substr(done));
	add_char('"');
}

void Printer::json_key(const Value& key, const JsonStyle& style) {
	note(key);
	switch (key.kind) {
	case Kind::Text: return json_text(key, style.ascii);
	case Kind::Int:
	case Kind::Float:
	case Kind::Bool:
	case Kind::None:
		add_char('"');
		json(key, style, 0);
		return add_char('"');
	default:
		run_.fail("tojson: a key of a dict is a {}; it must be a text, a number, true, false or none", type_name(key));
	}
}

void Printer::json_dict(const Dict& d, const JsonStyle& style, size_t level) {
	if (d.n == 0) return add("{}");
	std::vector<size_t> order(d.n);
	for (size_t i = 0; i < d.n; ++i) order[i] = i;
	if (style.sort_keys)
		std::stable_sort(order.begin(), order.end(),
		                 [&](size_t a, size_t b) { return less(run_, d.keys[a], d.keys[b]); });
	add_char('{');
	for (size_t i = 0; i < d.n; ++i) {
		if (i > 0) add(style.item);
		new_line(style, level + 1);
		json_key(d.keys[order[i]], style);
		add(style.key);
		json(d.values[order[i]], style, level + 1);
	}
	new_line(style, level);
	add_char('}');
}

void Printer::json(const Value& v, const JsonStyle& style, size_t level) {
	const Deeper deeper(run_);
	run_.spend();
	note(v);
	switch (v.kind) {
	case Kind::None: return add("null");
	case Kind::Bool: return add(v.truth ? "true" : "false");
	case Kind::Int: return add(std::to_string(v.integer));
	case Kind::Float:
		return add(std::isnan(v.number)   ? "NaN"
		           : std::isinf(v.number) ? v.number < 0 ? "-Infinity" : "Infinity"
		                                  : float_text(v.number));
	case Kind::Text: return json_text(v, style.ascii);
	case Kind::Dict: return json_dict(*v.dict, style, level);
	case Kind::List:
	case Kind::Tuple: {
		if (v.items->n == 0) return add("[]");
		add_char('[');
		for (size_t i = 0; i < v.items->n; ++i) {
			if (i > 0) add(style.item);
			new_line(style, level + 1);
			json(v.items->at[i], style, level + 1);
		}
		new_line(style, level);
		return add_char(']');
	}
	default: run_.fail("tojson: a value of type {} has no form in JSON", type_name(v));
	}
}

} // namespace

Value repr(Run& run, const Value& v) {
	Printer p(run);
	p.repr(v);
	return p.take();
}

Value to_text(Run& run, const Value& v) {
	if (v.is(Kind::Text)) return v;
	if (v.is(Kind::Undefined)) return text("");
	return repr(run, v);
}

Value to_json(Run& run, const Value& v, const JsonStyle& style) {
	Printer p(run);
	p.json(v, style, 0);
	return p.take();
}

} // namespace kvrun::jinja
