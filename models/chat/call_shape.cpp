// Finds the form of calls by comparing what a template renders for calls that differ.
#include "models/chat/call_shape.h"
#include "engine/core/error.h"
#include "models/chat/calls.h"
#include <algorithm>
#include <cctype>
#include <optional>

namespace kvrun {
namespace {

constexpr std::string_view kProbeName = "kvrun-probe", kNextName = "kvrun-second", kProbeId = "probe1234",
                           kNextId = "probe5678";
constexpr std::string_view kProbeKey = "probe_key", kNextKey = "other_key", kProbeValue = "probe_value",
                           kNextValue = "last_value";

size_t common_front(std::string_view a, std::string_view b) {
	return size_t(std::mismatch(a.begin(), a.begin() + ptrdiff_t(std::min(a.size(), b.size())), b.begin()).first -
	              a.begin());
}
std::string_view common_end(std::string_view a, std::string_view b) {
	size_t n = 0;
	while (n < std::min(a.size(), b.size()) && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
	return a.substr(a.size() - n);
}
// Without a tag that has only begun at the end.
std::string_view whole_tags(std::string_view s) {
	const size_t open = s.rfind('<');
	return open != s.npos && s.find('>', open) == s.npos ? s.substr(0, open) : s;
}
// Without a tag that began before, and without white space, at the front.
std::string_view from_tag(std::string_view s) {
	const size_t open = s.find('<'), close = s.find('>');
	if (close < open) s.remove_prefix(open == s.npos ? s.size() : open);
	return s.substr(skip_spaces(s, 0));
}
std::string_view unless_blank(std::string_view s) { return without_spaces(s).empty() ? std::string_view() : s; }
bool in_word(char c) { return std::isalnum(uint8_t(c)) != 0; }
size_t word_end(std::string_view s, size_t at) {
	while (at < s.size() && in_word(s[at])) ++at;
	return at;
}

// Where two texts first differ, at the beginning of the word there.
size_t differing_word(std::string_view a, std::string_view b) {
	size_t at = common_front(a, b);
	while (at > 0 && in_word(a[at - 1])) --at;
	return at;
}

Json call_of(std::string_view name, std::string_view id, const Json& arguments) {
	return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

class Finder {
 public:
	explicit Finder(const ShapeProbe& p) : probe_(p) {}

	std::optional<CallShape> find() {
		const Json pair = {{kProbeKey, kProbeValue}, {kNextKey, kNextValue}};
		const Json one = arguments(pair);
		const std::string two =
		    answer(Json::array({call_of(kProbeName, kProbeId, one), call_of(kNextName, kNextId, one)}));
		const std::string asked = render(Json::array({user()}), /*answer_begins=*/true);
		if (two.empty() || asked.empty()) return std::nullopt;
		text_ = two;
		const size_t from = whole_tags(std::string_view(two).substr(0, common_front(two, asked))).size();
		if (!first_.find(text_, from, kProbeName, kProbeId) || !next_.find(text_, first_.end, kNextName, kNextId))
			return std::nullopt;

		std::string_view front = slice(from, first_.begin);
		for (bool cut = true; cut;) {
			cut = false;
			front.remove_prefix(skip_spaces(front, 0));
			for (const std::string& marker : probe_.before)
				if (!without_spaces(marker).empty() && front.starts_with(without_spaces(marker)))
					front.remove_prefix(without_spaces(marker).size()), cut = true;
		}
		std::string_view middle = slice(first_.end, next_.begin), back = slice(next_.end, text_.size());
		if (first_.by_pairs != next_.by_pairs || !read_inside(middle, back)) return std::nullopt;
		const std::string_view begin = from_tag(common_end(front, middle));
		shape_.begin = begin;
		shape_.all_begin = unless_blank(front.substr(0, front.size() - begin.size()));
		middle.remove_suffix(begin.size());
		shape_.end = whole_tags(middle.substr(0, common_front(middle, back)));
		shape_.between = middle.substr(shape_.end.size());
		back.remove_prefix(shape_.end.size());
		const std::string said = behind_plain_answer();
		back.remove_suffix(from_tag(common_end(back, said)).size());
		// without an end of turn to compare with: the first tag
		if (said.empty()) back = back.substr(0, back.find('>') + 1);
		shape_.all_end = unless_blank(back);
		if (shape_.begin.empty() || shape_.end.empty() || !gives(slice(from, text_.size()))) return std::nullopt;
		const std::string sign = shape_.marker(); // of which text must not be full
		if ((sign[0] != '<' && sign[0] != '[') || sign.size() < 4) return std::nullopt;
		if (shape_.by_pairs() && !find_kinds()) return std::nullopt;
		shape_.character_data = probe_.chat.text().find(kCharacterData) != std::string::npos;
		return shape_;
	}

 private:
	// Where the parts of a call lie: [begin, end), without what surrounds it and, of pairs, behind the last value.
	struct Call {
		size_t begin = 0, id_end = 0, name = 0, name_end = 0, arguments = 0, end = 0;
		size_t key = 0, value = 0, next_key = 0, next_value = 0;
		bool by_pairs = false;

		bool find(std::string_view s, size_t from, std::string_view called, std::string_view id) {
			key = s.find(kProbeKey, from);
			if (key == s.npos) return false;
			name = s.rfind(called, key);
			if (name == s.npos || name < from) return false;
			name_end = name + called.size();
			begin = name;
			if (const size_t at = s.find(id, from); at < name) begin = at, id_end = at + id.size();
			const size_t brace = s.find('{', name_end);
			if (brace < key) {
				const size_t to = json_end(s, brace);
				if (to >= kNoCall || !parsed_json(s.substr(brace, to - brace)).is_object()) return false;
				arguments = brace, end = to;
				return true;
			}
			by_pairs = true;
			value = s.find(kProbeValue, key);
			next_key = s.find(kNextKey, value);
			next_value = s.find(kNextValue, next_key);
			end = next_value + kNextValue.size();
			return next_value != s.npos;
		}
	};

	static Json user() { return {{"role", "user"}, {"content", "x"}}; }
	Json arguments(const Json& object) const { return probe_.object_arguments ? object : Json(object.dump()); }
	Json content(const char* text) const {
		if (probe_.part_content) return Json::array({{{"type", "text"}, {"text", text}}});
		return text;
	}
	std::string render(Json messages, bool answer_begins) const {
		if (probe_.part_content) messages[0]["content"] = content("x");
		ChatInput in;
		in.messages = std::move(messages);
		in.add_generation_prompt = answer_begins;
		try {
			return probe_.chat.render(in).text();
		} catch (const Error&) { return {}; }
	}
	std::string answer(Json calls) const {
		Json said = {{"role", "assistant"}, {"content", probe_.null_content ? Json(nullptr) : Json("")}};
		said["tool_calls"] = std::move(calls);
		return render(Json::array({user(), std::move(said)}), /*answer_begins=*/false);
	}
	std::string behind_plain_answer() const {
		const std::string all =
		    render(Json::array({user(), {{"role", "assistant"}, {"content", content("probe_text")}}}), false);
		const size_t at = all.rfind("probe_text");
		return at == all.npos ? std::string() : all.substr(at + 10);
	}
	std::string_view slice(size_t from, size_t to) const { return std::string_view(text_).substr(from, to - from); }

	// The texts inside a call. middle, back: what follows the first and the second call, from their last values on.
	bool read_inside(std::string_view& middle, std::string_view& back) {
		if (first_.id_end) shape_.id_end = slice(first_.id_end, first_.name);
		if (!first_.by_pairs) {
			shape_.name_end = slice(first_.name_end, first_.arguments);
			return slice(next_.name_end, next_.arguments) == shape_.name_end;
		}
		const std::string_view pairs = slice(first_.value + kProbeValue.size(), first_.next_key);
		const size_t n = std::min({common_front(pairs, middle), common_front(pairs, back)});
		shape_.value_end = whole_tags(pairs.substr(0, n));
		shape_.key_begin = pairs.substr(shape_.value_end.size());
		shape_.key_end = slice(first_.key + kProbeKey.size(), first_.value);
		if (shape_.value_end.empty() || shape_.key_begin.empty() || shape_.key_end.empty()) return false;
		middle.remove_prefix(shape_.value_end.size());
		back.remove_prefix(shape_.value_end.size());
		std::string_view head = slice(first_.name_end, first_.key), next = slice(next_.name_end, next_.key);
		if (!head.ends_with(shape_.key_begin) || !next.ends_with(shape_.key_begin)) return false;
		head.remove_suffix(shape_.key_begin.size()), next.remove_suffix(shape_.key_begin.size());
		shape_.name_end = head;
		if (head == next) return true;
		const size_t at = differing_word(head, next), to = word_end(head, at);
		shape_.name_end = head.substr(0, at), shape_.name_close = head.substr(to);
		const auto is_number = [](std::string_view s) { return !s.empty() && std::ranges::all_of(s, ::isdigit); };
		return is_number(head.substr(at, to - at)) && next.ends_with(shape_.name_close) && !shape_.name_close.empty();
	}

	// Whether the parts give what the template has written, and hold nothing of these calls themselves.
	bool gives(std::string_view written) const {
		std::string all = shape_.all_begin;
		for (const Call* c : {&first_, &next_}) {
			const bool is_first = c == &first_;
			all += shape_.begin;
			if (c->id_end) all.append(is_first ? kProbeId : kNextId).append(shape_.id_end);
			all.append(is_first ? kProbeName : kNextName).append(shape_.name_end);
			if (!shape_.name_close.empty()) all.append(is_first ? "1" : "2").append(shape_.name_close);
			if (shape_.by_pairs())
				for (const auto& [key, value] : {std::pair(kProbeKey, kProbeValue), std::pair(kNextKey, kNextValue)})
					all.append(shape_.key_begin)
					    .append(key)
					    .append(shape_.key_end)
					    .append(value)
					    .append(shape_.value_end);
			else
				all += slice(c->arguments, c->end);
			all += shape_.end;
			if (is_first) all += shape_.between;
		}
		all += shape_.all_end;
		const auto own = [](const std::string& s) { return s.find("probe") == s.npos && s.find("kvrun") == s.npos; };
		return written.find(all) != written.npos && own(shape_.all_begin) && own(shape_.all_end) && own(shape_.begin) &&
		       own(shape_.name_end) && own(shape_.end) && own(shape_.between);
	}

	// How values of each type are announced.
	bool find_kinds() {
		const std::array<Json, CallShape::kKinds> values{kProbeValue,        71,     true, Json::array({kProbeValue}),
		                                                 {{kProbeValue, 1}}, nullptr};
		std::array<std::string, CallShape::kKinds> behind; // the key
		for (size_t i = 0; i < values.size(); ++i) {
			const std::string text =
			    answer(Json::array({call_of(kProbeName, kProbeId, arguments({{kProbeKey, values[i]}}))}));
			const size_t at = text.rfind(std::string(shape_.key_begin) + std::string(kProbeKey));
			if (at == text.npos) return i == CallShape::Null; // some leave out what is null
			behind[i] = text.substr(at + shape_.key_begin.size() + kProbeKey.size());
		}
		const std::string whole = shape_.key_end;
		if (std::ranges::all_of(behind, [&](const std::string& s) { return s.empty() || s.starts_with(whole); }))
			return true;
		const size_t at = differing_word(whole, behind[CallShape::Number]);
		shape_.key_end = whole.substr(0, at);
		shape_.key_close = whole.substr(word_end(whole, at));
		for (size_t i = 0; i < behind.size(); ++i) {
			const size_t to = word_end(behind[i], at);
			if (behind[i].empty() || to == at || !behind[i].starts_with(shape_.key_end) ||
			    behind[i].compare(to, shape_.key_close.size(), shape_.key_close) != 0)
				return false;
			shape_.kinds[i] = behind[i].substr(at, to - at);
		}
		return !shape_.key_end.empty() && !shape_.key_close.empty();
	}

	const ShapeProbe& probe_;
	CallShape shape_;
	std::string text_;
	Call first_, next_;
};

} // namespace

bool CallShape::tells_strings() const { return !key_close.empty() && std::ranges::count(kinds, kinds[String]) == 1; }

std::string CallShape::marker() const {
	const std::string_view all = without_spaces(all_begin.empty() ? begin : all_begin);
	return std::string(all.substr(0, all.find('\n')));
}

CallShape find_call_shape(const ShapeProbe& p) { return Finder(p).find().value_or(CallShape()); }

} // namespace kvrun
