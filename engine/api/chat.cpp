// Conversations in the C API: rendering and encoding of chat templates, and parsing of answers.
#include "engine/api/chat.h"
#include "engine/api/images.h"
#include "engine/core/json_reader.h"
#include "models/chat/builtin.h"
#include "models/chat/encode.h"
#include "models/chat/fit.h"
#include "models/chat/reply.h"
#include "models/grammar/token_trie.h"
#include <array>
#include <random>

namespace kvrun::api {

struct ReplyObject {
	explicit ReplyObject(ReplyParser::Options o) : parser(std::move(o)) {}
	ReplyParser parser;
	ReplyParser::Part part;    // the latest part
	std::string calls, deltas; // those of `part`, as JSON
	std::mutex mutex;
};

namespace {

Handles<kvrun_reply, ReplyObject, 5>& replies() {
	static Handles<kvrun_reply, ReplyObject, 5> all("kvrun_reply");
	return all;
}

constexpr int kContinue = 2; // kvrun_chat_options::no_answer

// Nobody can write it into a message: it has a number of this process.
const std::string& end_mark() {
	static const std::string text = fmt::format("[end {:08x}{:08x}]", std::random_device()(), std::random_device()());
	return text;
}

kvrun_chat_options read_chat_options(const kvrun_chat_options* given) {
	constexpr kvrun_chat_options defaults = KVRUN_CHAT_OPTIONS_INIT;
	return read_options(given, defaults, "kvrun_chat_options");
}

ChatTemplate template_of(const Engine& engine, const kvrun_chat_options& o) {
	if (o.template_text) return ChatTemplate(o.template_text);
	return choose_chat_template(engine.file(), text_or_empty(o.template_name), o.tools_json != nullptr);
}

// The prompt ends with the text of the last message: the template renders that text with a mark behind it, and what
// follows from the mark on is cut off. White space at the text's end stays, which templates strip at the end of a
// message.
Rendered cut_at_mark(Rendered r, const std::string& mark) {
	while (!r.segments.empty()) {
		std::string& text = r.segments.back().text;
		const size_t at = text.rfind(mark);
		if (at == text.npos) {
			r.segments.pop_back();
			continue;
		}
		text.erase(at);
		return r;
	}
	refuse(KVRUN_EUNSUPPORTED, "the chat template does not show the last message as it is; it cannot be continued");
}

void mark_last_answer(Json& messages, const std::string& mark) {
	Json& last = messages.back();
	Json* content = last.is_object() && last.value("role", Json()) == Json("assistant") ? &last["content"] : nullptr;
	if (content && content->is_array() && !content->empty() && content->back().is_object())
		content = &content->back()["text"];
	if (!content || !(content->is_string() || content->is_null()))
		refuse(KVRUN_EINVALID, "the last message is not a text of the assistant; it cannot be continued");
	*content = (content->is_null() ? "" : content->get<std::string>()) + mark;
}

Rendered render_chat(const Engine& engine, const kvrun_chat_options& o, const ChatTemplate& t) {
	if ((o.messages != nullptr) == (o.messages_json != nullptr))
		refuse(KVRUN_EINVALID, "give one of messages and messages_json");
	ChatInput in;
	in.messages = parse_json(o.messages_json, "messages_json");
	for (size_t i = 0; i < o.n_messages && o.messages; ++i) {
		check_pointer(o.messages[i].role, "role");
		check_pointer(o.messages[i].content, "content");
		in.messages.push_back({{"role", o.messages[i].role}, {"content", o.messages[i].content}});
	}
	if (!in.messages.is_array() || in.messages.empty()) refuse(KVRUN_EINVALID, "there are no messages");
	in.tools = parse_json(o.tools_json, "tools_json");
	in.variables = parse_json(o.variables_json, "variables_json");
	in.add_generation_prompt = !o.no_answer;
	mark_images(in.messages);
	set_token_texts(in, engine.tokenizer());
	const bool goes_on = o.no_answer == kContinue;
	if (goes_on) mark_last_answer(in.messages, end_mark());
	fit_input(chat_features(t), in);
	return goes_on ? cut_at_mark(t.render(in), end_mark()) : t.render(in);
}
Rendered render_chat(const Engine& engine, const kvrun_chat_options* given) {
	const kvrun_chat_options o = read_chat_options(given);
	return render_chat(engine, o, template_of(engine, o));
}

bool marks_calls_by_tokens(const ChatFeatures& f) {
	constexpr ToolFormat kPlain[] = {ToolFormat::None, ToolFormat::Hermes, ToolFormat::Llama3, ToolFormat::QwenXml,
	                                 ToolFormat::Glm};
	return !std::ranges::count(kPlain, f.tool_format);
}

// Whether control tokens mark parts of every answer.
bool has_token_marks(const ChatFeatures& f, const Tokenizer& t) {
	if (f.tool_format == ToolFormat::Harmony) return true;
	return std::ranges::any_of(std::array{&f.think_begin, &f.think_end, &f.content_begin, &f.content_end},
	                           [&](const std::string* s) { return grammar::marker_bytes(t, *s) != *s; });
}

// Harmony is always parsed, because each of its answers has channels.
ToolFormat reply_format(const ChatFeatures& f, bool tools) {
	return tools || f.tool_format == ToolFormat::Harmony ? f.tool_format : ToolFormat::None;
}

void show_part(ReplyObject& r, ReplyParser::Part part, kvrun_reply_part* out) {
	r.part = std::move(part);
	for (std::string* text : {&r.part.content, &r.part.reasoning})
		std::erase(*text, '\0'); // for the caller a zero byte would end the text
	Json calls = Json::array();
	for (const ToolCall& c : r.part.calls) calls.push_back(c.json());
	Json deltas = Json::array();
	for (const ReplyParser::CallDelta& d : r.part.deltas) deltas.push_back(d.json());
	r.calls = calls.dump(-1, ' ', false, Json::error_handler_t::replace);
	r.deltas = deltas.dump(-1, ' ', false, Json::error_handler_t::replace);
	kvrun_reply_part p = KVRUN_REPLY_PART_INIT;
	p.content = r.part.content.c_str();
	p.reasoning = r.part.reasoning.c_str();
	p.calls = r.calls.c_str();
	p.call_deltas = r.deltas.c_str();
	p.unfinished = std::min(r.part.unfinished, r.part.content.size());
	write_result(out, p, "kvrun_reply_part", offsetof(kvrun_reply_part, unfinished));
}

} // namespace

Json parse_json(const char* text, const char* name) {
	if (!text) return nullptr;
	Json value;
	std::string why;
	if (!read_json(text, {}, value, why)) refuse(KVRUN_EINVALID, "{} {}", name, why);
	return value;
}

ChatFacts chat_facts(const Engine& engine, const kvrun_chat_options* given) {
	const kvrun_chat_options o = read_chat_options(given);
	const ChatTemplate t = template_of(engine, o);
	ChatFacts f;
	f.features = chat_features(t);
	f.tools = parse_json(o.tools_json, "tools_json");
	const Rendered prompt = render_chat(engine, o, t);
	f.in_reasoning = opens_reasoning(f.features, prompt);
	f.may_reason = !o.no_answer && may_reason(f.features, prompt, parse_json(o.variables_json, "variables_json"));
	// the answer goes on in a message whose channel is known: it does not begin with one
	if (o.no_answer == kContinue && f.features.tool_format == ToolFormat::Harmony)
		f.features.tool_format = ToolFormat::None;
	return f;
}

} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_chat_tokens(kvrun_engine* engine, const kvrun_chat_options* options, uint32_t* out, size_t capacity,
                               size_t* out_count) {
	return guard([&] {
		const auto e = engines().get(engine);
		const std::vector<uint32_t> tokens =
		    encode_chat(e->engine->tokenizer(), render_chat(*e->engine, options),
		                [&, n = 0u](uint64_t id) mutable { return images_of(*e).tokens(id, n++); });
		fill_buffer(tokens.data(), tokens.size(), out, capacity, out_count, "tokens");
	});
}

kvrun_status kvrun_chat_text(kvrun_engine* engine, const kvrun_chat_options* options, char* out, size_t capacity,
                             size_t* out_length) {
	return guard([&] {
		const auto e = engines().get(engine);
		std::string text;
		for (const ChatPiece& piece : split_at_images(render_chat(*e->engine, options)))
			text += piece.text.text() + (!piece.image ? "" : piece.audio ? "[audio]" : "[image]");
		fill_text(text, out, capacity, out_length);
	});
}

kvrun_status kvrun_chat_template_name(kvrun_engine* engine, size_t index, char* out, size_t capacity,
                                      size_t* out_length) {
	return guard([&] {
		const auto e = engines().get(engine);
		std::vector<std::string> names = model_chat_templates(e->engine->file());
		for (const std::string_view name : builtin_chat_templates()) names.emplace_back(name);
		fill_text(index < names.size() ? names[index] : "", out, capacity, out_length);
	});
}

kvrun_status kvrun_chat_get_features(kvrun_engine* engine, const kvrun_chat_options* options,
                                     kvrun_chat_features* out) {
	return guard([&] {
		const auto e = engines().get(engine);
		const ChatFeatures f = chat_features(template_of(*e->engine, read_chat_options(options)));
		kvrun_chat_features c = KVRUN_CHAT_FEATURES_INIT;
		c.system_role = f.system_role;
		c.tools = f.tools ? 1 : f.written_tools ? 2 : 0;
		c.thinking_switch = f.thinking_switch;
		c.special_markers = has_token_marks(f, e->engine->tokenizer()) ? 2 : marks_calls_by_tokens(f);
		c.reasoning = !f.think_begin.empty();
		write_result(out, c, "kvrun_chat_features");
	});
}

// ---- answers

kvrun_status kvrun_reply_new(kvrun_reply** out, kvrun_engine* engine, const kvrun_chat_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		const auto e = engines().get(engine);
		const ChatFacts c = chat_facts(*e->engine, options);
		ReplyParser::Options p;
		p.tools = reply_format(c.features, c.tools.is_array());
		p.tool_begin = c.features.tool_begin, p.tool_end = c.features.tool_end;
		p.tool_variant = c.features.tool_variant;
		p.shape = c.features.shape;
		p.content_begin = c.features.content_begin, p.content_end = c.features.content_end;
		p.definitions = c.tools;
		p.think_begin = c.features.think_begin, p.think_end = c.features.think_end;
		p.in_reasoning = c.in_reasoning;
		*out = replies().add(std::make_shared<ReplyObject>(std::move(p)));
	});
}

kvrun_status kvrun_reply_push(kvrun_reply* reply, const char* text, size_t length, kvrun_reply_part* out) {
	return guard([&] {
		if (length) check_pointer(text, "text");
		const auto r = replies().get(reply);
		std::lock_guard lock(r->mutex);
		show_part(*r, r->parser.push({text ? text : "", length}), out);
	});
}

kvrun_status kvrun_reply_finish(kvrun_reply* reply, kvrun_reply_part* out) {
	return guard([&] {
		const auto r = replies().get(reply);
		std::lock_guard lock(r->mutex);
		show_part(*r, r->parser.finish(), out);
	});
}

void kvrun_reply_free(kvrun_reply* reply) {
	quietly([&] { replies().take(reply); });
}
