// Anthropic's Messages API: its requests as conversations, answers as its blocks and events.
#include "tools/serve/messages.h"
#include "tools/serve/answers.h"
#include "tools/serve/conversation.h"
#include "tools/serve/media.h"
#include "tools/serve/parts_answer.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr const char* kText[] = {"text"};

Json block_image(const Json& block, const std::string& where) {
	if (block.value("type", Json()) != Json("image")) return {};
	const Json source = block.value("source", Json());
	if (!source.is_object() || source.value("type", Json()) != Json("base64"))
		throw ApiError(400,
		               where + " has an image whose source is not base64; this server fetches none, send the image",
		               "messages", "unsupported_parameter");
	return image_part("data:" + text_in(source, "media_type", where, "messages") + ";base64," +
	                  text_in(source, "data", where, "messages"));
}

// The text of a document that is given as text, below its title.
std::string document_text(const Json& block, const std::string& where) {
	constexpr const char* field = "messages";
	const Json source = block.value("source", Json());
	const Json type = source.is_object() ? source.value("type", Json()) : Json();
	if (type != Json("text") && type != Json("content"))
		throw ApiError(400, where + " has a document that is not text; this server reads no other documents", field,
		               "unsupported_parameter");
	const Json title = block.value("title", Json());
	const std::string text = type == Json("text") ? text_in(source, "data", where, field)
	                                              : text_of(source.value("content", Json()), where, field, kText);
	return title.is_string() ? title.get<std::string>() + "\n" + text : text;
}

// The text of a tool's result. Its images go to `images`, because templates have results that are texts.
std::string result_text(const Json& content, const std::string& where, Json& images) {
	if (content.is_null()) return {};
	if (!content.is_array()) return text_of(content, where, "messages", kText);
	Json texts = Json::array();
	for (const Json& block : content) {
		const Json type = block.is_object() ? block.value("type", Json()) : Json();
		if (type == Json("image"))
			images.push_back(block);
		else if (type == Json("document"))
			texts.push_back({{"type", "text"}, {"text", document_text(block, where)}});
		else if (type == Json("tool_reference"))
			texts.push_back({{"type", "text"}, {"text", text_in(block, "tool_name", where, "messages")}});
		else
			texts.push_back(block);
	}
	return text_of(texts, where, "messages", kText);
}

// What the user says goes to `said`, an array of blocks, and those of results to `images`.
void read_user_block(const Json& block, const std::string& type, const std::string& where, Conversation& c, Json& said,
                     Json& images) {
	constexpr const char* field = "messages";
	if (type == "text" || type == "image") {
		said.push_back(block);
		return;
	}
	if (type == "document") {
		said.push_back({{"type", "text"}, {"text", document_text(block, where)}});
		return;
	}
	if (type != "tool_result")
		throw ApiError(400,
		               where + " is a block of type '" + type.substr(0, 40) +
		                   "'; this server takes text, image, document and tool_result",
		               field, "unsupported_parameter");
	if (!said.empty()) c.say("user", content_of(std::exchange(said, Json::array()), where, field, kText, block_image));
	const auto content = block.find("content");
	std::string result = content == block.end() ? "" : result_text(*content, where + ".content", images);
	if (block.value("is_error", Json()) == Json(true)) result = "Error: " + result;
	c.result(text_in(block, "tool_use_id", where, field), std::move(result));
}

// A block of a tool that another server ran.
bool is_other_block(std::string_view type) {
	constexpr const char* others[] = {"server_tool_use", "mcp_tool_use", "container_upload"};
	return type.ends_with("_tool_result") || std::ranges::count(others, type) > 0;
}

void read_assistant_block(const Json& block, const std::string& type, const std::string& where, Conversation& c,
                          const Rules& rules) {
	constexpr const char* field = "messages";
	if (type == "text") return c.answer(text_in(block, "text", where, field));
	if (type == "thinking") return c.think(text_in(block, "thinking", where, field));
	if (type == "redacted_thinking") return; // encrypted by another server, which alone can read it
	if (is_other_block(type) && !rules.strict)
		return rules.ignored("blocks of type " + shown(type) + " are left out: this server has functions alone");
	if (type != "tool_use")
		throw ApiError(400,
		               where + " is a block of type '" + type.substr(0, 40) +
		                   "'; this server takes text, thinking and tool_use",
		               field, "unsupported_parameter");
	const auto input = block.find("input");
	if (input == block.end() || !input->is_object()) throw ApiError(400, where + ".input is not an object", field);
	c.call(text_in(block, "id", where, field), text_in(block, "name", where, field), dump(*input));
}

void read_message(const Json& m, const std::string& where, Conversation& c, const Rules& rules) {
	constexpr const char* field = "messages";
	if (!m.is_object()) throw ApiError(400, where + " is not an object", field);
	const std::string& role = text_in(m, "role", where, field);
	const bool user = role == "user";
	if (!user && role != "assistant" && role != "system")
		throw ApiError(400, where + ".role is '" + role.substr(0, 40) + "', expected user, assistant or system", field);
	const auto content = m.find("content");
	if (content == m.end() || !(content->is_string() || content->is_array()))
		throw ApiError(400, where + ".content is not a text or an array of blocks", field);
	if (role == "system") return c.say("system", text_of(*content, where + ".content", field, kText));
	if (content->is_string()) {
		const std::string& text = content->get_ref<const std::string&>();
		return user ? c.say("user", text) : c.answer(text);
	}
	Json said = Json::array(), images = Json::array();
	for (size_t i = 0; i < content->size(); ++i) {
		const Json& block = (*content)[i];
		const std::string at = where + ".content[" + std::to_string(i) + "]";
		if (!block.is_object()) throw ApiError(400, at + " is not an object", field);
		const std::string& type = text_in(block, "type", at, field);
		if (user)
			read_user_block(block, type, at, c, said, images);
		else
			read_assistant_block(block, type, at, c, rules);
	}
	images.insert(images.end(), said.begin(), said.end());
	if (!images.empty()) c.say("user", content_of(images, where + ".content", field, kText, block_image));
}

// Claude Code begins its system prompt with a line of its own, in which "cch=...;" is another in each request. It is no
// part of what the model is told, and behind it no cached prompt could be used again.
std::string without_stamp(std::string system) {
	constexpr std::string_view kLine = "x-anthropic-billing-header:", kStamp = "cch=";
	constexpr size_t kLongest = 16;
	if (!system.starts_with(kLine)) return system;
	const size_t line = std::min(system.find('\n'), system.size()), from = system.find(kStamp),
	             to = system.find(';', from);
	if (from < line && to < line && to - from <= kLongest) system.erase(from, to + 1 - from);
	return system;
}

Json read_messages(const Json& system, const Json& messages, const Rules& rules) {
	Conversation c;
	if (!system.is_null()) c.say("system", without_stamp(text_of(system, "system", "system", kText)));
	if (!messages.is_array() || messages.empty())
		throw ApiError(400, "messages is not an array of at least one message", "messages");
	for (size_t i = 0; i < messages.size(); ++i)
		read_message(messages[i], "messages[" + std::to_string(i) + "]", c, rules);
	return c.take();
}

// Converts tools to the form of OpenAI's chats. Those that Anthropic's servers run are left out.
Json messages_tools(const Json& tools, const Rules& rules) {
	return chat_tools(tools, [&rules](const Json& t) -> Json {
		const Json type = t.value("type", Json());
		if (!type.is_null() && type != Json("custom")) return no_function(type, rules);
		Json f{{"name", text_in(t, "name", "an entry of tools", "tools")}};
		if (const auto d = t.find("description"); d != t.end()) f["description"] = *d;
		if (const auto s = t.find("input_schema"); s != t.end()) f["parameters"] = *s;
		if (const auto s = t.find("strict"); s != t.end()) f["strict"] = *s;
		return f;
	});
}

void read_tool_choice(const Json& choice, Json& body, const Rules& rules) {
	if (choice.is_null()) return;
	if (!choice.is_object()) throw ApiError(400, "tool_choice is not an object", "tool_choice");
	const Fields f(choice, "tool_choice.");
	const std::string type = f.text("type").value_or("");
	const std::optional<std::string> name = f.text("name");
	if (f.flag("disable_parallel_tool_use", false)) body["parallel_tool_calls"] = false;
	f.check_unknown({}, rules);
	if (type == "auto" || type == "none")
		body["tool_choice"] = type;
	else if (type == "any")
		body["tool_choice"] = "required";
	else if (type == "tool" && name)
		body["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
	else
		throw ApiError(400, "tool_choice is not {\"type\": \"auto\"}, any, none, or tool with a name", "tool_choice");
}

// budget_tokens is accepted but not enforced as a limit.
void read_thinking(const Json& thinking, Json& body, const Rules& rules) {
	if (thinking.is_null()) return;
	if (!thinking.is_object()) throw ApiError(400, "thinking is not an object", "thinking");
	const Fields f(thinking, "thinking.");
	const std::string type = f.text("type").value_or("");
	f.integer("budget_tokens", 1, UINT32_MAX);
	constexpr const char* shown[] = {"display"};
	f.check_unknown(shown, rules);
	if (type != "enabled" && type != "disabled" && type != "adaptive")
		throw ApiError(400, "thinking.type is '" + type.substr(0, 40) + "', expected enabled, disabled or adaptive",
		               "thinking");
	if (type == "adaptive") return; // the model decides
	Json& variables = body["chat_template_kwargs"];
	if (variables.is_null()) variables = Json::object();
	if (variables.is_object()) variables["enable_thinking"] = type == "enabled"; // a non-object is refused later
}

void read_output(const Json& output, Json& body, const Rules& rules) {
	if (output.is_null()) return;
	if (!output.is_object()) throw ApiError(400, "output_config is not an object", "output_config");
	const Fields f(output, "output_config.");
	if (const Json* effort = f.find("effort")) body["reasoning_effort"] = *effort;
	if (const Json* format = f.find("format")) {
		if (!format->is_object() || format->value("type", Json()) != Json("json_schema"))
			throw ApiError(400,
			               "output_config.format is " + shown(*format) + ", expected type json_schema and a schema",
			               "output_config.format");
		body["json_schema"] = format->value("schema", Json());
	}
	f.check_unknown({}, rules);
}

constexpr Renamed kMessagesNames[] = {{"stop", "stop_sequences"},
                                      {"json_schema", "output_config.format"},
                                      {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"}};

} // namespace

MessagesRequest messages_request(Json body, const Defaults& d, bool counting) {
	constexpr const char* others[] = {"max_completion_tokens",
	                                  "stop",
	                                  "response_format",
	                                  "n",
	                                  "functions",
	                                  "function_call",
	                                  "reasoning_format",
	                                  "parallel_tool_calls",
	                                  "logprobs",
	                                  "top_logprobs",
	                                  "stream_options"};
	drop_fields(body, others, d);
	const Json system = take_field(body, "system"), stops = take_field(body, "stop_sequences");
	const Json tools = take_field(body, "tools"), choice = take_field(body, "tool_choice");
	take_field(body, "cache_control"); // ignored: cached prefixes are always reused
	read_thinking(take_field(body, "thinking"), body, d);
	read_output(take_field(body, "output_config"), body, d);
	const Json messages = take_field(body, "messages");
	body["messages"] = read_messages(system, messages, d);
	if (!stops.is_null() && !stops.is_array()) throw ApiError(400, "stop_sequences is not an array", "stop_sequences");
	if (!stops.is_null()) body["stop"] = stops;
	if (!tools.is_null()) body["tools"] = messages_tools(tools, d);
	read_tool_choice(choice, body, d);
	if (!counting && !Fields(body).find("max_tokens"))
		throw ApiError(400, "max_tokens is missing, expected an integer", "max_tokens");
	MessagesRequest r;
	try {
		r.chat = chat_request(body, d);
	} catch (const ApiError& e) { throw renamed(e, kMessagesNames); }
	r.stops = r.chat.sampling.stops;
	return r;
}

static Json messages_error_json(const ApiError& e) {
	Json j{{"type", "error"}};
	j.update(error_json(e));
	std::string& type = j["error"]["type"].get_ref<std::string&>();
	if (e.status == 413) type = "request_too_large";
	if (e.status == 503) type = "overloaded_error";
	if (type == "server_error") type = "api_error";
	return j;
}

Response messages_error(const ApiError& e) {
	Response r = error_response(e);
	r.body = dump(messages_error_json(e));
	return r;
}

// ---- answers

namespace {

Json text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
Json thinking_block(const std::string& text) { return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}}; }

class MessagesAnswer final : public PartsAnswer {
 public:
	MessagesAnswer(std::shared_ptr<Responder> out, const MessagesRequest& r, const std::string& model,
	               ReplyHandle reply, uint32_t prompt_tokens)
	    : PartsAnswer(std::move(out), r.chat, std::move(reply), "toolu_"), id_(new_id("msg_")), model_(model),
	      stops_(r.stops), prompt_tokens_(prompt_tokens) {}

 private:
	void start() override {
		event("message_start", {{"message", message()}});
		event("ping", Json::object());
	}
	void open(Part what) override { begin_block(block(what, "")); }
	void add(Part what, const std::string& text) override {
		if (what == Part::Text)
			change_block({{"type", "text_delta"}, {"text", text}});
		else
			change_block({{"type", "thinking_delta"}, {"thinking", text}});
	}
	void close(Part what, const std::string& text) override { end_block(block(what, text)); }
	void open_call(const Json& call) override { begin_block(call_block(call)); }
	void add_call(const std::string& arguments) override {
		change_block({{"type", "input_json_delta"}, {"partial_json", arguments}});
	}
	void close_call(const Json& call) override {
		Json block = call_block(call), input = json_or_null(call["function"]["arguments"]);
		if (input.is_object()) block["input"] = std::move(input);
		end_block(std::move(block));
	}
	void finish(const Ended&) override;
	void break_off(const ApiError& e) override { out_.event("error", messages_error_json(e)); }
	Response refusal(const ApiError& e) override { return messages_error(e); }

	static Json call_block(const Json& call) {
		return {
		    {"type", "tool_use"}, {"id", call["id"]}, {"name", call["function"]["name"]}, {"input", Json::object()}};
	}
	static Json block(Part what, const std::string& text) {
		return what == Part::Text ? text_block(text) : thinking_block(text);
	}
	void begin_block(Json block) {
		event("content_block_start", {{"index", blocks_.size()}, {"content_block", std::move(block)}});
	}
	void change_block(Json delta) {
		event("content_block_delta", {{"index", blocks_.size()}, {"delta", std::move(delta)}});
	}
	void end_block(Json block) {
		event("content_block_stop", {{"index", blocks_.size()}});
		blocks_.push_back(std::move(block));
	}
	Json message() const;

	const std::string id_, model_;
	const std::vector<std::string> stops_;
	const uint32_t prompt_tokens_;
	Json blocks_ = Json::array();
};

Json usage_json(uint32_t read, uint32_t cached, uint32_t answer) {
	return {{"input_tokens", read},
	        {"cache_creation_input_tokens", 0},
	        {"cache_read_input_tokens", cached},
	        {"output_tokens", answer}};
}

Json MessagesAnswer::message() const {
	return {{"id", id_},
	        {"type", "message"},
	        {"role", "assistant"},
	        {"model", model_},
	        {"content", Json::array()},
	        {"stop_reason", nullptr},
	        {"stop_sequence", nullptr},
	        {"usage", usage_json(prompt_tokens_, 0, 0)}};
}

void MessagesAnswer::finish(const Ended& e) {
	Json reason = "end_turn", stop;
	if (was_cut(e.result.reason))
		reason = "max_tokens"; // also if it cut off a tool call
	else if (calls())
		reason = "tool_use";
	else if (e.result.reason == KVRUN_STOP_STRING && e.result.stop < stops_.size())
		reason = "stop_sequence", stop = stops_[e.result.stop];
	const Json usage = usage_json(e.result.prompt_tokens, e.reused, e.result.answer_tokens);
	if (!stream_) {
		Json j = message();
		j["content"] = blocks_, j["stop_reason"] = reason, j["stop_sequence"] = stop, j["usage"] = usage;
		j["kv"] = kv_json(e);
		return out_.out().respond({200, dump(j)});
	}
	event("message_delta",
	      {{"delta", {{"stop_reason", reason}, {"stop_sequence", stop}}}, {"usage", usage}, {"kv", kv_json(e)}});
	event("message_stop", Json::object());
	out_.end();
}

} // namespace

std::shared_ptr<Listener> messages_answer(std::shared_ptr<Responder> out, const MessagesRequest& r,
                                          const std::string& model, ReplyHandle reply, uint32_t prompt_tokens) {
	return std::make_shared<MessagesAnswer>(std::move(out), r, model, std::move(reply), prompt_tokens);
}

} // namespace kvrun::serve
