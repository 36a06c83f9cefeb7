// Options of speculation: --draft, --draft-max.
#pragma once
#include "tools/args.h"
#include "tools/args_model.h"

namespace kvrun {

struct DraftArgs {
	std::string what; // "lookup", or a model: the path of its file when the command runs; empty: no drafts
	int64_t most = 7; // tokens drafted for a step

	bool given() const { return !what.empty(); }
	bool looks_up() const { return what == "lookup"; }
	uint32_t draft_max() const { return given() ? uint32_t(most) : 0; }
	// Rows of a decode step in which so many answers are verified.
	uint32_t rows(uint32_t answers) const;
};
void add_draft_options(Command&, DraftArgs&, const char* group);
// "drafts 120 of 150 tok taken (80.0 %)"; nothing was drafted: "no drafts".
std::string draft_text(uint64_t drafted, uint64_t accepted);

} // namespace kvrun
