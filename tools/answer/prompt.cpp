// A conversation, and the chat template that makes it a prompt.
#include "tools/answer/prompt.h"
#include "engine/core/system/files.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <algorithm>

namespace kvrun {

constexpr size_t kLongestTemplate = size_t(1) << 20; // bytes

kvrun_chat_options ChatPrompt::options() const {
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	o.messages_json = or_null(messages), o.tools_json = or_null(tools), o.variables_json = or_null(variables);
	o.template_name = or_null(template_name), o.template_text = or_null(template_text);
	o.no_answer = goes_on ? 2 : no_answer;
	return o;
}

std::vector<std::string> template_names(kvrun_engine* engine) {
	std::vector<std::string> out;
	for (;;) {
		std::string name = filled<std::string>(256, [&](char* to, size_t room, size_t* n) {
			return kvrun_chat_template_name(engine, out.size(), to, room, n);
		});
		if (name.empty()) return out;
		out.push_back(std::move(name));
	}
}

void choose_template(ChatPrompt& p, kvrun_engine* engine, const std::string& given) {
	p.template_name = given;
	if (given.empty() || std::ranges::count(template_names(engine), given)) return;
	sys::FileInfo info;
	if (given.find_first_of("/.") == std::string::npos && !sys::stat_file(given, /*follow_link=*/true, info)) return;
	p.template_name.clear();
	p.template_text = read_text_file(given, kLongestTemplate);
	if (p.template_text.empty()) fail_status(KVRUN_EFORMAT, "{}: is empty, expected a chat template in Jinja", given);
}

void check_template_file(const std::string& given) {
	sys::FileInfo info;
	if (given.find('/') != std::string::npos && !sys::stat_file(given, /*follow_link=*/true, info)) fail_file(given);
}

kvrun_status chat_features(kvrun_engine* engine, const ChatPrompt& p, kvrun_chat_features& out) {
	const kvrun_chat_options o = p.options();
	return kvrun_chat_get_features(engine, &o, &out);
}

kvrun_status chat_tokens(kvrun_engine* engine, const ChatPrompt& p, std::vector<uint32_t>& out) {
	const kvrun_chat_options o = p.options();
	const kvrun_status s = fill(out, p.messages.size() + p.tools.size() + 4096, [&](auto* to, size_t room, size_t* n) {
		return kvrun_chat_tokens(engine, &o, to, room, n);
	});
	out.shrink_to_fit();
	return s;
}

kvrun_status chat_text(kvrun_engine* engine, const ChatPrompt& p, std::string& out) {
	const kvrun_chat_options o = p.options();
	return fill(out, p.messages.size() + p.tools.size() + 4096,
	            [&](char* to, size_t room, size_t* n) { return kvrun_chat_text(engine, &o, to, room, n); });
}

kvrun_status new_reply(kvrun_engine* engine, const ChatPrompt& p, ReplyHandle& out) {
	const kvrun_chat_options o = p.options();
	return create(out, kvrun_reply_new, engine, &o);
}

} // namespace kvrun
