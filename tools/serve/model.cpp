// The model that is served: tokenization, chat prompts, and its name.
#include "tools/serve/model.h"
#include "tools/serve/media.h"
#include <algorithm>
#include <charconv>

namespace kvrun::serve {
Model::Model(EngineHandle engine, std::string id, const std::string& chat_template)
    : residency_(std::move(engine)), facts_(residency_.engine()), id_(std::move(id)) {
	try {
		before_ = tokens("a", KVRUN_TOKENS_NO_BOS);
	} catch (const ApiError&) {} // the vocabulary cannot encode it
	if (before_.size() > 1) before_.erase(before_.begin(), before_.end() - 1);
	choose_template(chat_, this->engine(), chat_template);
	if (chat_template.empty())
		can_chat_ = info().has_chat_template != 0;
	else
		features({});
}

Model::Facts::Facts(kvrun_engine* engine) : info(engine_info(engine)) {
	architecture = info.architecture, name = info.name, backend = info.backend;
	device_name = info.device_name, device_driver = info.device_driver;
}

kvrun_engine_info Model::info() const {
	kvrun_engine_info i;
	if (!residency_.look([&](kvrun_engine* engine) { i = engine_info(engine); }))
		i = facts_.info, i.kv_used_bytes = i.activation_bytes = 0;
	i.architecture = facts_.architecture.c_str(), i.name = facts_.name.c_str(), i.backend = facts_.backend.c_str();
	i.device_name = facts_.device_name.c_str(), i.device_driver = facts_.device_driver.c_str();
	return i;
}

std::vector<uint32_t> Model::tokens(const std::string& text, uint32_t flags) const {
	std::vector<uint32_t> out;
	check(fill(out, text.size() + 16, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_tokenize(engine(), text.data(), text.size(), flags, to, room, n);
	}));
	out.shrink_to_fit();
	return out;
}

std::string Model::text(const std::vector<uint32_t>& tokens, uint32_t flags) const {
	std::string out;
	check(fill(out, tokens.size() * 8 + 16,
	           [&](char* to, size_t room, size_t* n) {
		           return kvrun_detokenize(engine(), tokens.data(), tokens.size(), flags, to, room, n);
	           }),
	      "tokens");
	return out;
}

// A token's text depends on whether the text begins with it.
std::string Model::token_text(uint32_t token, bool special) const { return token_text(before_, token, special); }

std::string Model::token_text(std::vector<uint32_t> before, uint32_t token, bool special) const {
	const uint32_t flags = special ? KVRUN_TOKENS_SPECIAL : 0;
	const size_t n = before.empty() ? 0 : text(before, flags).size();
	before.push_back(token);
	const std::string all = text(before, flags);
	return all.substr(std::min(n, all.size()));
}

std::string Model::metadata(const char* key) const {
	kvrun_engine* e = engine();
	for (size_t i = 0, n = kvrun_metadata_count(e); i < n; ++i) {
		const char *name = nullptr, *value = nullptr;
		check(kvrun_metadata_get(e, i, &name, &value));
		if (std::string_view(name) == key) return value;
	}
	return "";
}

std::optional<uint32_t> Model::marker_id(const char* key) const {
	const std::string value = metadata(key);
	uint32_t id = 0;
	const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), id);
	if (bad != std::errc() || end != value.data() + value.size() || id >= info().vocab) return {};
	return id;
}

std::string Model::marker(const char* key) const {
	const std::optional<uint32_t> id = marker_id(key);
	return id ? token_text(*id, /*special=*/true) : "";
}

std::string Model::template_text() const {
	if (!chat_.template_text.empty()) return chat_.template_text;
	const std::string own = metadata("tokenizer.chat_template");
	return chat_.template_name.empty() ? own : chat_.template_name;
}

ChatPrompt Model::with_template(ChatPrompt p) const {
	if (p.template_name.empty() && p.template_text.empty())
		p.template_name = chat_.template_name, p.template_text = chat_.template_text;
	return p;
}

std::string Model::add_sound(std::string_view file, const char* field) const {
	return take_sound(engine(), file, field);
}
size_t Model::sound_tokens(const std::string& id) const {
	size_t n = 0;
	const kvrun_status s = kvrun_image_tokens(engine(), std::stoull(id, nullptr, 16), nullptr, 0, &n);
	if (s != KVRUN_EBUFFER) check(s);
	return n;
}

void Model::take_media(ChatPrompt& p) const { p.messages = serve::take_media(engine(), std::move(p.messages)); }

std::vector<uint32_t> Model::chat_tokens(ChatPrompt p) const {
	std::vector<uint32_t> out;
	check(kvrun::chat_tokens(engine(), with_template(std::move(p)), out), "messages");
	return out;
}

std::string Model::chat_text(ChatPrompt p) const {
	std::string out;
	check(kvrun::chat_text(engine(), with_template(std::move(p)), out), "messages");
	return out;
}

size_t Model::longest_token() const {
	std::call_once(longest_found_, [this] {
		const uint32_t n = info().vocab;
		for (uint32_t t = 0; t < n; ++t) longest_ = std::max(longest_, token_text(t, /*special=*/true).size());
	});
	return longest_;
}

ReplyHandle Model::new_reply(ChatPrompt p) const {
	ReplyHandle out;
	check(kvrun::new_reply(engine(), with_template(std::move(p)), out), "messages");
	return out;
}

GrammarHandle Model::new_grammar(kvrun_grammar_options o, const ChatPrompt* prompt, const char* field) const {
	const ChatPrompt p = prompt ? with_template(*prompt) : ChatPrompt();
	const kvrun_chat_options chat = p.options();
	if (prompt) o.chat = &chat;
	GrammarHandle out;
	check(create(out, kvrun_grammar_new, engine(), &o), field);
	return out;
}

kvrun_chat_features Model::features(ChatPrompt p) const {
	kvrun_chat_features out = KVRUN_CHAT_FEATURES_INIT;
	check(chat_features(engine(), with_template(std::move(p)), out));
	return out;
}

} // namespace kvrun::serve
