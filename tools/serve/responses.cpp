// OpenAI's Responses API: converts its requests to conversations, and answers to its items and events.
#include "tools/serve/responses.h"
#include "tools/serve/answers.h"
#include "tools/serve/conversation.h"
#include "tools/serve/media.h"
#include "tools/serve/parts_answer.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr const char* kTextParts[] = {"input_text", "output_text", "text", "refusal"};
constexpr const char* kThoughts[] = {"reasoning_text", "summary_text", "text"};

// Or a sound, whose form is that of chats.
Json item_image(const Json& part, const std::string& where) {
	if (part.value("type", Json()) == Json("input_audio") && is_media_part(part, where, "input")) return part;
	if (part.value("type", Json()) != Json("input_image")) return {};
	return image_part(text_in(part, "image_url", where, "input"));
}

// An item of a tool that another server ran, or that this server has not.
bool is_other_item(std::string_view type) {
	constexpr const char* others[] = {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction",
	                                  "compaction_trigger"};
	return type.ends_with("_call") || type.ends_with("_call_output") || std::ranges::count(others, type) > 0;
}

// The output of a call. Its images go to `images`, because templates have results that are texts.
void read_output(const Json& item, const std::string& where, Conversation& c, Json& images) {
	constexpr const char* input = "input";
	const std::string at = where + ".output";
	const Json output = item.contains("output") ? item["output"] : Json();
	Json texts = output.is_array() ? Json::array() : output;
	if (output.is_array())
		for (const Json& part : output)
			(part.is_object() && !item_image(part, at).is_null() ? images : texts).push_back(part);
	c.result(text_in(item, "call_id", where, input), text_of(texts, at, input, kTextParts));
}

// images: of the outputs of calls that come one behind the other, for the user's message behind them.
void read_item(const Json& item, const std::string& where, Conversation& c, Json& images, const Rules& rules) {
	constexpr const char* input = "input";
	if (!item.is_object()) throw ApiError(400, where + " is not an object", input);
	const std::string type = item.contains("type") ? text_in(item, "type", where, input) : "message";
	if (type == "message") {
		const std::string& role = text_in(item, "role", where, input);
		const Json content = item.contains("content") ? item["content"] : Json();
		if (role == "user")
			return c.say("user", content_of(content, where + ".content", input, kTextParts, item_image));
		const std::string text = text_of(content, where + ".content", input, kTextParts);
		if (role == "assistant") return c.answer(text);
		if (role == "system" || role == "developer") return c.say("system", text);
		throw ApiError(
		    400, where + ".role is '" + role.substr(0, 40) + "', expected user, assistant, system or developer", input);
	}
	if (type == "function_call")
		return c.call(text_in(item, "call_id", where, input), text_in(item, "name", where, input),
		              text_in(item, "arguments", where, input));
	if (type == "custom_tool_call") // its input is a text, not JSON
		return c.call(text_in(item, "call_id", where, input), text_in(item, "name", where, input),
		              dump({{"input", text_in(item, "input", where, input)}}));
	if (type == "function_call_output" || type == "custom_tool_call_output") return read_output(item, where, c, images);
	if (type == "reasoning") { // of an earlier answer; encrypted content comes from another server
		for (const char* name : {"content", "summary"}) {
			const auto text = item.find(name);
			if (text == item.end() || text->empty()) continue;
			return c.think(text_of(*text, where + "." + name, input, kThoughts));
		}
		return;
	}
	if (type == "item_reference")
		throw ApiError(
		    400, where + " refers to an item of an earlier response; this server keeps none, send the item itself",
		    input, "unsupported_parameter");
	if (is_other_item(type) && !rules.strict)
		return rules.ignored("items of type " + shown(type) +
		                     " are left out of the input: this server has functions alone");
	throw ApiError(400, where + " is of type '" + type.substr(0, 40) + "', which is not supported", input,
	               "unsupported_parameter");
}

// Whether images of outputs before the item stay behind the next output: it is one too, or adds no message.
bool keeps_images(const Json& item) {
	const Json type = item.is_object() ? item.value("type", Json()) : Json();
	return type.is_string() && type != "function_call" && type != "custom_tool_call" &&
	       is_other_item(type.get_ref<const std::string&>()); // an output too
}

void read_items(const Json& items, Conversation& c, const Rules& rules) {
	Json images = Json::array();
	const auto show = [&] {
		if (!images.empty()) c.say("user", content_of(images, "input", "input", kTextParts, item_image));
		images = Json::array();
	};
	for (size_t i = 0; i < items.size(); ++i) {
		if (!keeps_images(items[i])) show();
		read_item(items[i], "input[" + std::to_string(i) + "]", c, images, rules);
	}
	show();
}

Json read_input(const Json& instructions, const Json& input, const Rules& rules) {
	Conversation c;
	if (instructions.is_string())
		c.say("system", instructions.get<std::string>());
	else if (!instructions.is_null())
		throw ApiError(400, "instructions is not a text", "instructions");
	if (const std::string* text = input.get_ptr<const std::string*>())
		c.say("user", *text);
	else if (!input.is_array() || input.empty())
		throw ApiError(400, "input is not a text or an array of at least one item", "input");
	else
		read_items(input, c, rules);
	if (c.empty()) throw ApiError(400, "input says nothing", "input");
	return c.take();
}

// Converts tools to the form of OpenAI's chats.
Json responses_tools(const Json& tools, const Rules& rules) {
	return chat_tools(tools, [&rules](const Json& t) -> Json {
		const std::string type = text_in(t, "type", "an entry of tools", "tools");
		if (type != "function") return no_function(type, rules);
		Json function = t;
		function.erase("type");
		return function;
	});
}

Json read_tool_choice(Json choice) {
	if (!choice.is_object()) return choice;
	if (choice.value("type", Json()) == Json("allowed_tools"))
		return {{"type", "allowed_tools"}, {"allowed_tools", choice}};
	if (choice.value("type", Json()) != Json("function")) return choice;
	return {{"type", "function"}, {"function", {{"name", choice.value("name", Json())}}}};
}

// Returns response_format in the form of chats, or null.
Json read_text(const Json& text, const Rules& rules) {
	if (text.is_null()) return {};
	if (!text.is_object()) throw ApiError(400, "text is not an object", "text");
	const Fields f(text, "text.");
	Json format = f.find("format") ? *f.find("format") : Json();
	constexpr const char* style[] = {"verbosity"};
	f.check_unknown(style, rules);
	if (!format.is_object() || !format.contains("type") || format["type"] != "json_schema") return format;
	Json schema = std::move(format);
	schema.erase("type");
	return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void read_reasoning(const Json& reasoning, Json& body, const Rules& rules) {
	if (reasoning.is_null()) return;
	if (!reasoning.is_object()) throw ApiError(400, "reasoning is not an object", "reasoning");
	const Fields f(reasoning, "reasoning.");
	if (const Json* effort = f.find("effort")) body["reasoning_effort"] = *effort;
	constexpr const char* told[] = {"summary", "generate_summary"}; // accepted: answers contain the full reasoning
	f.check_unknown(told, rules);
}

void refuse_what_needs_kept_responses(Json& body) {
	for (const char* name : {"previous_response_id", "conversation", "prompt"})
		if (!take_field(body, name).is_null())
			unsupported(name,
			            " is not supported: this server keeps no responses; send the whole conversation as input");
	const Json background = take_field(body, "background");
	take_field(body, "truncation"); // a conversation that is too long is refused, whatever it says
	if (!background.is_null() && background != Json(false))
		unsupported("background", " is not supported; ask for a stream instead");
}

constexpr Renamed kResponsesNames[] = {{"messages", "input"},
                                       {"max_completion_tokens", "max_output_tokens"},
                                       {"response_format", "text.format"},
                                       {"reasoning_effort", "reasoning.effort"}};

} // namespace

ResponseRequest response_request(Json body, const Defaults& d) {
	constexpr const char* others[] = {
	    "messages", "response_format", "max_tokens", "max_completion_tokens", "functions",       "function_call",
	    "n",        "logprobs",        "verbosity",  "reasoning_effort",      "reasoning_format"};
	drop_fields(body, others, d);
	refuse_what_needs_kept_responses(body);
	const Json instructions = take_field(body, "instructions"), include = take_field(body, "include");
	const Json tools = take_field(body, "tools"), text = take_field(body, "text");
	const Json most = take_field(body, "max_output_tokens"), top = take_field(body, "top_logprobs");
	const Json choice = take_field(body, "tool_choice"), reasoning = take_field(body, "reasoning");
	if (!top.is_null()) body["top_logprobs"] = top;
	if (!include.is_null() && !include.is_array()) throw ApiError(400, "include is not an array", "include");
	for (const Json& what : include) // mostly output of built-in tools, which do not exist here
		if (what == Json("message.output_text.logprobs")) body["logprobs"] = true;
	if (top.is_number() && top > Json(0)) body["logprobs"] = true;
	body["messages"] = read_input(instructions, take_field(body, "input"), d);
	if (!tools.is_null()) body["tools"] = responses_tools(tools, d);
	if (!choice.is_null()) body["tool_choice"] = read_tool_choice(choice);
	if (!most.is_null()) body["max_completion_tokens"] = most;
	if (const Json format = read_text(text, d); !format.is_null()) body["response_format"] = format;
	read_reasoning(reasoning, body, d);
	const Fields f(body);
	ResponseRequest r;
	try {
		r.chat = chat_request(body, d);
	} catch (const ApiError& e) { throw renamed(e, kResponsesNames); }
	const auto or_else = [](const Json& j, Json other) { return j.is_null() ? std::move(other) : j; };
	const auto given = [&](const char* name) { return f.find(name) ? *f.find(name) : Json(); };
	r.asked = {{"instructions", instructions},
	           {"max_output_tokens", most},
	           {"metadata", or_else(given("metadata"), Json::object())},
	           {"parallel_tool_calls", or_else(given("parallel_tool_calls"), true)},
	           {"previous_response_id", nullptr},
	           {"reasoning", or_else(reasoning, {{"effort", nullptr}, {"summary", nullptr}})},
	           {"store", false},
	           {"temperature", r.chat.sampling.temperature},
	           {"text", or_else(text, {{"format", {{"type", "text"}}}})},
	           {"tool_choice", or_else(choice, "auto")},
	           {"tools", or_else(tools, Json::array())},
	           {"top_logprobs", or_else(top, 0)},
	           {"top_p", r.chat.sampling.top_p},
	           {"truncation", "disabled"},
	           {"user", given("user")}};
	return r;
}

// ---- answers

namespace {

class ResponseAnswer final : public PartsAnswer {
 public:
	ResponseAnswer(std::shared_ptr<Responder> out, const ResponseRequest& r, const std::string& model,
	               ReplyHandle reply, CountTokens count)
	    : PartsAnswer(std::move(out), r.chat, std::move(reply), "call_"), count_(std::move(count)) {
		response_ = {
		    {"id", new_id("resp_")},   {"object", "response"}, {"created_at", unix_time()},     {"status", nullptr},
		    {"background", false},     {"error", nullptr},     {"incomplete_details", nullptr}, {"model", model},
		    {"output", Json::array()}, {"usage", nullptr}};
		response_.update(r.asked);
	}

 private:
	void start() override {
		for (const char* type : {"response.created", "response.in_progress"})
			event(type, {{"response", response("in_progress")}});
	}
	void token(Json t) override {
		t.erase("id");
		for (Json& other : t["top_logprobs"]) other.erase("id");
		fresh_.push_back(std::move(t));
	}
	void open(Part what) override {
		id_ = new_id(what == Part::Reasoning ? "rs_" : "msg_");
		logprobs_ = Json::array();
		add_item(item(what, "in_progress", Json::array()));
		event("response.content_part.added", at({{"part", content(what, "")}}));
	}
	void add(Part what, const std::string& text) override {
		if (what == Part::Text)
			event("response.output_text.delta", at({{"delta", text}, {"logprobs", take_logprobs()}}));
		else
			event("response.reasoning_text.delta", at({{"delta", text}}));
	}
	void close(Part what, const std::string& text) override {
		if (what == Part::Text)
			take_logprobs(), event("response.output_text.done", at({{"text", text}, {"logprobs", logprobs_}}));
		else
			fresh_.clear(), event("response.reasoning_text.done", at({{"text", text}})), reasoning_ += text;
		event("response.content_part.done", at({{"part", content(what, text)}}));
		end_item(item(what, cut() ? "incomplete" : "completed", Json::array({content(what, text)})));
	}
	void open_call(const Json& call) override {
		id_ = new_id("fc_");
		add_item(call_item(call, "in_progress", ""));
	}
	void add_call(const std::string& arguments) override {
		event("response.function_call_arguments.delta", at_call({{"delta", arguments}}));
	}
	void close_call(const Json& call) override;
	void finish(const Ended&) override;
	void break_off(const ApiError&) override;
	Response refusal(const ApiError& e) override { return error_response(e); }
	Json event_head(const char* type) override { return {{"type", type}, {"sequence_number", n_events_++}}; }

	Json at_call(const Json& more) const { // position of the current item, for an event
		Json j{{"item_id", id_}, {"output_index", output_.size() - 1}};
		j.update(more);
		return j;
	}
	Json at(const Json& more) const {
		Json j = at_call({{"content_index", 0}});
		j.update(more);
		return j;
	}
	void add_item(Json item) { // an item that has begun
		event("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
		output_.push_back(std::move(item));
	}
	void end_item(Json item) { // ends the last item of output_
		output_.back() = item;
		event("response.output_item.done", {{"output_index", output_.size() - 1}, {"item", std::move(item)}});
	}
	// Of the tokens since the last call, which become those of the open part.
	Json take_logprobs() {
		logprobs_.insert(logprobs_.end(), fresh_.begin(), fresh_.end());
		return std::exchange(fresh_, Json::array());
	}
	Json item(Part, const char* status, Json content) const;
	Json call_item(const Json& call, const char* status, const std::string& arguments) const;
	Json content(Part, const std::string& text) const;
	Json response(const char* status) const {
		Json j = response_;
		j["status"] = status;
		j["output"] = output_;
		return j;
	}

	Json response_; // without the fields that are known only at its end
	const CountTokens count_;
	std::string id_, reasoning_; // ID of the current item; reasoning of all items
	// Log probabilities of tokens: of those that were passed on in the open part, of those that were not
	Json logprobs_ = Json::array(), fresh_ = Json::array();
	Json output_ = Json::array();
	uint64_t n_events_ = 0;
};

Json ResponseAnswer::content(Part what, const std::string& text) const {
	if (what == Part::Reasoning) return {{"type", "reasoning_text"}, {"text", text}};
	return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
}

Json ResponseAnswer::item(Part what, const char* status, Json content) const {
	if (what == Part::Reasoning)
		return {{"id", id_},
		        {"type", "reasoning"},
		        {"summary", Json::array()},
		        {"content", std::move(content)},
		        {"status", status}};
	return {
	    {"id", id_}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
}

Json ResponseAnswer::call_item(const Json& call, const char* status, const std::string& arguments) const {
	return {{"id", id_},
	        {"type", "function_call"},
	        {"status", status},
	        {"call_id", call["id"]},
	        {"name", call["function"]["name"]},
	        {"arguments", arguments}};
}

void ResponseAnswer::close_call(const Json& call) {
	fresh_.clear();
	const std::string arguments = call["function"]["arguments"];
	event("response.function_call_arguments.done",
	      at_call({{"arguments", arguments}, {"name", call["function"]["name"]}}));
	end_item(call_item(call, Json::accept(arguments) ? "completed" : "incomplete", arguments));
}

void ResponseAnswer::finish(const Ended& e) {
	const bool cut = was_cut(e.result.reason);
	Json j = response(cut ? "incomplete" : "completed");
	if (cut) j["incomplete_details"] = {{"reason", "max_output_tokens"}};
	const uint32_t prompt = e.reused + e.result.prompt_tokens, answer = e.result.answer_tokens;
	const size_t reasoning = reasoning_.empty() ? 0 : count_(reasoning_);
	j["usage"] = {{"input_tokens", prompt},
	              {"input_tokens_details", {{"cached_tokens", e.reused}}},
	              {"output_tokens", answer},
	              {"output_tokens_details", {{"reasoning_tokens", std::min<size_t>(reasoning, answer)}}},
	              {"total_tokens", prompt + answer}};
	j["kv"] = kv_json(e);
	if (!stream_) return out_.out().respond({200, dump(j)});
	event(cut ? "response.incomplete" : "response.completed", {{"response", j}});
	out_.end();
}

void ResponseAnswer::break_off(const ApiError& e) {
	Json j = response("failed");
	j["error"] = {{"code", e.code.empty() ? "server_error" : e.code}, {"message", e.what()}};
	event("response.failed", {{"response", j}});
}

} // namespace

std::shared_ptr<Listener> response_answer(std::shared_ptr<Responder> out, const ResponseRequest& r,
                                          const std::string& model, ReplyHandle reply, CountTokens count) {
	return std::make_shared<ResponseAnswer>(std::move(out), r, model, std::move(reply), std::move(count));
}

} // namespace kvrun::serve
