// Filters on texts and numbers.
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/tables.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvrun::jinja {
namespace {

// ---- numbers

// Python's int(text, base); nullopt: the text is not an integer.
std::optional<int64_t> parse_int(Run& run, std::string_view s, int64_t base) {
	run.spend_chars(s.size());
	s = strip(text(s), Side::Both).str();
	const bool negative = s.starts_with('-');
	if (negative || s.starts_with('+')) s.remove_prefix(1);
	if (s.size() > 2 && s[0] == '0') {
		const char p = char(s[1] | 0x20);
		const int64_t prefix = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
		if (prefix != 0 && (base == prefix || base == 0)) {
			s.remove_prefix(s[2] == '_' ? 3 : 2);
			base = prefix;
		}
	}
	if (base == 0) base = 10;
	std::string clean = negative ? "-" : "";
	for (size_t i = 0; i < s.size(); ++i) {
		if (s[i] == '-') return std::nullopt;
		if (s[i] != '_') clean += s[i];
		if (s[i] == '_' && (i == 0 || i + 1 == s.size() || s[i + 1] == '_')) return std::nullopt;
	}
	int64_t n = 0;
	const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), n, int(base));
	if (error == std::errc::result_out_of_range && end == clean.data() + clean.size())
		run.fail("int: the number has more than 64 bits");
	if (error != std::errc() || end != clean.data() + clean.size()) return std::nullopt;
	return n;
}

std::optional<double> parse_float(Run& run, const Value& v) {
	run.spend_chars(v.size);
	const std::string_view s = strip(v, Side::Both).str();
	std::string clean;
	for (size_t i = 0; i < s.size(); ++i) {
		const auto digit = [&](size_t k) { return k < s.size() && s[k] >= '0' && s[k] <= '9'; };
		if (s[i] != '_')
			clean += s[i];
		else if (i == 0 || !digit(i - 1) || !digit(i + 1))
			return std::nullopt;
	}
	const char* at = clean.data() + (clean.starts_with('+') ? 1 : 0);
	if (clean.starts_with("+-") || clean.empty()) return std::nullopt;
	double d = 0;
	const auto [end, error] = std::from_chars(at, clean.data() + clean.size(), d);
	if (end != clean.data() + clean.size()) return std::nullopt;
	if (error == std::errc::result_out_of_range) { // too large or too small for a double
		const size_t e = clean.find_first_of("eE");
		const bool tiny = e != clean.npos ? clean.find('-', e) != clean.npos : clean.find_first_of("123456789") > 300;
		d = tiny ? 0 : HUGE_VAL;
		return clean.starts_with('-') ? -d : d;
	}
	return error == std::errc() ? std::optional(d) : std::nullopt;
}

Value whole(Run& run, double d, bool data) {
	if (!(std::fabs(d) < 9.2e18)) run.fail("int: {} has more than 64 bits", d);
	return integer(int64_t(d), data);
}

Value filter_int(Run& run, const Value& v, const Args& args) {
	const auto [fallback, base] = bind(run, args, {"default", "base"});
	const Value otherwise = fallback ? *fallback : integer(0);
	if (v.is(Kind::Undefined)) run.fail_undefined(v);
	if (v.is_int()) return integer(v.as_int(), v.data);
	if (v.is(Kind::Float)) return std::isfinite(v.number) ? whole(run, v.number, v.data) : otherwise;
	if (!v.is(Kind::Text)) return otherwise;
	const int64_t b = int_argument(run, args, base, 10);
	if (b != 0 && (b < 2 || b > 36)) return otherwise;
	if (const auto n = parse_int(run, v.str(), b)) return integer(*n, v.data);
	const auto d = parse_float(run, v);
	return d && std::isfinite(*d) ? whole(run, *d, v.data) : otherwise;
}

Value filter_float(Run& run, const Value& v, const Args& args) {
	const auto [fallback] = bind(run, args, {"default"});
	if (v.is(Kind::Undefined)) run.fail_undefined(v);
	if (v.is_number()) return number(v.as_double(), v.data);
	const auto d = v.is(Kind::Text) ? parse_float(run, v) : std::nullopt;
	return d ? number(*d, v.data) : fallback ? *fallback : number(0);
}

Value need_number(Run& run, const Value& v, const Args& args) {
	if (v.is(Kind::Undefined)) run.fail_undefined(v);
	if (!v.is_number()) run.fail("'{}' takes a number, not a {}", args.callee, type_name(v));
	return v;
}

Value filter_abs(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	need_number(run, v, args);
	if (v.is(Kind::Float)) return number(std::fabs(v.number), v.data);
	return v.as_int() < 0 ? negative(run, v) : integer(v.as_int(), v.data);
}

Value filter_round(Run& run, const Value& v, const Args& args) {
	const auto [precision, method] = bind(run, args, {"precision", "method"});
	const int64_t digits = int_argument(run, args, precision, 0);
	const std::string_view how = text_argument(run, args, method, "common");
	need_number(run, v, args);
	if (how != "common" && how != "ceil" && how != "floor") run.fail("round: the method is common, ceil or floor");
	if (digits < -30 || digits > 300) run.fail("round: {} digits are too many", digits);
	if (how != "common") {
		const Value scale = arithmetic(run, Arithmetic::Pow, integer(10), integer(digits));
		const Value scaled = arithmetic(run, Arithmetic::Mul, v, scale);
		const double d = how == "ceil" ? std::ceil(scaled.as_double()) : std::floor(scaled.as_double());
		return arithmetic(run, Arithmetic::Div, whole(run, d, v.data), scale);
	}
	if (v.is_int() && digits >= 0) return integer(v.as_int(), v.data);
	if (v.is_int()) { // ties between multiples of 10 go to the even one
		if (digits < -18) return integer(0, v.data);
		int64_t unit = 1;
		for (int64_t i = 0; i < -digits; ++i) unit *= 10;
		const int64_t n = v.as_int(), rest = (n % unit + unit) % unit, down = n - rest;
		const bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
		return up ? arithmetic(run, Arithmetic::Add, integer(down, v.data), integer(unit)) : integer(down, v.data);
	}
	if (!std::isfinite(v.number)) return v;
	spend_digits(run, v.number, digits);
	if (digits < 0) {
		const double unit = std::pow(10.0, double(-digits));
		return number(std::nearbyint(v.number / unit) * unit, v.data);
	}
	const std::string exact = fmt::format("{:.{}f}", v.number, int(digits)); // rounds the exact value, half to even
	double d = 0;
	std::from_chars(exact.data(), exact.data() + exact.size(), d);
	return number(d, v.data);
}

Value filter_filesizeformat(Run& run, const Value& v, const Args& args) {
	const auto [binary] = bind(run, args, {"binary"});
	const std::optional<double> parsed = v.is(Kind::Text) ? parse_float(run, v) : std::nullopt;
	const Value f = parsed ? number(*parsed, tainted(v)) : need_number(run, v, args);
	const bool two = flag_argument(binary, false);
	const double base = two ? 1024 : 1000;
	const double bytes = f.as_double();
	if (bytes == 1) return run.copy_text("1 Byte", f.data);
	if (bytes < base) return run.copy_text(fmt::format("{} Bytes", whole(run, bytes, false).integer), f.data);
	double unit = base;
	const std::string_view names = "kMGTPEZY";
	size_t i = 0;
	for (; i + 1 < names.size() && bytes >= unit * base; ++i) unit *= base;
	const char prefix = two && i == 0 ? 'K' : names[i];
	return run.copy_text(fmt::format("{:.1f} {}{}B", bytes / unit, prefix, two ? "i" : ""), f.data);
}

// ---- texts

Value filter_string(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return to_text(run, v);
}
Value filter_upper(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return to_upper(run, to_text(run, v));
}
Value filter_lower(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return to_lower(run, to_text(run, v));
}
Value filter_capitalize(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return capitalize(run, to_text(run, v));
}

Value filter_title(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return title_words(run, to_text(run, v));
}

Value filter_trim(Run& run, const Value& v, const Args& args) {
	const auto [chars] = bind(run, args, {"chars"});
	const bool given = chars && !chars->is(Kind::None);
	if (given) text_argument(run, args, chars, "");
	return strip(run, to_text(run, v), Side::Both, given ? chars : nullptr);
}

Value filter_replace(Run& run, const Value& v, const Args& args) {
	const auto [old, with, count] = bind(run, args, {"old", "new", "count"}, 2);
	const int64_t n = !count || count->is(Kind::None) ? -1 : int_argument(run, args, count, -1);
	return replace(run, to_text(run, v), to_text(run, *old).str(), to_text(run, *with), n);
}

Value filter_indent(Run& run, const Value& v, const Args& args) {
	const auto [width, first, blank] = bind(run, args, {"width", "first", "blank"});
	if (!v.is(Kind::Text)) run.fail("indent takes a text, not a {}", type_name(v));
	Value indent = text(" ");
	int64_t times = 4;
	if (width && width->is(Kind::Text))
		indent = *width, times = 1;
	else
		times = int_argument(run, args, width, 4);
	TextBuilder with_newline(run); // so that a newline at the end begins another line
	with_newline.add(v);
	with_newline.add("\n", v.data);
	const std::vector<Value> lines = split_lines(run, with_newline.take(), false);
	TextBuilder out(run);
	const bool data = tainted(v);
	for (size_t i = 0; i < lines.size(); ++i) {
		if (i > 0) out.add("\n", data);
		const bool indented = i == 0 ? flag_argument(first, false) : lines[i].size > 0 || flag_argument(blank, false);
		if (indented) out.add_times(indent, size_t(std::max<int64_t>(times, 0)));
		out.add(lines[i]);
	}
	return out.take();
}

Value filter_center(Run& run, const Value& v, const Args& args) {
	const auto [width] = bind(run, args, {"width"});
	return pad(run, to_text(run, v), int_argument(run, args, width, 80), Side::Both, text(" "));
}

Value filter_truncate(Run& run, const Value& v, const Args& args) {
	const auto [length, killwords, end, leeway] = bind(run, args, {"length", "killwords", "end", "leeway"});
	if (!v.is(Kind::Text)) run.fail("truncate takes a text, not a {}", type_name(v));
	const int64_t max = int_argument(run, args, length, 255), slack = int_argument(run, args, leeway, 5);
	const Value tail = end ? *end : text("...");
	run.spend_search(v.size + tail.size);
	const int64_t tail_size = int64_t(char_count(text_argument(run, args, &tail, "")));
	if (max < tail_size || slack < 0) run.fail("truncate: the length is less than that of its end");
	if (int64_t(char_count(v.str())) <= max + std::min<int64_t>(slack, INT64_MAX - max)) return v;
	Value cut = part(v, 0, char_offset(v.str(), size_t(max - tail_size)));
	if (!flag_argument(killwords, false)) cut = part(cut, 0, std::min<size_t>(cut.str().rfind(' '), cut.size));
	TextBuilder out(run);
	out.add(cut);
	out.add(tail);
	return out.take();
}

Value filter_wordcount(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	const Value t = to_text(run, v);
	run.spend_chars(t.size);
	int64_t n = 0;
	bool inside = false;
	for (size_t at = 0; at < t.size;) {
		const bool word = is_word(next_char(t.str(), at));
		n += word && !inside;
		inside = word;
	}
	return integer(n, tainted(t));
}

Value filter_escape(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return v.is(Kind::Text) && v.markup ? v : escape_html(run, to_text(run, v));
}
Value filter_forceescape(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	return escape_html(run, to_text(run, v));
}
Value filter_safe(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	Value t = to_text(run, v);
	t.markup = true;
	return t;
}

Value filter_format(Run& run, const Value& v, const Args& args) {
	if (!args.named.empty() && !args.list.empty()) run.fail("format takes values or names, not both");
	const Value t = to_text(run, v);
	if (args.named.empty()) return format_percent(run, t, run.make_list(args.list, Kind::Tuple));
	DictBuilder d(run);
	for (const Named& n : args.named) d.set(n.name, n.value);
	return format_percent(run, t, d.take());
}

Value filter_urlencode(Run& run, const Value& v, const Args& args) {
	no_arguments(run, args);
	const auto quote = [](std::string& out, std::string_view s, bool form) {
		constexpr std::string_view kMarks = "_.-~", kHex = "0123456789ABCDEF";
		for (char c : s) {
			const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
			if (word || kMarks.find(c) != kMarks.npos || (c == '/' && !form))
				out += c;
			else if (c == ' ' && form)
				out += '+';
			else
				out += {'%', kHex[uint8_t(c) >> 4], kHex[uint8_t(c) & 15]};
		}
	};
	std::string out;
	bool data = v.data;
	const auto add = [&](const Value& part, bool form) {
		const Value t = to_text(run, part);
		run.spend_chars(t.size);
		data |= tainted(t);
		quote(out, t.str(), form);
	};
	if (v.is(Kind::Text) || !Cursor::can(v)) {
		add(v, false);
		return run.copy_text(out, data);
	}
	if (!v.is(Kind::Dict)) run.fail("urlencode takes a text or a dict, not a {}", type_name(v));
	for (size_t i = 0; i < v.dict->n; ++i) {
		if (i > 0) out += '&';
		add(v.dict->keys[i], true);
		out += '=';
		add(v.dict->values[i], true);
		if (out.size() > run.bytes_left()) break; // copy_text() reports it
	}
	return run.copy_text(out, data);
}

Value filter_tojson(Run& run, const Value& v, const Args& args) {
	const auto [ascii, indent, separators, sort] =
	    bind(run, args, {"ensure_ascii", "indent", "separators", "sort_keys"});
	JsonStyle style;
	style.ascii = flag_argument(ascii, false);
	style.sort_keys = flag_argument(sort, false);
	if (indent && !indent->is(Kind::None)) {
		constexpr int64_t kMaxIndent = 1000;
		style.item = ",";
		if (indent->is(Kind::Text))
			style.indent = std::string(indent->str());
		else
			style.indent =
			    std::string(size_t(std::clamp<int64_t>(int_argument(run, args, indent, 0), 0, kMaxIndent)), ' ');
	}
	if (separators && !separators->is(Kind::None)) {
		if (!(separators->is(Kind::Tuple) || separators->is(Kind::List)) || separators->items->n != 2)
			run.fail("tojson: separators are two texts, as in (',', ':')");
		style.item = text_argument(run, args, &separators->items->at[0], "");
		style.key = text_argument(run, args, &separators->items->at[1], "");
	}
	Value json = to_json(run, v, style);
	for (const Value* by :
	     {indent, separators ? &separators->items->at[0] : nullptr, separators ? &separators->items->at[1] : nullptr})
		json.data |= by && by->is(Kind::Text) && tainted(*by);
	return json;
}

constexpr Builtin kTextFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

} // namespace

std::span<const Builtin> text_filters() { return kTextFilters; }

} // namespace kvrun::jinja
