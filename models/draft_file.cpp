// Files that are no models: they draft for one.
#include "models/draft_file.h"
#include "models/assistant.h"
#include "models/dflash.h"
#include "models/eagle.h"

namespace kvrun {

DraftKind draft_kind(const Gguf& g) {
	const Family* f = find_family(g.text("general.architecture", ""));
	return f ? f->drafts : DraftKind::None;
}

std::string draft_kind_text(const Family& f) {
	if (f.drafts == DraftKind::Assistant) return fmt::format("an assistant, which drafts for a model of {}", f.assists);
	return fmt::format("{}, which draft for another model",
	                   f.drafts == DraftKind::Eagle ? "EAGLE-3 layers" : "DFlash layers");
}

Config read_draft_file(const Gguf& g, const Config& of) {
	switch (draft_kind(g)) {
	case DraftKind::Eagle: return read_eagle(g, of);
	case DraftKind::Block: return read_dflash(g, of);
	default: return read_assistant(g, of);
	}
}

} // namespace kvrun
