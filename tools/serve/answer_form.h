// The form that a request demands of an answer: a grammar, a JSON schema, tool calls.
#pragma once
#include "tools/serve/error.h"
#include "tools/serve/model.h"
#include <list>
#include <memory>

namespace kvrun::serve {

class Fields;
struct Rules;
using Grammar = std::shared_ptr<kvrun_grammar>; // null if the answer is unconstrained

struct AnswerForm {
	std::string gbnf, schema;    // at most one is given
	const char* field = nullptr; // the request field that set it; null if none did
	std::string tool_choice;     // values as in kvrun_grammar_options; empty means auto
	bool one_call = false;
	bool strict_tools = false; // at least one tool has "strict": its calls must match its schema
	bool asks() const { return field || one_call || strict_tools || !(tool_choice.empty() || tool_choice == "auto"); }
};

// Reads grammar, json_schema, guided_json, guided_grammar; if `chat`, also response_format. Throws ApiError 400.
AnswerForm read_answer_form(const Fields&, bool chat, const Rules&);
// Reads tools, tool_choice, parallel_tool_calls. Returns the tools that the model is shown, as JSON; empty if none.
// Tools that are no functions are left out.
std::string read_tools(const Fields&, AnswerForm&, const Rules&);

// Cache of recently used grammars: state computed for a grammar is reused by later requests.
class Grammars {
 public:
	Grammars(const Model& m, const Rules& r) : model_(m), rules_(r) {}
	// Throws ApiError 400 that names the field if the grammar is not valid. prompt: null for a text completion.
	Grammar get(const AnswerForm&, const ChatPrompt* prompt);

 private:
	static constexpr size_t kMost = 16;
	const Model& model_;
	const Rules& rules_;
	std::mutex mutex_;
	kvrun_engine* engine_ = nullptr;                   // owner of these grammars; a reloaded model has another engine
	std::list<std::pair<std::string, Grammar>> known_; // key: what the grammar was built from; latest use first
};

} // namespace kvrun::serve
