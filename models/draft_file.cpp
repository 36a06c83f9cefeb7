// Files that are no models: they draft for one.
#include "models/draft_file.h"
#include "models/assistant.h"
#include "models/fusion.h"

namespace kvrun {

DraftKind draft_kind(const Gguf& g) {
	const Family* f = find_family(g.text("general.architecture", ""));
	return f ? f->drafts : DraftKind::None;
}

std::string draft_kind_text(const Family& f) {
	if (f.drafts == DraftKind::Assistant) return fmt::format("an assistant, which drafts for a model of {}", f.assists);
	return fmt::format("{}, which draft for another model", fused_format(f.drafts)->text);
}

Config read_draft_file(const Gguf& g, const Config& of) {
	return fused_format(draft_kind(g)) ? read_fused(g, of) : read_assistant(g, of);
}

} // namespace kvrun
