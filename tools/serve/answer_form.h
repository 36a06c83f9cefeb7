// What a request asks of an answer's form: a grammar, a JSON schema, calls of tools.
#pragma once
#include "tools/serve/error.h"
#include "tools/serve/model.h"
#include <list>
#include <memory>

namespace kvrun::serve {

class Fields;
using Grammar = std::shared_ptr<kvrun_grammar>; // null: the answer may be anything

struct AnswerForm {
	std::string gbnf, schema;    // at most one is given
	const char* field = nullptr; // of the request, that gave it
	std::string tool_choice;     // as kvrun_grammar_options has it; empty: auto
	bool one_call = false;
	bool strict_tools = false; // one of the tools is to be held to its schema
	bool asks() const { return field || one_call || strict_tools || !(tool_choice.empty() || tool_choice == "auto"); }
};

// grammar, json_schema, guided_json, guided_grammar, and where `chat` is set response_format. Throws ApiError 400.
AnswerForm read_answer_form(const Fields&, bool chat);
// tools, tool_choice, parallel_tool_calls. Returns the tools that the model is shown, as JSON; empty: none.
std::string read_tools(const Fields&, AnswerForm&);

// Grammars that requests have used of late: what is known of one serves the next requests, too.
class Grammars {
 public:
	explicit Grammars(const Model& m) : model_(m) {}
	// Throws ApiError 400 that names the field where it cannot be done. prompt: null for a text that is continued.
	Grammar get(const AnswerForm&, const ChatPrompt* prompt);

 private:
	static constexpr size_t kMost = 16;
	const Model& model_;
	std::mutex mutex_;
	kvrun_engine* engine_ = nullptr;                   // that they are of: a model that was unloaded has another one
	std::list<std::pair<std::string, Grammar>> known_; // by what they were made of, the latest first
};

} // namespace kvrun::serve
