// Conversations for tests of chat templates.
#pragma once
#include "models/chat/messages.h"

namespace kvrun {

// A conversation of tests/golden/chat; the time is the one of tools/dev/make_chat_golden.py.
inline ChatInput chat_input(const Json& chat) {
	ChatInput in;
	in.messages = chat.value("messages", Json());
	in.tools = chat.value("tools", Json());
	in.documents = chat.value("documents", Json());
	in.variables = chat.value("variables", Json());
	in.add_generation_prompt = chat.value("add_generation_prompt", false);
	in.bos_token = chat.value("bos_token", "");
	in.eos_token = chat.value("eos_token", "");
	std::tm now{};
	now.tm_year = 2025 - 1900;
	now.tm_mon = 6;
	now.tm_mday = 4;
	now.tm_hour = 15;
	now.tm_min = 6;
	now.tm_sec = 7;
	now.tm_wday = 5;
	now.tm_yday = 184;
	in.now = now;
	return in;
}

} // namespace kvrun
