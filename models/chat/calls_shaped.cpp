// Calls in the form that a template's rendering has shown.
#include "models/chat/calls_tagged.h"

namespace kvrun {
namespace {

bool in_call_name(char c) {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// Moves `at` behind the first `marker` from there on, and returns what lies between. Sets `more` if the text ends
// before. A line break in between is not allowed.
std::string_view up_to(std::string_view text, size_t& at, std::string_view marker, bool& found, bool& more) {
	const size_t to = text.find(marker, at);
	found = to != text.npos && text.substr(at, to - at).find('\n') == text.npos;
	more = to == text.npos && text.find('\n', at) == text.npos;
	const std::string_view inside = text.substr(at, found ? to - at : 0);
	if (found) at = to + marker.size();
	return inside;
}

// One call, from its `begin` on. Returns where it ends.
size_t read_one(const CallForm& form, std::string_view text, size_t at, bool last, std::vector<FoundCall>& out) {
	const CallShape& s = form.shape;
	bool more = false, found = true;
	if (!take_loosely(text, at, s.begin, more)) return more ? kMoreText : kNoCall;
	FoundCall call;
	if (!s.id_end.empty()) call.id = up_to(text, at, without_spaces(s.id_end), found, more);
	if (!found) return more ? kMoreText : kNoCall;
	at = skip_spaces(text, at);
	const size_t name = at;
	while (at < text.size() && in_call_name(text[at])) ++at;
	if (at == text.size()) return kMoreText;
	call.name = text.substr(name, at - name);
	at = skip_spaces(text, at);
	if (!take_loosely(text, at, without_spaces(s.name_end), more)) return more ? kMoreText : kNoCall;
	if (!s.name_close.empty()) up_to(text, at, without_spaces(s.name_close), found, more);
	if (!found) return more ? kMoreText : kNoCall;
	call.opened = true;
	const std::string_view end = without_spaces(s.end);
	if (s.by_pairs()) {
		PairForm f{"", "", without_spaces(s.key_begin), s.key_end, "", without_spaces(s.value_end), end};
		if (s.key_close.empty()) f.key_end = without_spaces(s.key_end);
		f.lines = s.key_end.ends_with('\n'), f.shape = &s;
		return read_pair_list(form, f, text, at, last, std::move(call), out);
	}
	const size_t to = read_arguments(text, skip_spaces(text, at), std::move(call), out);
	if (to >= kNoCall) return to;
	at = skip_spaces(text, to);
	if (take_loosely(text, at, end, more)) return at;
	return last && at == text.size() ? to : more ? kMoreText : kNoCall;
}

} // namespace

size_t read_shaped(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	const CallShape& s = form.shape;
	bool more = false;
	size_t at = 0;
	if (s.all_begin.empty()) return read_one(form, text, 0, last, out);
	if (!take_loosely(text, at, without_spaces(s.all_begin), more)) return more ? kMoreText : kNoCall;
	for (;;) {
		const size_t behind = at;
		at = skip_spaces(text, at);
		if (!out.empty()) {
			if (last && at == text.size()) return behind;
			if (!s.all_end.empty() && take_loosely(text, at, without_spaces(s.all_end), more)) return at;
			if (more) return last ? behind : kMoreText;
			if (const std::string_view between = without_spaces(s.between); !between.empty()) {
				if (!take_loosely(text, at, between, more))
					return more ? kMoreText : s.all_end.empty() ? behind : kNoCall;
				at = skip_spaces(text, at);
			}
		}
		const size_t end = read_one(form, text, at, last, out);
		if (end == kNoCall && !out.empty() && out.back().whole && s.all_end.empty()) return behind;
		if (end >= kNoCall) return end;
		at = end;
	}
}

} // namespace kvrun
