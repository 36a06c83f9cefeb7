// A small model that guesses the tokens of a larger one with the same vocabulary.
#pragma once
#include "engine/run/draft.h"
#include "engine/run/session.h"

namespace kvrun {

class DraftModel {
 public:
	static constexpr uint32_t kRows = 8; // value of EngineOptions::max_rows that it uses
	// ctx: longest sequence of the model it drafts for; 0: unknown. Throws Error as
	// Engine::open() does; Unsupported if it cannot draft; Invalid if a token of its vocabulary differs, naming file
	// and token.
	DraftModel(const EngineOptions&, const Tokenizer& target, uint32_t ctx, const LoadProgress& = {});
	// Drafts one answer, with a cache of its own. The drafter must end before the model.
	std::unique_ptr<Drafter> drafter();
	Engine& engine() { return *engine_; }

 private:
	std::unique_ptr<Engine> engine_;
	std::unique_ptr<Session> empty_; // forked for each answer
};

// Throws Error{Invalid} naming the first token that differs. Vocabularies may differ in the number of padding rows
// without a token.
void check_same_vocabulary(const Tokenizer& draft, const Tokenizer& target, const std::string& file);

} // namespace kvrun
