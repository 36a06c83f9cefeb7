// Conversations in OpenAI's form, converted to the form that a chat template takes.
#include "models/chat/fit.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/chat/messages.h"
#include "models/chat/write_tools.h"
#include <algorithm>
#include <xxhash.h>

namespace kvrun {
namespace {

constexpr size_t kMistralId = 9;

std::string joined_parts(const Json& parts, size_t i) {
	std::string all;
	for (const Json& part : parts) {
		const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
		if (!is_text) {
			const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
			fail(Code::Invalid, "messages[{}] has a part of type {}; this model takes text only", i,
			     typed ? one_line(part["type"].get<std::string>(), 40) : "unknown");
		}
		if (!all.empty()) all += '\n';
		all += part["text"].get<std::string>();
	}
	return all;
}

// The same id for the same text, so that a result still belongs to its call.
void fit_id(Json& object, const char* field) {
	const auto at = object.find(field);
	if (at == object.end() || !at->is_string() || at->get_ref<const std::string&>().size() == kMistralId) return;
	constexpr std::string_view digits = "0123456789abcdefghijklmnopqrstuvwxyz";
	const std::string& given = at->get_ref<const std::string&>();
	uint64_t hash = XXH3_64bits(given.data(), given.size());
	std::string id;
	for (size_t i = 0; i < kMistralId; ++i, hash /= digits.size()) id += digits[hash % digits.size()];
	*at = std::move(id);
}

// Gives the system messages at the beginning the place and number that the template has for them.
void fit_system(const ChatFeatures& f, Json& messages) {
	if (!f.text_content && !f.part_content) return; // the template refused every probe
	const auto takes = [](const Json& m) { return m["content"].is_string() || m["content"].is_array(); };
	const auto is_system = [&](const Json& m) { return has_role(m, "system") && takes(m); };
	const auto begin = messages.begin(), behind = std::find_if_not(begin, messages.end(), is_system);
	if (behind == begin) return;
	auto kept = behind;
	if (!f.system_role || !f.several_system) {
		kept = begin + 1;
		for (auto m = kept; m != behind; ++m) append_content((*begin)["content"], std::move((*m)["content"]));
	}
	if (!f.system_role) {
		(*begin)["role"] = "user";
		if (behind != messages.end() && has_role(*behind, "user") && takes(*behind)) {
			append_content((*begin)["content"], std::move((*behind)["content"]));
			(*behind)["content"] = std::move((*begin)["content"]);
			kept = begin;
		}
	}
	messages.erase(kept, behind);
}

void fit_calls(const ChatFeatures& f, Json& message) {
	for (Json& call : message["tool_calls"]) {
		if (!call.is_object()) continue;
		if (f.nine_letter_ids) fit_id(call, "id");
		Json& function = call.contains("function") ? call["function"] : call;
		if (!function.is_object() || !function.contains("arguments")) continue;
		Json& arguments = function["arguments"];
		if (f.object_arguments)
			parse_arguments(arguments);
		else if (arguments.is_object())
			arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
	}
}

// Clients send the reasoning of earlier answers as reasoning_content.
void fit_reasoning(const ChatFeatures& f, Json& message, bool calls) {
	if (f.reasoning_field.empty() || message.contains(f.reasoning_field)) return;
	const Json given = message.value("reasoning_content", Json()), &content = message["content"];
	if (!given.is_string() || given == Json("")) return;
	const bool text = !content.is_null() && content != Json("");
	if (!calls || !text || f.reasoning_beside_text) message[f.reasoning_field] = given;
}

} // namespace

Json fit_messages(const ChatFeatures& f, Json messages) {
	if (!messages.is_array()) fail(Code::Invalid, "messages is not an array");
	for (size_t i = 0; i < messages.size(); ++i) {
		Json& m = messages[i];
		if (!m.is_object()) fail(Code::Invalid, "messages[{}] is not an object; it needs a role and a content", i);
		if (!m.contains("content")) m["content"] = nullptr;
		Json& content = m["content"];
		if (content.is_array() && !f.part_content) content = joined_parts(content, i);
		if (content.is_string() && !f.text_content && f.part_content) content = text_part(content.get<std::string>());
		const bool calls = m.contains("tool_calls") && m["tool_calls"].is_array() && !m["tool_calls"].empty();
		if (content.is_null() && !(calls && f.null_content)) content = "";
		if (calls && f.calls_alone) content = "";
		if (calls && f.null_content && content == Json("")) content = nullptr;
		if (calls && f.tool_calls) fit_calls(f, m);
		fit_reasoning(f, m, calls);
		if (f.nine_letter_ids) fit_id(m, "tool_call_id");
	}
	fit_system(f, messages);
	return messages;
}

void fit_input(const ChatFeatures& f, ChatInput& in) {
	write_tools(f, in);
	in.messages = fit_messages(f, std::move(in.messages));
}

} // namespace kvrun
