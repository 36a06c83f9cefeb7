// Format strings: Python's `%` operator and str.format().
#include "models/jinja/lib/print.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvrun::jinja {
namespace {

constexpr int64_t kMaxPrecision = 1000; // digits after the point; a double has at most 767 significant digits

// Format of one value, in either kind of format string.
struct Spec {
	Value fill = text(" ");
	char align = 0;  // '<' '>' '^' '=' (padding after the sign); 0: default of the type
	char sign = '-'; // '+', ' ': written before numbers that are not negative
	bool alternative = false;
	char grouping = 0; // ',' or '_' between thousands
	int64_t width = 0, precision = -1;
	char type = 0;
};

std::string grouped(const std::string& digits, char separator) {
	if (!separator) return digits;
	const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
	std::string out;
	for (size_t i = 0; i < end; ++i) {
		if (i > 0 && (end - i) % 3 == 0) out += separator;
		out += digits[i];
	}
	return out + digits.substr(end);
}

// The digits of a number, without its sign.
std::string digits_of(Run& run, const Value& v, const Spec& s) {
	if (s.precision > kMaxPrecision)
		run.fail("a format asks for {} digits, at most {} are written", s.precision, kMaxPrecision);
	spend_digits(run, v.as_double(), s.precision);
	const int precision = s.precision < 0 ? 6 : int(s.precision);
	switch (s.type) {
	case 'f':
	case 'F':
	case '%': {
		const double d = std::fabs(v.as_double()) * (s.type == '%' ? 100 : 1);
		return fmt::format("{:.{}f}", d, precision) + (s.type == '%' ? "%" : "");
	}
	case 'e': return fmt::format("{:.{}e}", std::fabs(v.as_double()), precision);
	case 'E': return fmt::format("{:.{}E}", std::fabs(v.as_double()), precision);
	case 'g': return fmt::format("{:.{}g}", std::fabs(v.as_double()), std::max(precision, 1));
	case 'G': return fmt::format("{:.{}G}", std::fabs(v.as_double()), std::max(precision, 1));
	default: break;
	}
	const bool negative = v.as_int() < 0;
	const uint64_t n = negative ? uint64_t(0) - uint64_t(v.as_int()) : uint64_t(v.as_int());
	switch (s.type) {
	case 'x': return fmt::format("{}{:x}", s.alternative ? "0x" : "", n);
	case 'X': return fmt::format("{}{:X}", s.alternative ? "0X" : "", n);
	case 'o': return fmt::format("{}{:o}", s.alternative ? "0o" : "", n);
	case 'b': return fmt::format("{}{:b}", s.alternative ? "0b" : "", n);
	default: return fmt::format("{}", n);
	}
}

std::string sign_of(const Value& v, const Spec& s) {
	const bool negative = v.is(Kind::Float) ? std::signbit(v.number) && !std::isnan(v.number) : v.as_int() < 0;
	return negative ? "-" : s.sign == '-' ? "" : std::string(1, s.sign);
}

void add_aligned(Run& run, TextBuilder& out, std::string_view sign, const Value& body, const Spec& s, char align) {
	run.spend_bytes(body.size);
	const int64_t n = int64_t(sign.size() + char_count(body.str()));
	const size_t room = s.width > n ? size_t(s.width - n) : 0;
	if (room > run.bytes_left()) run.fail("a format asks for a width of {}", s.width);
	const size_t left = align == '>' || align == '=' ? room : align == '^' ? room / 2 : 0;
	if (align != '=') out.add_times(s.fill, left);
	out.add(sign, body.data);
	if (align == '=') out.add_times(s.fill, left);
	out.add(body);
	out.add_times(s.fill, room - left);
}

void add_number(Run& run, TextBuilder& out, const Value& v, const Spec& s) {
	const std::string digits = grouped(digits_of(run, v, s), s.grouping);
	add_aligned(run, out, sign_of(v, s), run.copy_text(digits, v.data), s, s.align ? s.align : '>');
}

void add_text(Run& run, TextBuilder& out, const Value& v, const Spec& s) {
	if (s.precision >= 0) run.spend_search(std::min(size_t(v.size), size_t(s.precision)));
	const Value cut = s.precision < 0 ? v : part(v, 0, char_offset(v.str(), size_t(s.precision)));
	add_aligned(run, out, "", cut, s, s.align ? s.align : '<');
}

// Reads digits at s[at]; -1: there are none.
int64_t read_number(Run& run, std::string_view s, size_t& at) {
	int64_t n = 0;
	const auto [end, error] = std::from_chars(s.data() + at, s.data() + s.size(), n);
	if (error == std::errc::result_out_of_range) run.fail("a format has a number that is too large");
	if (error != std::errc() || s[at] == '-') return -1;
	at = size_t(end - s.data());
	return n;
}

// ---- format % values

class Percent {
 public:
	Percent(Run& run, const Value& format, const Value& values) : run_(run), f_(format), values_(values), out_(run) {
		if (values.is(Kind::Tuple)) {
			list_ = values.items->all();
		} else {
			list_ = {&values_, 1};
			mapping_ = values.is(Kind::Dict) || values.is(Kind::List) || values.is(Kind::Undefined);
		}
	}
	Value run() {
		const std::string_view f = f_.str();
		run_.spend_chars(f.size());
		for (size_t at = 0; at < f.size();) {
			const size_t start = at;
			at = std::min(f.find('%', at), f.size());
			out_.add(part(f_, start, at - start));
			if (at < f.size()) conversion(++at);
		}
		if (next_ < list_.size() && !mapping_) run_.fail("not all arguments of the format are used by it");
		return out_.take();
	}

 private:
	const Value& take() {
		if (next_ >= list_.size()) run_.fail("the format has more places than there are values");
		return list_[next_++];
	}
	char at_or_fail(size_t at) const {
		if (at >= f_.size) run_.fail("the format ends inside a place for a value");
		return f_.text[at];
	}
	int64_t number_or_star(size_t& at) {
		if (at_or_fail(at) != '*') return read_number(run_, f_.str(), at);
		++at;
		const Value& v = take();
		if (!v.is_int()) run_.fail("the width of a format is a {}, not a number", type_name(v));
		return v.as_int();
	}
	void conversion(size_t& at);
	void write(const Value&, Spec, bool zero, bool data);
	void write_number(TextBuilder& out, const Value&, const Spec&);

	Run& run_;
	Value f_, values_;
	TextBuilder out_;
	std::span<const Value> list_;
	size_t next_ = 0;
	bool mapping_ = false;
};

void Percent::conversion(size_t& at) {
	const std::string_view f = f_.str();
	const bool data = mark_at(f_, at - 1);
	std::optional<Value> named;
	if (at_or_fail(at) == '(') {
		const size_t end = f.find(')', at);
		if (end == f.npos) run_.fail("the format ends inside the name of a value");
		if (!values_.is(Kind::Dict)) run_.fail("the format names values, but is given no dict");
		const Value* v = find(run_, *values_.dict, text(f.substr(at + 1, end - at - 1)));
		if (!v) run_.fail("the format names '{}', which is not in the dict", f.substr(at + 1, end - at - 1));
		named = *v;
		mapping_ = true;
		at = end + 1;
	}
	Spec s;
	bool zero = false;
	for (;; ++at) {
		const char c = at_or_fail(at);
		if (c == '-')
			s.align = '<';
		else if (c == '+' || (c == ' ' && s.sign != '+'))
			s.sign = c;
		else if (c == '#')
			s.alternative = true;
		else if (c == '0')
			zero = true;
		else if (c != ' ')
			break;
	}
	s.width = number_or_star(at);
	if (s.width < -1) { // a negative width given by *
		s.align = '<';
		s.width = -s.width;
	}
	if (at_or_fail(at) == '.') {
		++at;
		s.precision = std::max<int64_t>(number_or_star(at), 0);
	}
	while (at_or_fail(at) == 'l' || f[at] == 'h' || f[at] == 'L') ++at;
	s.type = f[at++];
	if (s.type == '%') return out_.add("%", data);
	write(named ? *named : take(), s, zero, data);
}

void Percent::write(const Value& v, Spec s, bool zero, bool data) {
	TextBuilder piece(run_);
	if (s.type == 's' || s.type == 'r' || s.type == 'a' || s.type == 'c') {
		if (s.type == 'c' && !(v.is(Kind::Text) && v.size <= 4 && char_count(v.str()) == 1))
			run_.fail("%c takes a text of one character");
		if (s.type == 'c') s.precision = -1;
		if (!s.align) s.align = '>';
		add_text(run_, piece, s.type == 's' || s.type == 'c' ? to_text(run_, v) : repr(run_, v), s);
	} else {
		if (zero && s.align != '<') s.align = '=', s.fill = text("0");
		write_number(piece, v, s);
	}
	const Value written = piece.take();
	if (data) // the precision comes from the conversation's text
		out_.add(written.str(), true);
	else
		out_.add(written);
}

void Percent::write_number(TextBuilder& out, const Value& v, const Spec& s) {
	if (std::string_view("diuxXoeEfFgG").find(s.type) == std::string_view::npos)
		run_.fail("the format has an unknown conversion %{}", s.type);
	if (v.is(Kind::Undefined)) run_.fail_undefined(v);
	if (!v.is_number()) run_.fail("%{} takes a number, not a {}", s.type, type_name(v));
	const bool bits = s.type == 'x' || s.type == 'X' || s.type == 'o';
	if (!bits && s.type != 'd' && s.type != 'i' && s.type != 'u') return add_number(run_, out, v, s);
	Value n = v;
	if (v.is(Kind::Float)) {
		if (bits) run_.fail("%{} takes a whole number", s.type);
		if (!(std::fabs(v.number) < 9e18)) run_.fail("%{}: {} has more than 64 bits", s.type, v.number);
		n = integer(int64_t(v.number), v.data);
	}
	if (s.precision > kMaxPrecision) run_.fail("a format asks for {} digits", s.precision);
	Spec plain;
	plain.type = bits ? s.type : 'd';
	std::string digits = digits_of(run_, n, plain);
	if (int64_t(digits.size()) < s.precision) digits.insert(0, size_t(s.precision) - digits.size(), '0');
	if (s.alternative && bits) digits.insert(0, std::string("0") + s.type);
	add_aligned(run_, out, sign_of(n, s), run_.copy_text(digits, n.data), s, s.align ? s.align : '>');
}

// ---- format.format(...)

Spec read_spec(Run& run, const Value& spec) {
	Spec s;
	const std::string_view f = spec.str();
	size_t at = 0;
	const auto is_align = [&](size_t i) { return i < f.size() && std::string_view("<>^=").find(f[i]) != f.npos; };
	if (const size_t n = char_offset(f, 1); n > 0 && is_align(n)) {
		s.fill = part(spec, 0, n);
		s.align = f[n];
		at = n + 1;
	} else if (is_align(0)) {
		s.align = f[at++];
	}
	if (at < f.size() && (f[at] == '+' || f[at] == '-' || f[at] == ' ')) s.sign = f[at++];
	if (at < f.size() && f[at] == '#') s.alternative = true, ++at;
	if (at < f.size() && f[at] == '0') {
		if (!s.align) s.align = '=', s.fill = text("0");
		++at;
	}
	if (at < f.size()) s.width = std::max<int64_t>(read_number(run, f, at), 0);
	if (at < f.size() && (f[at] == ',' || f[at] == '_')) s.grouping = f[at++];
	if (at < f.size() && f[at] == '.') {
		s.precision = ++at < f.size() ? read_number(run, f, at) : -1;
		if (s.precision < 0) run.fail("the format '{}' has no digits behind the point", f);
	}
	if (at < f.size()) s.type = f[at++];
	if (at != f.size()) run.fail("the format '{}' is not understood", f);
	return s;
}

Value formatted(Run& run, const Value& v, const Value& spec) {
	if (spec.size == 0) return to_text(run, v);
	Spec s = read_spec(run, spec);
	TextBuilder out(run);
	if (v.is(Kind::Text)) {
		if ((s.type && s.type != 's') || s.align == '=') run.fail("the format '{}' is not one for text", spec.str());
		add_text(run, out, v, s);
	} else if (v.is_number()) {
		const bool real = s.type && std::string_view("eEfFgG%").find(s.type) != std::string_view::npos;
		const bool whole = s.type && std::string_view("dxXob").find(s.type) != std::string_view::npos;
		if ((s.type && !real && !whole) || (v.is(Kind::Float) && whole) || (v.is_int() && !real && s.precision >= 0))
			run.fail("the format '{}' is not one for a {}", spec.str(), type_name(v));
		if (v.is(Kind::Float) && !s.type) {
			if (s.precision >= 0) run.fail("the format '{}' needs a type: f, e or g", spec.str());
			const std::string all = float_text(std::fabs(v.number));
			add_aligned(run, out, sign_of(v, s), run.copy_text(grouped(all, s.grouping), v.data), s,
			            s.align ? s.align : '>');
		} else {
			add_number(run, out, v, s);
		}
	} else {
		run.fail("the format '{}' is not one for a {}", spec.str(), type_name(v));
	}
	return out.take();
}

class Braces {
 public:
	Braces(Run& run, const Args& args) : run_(run), args_(args) {}
	void write(TextBuilder& out, const Value& f, int level) {
		if (level > 2) run_.fail("a format has places inside places inside places");
		const std::string_view s = f.str();
		run_.spend_chars(s.size());
		for (size_t at = 0; at < s.size();) {
			const size_t start = at;
			at = std::min(s.find_first_of("{}", at), s.size());
			out.add(part(f, start, at - start));
			if (at == s.size()) break;
			if (at + 1 < s.size() && s[at + 1] == s[at]) {
				out.add(part(f, at, 1));
				at += 2;
				continue;
			}
			if (s[at] == '}') run_.fail("the format has a single '}}'");
			const size_t open = at;
			int depth = 1;
			while (depth > 0 && ++at < s.size()) depth += s[at] == '{' ? 1 : s[at] == '}' ? -1 : 0;
			if (depth > 0) run_.fail("the format ends inside a place for a value");
			place(out, part(f, open + 1, at - open - 1), level, mark_at(f, open));
			++at;
		}
	}

 private:
	void place(TextBuilder& out, const Value& inside, int level, bool data) {
		const std::string_view s = inside.str();
		const size_t end = std::min(s.find_first_of("!:"), s.size());
		Value v = field(s.substr(0, end));
		size_t at = end;
		if (at < s.size() && s[at] == '!') {
			const std::string_view how = s.substr(at + 1, 1);
			if (how != "r" && how != "s" && how != "a") run_.fail("the format has an unknown conversion !{}", how);
			v = how == "s" ? to_text(run_, v) : repr(run_, v);
			at += 2;
		}
		Value spec = text("");
		if (at < s.size()) {
			if (s[at] != ':') run_.fail("the format has text behind a conversion");
			TextBuilder inner(run_);
			write(inner, part(inside, at + 1, s.size() - at - 1), level + 1);
			spec = inner.take();
		}
		const Value written = formatted(run_, v, spec);
		if (data)
			out.add(written.str(), true);
		else
			out.add(written);
	}
	// name or number, then .attribute and [key]
	Value field(std::string_view s) {
		const size_t end = std::min(s.find_first_of(".["), s.size());
		const std::string_view first = s.substr(0, end);
		Value v;
		if (first.empty() || (first[0] >= '0' && first[0] <= '9')) {
			size_t at = 0;
			const int64_t n = first.empty() ? int64_t(next_++) : read_number(run_, first, at);
			if (size_t(n) >= args_.list.size()) run_.fail("the format has more places than there are values");
			v = args_.list[size_t(n)];
		} else {
			bool found = false;
			for (const Named& n : args_.named) {
				run_.spend_bytes(n.name.size == first.size() ? first.size() : 0);
				if (n.name.str() == first) v = n.value, found = true;
			}
			if (!found) run_.fail("the format names '{}', which is not given", first);
		}
		for (size_t at = end; at < s.size();) {
			const bool attr = s[at] == '.';
			const size_t stop = attr ? std::min(s.find_first_of(".[", at + 1), s.size()) : s.find(']', at);
			if (stop == s.npos || stop == at + 1) run_.fail("the format names a value by '{}'", s);
			const std::string_view key = s.substr(at + 1, stop - at - 1);
			size_t digits = 0;
			const int64_t n = attr ? -1 : read_number(run_, key, digits);
			v = attr ? attribute(run_, v, text(key))
			         : item(run_, v, n >= 0 && digits == key.size() ? integer(n) : text(key));
			at = attr ? stop : stop + 1;
		}
		return v;
	}
	Run& run_;
	const Args& args_;
	size_t next_ = 0;
};

} // namespace

Value format_percent(Run& run, const Value& format, const Value& values) { return Percent(run, format, values).run(); }

Value format_braces(Run& run, const Value& format, const Args& args) {
	TextBuilder out(run);
	Braces(run, args).write(out, format, 0);
	return out.take();
}

} // namespace kvrun::jinja
