// A small model that guesses what a larger one of the same vocabulary says.
#pragma once
#include "engine/run/draft.h"
#include "engine/run/session.h"

namespace kvrun {

class DraftModel {
 public:
	static constexpr uint32_t kRows = 8; // EngineOptions::max_rows that it makes use of
	// ctx: longest sequence of the model it drafts for; 0: unknown. Throws Error as
	// Engine::open() does; Unsupported where it could not draft, and Invalid where a token of its vocabulary is another
	// one, naming file and token.
	DraftModel(const EngineOptions&, const Tokenizer& target, uint32_t ctx, const LoadProgress& = {});
	// Drafts one answer, with a cache of its own. The drafter must end before the model.
	std::unique_ptr<Drafter> drafter();
	Engine& engine() { return *engine_; }

 private:
	std::unique_ptr<Engine> engine_;
	std::unique_ptr<Session> empty_; // which answers fork
};

// Throws Error{Invalid} naming the first token that differs. Vocabularies may differ in how far rows without a token
// pad them.
void check_same_vocabulary(const Tokenizer& draft, const Tokenizer& target, const std::string& file);

} // namespace kvrun
