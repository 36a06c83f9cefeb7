// A conversation: its messages, and their JSON for the template and for the chat's file.
#include "tools/chat/conversation.h"
#include "tools/json_text.h"
#include "tools/text.h"

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;                           // format version of a chat's file
constexpr const char* kFormatKey = "kvrun_chat";     // its first field
constexpr size_t kMostMessages = 1 << 20;            // of a file
constexpr uint64_t kMostAnswers = uint64_t(1) << 40; // of a file

Json message_json(const char* role, const std::string& text) { return {{"role", role}, {"content", text}}; }

// Reads the fields of one object; messages name the file and the field.
class Fields {
 public:
	Fields(const Json& j, const std::string& file, const std::string& where) : json_(j), file_(file), where_(where) {
		if (!j.is_object()) bad("", "is no object");
	}
	std::string text(const char* name, bool optional = false) const {
		if (optional && !json_.contains(name)) return {};
		const Json& v = field(name);
		if (!v.is_string()) bad(name, "is no text");
		return v.get<std::string>();
	}
	uint64_t number(const char* name, uint64_t most) const {
		const Json& v = field(name);
		if (!v.is_number_unsigned()) bad(name, "is no number");
		if (v.get<uint64_t>() > most) bad(name, fmt::format("is {}, expected at most {}", v.get<uint64_t>(), most));
		return v.get<uint64_t>();
	}
	const Json& field(const char* name) const {
		const auto at = json_.find(name);
		if (at == json_.end()) bad(name, "is missing");
		return *at;
	}
	[[noreturn]] void bad(const std::string& name, const std::string& what) const {
		fail_status(KVRUN_EFORMAT, "{}: damaged chat: {}{} {}", file_, where_, name.empty() ? "content" : name, what);
	}

 private:
	const Json& json_;
	const std::string &file_, where_;
};

} // namespace

std::string Conversation::messages_json() const {
	Json out = Json::array();
	if (!system.empty()) out.push_back(message_json("system", system));
	for (size_t i = left_out; i < messages.size(); ++i) {
		const ChatMessage& m = messages[i];
		out.push_back(message_json(m.user ? "user" : "assistant", m.text));
		if (!m.reasoning.empty()) out.back()["reasoning_content"] = m.reasoning;
		Json parts = Json::array();
		for (const ChatMedia& one : m.media)
			if (!one.id.empty()) parts.push_back({{"type", words_of(one.kind).part}, {"id", one.id}});
		if (parts.empty()) continue;
		parts.push_back({{"type", "text"}, {"text", m.text}});
		out.back()["content"] = std::move(parts);
	}
	return json_line(out);
}

bool Conversation::leave_out_oldest() {
	for (size_t i = left_out + 1; i < messages.size(); ++i)
		if (messages[i].user) return left_out = i, true;
	return false;
}

std::string chat_to_json(const SavedChat& chat) {
	const Conversation& c = chat.conversation;
	Json messages = Json::array();
	for (const ChatMessage& m : c.messages) {
		messages.push_back(message_json(m.user ? "user" : "assistant", m.text));
		if (!m.reasoning.empty()) messages.back()["reasoning"] = m.reasoning;
		for (const ChatMedia& one : m.media) messages.back()[words_of(one.kind).list].push_back(one.path);
	}
	const Json out = {{kFormatKey, kFormat},    {"kv", chat.kv},        {"system", c.system},
	                  {"left_out", c.left_out}, {"answers", c.answers}, {"messages", std::move(messages)}};
	return json_lines(out);
}

SavedChat chat_from_json(std::string_view json, const std::string& file) {
	const Json j = Json::parse(json, nullptr, /*allow_exceptions=*/false);
	if (j.is_discarded()) fail_status(KVRUN_EFORMAT, "{}: damaged chat: it is not JSON", file);
	const std::string top, in_messages = "messages: ";
	const Fields fields(j, file, top);
	if (const uint64_t format = fields.number(kFormatKey, UINT32_MAX); format != kFormat)
		fail_status(KVRUN_EUNSUPPORTED, "{}: {} is {}, this version reads {}", file, kFormatKey, format, kFormat);
	SavedChat out;
	out.kv = fields.text("kv");
	Conversation& c = out.conversation;
	c.system = fields.text("system");
	const Json& messages = fields.field("messages");
	if (!messages.is_array()) fields.bad("messages", "is no array");
	if (messages.size() > kMostMessages) fields.bad("messages", fmt::format("are more than {}", kMostMessages));
	for (const Json& m : messages) {
		const Fields f(m, file, in_messages);
		const std::string role = f.text("role");
		if (role != "user" && role != "assistant") f.bad("role", "is neither user nor assistant");
		if ((role == "user") == c.open()) f.bad("role", "does not alternate");
		c.messages.push_back({role == "user", f.text("content"), f.text("reasoning", /*optional=*/true), {}});
		for (const MediaKind kind : {MediaKind::Image, MediaKind::Audio}) {
			const char* list = words_of(kind).list;
			if (!m.contains(list)) continue;
			if (!m[list].is_array()) f.bad(list, "is no array");
			for (const Json& path : m[list]) {
				if (!path.is_string()) f.bad(list, "has an entry that is no text");
				c.messages.back().media.push_back({kind, path.get<std::string>(), {}});
			}
		}
	}
	c.answers = fields.number("answers", kMostAnswers);
	c.left_out = fields.number("left_out", c.messages.size());
	if (c.left_out < c.messages.size() && !c.messages[c.left_out].user) fields.bad("left_out", "is not at a question");
	return out;
}

} // namespace kvrun
