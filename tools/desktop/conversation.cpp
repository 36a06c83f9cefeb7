// A conversation as a tree of messages: an edited question or another answer becomes a sibling; nothing is overwritten.
#include "tools/desktop/conversation.h"
#include "tools/desktop/words.h"
#include "tools/json_text.h"
#include "tools/text.h"
#include <algorithm>

namespace kvrun::desktop {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1; // of a conversation's file
constexpr const char* kFormatKey = "kvrun_desktop";
constexpr size_t kMostMessages = 1 << 20;
constexpr size_t kTitleBytes = 48;

} // namespace

int Conversation::add(int parent, bool user, std::string text, std::vector<std::string> images) {
	messages.push_back({parent, user, std::move(text), {}, {}, false, false, std::move(images)});
	return last = int(messages.size()) - 1;
}

std::vector<int> Conversation::branch() const {
	std::vector<int> out;
	for (int m = last; m != kNone; m = messages[size_t(m)].parent) out.push_back(m);
	std::ranges::reverse(out);
	return out;
}

std::vector<int> Conversation::siblings(int m) const {
	std::vector<int> out;
	for (size_t i = 0; i < messages.size(); ++i)
		if (messages[i].parent == messages[size_t(m)].parent) out.push_back(int(i));
	return out;
}

void Conversation::show(int m) {
	last = m;
	for (int i = int(messages.size()) - 1; i > last; --i)
		if (messages[size_t(i)].parent == last) last = i, i = int(messages.size()); // then its newest child
}

std::string Conversation::template_messages(const std::string& system, int last_message,
                                            const std::string& images_folder) const {
	Json out = Json::array();
	for (int m = last_message; m != kNone; m = messages[size_t(m)].parent) {
		const Message& one = messages[size_t(m)];
		out.push_back({{"role", one.user ? "user" : "assistant"}, {"content", one.text}});
		if (!one.images.empty()) {
			Json parts = Json::array();
			for (const std::string& name : one.images)
				parts.push_back(
				    {{"type", is_sound_name(name) ? "audio" : "image"}, {"id", images_folder + "/" + name}});
			parts.push_back({{"type", "text"}, {"text", one.text}});
			out.back()["content"] = std::move(parts);
		}
		if (!one.reasoning.empty()) out.back()["reasoning_content"] = one.reasoning;
	}
	if (!system.empty()) out.push_back({{"role", "system"}, {"content", system}});
	std::ranges::reverse(out);
	return json_line(out);
}

Conversation Conversation::fork(std::string new_id) const {
	Conversation out = *this;
	out.id = std::move(new_id);
	out.title = title + " (fork)";
	out.messages.clear();
	out.last = kNone;
	for (const int m : branch()) {
		out.messages.push_back(messages[size_t(m)]);
		out.messages.back().parent = out.last;
		out.messages.back().unfinished = false;
		out.last = int(out.messages.size()) - 1;
	}
	return out;
}

std::string to_json(const Conversation& c) {
	Json messages = Json::array();
	for (const Message& m : c.messages) {
		messages.push_back({{"parent", m.parent}, {"role", m.user ? "user" : "assistant"}, {"content", m.text}});
		if (!m.reasoning.empty()) messages.back()["reasoning"] = m.reasoning;
		if (!m.note.empty()) messages.back()["note"] = m.note;
		if (m.unfinished) messages.back()["unfinished"] = true;
		if (m.cut) messages.back()["cut"] = true;
		if (!m.images.empty()) messages.back()["images"] = m.images;
	}
	const Json out = {
	    {kFormatKey, kFormat},  {"title", c.title},     {"kv", c.kv},     {"ctx", c.ctx},
	    {"changed", c.changed}, {"answers", c.answers}, {"last", c.last}, {"messages", std::move(messages)}};
	return json_lines(out);
}

std::string to_markdown(const Conversation& c) {
	std::string out = "# " + c.title + "\n";
	for (const int m : c.branch()) {
		const Message& one = c.messages[size_t(m)];
		out += one.user ? "\n## Question\n\n" : "\n## Answer\n\n";
		for (const std::string& name : one.images)
			out += (is_sound_name(name) ? "(sound " : "(image ") + name + ")\n\n";
		out += one.text;
		if (!one.text.ends_with('\n')) out += "\n";
	}
	return out;
}

Conversation conversation_from_json(std::string_view json, const std::string& file) {
	const auto damaged = [&](const std::string& what) {
		fail_status(KVRUN_EFORMAT, "{}: damaged conversation: {}", file, what);
	};
	Conversation c;
	try {
		const Json j = Json::parse(json);
		if (const int format = j.at(kFormatKey).get<int>(); format != kFormat)
			fail_status(KVRUN_EUNSUPPORTED, "{}: {} is {}, this version reads {}", file, kFormatKey, format, kFormat);
		c.title = j.at("title").get<std::string>();
		c.kv = j.at("kv").get<std::string>();
		c.ctx = j.at("ctx").get<uint32_t>();
		c.changed = j.at("changed").get<int64_t>();
		c.answers = j.at("answers").get<uint64_t>();
		c.last = j.at("last").get<int>();
		const Json& messages = j.at("messages");
		if (!messages.is_array() || messages.size() > kMostMessages) damaged("messages is no array, or too long");
		for (const Json& m : messages) {
			const std::string role = m.at("role").get<std::string>();
			if (role != "user" && role != "assistant") damaged("role is neither user nor assistant");
			const int parent = m.at("parent").get<int>();
			if (parent < kNone || parent >= int(c.messages.size())) damaged("parent is no message before");
			const bool after_question = parent != kNone && c.messages[size_t(parent)].user;
			if (after_question == (role == "user")) damaged("role does not alternate");
			c.messages.push_back({parent, role == "user", m.at("content").get<std::string>(), m.value("reasoning", ""),
			                      m.value("note", ""), m.value("unfinished", false), m.value("cut", false),
			                      m.value("images", std::vector<std::string>())});
			if (!std::ranges::all_of(c.messages.back().images, is_image_name))
				damaged("images has no name of an image");
		}
	} catch (const Json::exception& e) { damaged(json_fault(e.what())); }
	if (c.last < kNone || c.last >= int(c.messages.size()) || (c.last == kNone) != c.messages.empty())
		damaged("last is no message");
	return c;
}

static bool is_sound_end(std::string_view end) {
	return end == ".wav" || end == ".flac" || end == ".ogg" || end == ".mp3";
}

bool is_image_name(std::string_view name) {
	constexpr size_t kDigits = 16;
	const std::string_view digits = name.substr(0, kDigits), rest = name.substr(digits.size());
	return digits.size() == kDigits && digits.find_first_not_of("0123456789abcdef") == digits.npos &&
	       (rest == ".png" || rest == ".jpg" || rest == ".webp" || is_sound_end(rest));
}

bool is_sound_name(std::string_view name) { return is_sound_end(name.substr(std::min(name.rfind('.'), name.size()))); }

std::string title_of(const std::string& text) {
	std::string out = text.substr(0, text.find('\n'));
	if (out.size() > kTitleBytes) {
		size_t end = kTitleBytes;
		while (end && (uint8_t(out[end]) & 0xc0) == 0x80) --end; // not inside a character
		out = out.substr(0, end) + "...";
	}
	return out;
}

} // namespace kvrun::desktop
