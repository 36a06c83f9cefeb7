// Forms as bodies of requests: multipart/form-data (RFC 7578), whose parts are divided as RFC 2046 says.
#include "tools/serve/multipart.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr std::string_view kLine = "\r\n", kForm = "multipart/form-data", kDisposition = "content-disposition";
constexpr size_t kMostBoundary = 70, kMostName = 100;

[[noreturn]] void bad(const std::string& why) {
	throw ApiError(400, "the body is no valid multipart/form-data: " + why);
}

char small(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }
bool same(std::string_view a, std::string_view b) { return std::ranges::equal(a, b, {}, small, small); }

std::string_view trimmed(std::string_view s) {
	const auto space = [](char c) { return c == ' ' || c == '\t'; };
	while (!s.empty() && space(s.front())) s.remove_prefix(1);
	while (!s.empty() && space(s.back())) s.remove_suffix(1);
	return s;
}

// A header field's value: a word, then parameters `; name=value` or `; name="value"`.
class Value {
 public:
	explicit Value(std::string_view text) : rest_(text) { word_ = trimmed(take(";")); }
	std::string_view word() const { return word_; }
	// The next parameter; false at the end.
	bool next(std::string& name, std::string& value) {
		if (rest_.empty()) return false;
		rest_.remove_prefix(1); // ;
		name = trimmed(take("=;"));
		value.clear();
		if (!rest_.starts_with('=')) return true;
		rest_.remove_prefix(1);
		while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) rest_.remove_prefix(1);
		if (!rest_.starts_with('"')) {
			value = trimmed(take(";"));
			return true;
		}
		size_t i = 1;
		for (; i < rest_.size() && rest_[i] != '"'; ++i) {
			if (rest_[i] == '\\' && i + 1 < rest_.size() && (rest_[i + 1] == '"' || rest_[i + 1] == '\\')) ++i;
			value += rest_[i];
		}
		if (i >= rest_.size()) bad("a header field has a quotation mark without its end");
		rest_.remove_prefix(i + 1);
		take(";");
		return true;
	}

 private:
	std::string_view take(std::string_view ends) {
		const size_t n = std::min(rest_.find_first_of(ends), rest_.size());
		const std::string_view out = rest_.substr(0, n);
		rest_.remove_prefix(n);
		return out;
	}
	std::string_view rest_, word_;
};

std::string boundary_of(std::string_view content_type) {
	Value type(content_type);
	if (!same(type.word(), kForm)) throw ApiError(415, "the body is not multipart/form-data; send a form with a file");
	std::string name, value;
	while (type.next(name, value))
		if (same(name, "boundary")) {
			if (value.empty() || value.size() > kMostBoundary || value.find_first_of(kLine) != value.npos) break;
			return value;
		}
	bad("its Content-Type has no boundary");
}

// The header fields of a part, lines of which one names it.
FormPart part_of(std::string_view header, std::string_view content) {
	FormPart out{{}, {}, content};
	bool named = false;
	while (!header.empty()) {
		const size_t n = std::min(header.find(kLine), header.size());
		const std::string_view line = header.substr(0, n);
		header.remove_prefix(std::min(n + kLine.size(), header.size()));
		const size_t colon = line.find(':');
		if (colon == line.npos) bad("a part has a header line without a colon");
		const std::string_view field = line.substr(0, colon);
		if (same(field, "content-transfer-encoding")) {
			const std::string_view how = trimmed(line.substr(colon + 1));
			if (!same(how, "binary") && !same(how, "8bit") && !same(how, "7bit"))
				bad("a part has a Content-Transfer-Encoding; send it as it is");
		}
		if (!same(field, kDisposition)) continue;
		Value v(trimmed(line.substr(colon + 1)));
		if (!same(v.word(), "form-data")) bad("a part is no form-data");
		std::string name, value;
		while (v.next(name, value)) {
			if (same(name, "name")) out.name = value, named = true;
			if (same(name, "filename")) out.file = value;
		}
	}
	if (!named) bad("a part has no name");
	const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
	if (out.name.empty() || out.name.size() > kMostName || !std::ranges::all_of(out.name, plain))
		bad("a part has a name that is not 1 to " + std::to_string(kMostName) + " characters of ASCII");
	return out;
}

} // namespace

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
	const std::string line = "--" + boundary_of(content_type), divider = std::string(kLine) + line;
	if (!body.starts_with(line)) bad("it does not begin with its boundary");
	body.remove_prefix(line.size());
	std::vector<FormPart> out;
	while (!body.starts_with("--")) { // behind a boundary
		const size_t end_of_line = body.find(kLine);
		if (end_of_line == body.npos || !trimmed(body.substr(0, end_of_line)).empty())
			bad("a boundary has no line end");
		body.remove_prefix(end_of_line); // a header may be empty, and ends with an empty line
		const size_t blank = body.substr(0, kMostPartHeader + 4).find("\r\n\r\n");
		if (blank == body.npos)
			bad("a part has no empty line behind its header within " + std::to_string(kMostPartHeader) + " bytes");
		const std::string_view header =
		    body.substr(std::min(kLine.size(), blank), blank - std::min(kLine.size(), blank));
		body.remove_prefix(blank + kLine.size()); // the divider's line end may be the empty line's
		size_t end = body.find(divider);
		for (; end != body.npos;
		     end = body.find(divider, end + 1)) { // a content may hold the beginning of a longer one
			const std::string_view behind = body.substr(end + divider.size());
			if (behind.starts_with("--") || behind.starts_with(kLine) || behind.starts_with(' ') ||
			    behind.starts_with('\t'))
				break;
		}
		if (end == body.npos) bad("its last boundary is missing; it was cut off");
		if (out.size() == kMostFormParts) bad("it has more than " + std::to_string(kMostFormParts) + " parts");
		out.push_back(part_of(header, body.substr(std::min(kLine.size(), end), end - std::min(kLine.size(), end))));
		body.remove_prefix(end + divider.size());
	}
	return out;
}

} // namespace kvrun::serve
