// Grammars of the C API.
#include "engine/api/chat.h"
#include "models/chat/answer_grammar.h"

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_grammar_new(kvrun_grammar** out, kvrun_engine* engine, const kvrun_grammar_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		const auto e = engines().get(engine);
		constexpr kvrun_grammar_options defaults = KVRUN_GRAMMAR_OPTIONS_INIT;
		const kvrun_grammar_options o = read_options(options, defaults, "kvrun_grammar_options");
		if (o.gbnf && o.json_schema) refuse(KVRUN_EINVALID, "give one of gbnf and json_schema");
		AnswerRules r;
		r.gbnf = text_or_empty(o.gbnf);
		if (o.gbnf && r.gbnf.empty()) refuse(KVRUN_EINVALID, "gbnf is empty; a grammar needs a rule named root");
		if (o.json_schema) {
			r.schema = parse_json(o.json_schema, "json_schema");
			if (r.schema.is_null()) refuse(KVRUN_EINVALID, "json_schema is null, expected an object");
			if (o.on_left_out) r.left_out = [&o](const std::string& line) { o.on_left_out(line.c_str(), o.payload); };
		}
		r.tool_choice = text_or_empty(o.tool_choice);
		r.one_call = o.one_call;
		if (o.chat) {
			ChatFacts f = chat_facts(*e->engine, o.chat);
			r.features = std::move(f.features), r.tools = std::move(f.tools);
			r.in_reasoning = f.in_reasoning, r.may_reason = f.may_reason;
		}
		auto grammar = answer_grammar(r, e->engine->tokenizer(), e->engine->token_trie());
		if (grammar) *out = grammars().add(std::make_shared<GrammarObject>(e, std::move(grammar)));
	});
}

void kvrun_grammar_free(kvrun_grammar* grammar) {
	quietly([&] { grammars().take(grammar); });
}

kvrun_status kvrun_session_set_grammar(kvrun_session* session, kvrun_grammar* grammar) {
	return guard([&] {
		const InUse s(session);
		if (!grammar) return s.object()->grammar.reset();
		const auto g = grammars().get(grammar);
		if (g->engine.lock() != s.object()->engine)
			refuse(KVRUN_EINVALID, "the grammar belongs to another engine than the session");
		s.object()->grammar = g->grammar;
	});
}
