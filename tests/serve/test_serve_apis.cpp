// The Responses and the Messages API, with texts that a model might write: conversations, items, blocks, events.
#include "tests/serve/answer_client.h"
#include "tools/serve/embeddings.h"
#include "tools/serve/id.h"
#include "tools/serve/messages.h"
#include "tools/serve/responses.h"
#include <algorithm>
#include <set>

using namespace kvrun;
using namespace kvrun::serve;

namespace {

Ended ended(kvrun_stop_reason reason, uint32_t stop) {
	Ended e;
	e.reused = 3, e.policy = "fp16";
	e.result.reason = reason, e.result.stop = stop, e.result.prompt_tokens = 7, e.result.answer_tokens = 5;
	return e;
}

std::shared_ptr<Client> response(const std::string& fields, const std::string& text,
                                 kvrun_stop_reason reason = KVRUN_STOP_END) {
	const ResponseRequest r = response_request(parse_body(R"({"input": "1 + 1?")" + fields + "}"), "fp16");
	const auto client = std::make_shared<Client>();
	const auto count = [](const std::string& t) { return t.size(); };
	say(*response_answer(client, r, "m", model().new_reply(r.chat.prompt), count), text, ended(reason, UINT32_MAX));
	return client;
}
constexpr const char* kFunction = R"(, "tools": [{"type": "function", "name": "add", "parameters": {}}])";

std::shared_ptr<Client> message(const std::string& fields, const std::string& text,
                                kvrun_stop_reason reason = KVRUN_STOP_END, uint32_t stop = UINT32_MAX) {
	const MessagesRequest r = messages_request(
	    parse_body(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "1 + 1?"}])" + fields + "}"), "fp16",
	    false);
	const auto client = std::make_shared<Client>();
	say(*messages_answer(client, r, "m", model().new_reply(r.chat.prompt), 10), text, ended(reason, stop));
	return client;
}
constexpr const char* kTool = R"(, "tools": [{"name": "add", "input_schema": {"type": "object"}}])";

std::vector<std::string> types(const std::vector<Json>& events) {
	std::vector<std::string> out;
	for (const Json& e : events) // consecutive events of one type are listed once
		if (const auto type = e["type"].get<std::string>(); out.empty() || out.back() != type) out.push_back(type);
	return out;
}

// The message, and the field that it names.
template <class F> std::pair<std::string, std::string> refusal(F f) {
	try {
		f();
	} catch (const ApiError& e) {
		CHECK(e.status == 400);
		return {e.what(), e.param};
	}
	return {};
}

} // namespace

TEST_CASE("serve: a response and its items") {
	const Json r = response(R"(, "max_output_tokens": 99, "metadata": {"a": "b"}, "user": "me")", "2 <b>")->whole;
	CHECK(r["object"] == "response");
	CHECK(r["status"] == "completed");
	CHECK(r["incomplete_details"].is_null());
	REQUIRE(r["output"].size() == 1);
	CHECK(r["output"][0]["type"] == "message");
	CHECK(r["output"][0]["role"] == "assistant");
	CHECK(r["output"][0]["content"][0]["type"] == "output_text");
	CHECK(r["output"][0]["content"][0]["text"] == "2 <b>");
	CHECK(r["max_output_tokens"] == 99);
	CHECK(r["metadata"] == Json{{"a", "b"}});
	CHECK(r["usage"]["input_tokens"] == 10);
	CHECK(r["usage"]["input_tokens_details"]["cached_tokens"] == 3);
	CHECK(r["usage"]["output_tokens"] == 5);
	CHECK(r["usage"]["total_tokens"] == 15);
	const Json cut = response("", "2", KVRUN_STOP_LENGTH)->whole;
	CHECK(cut["status"] == "incomplete");
	CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
	const Json nothing = response("", "")->whole;
	CHECK(nothing["output"][0]["content"][0]["text"] == "");
}

TEST_CASE("serve: a response that calls a function") {
	const Json output = response(kFunction, kCall)->whole["output"];
	REQUIRE(output.size() == 2);
	CHECK(output[0]["content"][0]["text"] == "Let me see.");
	CHECK(output[1]["type"] == "function_call");
	CHECK(output[1]["name"] == "add");
	CHECK(output[1]["call_id"].get<std::string>().size() > 0);
	CHECK(Json::parse(output[1]["arguments"].get<std::string>()) == Json{{"a", 1}});
	const Json alone = response(kFunction, std::string("\n\n") + (kCall + 11))->whole["output"];
	REQUIRE(alone.size() == 1); // white space before a call is not a message
	CHECK(alone[0]["type"] == "function_call");
}

TEST_CASE("serve: the events of a response come in their order") {
	const std::vector<Json> events =
	    response(std::string(kFunction) + R"(, "stream": true)", kCall)->events(/*named=*/true);
	const std::vector<std::string> want = {"response.created",
	                                       "response.in_progress",
	                                       "response.output_item.added",
	                                       "response.content_part.added",
	                                       "response.output_text.delta",
	                                       "response.output_text.done",
	                                       "response.content_part.done",
	                                       "response.output_item.done",
	                                       "response.output_item.added",
	                                       "response.function_call_arguments.delta",
	                                       "response.function_call_arguments.done",
	                                       "response.output_item.done",
	                                       "response.completed"};
	CHECK(types(events) == want);
	std::string text;
	for (size_t i = 0; i < events.size(); ++i) {
		CHECK(events[i]["sequence_number"] == i);
		if (events[i]["type"] == "response.output_text.delta") text += events[i]["delta"].get<std::string>();
	}
	CHECK(text == "Let me see.");
	const Json& last = events.back()["response"];
	CHECK(last["output"].size() == 2);
	CHECK(last["id"] == events[0]["response"]["id"]);
	CHECK(events[0]["response"]["status"] == "in_progress");
	CHECK(events[0]["response"]["output"].empty());
}

TEST_CASE("serve: input of a response as a conversation") {
	const ResponseRequest r = response_request(parse_body(R"({"instructions": "Be short.", "input": [
	    {"role": "developer", "content": "In English."},
	    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
	    {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
	    {"type": "message", "role": "assistant",
	        "content": [{"type": "output_text", "text": "I add.", "annotations": []}]},
	    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\": 1}"},
	    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
	    {"type": "function_call_output", "call_id": "c1", "output": "1"},
	    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]}]})"),
	                                           "fp16");
	const Json want =
	    Json::parse(R"([{"role": "system", "content": "Be short."}, {"role": "system", "content": "In English."},
	    {"role": "user", "content": "a\nb"},
	    {"role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": [
	        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
	        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
	    {"role": "tool", "tool_call_id": "c1", "content": "1"},
	    {"role": "tool", "tool_call_id": "c2", "content": "2"}])");
	CHECK(Json::parse(r.chat.prompt.messages) == want);
}

TEST_CASE("serve: images that functions of a response return come behind the results, from the user") {
	const auto messages = [](const char* output) {
		const std::string body = std::string(R"({"input": [{"role": "user", "content": "a"},
	    {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"},
	    {"type": "function_call", "call_id": "c2", "name": "view", "arguments": "{}"},
	    {"type": "function_call_output", "call_id": "c1", "output": )") +
		                         output + R"(}, {"type": "function_call_output", "call_id": "c2", "output": "2"},
	    {"role": "user", "content": "b"}]})";
		Json all = Json::parse(response_request(parse_body(body), "fp16").chat.prompt.messages);
		all.erase(all.begin(), all.begin() + 2);
		return all;
	};
	CHECK(messages(R"([{"type": "input_text", "text": "see"},
	    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}])") == Json::parse(R"([
	    {"role": "tool", "tool_call_id": "c1", "content": "see"},
	    {"role": "tool", "tool_call_id": "c2", "content": "2"},
	    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
	    {"role": "user", "content": "b"}])"));
	CHECK(messages(R"([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}])")[0] ==
	      Json::parse(R"({"role": "tool", "tool_call_id": "c1", "content": ""})"));
	CHECK(messages("\"1\"").size() == 3);
	const auto wrong = refusal([&] { messages(R"([{"type": "input_file", "file_id": "f"}])"); });
	CHECK(wrong.first.find("input[3].output has a part of type 'input_file'") != std::string::npos);
}

TEST_CASE("serve: a stamp in a client's system prompt is no part of it") {
	const auto system = [](const Json& given) {
		Json body{{"max_tokens", 1}, {"system", given}, {"messages", {{{"role", "user"}, {"content", "a"}}}}};
		const MessagesRequest r = messages_request(body, "fp16", /*counting=*/false);
		return Json::parse(r.chat.prompt.messages)[0]["content"].get<std::string>();
	};
	const std::string line = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; ";
	CHECK(system({{{"type", "text"}, {"text", line + "cch=a5145;"}}, {{"type", "text"}, {"text", "You are"}}}) ==
	      line + "\nYou are");
	CHECK(system(line + "cch=0f;You are") == line + "You are");
	for (const std::string& same : {line + "You are", line + "\ncch=a5145;", line + "cch=longer than a stamp is;",
	                                line + "cch=a5145", std::string("cch=a5145; You are"), std::string()})
		CHECK(system(same) == same);
}

TEST_CASE("serve: what tools of other servers said is left out of a conversation, and other results are read") {
	const auto items = [](const Defaults& d) {
		return Json::parse(response_request(parse_body(R"({"input": [{"role": "user", "content": "a"},
	    {"type": "web_search_call", "id": "w", "status": "completed", "action": {}}, {"type": "mcp_list_tools"},
	    {"type": "computer_call_output", "call_id": "c", "output": {}},
	    {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x\"y"},
	    {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}]})"),
		                                    d)
		                       .chat.prompt.messages);
	};
	CHECK(items("fp16") == Json::parse(R"([{"role": "user", "content": "a"},
	    {"role": "assistant", "content": null, "tool_calls": [
	        {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": "{\"input\":\"x\\\"y\"}"}}]},
	    {"role": "tool", "tool_call_id": "c1", "content": "ok"}])"));
	CHECK(refusal([&] { items(strict()); }).first.find("'web_search_call'") != std::string::npos);
	CHECK(refusal([] { response_request(parse_body(R"({"input": [{"type": "frob"}]})"), "fp16"); }).second == "input");
	const auto blocks = [](const Defaults& d) {
		return Json::parse(messages_request(parse_body(R"({"max_tokens": 1, "messages": [
	    {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
	        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "text", "text": "a"},
	        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
	        {"type": "tool_use", "id": "u", "name": "f", "input": {}}]},
	    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
	        {"type": "text", "text": "see"}, {"type": "image", "source":
	            {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
	        {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "tool_reference", "tool_name": "g"}]},
	        {"type": "text", "text": "so?"}]}]})"),
		                                    d, false)
		                       .chat.prompt.messages);
	};
	const Json got = blocks("fp16");
	REQUIRE(got.size() == 4);
	CHECK(got[0]["content"] == "a");
	CHECK(got[1] == Json{{"role", "tool"}, {"tool_call_id", "t"}, {"content", "see"}});
	CHECK(got[2] == Json{{"role", "tool"}, {"tool_call_id", "u"}, {"content", "g"}});
	CHECK(got[3]["role"] == "user");
	CHECK(got[3]["content"][0]["image_url"]["url"] == "data:image/png;base64,AA==");
	CHECK(got[3]["content"][1]["text"] == "so?");
	CHECK(refusal([&] { blocks(strict()); }).first.find("'server_tool_use'") != std::string::npos);
}

TEST_CASE("serve: fields of the Responses API that are refused, by name") {
	const auto param = [](const std::string& fields) {
		const auto [message, param] =
		    refusal([&] { response_request(parse_body(R"({"input": "x", )" + fields + "}"), strict()); });
		CHECK(message.find(param) != std::string::npos);
		return param;
	};
	CHECK(param(R"("previous_response_id": "r")") == "previous_response_id");
	CHECK(param(R"("conversation": "c")") == "conversation");
	CHECK(param(R"("background": true)") == "background");
	CHECK(param(R"("messages": [])") == "messages");
	CHECK(param(R"("max_tokens": 5)") == "max_tokens");
	CHECK(param(R"("nonsense": 5)") == "nonsense");
	CHECK(param(R"("text": {"nonsense": 5})") == "text.nonsense");
	CHECK(param(R"("reasoning": {"nonsense": 5})") == "reasoning.nonsense");
	CHECK(param(R"("tools": [5])") == "tools");
	CHECK(param(R"("top_logprobs": 21)") == "top_logprobs");
	CHECK(param(R"("max_output_tokens": "x")") == "max_output_tokens");
	CHECK(param(R"("input": [])") == "input");
	CHECK(param(R"("input": [{"type": "item_reference", "id": "x"}])") == "input");
	CHECK(param(R"("input": [{"role": "king", "content": "x"}])") == "input");
	CHECK(param(R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])") == "input");
	CHECK(param(R"("input": [{"type": "function_call", "name": "f"}])") == "input");
	CHECK(param(R"("input": [{"type": 5}])") == "input");
	CHECK(param(R"("input": [{"type": "reasoning", "content": 5}])") == "input");
	CHECK(param(R"("input": [{"type": "reasoning", "summary": [{"type": "image"}]}])") == "input");
	CHECK(param(R"("instructions": 5)") == "instructions");
	for (const char* harmless :
	     {R"("store": true)", R"("include": ["reasoning.encrypted_content"])", R"("truncation": "disabled")",
	      R"("previous_response_id": null)", R"("prompt_cache_key": "k")", R"("background": false)",
	      R"("text": {"format": {"type": "text"}, "verbosity": "low"})", R"("truncation": "auto")",
	      R"("reasoning": {"effort": "high", "summary": "auto"})", R"("client_metadata": {"a": "b"})",
	      R"("tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}])",
	      R"("tool_choice": {"type": "web_search"})"})
		CHECK(param(harmless) == "");
}

TEST_CASE("serve: a message and its blocks") {
	const Json m = message("", "2")->whole;
	CHECK(m["type"] == "message");
	CHECK(m["role"] == "assistant");
	CHECK(m["content"] == Json::array({Json{{"type", "text"}, {"text", "2"}}}));
	CHECK(m["stop_reason"] == "end_turn");
	CHECK(m["stop_sequence"].is_null());
	CHECK(m["usage"]["input_tokens"] == 7);
	CHECK(m["usage"]["cache_read_input_tokens"] == 3);
	CHECK(m["usage"]["output_tokens"] == 5);
	CHECK(message("", "2", KVRUN_STOP_LENGTH)->whole["stop_reason"] == "max_tokens");
	CHECK(message("", "2", KVRUN_STOP_CONTEXT)->whole["stop_reason"] == "max_tokens");
	const Json stopped = message(R"(, "stop_sequences": ["x", "yz"])", "2", KVRUN_STOP_STRING, 1)->whole;
	CHECK(stopped["stop_reason"] == "stop_sequence");
	CHECK(stopped["stop_sequence"] == "yz");
	const Json call = message(kTool, kCall)->whole;
	CHECK(call["stop_reason"] == "tool_use");
	REQUIRE(call["content"].size() == 2);
	CHECK(call["content"][0]["text"] == "Let me see.");
	CHECK(call["content"][1]["type"] == "tool_use");
	CHECK(call["content"][1]["name"] == "add");
	CHECK(call["content"][1]["input"] == Json{{"a", 1}});
	for (const size_t n :
	     {std::string(kCall).find('1'), std::string(kCall).size() - 4}) { // before, or inside the end marker
		const Json cut = message(kTool, std::string(kCall).substr(0, n), KVRUN_STOP_LENGTH)->whole;
		CHECK(cut["stop_reason"] == "max_tokens");
		REQUIRE(cut["content"].size() == 2);
		CHECK(cut["content"][1]["input"].empty() == (n < 70));
	}
}

TEST_CASE("serve: the events of a message come in their order") {
	const std::vector<Json> events = message(std::string(kTool) + R"(, "stream": true)", kCall)->events(/*named=*/true);
	const std::vector<std::string> want = {"message_start",       "ping",
	                                       "content_block_start", "content_block_delta",
	                                       "content_block_stop",  "content_block_start",
	                                       "content_block_delta", "content_block_stop",
	                                       "message_delta",       "message_stop"};
	CHECK(types(events) == want);
	std::string text, json;
	for (const Json& e : events) {
		if (e["type"] != "content_block_delta") continue;
		if (e["delta"]["type"] == "text_delta") text += e["delta"]["text"].get<std::string>();
		if (e["delta"]["type"] == "input_json_delta") json += e["delta"]["partial_json"].get<std::string>();
		CHECK(e["index"] == (e["delta"]["type"] == "text_delta" ? 0 : 1));
	}
	CHECK(text == "Let me see.");
	CHECK(Json::parse(json) == Json{{"a", 1}});
	CHECK(events[0]["message"]["usage"]["input_tokens"] == 10);
	const Json& delta = events[events.size() - 2];
	CHECK(delta["delta"]["stop_reason"] == "tool_use");
	CHECK(delta["usage"]["output_tokens"] == 5);
}

TEST_CASE("serve: messages as a conversation") {
	const MessagesRequest r = messages_request(parse_body(
	                                               R"({"max_tokens": 9,
	    "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
	    "metadata": {"user_id": "x"}, "messages": [
	    {"role": "user", "content": "1 + 1?"},
	    {"role": "assistant", "content": [
	        {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "I add."},
	        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
	    {"role": "user", "content": [
	        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}], "is_error": true},
	        {"type": "text", "text": "so"}, {"type": "text", "text": "what?"}]}]})"),
	                                           "fp16", false);
	const Json want = Json::parse(R"([{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"},
	    {"role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": [
	        {"id": "t1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]},
	    {"role": "tool", "tool_call_id": "t1", "content": "Error: 2"}, {"role": "user", "content": "so\nwhat?"}])");
	CHECK(Json::parse(r.chat.prompt.messages) == want);
	CHECK(r.chat.sampling.max_tokens == 9);
}

TEST_CASE("serve: fields of the Messages API that are refused, by name") {
	const auto param = [](const std::string& fields, const char* base = R"("max_tokens": 9, )") {
		const auto [message, param] = refusal([&] {
			messages_request(parse_body(R"({"messages": [{"role": "user", "content": "x"}], )" + (base + fields) + "}"),
			                 strict(), false);
		});
		CHECK(message.find(param) != std::string::npos);
		return param;
	};
	CHECK(param(R"("temperature": 1)", "") == "max_tokens");
	CHECK(param(R"("nonsense": 1)") == "nonsense");
	CHECK(param(R"("stop": ["x"])") == "stop");
	CHECK(param(R"("stop_sequences": "x")") == "stop_sequences");
	CHECK(param(R"("stop_sequences": [5])") == "stop_sequences");
	CHECK(param(R"("container": "c")") == "container");
	CHECK(param(R"("tools": [{"input_schema": {}}])") == "tools");
	CHECK(param(R"("tool_choice": {"type": "x"})") == "tool_choice");
	CHECK(param(R"("tool_choice": "auto")") == "tool_choice");
	CHECK(param(R"("thinking": {"type": "x"})") == "thinking");
	CHECK(param(R"("thinking": {"nonsense": 1})") == "thinking.nonsense");
	CHECK(param(R"("system": 5)") == "system");
	CHECK(param(R"("messages": [{"role": "user", "content": [{"type": "image"}]}])") == "messages");
	CHECK(param(R"("messages": [{"role": "user", "content": [5]}])") == "messages");
	CHECK(param(R"("messages": [{"role": "assistant",
	    "content": [{"type": "tool_use", "id": "x", "name": "f", "input": "x"}]}])") == "messages");
	CHECK(param(R"("thinking": {"type": "enabled"}, "chat_template_kwargs": "x")") == "chat_template_kwargs");
	CHECK(param(R"("messages": [])") == "messages");
	for (const char* harmless :
	     {R"("metadata": {"user_id": "x"})", R"("service_tier": "auto")", R"("top_k": 5)",
	      R"("tool_choice": {"type": "auto"})", R"("thinking": {"type": "disabled"})",
	      R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])", R"("speed": "fast")",
	      R"("context_management": {"edits": []})", R"("mcp_servers": [])", R"("output_config": {"effort": "low"})",
	      R"("messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}])",
	      R"("messages": [{"role": "user", "content": [{"type": "document", "title": "t",
	    "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}])"})
		CHECK(param(harmless) == "");
}

TEST_CASE("serve: unknown fields are ignored unless the rules are strict") {
	const auto body = [](const char* fields) { return parse_body(std::string("{") + fields + "}"); };
	const Defaults d;
	CHECK_NOTHROW(response_request(body(R"("input": "x", "nonsense": 1, "max_tokens": 5)"), d));
	CHECK_NOTHROW(
	    messages_request(body(R"("max_tokens": 1, "nonsense": 1, "stop": ["x"], "thinking": {"type": "disabled",
	    "nonsense": 1}, "messages": [{"role": "user", "content": "x"}])"),
	                     d, false));
	CHECK_NOTHROW(embeddings_request(body(R"("input": "x", "nonsense": 1)"), 8, d));
	CHECK_NOTHROW(rerank_request(body(R"("query": "", "documents": ["x"], "raw_scores": true, "nonsense": 1)"), d));
	CHECK(refusal([&] { embeddings_request(body(R"("input": "x", "nonsense": 1)"), 8, strict()); }).second ==
	      "nonsense");
	CHECK(refusal([&] {
		      rerank_request(body(R"("query": "a", "documents": ["x"], "nonsense": 1)"), strict());
	      }).second == "nonsense");
}

TEST_CASE("serve: structured output and effort of the Messages API, and answers that the client begins") {
	const auto read = [](const std::string& fields) {
		return messages_request(parse_body(R"({"max_tokens": 9, )" + fields + "}"), "fp16", false).chat;
	};
	const ChatRequest r =
	    read(R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}],
	    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}})");
	CHECK(r.prompt.goes_on);
	CHECK(r.form.schema == R"({"type":"object"})");
	CHECK(Json::parse(r.prompt.variables)["reasoning_effort"] == "high");
	CHECK(!read(R"("messages": [{"role": "user", "content": "x"}])").prompt.goes_on);
	const ChatRequest doc = read(R"("messages": [{"role": "user", "content": [
	    {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}, {"type": "text", "text": "?"}]}])");
	CHECK(Json::parse(doc.prompt.messages)[0]["content"] == "T\nwords\n?");
}

TEST_CASE("serve: the last item of a response that is cut off is incomplete in its own event, too") {
	const std::vector<Json> events = response(R"(, "stream": true)", "2", KVRUN_STOP_LENGTH)->events(/*named=*/true);
	const auto done =
	    std::ranges::find(events, Json("response.output_item.done"), [](const Json& e) { return e["type"]; });
	REQUIRE(done != events.end());
	CHECK((*done)["item"]["status"] == "incomplete");
	CHECK((*done)["item"] == events.back()["response"]["output"][0]);
}

TEST_CASE("serve: ids of calls are of the API, and no two are the same") {
	const auto id = [](const Json& item, const char* field) { return item[field].get<std::string>(); };
	std::set<std::string> ids;
	for (int i = 0; i < 3; ++i) {
		const Json item = response(kFunction, kCall)->whole["output"][1];
		CHECK(id(item, "call_id").starts_with("call_"));
		CHECK(id(item, "id").starts_with("fc_"));
		const std::string own = id(message(kTool, kCall)->whole["content"][1], "id");
		CHECK(own.starts_with("toolu_"));
		CHECK(own.size() == 30);
		ids.insert(own), ids.insert(id(item, "call_id"));
	}
	CHECK(ids.size() == 6);
	CallIds c("call_");
	CHECK(c.of(0, "functions.f:0") == "functions.f:0"); // the model's own, which its template expects
	CHECK(c.of(1, "0").size() == 29);                   // but no plain number
}

TEST_CASE("serve: errors of the Messages API have its form") {
	const Json j = Json::parse(messages_error(ApiError(429, "later")).body);
	CHECK(j["type"] == "error");
	CHECK(j["error"]["type"] == "rate_limit_error");
	CHECK(j["error"]["message"] == "later");
	CHECK(Json::parse(messages_error(ApiError(503, "x")).body)["error"]["type"] == "overloaded_error");
	CHECK(Json::parse(messages_error(ApiError(500, "x")).body)["error"]["type"] == "api_error");
}

TEST_CASE("serve: base64 of vectors") {
	const std::vector<float> v = {1, -2, 0.5f};
	CHECK(base64_of(std::span(v).first(0)) == "");
	CHECK(base64_of(std::span(v).first(1)) == "AACAPw==");
	CHECK(base64_of(std::span(v).first(2)) == "AACAPwAAAMA=");
	CHECK(base64_of(v) == "AACAPwAAAMAAAAA/");
}
