// Options of speculation.
#include "tools/args_draft.h"
#include "models/draft_file.h"
#include "tools/hub/local.h"
#include <algorithm>
#include <fmt/format.h>

namespace kvrun {

constexpr uint32_t kMostRows = 32; // most rows of a decode step

uint32_t DraftArgs::rows(uint32_t answers) const {
	return std::max(answers, std::min(answers * (1 + draft_max()), kMostRows));
}

bool DraftArgs::is_of_model() const { return has_model() && draft_kind(Gguf::open(what)) != DraftKind::None; }

void add_draft_options(Command& c, DraftArgs& a, const char* group) {
	const Option* draft =
	    add_text(c, "--draft,-md,--model-draft,--spec-draft-model", a.what, "lookup|mtp|MODEL",
	             "guess tokens and verify several in one step, which changes speed and no token: from where the text "
	             "had the latest tokens before (lookup), by the model's own prediction layer (mtp), by a file made for "
	             "the model (EAGLE-3, DFlash, DSpark, an assistant), or by a small model of the same vocabulary")
	        ->of_models()
	        ->group(group);
	const Option* most = add_integer(c, "--draft-max,--draft-n,--draft-n-max,--spec-draft-n-max", a.most, 1,
	                                 kMostRows - 1, "most tokens guessed for a step [7]")
	                         ->group(group);
	c.before_run.push_back([draft, most, &a] {
		if (most->count && !a.given()) warn_no_effect(most->shown(), "nothing is guessed without --draft");
		if (draft->count && a.has_model()) a.what = resolve_model(a.what).path;
	});
}

std::string why_no_drafts(const std::string& kv) {
	return fmt::format("this model, or policy {}, cannot take back what was guessed wrongly", kv);
}

std::string draft_text(uint64_t drafted, uint64_t accepted) {
	if (!drafted) return "no drafts";
	return fmt::format("drafts {} of {} tok taken ({:.1f} %)", accepted, drafted,
	                   double(accepted) / double(drafted) * 100);
}

} // namespace kvrun
