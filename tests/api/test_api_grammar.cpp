// Grammars of the C API: answers that follow one, forks and later answers that do not, refused requests.
#include "objects.h"

using namespace api;

namespace {

struct Grammar {
	kvrun_grammar* h = nullptr;
	Grammar(const Engine& e, const kvrun_grammar_options& o) {
		const kvrun_status s = kvrun_grammar_new(&h, e.h, &o);
		INFO(error());
		REQUIRE(s == KVRUN_OK);
	}
	~Grammar() { kvrun_grammar_free(h); }
};

std::string answer(kvrun_session* s, const char* prompt, uint64_t seed, kvrun_stop_reason* reason = nullptr) {
	Told told;
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.max_tokens = 60, o.temperature = 2, o.top_k = 0, o.top_p = 1, o.min_p = 0, o.seed = seed;
	o.on_token = on_token, o.payload = &told;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	const kvrun_status status = kvrun_generate_text(s, prompt, &o, &r);
	INFO(error());
	REQUIRE(status == KVRUN_OK);
	if (reason) *reason = r.reason;
	return told.text;
}

} // namespace

TEST_CASE("api: answers of a session follow its grammar until it has none") {
	const Engine e;
	const Session s(e);
	kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
	o.json_schema = "{\"enum\": [\"red\", \"green\"]}";
	const Grammar colour(e, o);
	REQUIRE(kvrun_session_set_grammar(s.h, colour.h) == KVRUN_OK);
	for (uint64_t seed = 0; seed < 4; ++seed) {
		kvrun_stop_reason reason{};
		const std::string text = answer(s.h, "Once", seed, &reason);
		CHECK((text == "\"red\"" || text == "\"green\""));
		CHECK(reason == KVRUN_STOP_END);
	}
	kvrun_session* fork = nullptr;
	REQUIRE(kvrun_session_fork(&fork, s.h) == KVRUN_OK);
	CHECK(answer(fork, "Once", 1).size() > 8);
	kvrun_session_free(fork);
	o.json_schema = nullptr;
	o.gbnf = "root ::= [0-9]{3} \"!\"";
	{
		const Grammar digits(e, o);
		REQUIRE(kvrun_session_set_grammar(s.h, digits.h) == KVRUN_OK);
	} // freed: the session keeps it
	const std::string text = answer(s.h, "Code: ", 3);
	CHECK((text.size() == 4 && text[3] == '!'));
	REQUIRE(kvrun_session_set_grammar(s.h, nullptr) == KVRUN_OK);
	CHECK(answer(s.h, "Once", 1).size() > 8);
}

// The model would always write <: whether the grammar lets it begin its reasoning.
TEST_CASE("api: a form may follow reasoning, unless the prompt has closed it or the request turns it off") {
	const Engine e;
	const auto begins = [&](const char* end, const char* variables, int no_answer = 0) {
		kvrun_chat_options chat = KVRUN_CHAT_OPTIONS_INIT;
		chat.messages_json = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
		const std::string text =
		    "{% for m in messages %}{{ m.content }}{% endfor %}{% set x = '<think>' %}{{ '" + std::string(end) + "' }}";
		chat.template_text = text.c_str(), chat.variables_json = variables, chat.no_answer = no_answer;
		kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
		o.gbnf = "root ::= \"{}\"", o.chat = &chat;
		const Grammar g(e, o);
		const Session s(e);
		REQUIRE(kvrun_session_set_grammar(s.h, g.h) == KVRUN_OK);
		const kvrun_logit_bias less{tokens_of(e, "<").back(), 1000};
		Told told;
		kvrun_generate_options how = greedy(2, &told);
		how.ignore_eos = 0, how.bias = &less, how.n_bias = 1;
		REQUIRE(kvrun_generate_text(s.h, "Once", &how, nullptr) == KVRUN_OK);
		return told.text.substr(0, 1);
	};
	CHECK(begins("</think>:", nullptr) == "<");
	CHECK(begins("</think>:", R"({"enable_thinking": true})") == "<");
	CHECK(begins("</think>:", R"({"enable_thinking": false})") == "{");
	CHECK(begins("<think></think>", nullptr) == "{");
	CHECK(begins("</think>:", nullptr, /*no_answer=*/2) == "{");
	CHECK(begins("no reasoning", nullptr) == "{");
}

TEST_CASE("api: grammars that are wrong, foreign or ask for nothing") {
	const Engine e, other;
	const auto refused = [&](kvrun_grammar_options o, kvrun_status status, const char* message) {
		kvrun_grammar* h = nullptr;
		CHECK(kvrun_grammar_new(&h, e.h, &o) == status);
		CHECK(h == nullptr);
		CHECK_MESSAGE(said(message), error());
	};
	kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
	o.gbnf = "root ::= x";
	refused(o, KVRUN_EFORMAT, "rule x");
	o.json_schema = "{}";
	refused(o, KVRUN_EINVALID, "one of gbnf and json_schema");
	o.gbnf = nullptr;
	o.json_schema = "{\"not\": {}}";
	refused(o, KVRUN_EUNSUPPORTED, "#/not");
	std::string told;
	o.payload = &told;
	o.on_left_out = [](const char* line, void* to) { static_cast<std::string*>(to)->append(line); };
	const Grammar loose(e, o);
	CHECK(told == "the JSON schema at #/not: not is not supported");
	o.on_left_out = nullptr;
	o.json_schema = "{";
	refused(o, KVRUN_EINVALID, "json_schema");
	o.json_schema = nullptr;
	o.tool_choice = "required";
	refused(o, KVRUN_EINVALID, "no tools");
	o.tool_choice = nullptr;
	kvrun_grammar* none = nullptr;
	CHECK(kvrun_grammar_new(&none, e.h, &o) == KVRUN_OK);
	CHECK(none == nullptr);
	CHECK(kvrun_grammar_new(nullptr, e.h, &o) == KVRUN_EINVALID);
	o.json_schema = "{}";
	const Grammar g(e, o);
	const Session s(other);
	CHECK(kvrun_session_set_grammar(s.h, g.h) == KVRUN_EINVALID);
	CHECK(said("another engine"));
	kvrun_grammar_free(nullptr);
}
