// The model that is served: tokenization, chat prompts, and its name.
#include "tools/serve/model.h"
#include <algorithm>
#include <fstream>
#include <sstream>

namespace kvrun::serve {
namespace {

constexpr size_t kMaxTemplate = 1 << 20; // bytes of a template file

std::vector<std::string> template_names(kvrun_engine* engine) {
	std::vector<std::string> names;
	for (std::string name(256, '\0');; name.assign(256, '\0')) {
		size_t length = 0;
		check(kvrun_chat_template_name(engine, names.size(), name.data(), name.size(), &length));
		if (length == 0) return names;
		name.resize(length);
		names.push_back(name);
	}
}

} // namespace

Model::Model(EngineHandle engine, std::string id, const std::string& chat_template)
    : residency_(std::move(engine)), facts_(residency_.engine()), id_(std::move(id)) {
	try {
		before_ = tokens("a", KVRUN_TOKENS_NO_BOS);
	} catch (const ApiError&) {} // the vocabulary cannot encode it
	if (before_.size() > 1) before_.erase(before_.begin(), before_.end() - 1);
	if (chat_template.empty()) {
		can_chat_ = info().has_chat_template != 0;
		return;
	}
	const std::vector<std::string> names = template_names(this->engine());
	if (std::ranges::count(names, chat_template)) {
		template_name_ = chat_template;
	} else if (std::ifstream file(chat_template, std::ios::binary); file) {
		std::ostringstream text;
		text << file.rdbuf();
		template_text_ = text.str();
		if (!file || template_text_.empty() || template_text_.size() > kMaxTemplate)
			throw ApiError(400, "--chat-template " + chat_template + " is not a file of 1 byte to 1 MiB");
	} else {
		template_name_ = chat_template; // for the message that lists the names
	}
	features({});
}

Model::Facts::Facts(kvrun_engine* engine) {
	check(kvrun_engine_get_info(engine, &info));
	architecture = info.architecture, name = info.name, backend = info.backend;
	device_name = info.device_name, device_driver = info.device_driver;
}

kvrun_engine_info Model::info() const {
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	if (!residency_.look([&](kvrun_engine* engine) { check(kvrun_engine_get_info(engine, &i)); }))
		i = facts_.info, i.kv_used_bytes = i.activation_bytes = 0;
	i.architecture = facts_.architecture.c_str(), i.name = facts_.name.c_str(), i.backend = facts_.backend.c_str();
	i.device_name = facts_.device_name.c_str(), i.device_driver = facts_.device_driver.c_str();
	return i;
}

std::vector<uint32_t> Model::tokens(const std::string& text, uint32_t flags) const {
	std::vector<uint32_t> out;
	check(fill_vector(out, text.size() + 16, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_tokenize(engine(), text.data(), text.size(), flags, to, room, n);
	}));
	out.shrink_to_fit();
	return out;
}

std::string Model::text(const std::vector<uint32_t>& tokens, uint32_t flags) const {
	std::vector<char> out;
	check(fill_vector(out, tokens.size() * 8 + 16,
	                  [&](char* to, size_t room, size_t* n) {
		                  return kvrun_detokenize(engine(), tokens.data(), tokens.size(), flags, to, room, n);
	                  }),
	      "tokens");
	return {out.begin(), out.end()};
}

// A token's text depends on whether the text begins with it.
std::string Model::token_text(uint32_t token, bool special) const {
	const uint32_t flags = special ? KVRUN_TOKENS_SPECIAL : 0;
	std::vector<uint32_t> both = before_;
	const size_t n = both.empty() ? 0 : text(both, flags).size();
	both.push_back(token);
	const std::string all = text(both, flags);
	return all.substr(std::min(n, all.size()));
}

template <class F> auto Model::with_options(ChatPrompt& p, F f) const {
	if (p.template_name.empty() && p.template_text.empty())
		p.template_name = template_name_, p.template_text = template_text_;
	const auto or_null = [](const std::string& s) { return s.empty() ? nullptr : s.c_str(); };
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	o.messages_json = or_null(p.messages), o.tools_json = or_null(p.tools), o.variables_json = or_null(p.variables);
	o.template_name = or_null(p.template_name), o.template_text = or_null(p.template_text);
	return f(&o);
}

std::vector<uint32_t> Model::chat_tokens(ChatPrompt p) const {
	return with_options(p, [&](const kvrun_chat_options* o) {
		std::vector<uint32_t> out;
		check(fill_vector(
		          out, p.messages.size() + p.tools.size() + 4096,
		          [&](uint32_t* to, size_t room, size_t* n) { return kvrun_chat_tokens(engine(), o, to, room, n); }),
		      "messages");
		out.shrink_to_fit();
		return out;
	});
}

std::string Model::chat_text(ChatPrompt p) const {
	return with_options(p, [&](const kvrun_chat_options* o) {
		std::vector<char> out;
		check(fill_vector(out, p.messages.size() + p.tools.size() + 4096,
		                  [&](char* to, size_t room, size_t* n) { return kvrun_chat_text(engine(), o, to, room, n); }),
		      "messages");
		return std::string(out.begin(), out.end());
	});
}

size_t Model::longest_token() const {
	std::call_once(longest_found_, [this] {
		const uint32_t n = info().vocab;
		for (uint32_t t = 0; t < n; ++t) longest_ = std::max(longest_, token_text(t, /*special=*/true).size());
	});
	return longest_;
}

ReplyHandle Model::new_reply(ChatPrompt p) const {
	return with_options(p, [&](const kvrun_chat_options* o) {
		kvrun_reply* reply = nullptr;
		check(kvrun_reply_new(&reply, engine(), o), "messages");
		return ReplyHandle(reply);
	});
}

kvrun_grammar* Model::new_grammar(kvrun_grammar_options o, const ChatPrompt* prompt, const char* field) const {
	kvrun_grammar* out = nullptr;
	if (!prompt) {
		check(kvrun_grammar_new(&out, engine(), &o), field);
		return out;
	}
	ChatPrompt p = *prompt;
	return with_options(p, [&](const kvrun_chat_options* chat) {
		o.chat = chat;
		check(kvrun_grammar_new(&out, engine(), &o), field);
		return out;
	});
}

kvrun_chat_features Model::features(ChatPrompt p) const {
	return with_options(p, [&](const kvrun_chat_options* o) {
		kvrun_chat_features f = KVRUN_CHAT_FEATURES_INIT;
		check(kvrun_chat_get_features(engine(), o, &f));
		return f;
	});
}

} // namespace kvrun::serve
