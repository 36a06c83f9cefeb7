// Answers of kvrun serve to texts that a model might write: content, reasoning, tool calls; and the check of the API
// key.
#include "tests/serve/answer_client.h"
#include "tools/serve/router.h"
#include <random>

using namespace kvrun;
using namespace kvrun::serve;

namespace {

constexpr const char* kTools = R"("tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}])";

ChatRequest chat(const std::string& fields) {
	return chat_request(parse_body(R"({"messages": [{"role": "user", "content": "1 + 1?"}], )" + fields + "}"), "fp16");
}

Ended ended(kvrun_stop_reason reason, uint32_t tokens = 0) {
	Ended e;
	e.result.reason = reason, e.result.answer_tokens = tokens;
	return e;
}

// The client's result when the model writes `text`, a byte at a time.
std::shared_ptr<Client> answer(const ChatRequest& r, const std::string& text, const Ended& e) {
	const auto client = std::make_shared<Client>();
	ChatAnswer a(
	    std::make_shared<Choices>(client, r, "m", kChatObject), 0, model().new_reply(r.prompt),
	    [](const std::string& text) { return text.size(); }, r.old_functions);
	say(a, text, e);
	return client;
}
std::shared_ptr<Client> answer(const std::string& fields, const std::string& text,
                               kvrun_stop_reason reason = KVRUN_STOP_END) {
	return answer(chat(fields), text, ended(reason));
}

// A template of a model that reasons.
constexpr const char* kThinks =
    "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}<think>";

} // namespace

TEST_CASE("serve: a call of a tool in a whole answer") {
	const Json choice = answer(kTools, kCall)->whole["choices"][0];
	CHECK(choice["finish_reason"] == "tool_calls");
	CHECK(choice["message"]["content"] == "Let me see.");
	REQUIRE(choice["message"]["tool_calls"].size() == 1);
	const Json& call = choice["message"]["tool_calls"][0];
	CHECK(call["type"] == "function");
	CHECK(call["id"].get<std::string>().size() > 0);
	CHECK(call["function"]["name"] == "add");
	CHECK(Json::parse(call["function"]["arguments"].get<std::string>()) == Json{{"a", 1}});
}

TEST_CASE("serve: a call of a tool in a stream") {
	const std::vector<Json> events = answer(std::string(kTools) + R"(, "stream": true)", kCall)->events();
	std::string content;
	std::vector<Json> calls;
	for (const Json& e : events) {
		const Json& delta = e["choices"][0]["delta"];
		if (delta.contains("content")) content += delta["content"].get<std::string>();
		if (delta.contains("tool_calls")) calls.push_back(delta["tool_calls"][0]);
	}
	CHECK(content == "Let me see.");
	REQUIRE(calls.size() > 1); // arguments arrive as the model writes them
	std::string arguments;
	for (const Json& c : calls) {
		CHECK(c["index"] == 0);
		CHECK(c.contains("id") == (&c == &calls[0]));
		arguments += c["function"]["arguments"].get<std::string>();
	}
	CHECK(calls[0]["function"]["name"] == "add");
	CHECK(Json::parse(arguments) == Json{{"a", 1}});
	CHECK(events.back()["choices"][0]["finish_reason"] == "tool_calls");
}

TEST_CASE("serve: a call that the limit on tokens cuts off") {
	const std::string begun = std::string(kCall).substr(0, std::string(kCall).find('1') + 1);
	for (const char* stream : {"", R"(, "stream": true)"}) {
		const auto client = answer(std::string(kTools) + stream, begun, KVRUN_STOP_LENGTH);
		std::string arguments;
		if (*stream) {
			for (const Json& e : client->events())
				if (const Json& d = e["choices"][0]["delta"]; d.contains("tool_calls"))
					arguments += d["tool_calls"][0]["function"]["arguments"].get<std::string>();
			CHECK(client->events().back()["choices"][0]["finish_reason"] == "length");
		} else {
			const Json choice = client->whole["choices"][0];
			REQUIRE(choice["message"]["tool_calls"].size() == 1);
			arguments = choice["message"]["tool_calls"][0]["function"]["arguments"];
			CHECK(choice["finish_reason"] == "length");
			CHECK(choice["message"]["content"] == "Let me see.");
		}
		CHECK(arguments.starts_with("{"));
		CHECK(!Json::accept(arguments));
	}
}

TEST_CASE("serve: without tools the same text is content") {
	const Json choice = answer(R"("tool_choice": "none", )" + std::string(kTools), kCall)->whole["choices"][0];
	CHECK(choice["message"]["content"] == kCall);
	CHECK(choice["finish_reason"] == "stop");
	CHECK_FALSE(choice["message"].contains("tool_calls"));
}

TEST_CASE("serve: functions as they were before tools") {
	constexpr const char* functions = R"("functions": [{"name": "add", "parameters": {}}])";
	const Json choice = answer(functions, kCall)->whole["choices"][0];
	CHECK(choice["finish_reason"] == "function_call");
	CHECK(choice["message"]["content"] == "Let me see.");
	CHECK_FALSE(choice["message"].contains("tool_calls"));
	const Json& call = choice["message"]["function_call"];
	CHECK(call["name"] == "add");
	CHECK(Json::parse(call["arguments"].get<std::string>()) == Json{{"a", 1}});

	std::string name, arguments;
	const std::string two = std::string(kCall) + "\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
	const std::vector<Json> events = answer(std::string(functions) + R"(, "stream": true)", two)->events();
	for (const Json& e : events) {
		const Json& delta = e["choices"][0]["delta"];
		CHECK_FALSE(delta.contains("tool_calls"));
		if (!delta.contains("function_call")) continue;
		name += delta["function_call"].value("name", "");
		arguments += delta["function_call"].value("arguments", "");
	}
	CHECK(name == "add");
	CHECK(Json::parse(arguments) == Json{{"a", 1}}); // of the first call alone
	CHECK(events.back()["choices"][0]["finish_reason"] == "function_call");

	const auto read = [&](const std::string& fields) { return chat(functions + (", " + fields)); };
	CHECK(read(R"("function_call": "auto")").form.tool_choice == "auto");
	CHECK(read(R"("function_call": "none")").prompt.tools.empty());
	CHECK(read(R"("function_call": {"name": "add"})").form.tool_choice == "add");
	const auto param = [&](const std::string& fields) {
		try {
			read(fields);
		} catch (const ApiError& e) { return e.param; }
		return std::string();
	};
	CHECK(param(R"("function_call": {"name": "sub"})") == "function_call");
	CHECK(param(R"("function_call": "required")") == "function_call");
	CHECK(param(kTools) == "functions");
	const ChatRequest told = chat_request(parse_body(R"({"messages": [{"role": "user", "content": "1 + 1?"},
	    {"role": "assistant", "content": null, "function_call": {"name": "add", "arguments": "{}"}},
	    {"role": "function", "name": "add", "content": "2"}]})"),
	                                      "fp16");
	const Json said = Json::parse(told.prompt.messages);
	CHECK(said[1]["tool_calls"][0]["function"]["name"] == "add");
	CHECK(said[2]["role"] == "tool");
	CHECK(said[2]["tool_call_id"] == said[1]["tool_calls"][0]["id"]);
	CHECK_FALSE(told.old_functions);
}

TEST_CASE("serve: why an answer ended") {
	const auto reason = [](kvrun_stop_reason r) {
		return answer(R"("n": 1)", "2", r)->whole["choices"][0]["finish_reason"].get<std::string>();
	};
	CHECK(reason(KVRUN_STOP_LENGTH) == "length");
	CHECK(reason(KVRUN_STOP_CONTEXT) == "length");
	CHECK(reason(KVRUN_STOP_END) == "stop");
	CHECK(reason(KVRUN_STOP_STRING) == "stop");
}

TEST_CASE("serve: tokens of reasoning") {
	for (const char* stream : {"", R"("stream": true, "stream_options": {"include_usage": true}, )"}) {
		ChatRequest r = chat(std::string(stream) + R"("n": 1)");
		r.prompt.template_text = kThinks;
		const auto usage = [&](const std::string& text, uint32_t tokens) {
			const auto client = answer(r, text, ended(KVRUN_STOP_END, tokens));
			return (*stream ? client->events().back() : client->whole)["usage"];
		};
		CHECK(usage("Hmm</think>2", 9)["completion_tokens_details"]["reasoning_tokens"] == 3);
		CHECK(usage("Hmm</think>2", 2)["completion_tokens_details"]["reasoning_tokens"] == 2); // of 2 tokens in all
		CHECK_FALSE(usage("</think>2", 9).contains("completion_tokens_details"));
	}
}

TEST_CASE("serve: progress of a prompt, and timings while an answer is generated") {
	const auto events = [](const std::string& fields, uint32_t cached) {
		const ChatRequest r = chat(fields + R"("stream": true, "n": 1)");
		const auto client = std::make_shared<Client>();
		ChatAnswer a(std::make_shared<Choices>(client, r, "m", kChatObject), 0, model().new_reply(r.prompt), {});
		a.start(100, cached);
		a.begin();
		for (const double done : {0., 0.5, 0.5, 1.}) a.reading(done, 0); // what does not change is not repeated
		a.chosen(5), a.piece("a");
		a.end(ended(KVRUN_STOP_END, 1));
		return client->events();
	};
	const std::vector<Json> plain = events("", 20);
	REQUIRE(plain.size() == 3); // the role, the text, the end
	CHECK_FALSE(plain[1].contains("timings"));
	const std::vector<Json> told = events(R"("return_progress": true, "timings_per_token": true, )", 20);
	REQUIRE(told.size() == 6);
	for (const auto& [event, read] : {std::pair(1, 20), std::pair(2, 60), std::pair(3, 100)}) {
		const Json& p = told[size_t(event)]["prompt_progress"];
		CHECK(p["total"] == 100);
		CHECK(p["cache"] == 20);
		CHECK(p["processed"] == read);
		CHECK(p["time_ms"].is_number_unsigned());
		CHECK(told[size_t(event)]["choices"][0]["delta"].empty());
	}
	CHECK_FALSE(told[3].contains("timings"));
	CHECK(told[4]["timings"]["predicted_n"] == 1);
	CHECK(told[4]["timings"]["predicted_per_second"] == 0); // no step lies between tokens yet
	CHECK(told[4]["timings"]["prompt_n"] == 80);
	CHECK(told[4]["timings"]["cache_n"] == 20);
	CHECK(events(R"("return_progress": true, )", 100).size() == 4); // nothing is read: it is said once
}

TEST_CASE("serve: reasoning_format") {
	const auto raw = [](const std::string& fields, const Defaults& d = {}) {
		return chat_request(parse_body(R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}"), d)
		    .raw_reasoning;
	};
	CHECK_FALSE(raw(""));
	CHECK(raw(R"(, "reasoning_format": "none")"));
	CHECK_FALSE(raw(R"(, "reasoning_format": "auto")"));
	Defaults server;
	server.raw_reasoning = true;
	CHECK(raw("", server));
	CHECK_FALSE(raw(R"(, "reasoning_format": "deepseek")", server));
	CHECK_FALSE(raw(", " + std::string(kTools), server)); // calls of tools are parsed
	for (const std::string& bad : {std::string(R"("x")"), std::string(R"("none", )") + kTools})
		CHECK_THROWS_AS(raw(R"(, "reasoning_format": )" + bad), ApiError);

	const std::string text = "<think>Hmm</think>\n2";
	for (const char* stream : {"", R"("stream": true, )"}) {
		const ChatRequest r = chat(std::string(stream) + R"("reasoning_format": "none")");
		const auto client = std::make_shared<Client>();
		ChatAnswer a(std::make_shared<Choices>(client, r, "m", kChatObject), 0, nullptr, {});
		say(a, text, ended(KVRUN_STOP_END, 5));
		std::string content;
		if (*stream)
			for (const Json& e : client->events()) content += e["choices"][0]["delta"].value("content", "");
		else
			content = client->whole["choices"][0]["message"]["content"];
		CHECK(content == text);
	}
}

TEST_CASE("serve: choices of one request") {
	const auto ask = [](const std::string& fields, const std::shared_ptr<Client>& client) {
		const CompletionRequest r = completion_request(parse_body(R"({"prompt": "x", "n": 2)" + fields + "}"), "fp16");
		return std::make_shared<Choices>(client, r, "m", kCompletionObject);
	};
	const auto how = [](uint32_t reused, uint32_t prompt, uint32_t tokens) {
		Ended e;
		e.reused = reused, e.result.prompt_tokens = prompt, e.result.answer_tokens = tokens;
		return e;
	};
	const auto whole = std::make_shared<Client>(), stream = std::make_shared<Client>(),
	           failed = std::make_shared<Client>();
	{
		const auto all = ask("", whole);
		CompletionAnswer a(all, 0), b(all, 1);
		b.piece("bb"), a.piece("a");
		b.end(how(10, 0, 2));
		CHECK(whole->whole.is_null()); // one is missing
		a.end(how(4, 6, 1));
		CHECK(whole->whole["choices"][0]["text"] == "a");
		CHECK(whole->whole["choices"][1]["text"] == "bb");
		CHECK(whole->whole["usage"]["prompt_tokens"] == 10);
		CHECK(whole->whole["usage"]["completion_tokens"] == 3);
		CHECK(whole->whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 4);
	}
	{
		const auto all = ask(R"(, "stream": true)", stream);
		CompletionAnswer a(all, 0), b(all, 1);
		a.begin(), b.begin();
		a.end(how(0, 10, 0));
		CHECK_FALSE(stream->ended);
		b.piece("b");
		b.end(how(10, 0, 1));
		const std::vector<Json> events = stream->events();
		REQUIRE(events.size() == 3);
		CHECK(events[0]["choices"][0]["index"] == 0);
		CHECK(events[1]["choices"][0]["index"] == 1);
	}
	{ // one fails: the client is told once, and the other is not waited for
		const auto all = ask("", failed);
		CompletionAnswer a(all, 0), b(all, 1);
		b.fail(ApiError(500, "it failed"));
		CHECK(failed->status == 500);
		CHECK(a.gone());
		failed->status = 0;
		a.fail(ApiError(503, "it too"));
		a.end(how(0, 10, 1));
		CHECK(failed->status == 0);
	}
}

TEST_CASE("serve: a beginning of a call that the limit of tokens cuts off is not shown") {
	for (const char* stream : {"", R"(, "stream": true)"})
		for (const char* end : {"<", "<tool_c", "<tool_call>\n", "<tool_call>\n{\"name\": \"ad"}) {
			const auto client = answer(std::string(kTools) + R"(, "response_format": {"type": "json_object"})" + stream,
			                           std::string("Sure.\n") + end, KVRUN_STOP_LENGTH);
			std::string content;
			if (*stream) {
				for (const Json& e : client->events()) content += e["choices"][0]["delta"].value("content", "");
			} else {
				content = client->whole["choices"][0]["message"]["content"];
			}
			CHECK(content == "Sure.");
		}
	CHECK(answer(kTools, "a <", KVRUN_STOP_END)->whole["choices"][0]["message"]["content"] == "a <");
	const Json after = answer(kTools, std::string(kCall) + "\n<", KVRUN_STOP_LENGTH)->whole["choices"][0]["message"];
	CHECK(after["content"] == "Let me see.");
	CHECK(after["tool_calls"].size() == 1);
}

TEST_CASE("serve: tools and choices of tools that are read") {
	const auto read = [](const std::string& fields) {
		return chat_request(parse_body(R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}"), "fp16");
	};
	const std::string hosted = R"("tools": [{"type": "web_search"}, {"type": "custom", "custom": {"name": "c"}},
	    {"type": "function", "function": {"name": "add"}}, {"type": "function", "function": {"name": "sub"}}])";
	CHECK(Json::parse(read(hosted).prompt.tools).size() == 2);
	CHECK(read(R"("tools": [{"type": "web_search"}])").prompt.tools.empty());
	CHECK(read(hosted + R"(, "tool_choice": {"type": "web_search"})").form.tool_choice.empty());
	const ChatRequest some = read(hosted + R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools":
	    {"mode": "required", "tools": [{"type": "function", "function": {"name": "sub"}}]}})");
	CHECK(some.form.tool_choice == "required");
	REQUIRE(Json::parse(some.prompt.tools).size() == 1);
	CHECK(Json::parse(some.prompt.tools)[0]["function"]["name"] == "sub");
}

TEST_CASE("serve: fields by the names of other servers, and the values with which they turn samplers off") {
	CHECK(chat(R"("n_predict": 7)").sampling.max_tokens == 7);
	CHECK(chat(R"("n_probs": 3)").sampling.logprobs == 3);
	CHECK(chat(R"("top_k": -1, "temperature": -1)").sampling.top_k == 0);
	CHECK(chat(R"("temperature": -1)").sampling.temperature == 0);
	CHECK(chat(R"("repetition_penalty": 1.5)").sampling.repeat_penalty == 1.5);
	CHECK(chat(R"("max_tokens": 0)").mute);
	CHECK(chat(R"("samplers": ["top_k"], "nonsense": 1, "stream_options": {"include_usage": true})").n == 1);
	const ChatRequest bias = chat(R"("logit_bias": [[5, 1.5], [6, false], ["word", -1]])");
	REQUIRE(bias.sampling.bias.size() == 2);
	CHECK(bias.sampling.bias[1].bias == -100);
	CHECK(bias.text_bias.at(0).first == "word");
	CHECK(Json::parse(chat(R"("reasoning_effort": "none")").prompt.variables)["enable_thinking"] == false);
	const CompletionRequest mixed = completion_request(parse_body(R"({"prompt": [1, 2, "a", 3]})"), "fp16");
	REQUIRE(mixed.prompts.size() == 1);
	CHECK(mixed.prompts[0].size() == 3);
	Defaults d;
	d.sampling.temperature = 0.25, d.sampling.max_tokens = 5, d.seed = 9;
	const CompletionRequest plain = completion_request(parse_body(R"({"prompt": "a"})"), d);
	CHECK(plain.sampling.temperature == 0.25);
	CHECK(plain.sampling.max_tokens == 5);
	CHECK(plain.sampling.seed == 9);
}

TEST_CASE("serve: an answer that the client begins") {
	const auto chat = [](const std::string& more, const char* last = R"({"role": "assistant", "content": "It "})") {
		return chat_request(
		           parse_body(R"({"messages": [{"role": "user", "content": "x"}, )" + (last + ("]" + more + "}"))),
		           "fp16")
		    .prompt;
	};
	CHECK(chat("").goes_on);
	CHECK(!chat(R"(, "add_generation_prompt": true)").goes_on);
	CHECK(chat(R"(, "add_generation_prompt": false)").goes_on);
	CHECK(chat(R"(, "continue_final_message": true, "add_generation_prompt": false)").goes_on);
	const char* user = R"({"role": "user", "content": "y"})";
	CHECK(chat(R"(, "add_generation_prompt": false)", user).no_answer);
	CHECK_THROWS_AS(chat(R"(, "continue_final_message": true)", user), ApiError);
	CHECK(!chat("", R"({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]})").goes_on);
	const std::string text = model().chat_text(chat("")),
	                  whole = model().chat_text(chat(R"(, "add_generation_prompt": true)"));
	CHECK(text.ends_with("It "));
	CHECK(whole.size() > text.size());
	CHECK(whole.starts_with(text.substr(0, text.size() - 1)));
}

TEST_CASE("serve: log probabilities of a completion: characters, bytes of parts of them, the chosen token") {
	const auto client = std::make_shared<Client>();
	const CompletionRequest r = completion_request(parse_body(R"({"prompt": "x", "logprobs": 1})"), "fp16");
	CompletionAnswer a(std::make_shared<Choices>(client, r, "m", kCompletionObject), 0);
	const auto token = [](const std::string& text, double p, const Json& top) {
		Json bytes = Json::array();
		for (const char c : text) bytes.push_back(uint8_t(c));
		return Json{{"token", text}, {"logprob", p}, {"bytes", bytes}, {"top_logprobs", top}};
	};
	a.token(token("\u00e9", -1, Json::array({token("b", -0.5, Json::array())})));
	a.token(token("\xe2\x82", -2, Json::array({token("\xe2", -1, Json::array()), token("\xe3", -1.5, Json::array())})));
	a.token(token("\xac", -3, Json::array()));
	a.token(token("c", -4, Json::array()));
	a.end({});
	const Json p = client->whole["choices"][0]["logprobs"];
	CHECK(p["text_offset"] == Json({0, 1, 2, 2}));
	CHECK(p["tokens"][1] == "bytes:\\xe2\\x82");
	CHECK(p["top_logprobs"][0] == Json{{"b", -0.5}, {"\u00e9", -1.0}});
	CHECK(p["top_logprobs"][1].size() == 3);
}

TEST_CASE("serve: bytes that are not UTF-8 become U+FFFD") {
	const auto client = std::make_shared<Client>();
	const CompletionRequest r = completion_request(parse_body(R"({"prompt": "x"})"), "fp16");
	CompletionAnswer a(std::make_shared<Choices>(client, r, "m", kCompletionObject), 0);
	a.piece("a\xff");
	a.end({});
	CHECK(client->whole["choices"][0]["text"] == "a\xEF\xBF\xBD");
}

TEST_CASE("serve: keys are equal or not, whatever their lengths") {
	CHECK(equal_in_constant_time("key", "key"));
	for (const char* given : {"", "k", "ke", "keykey", "kex", "xey", "key "})
		CHECK_FALSE(equal_in_constant_time(given, "key"));
	CHECK_FALSE(equal_in_constant_time("", "key"));
}
