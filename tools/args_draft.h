// Options of speculation: --draft, --draft-max.
#pragma once
#include "tools/args.h"
#include "tools/args_model.h"

namespace kvrun {

struct DraftArgs {
	std::string what; // "lookup", "mtp" (the model's prediction layer), or a model (when the command runs: the path of
	                  // its file); empty for no drafts
	int64_t most = 7; // most tokens drafted per step

	bool given() const { return !what.empty(); }
	bool looks_up() const { return what == "lookup"; }
	bool predicts() const { return what == "mtp"; }
	bool is_of_model() const; // the file drafts for one model (models/draft_file.h); throws Error as Gguf::open() does
	bool has_model() const { return given() && !looks_up() && !predicts(); }
	uint32_t draft_max() const { return given() ? uint32_t(most) : 0; }
	// Rows of a decode step that verifies drafts of this many answers.
	uint32_t rows(uint32_t answers) const;
};
void add_draft_options(Command&, DraftArgs&, const char* group);
// Why a session under this policy takes no drafts.
std::string why_no_drafts(const std::string& kv);
// "drafts 120 of 150 tok taken (80.0 %)"; "no drafts" if nothing was drafted.
std::string draft_text(uint64_t drafted, uint64_t accepted);

} // namespace kvrun
