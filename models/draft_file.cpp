// Files that are no models: they draft for one.
#include "models/draft_file.h"
#include "models/assistant.h"
#include "models/eagle.h"

namespace kvrun {

DraftKind draft_kind(const Gguf& g) {
	const Family* f = find_family(g.text("general.architecture", ""));
	return f ? f->drafts : DraftKind::None;
}

std::string draft_kind_text(const Family& f) {
	return f.assists ? fmt::format("an assistant, which drafts for a model of {}", f.assists)
	                 : "an EAGLE-3 layer, which drafts for another model";
}

Config read_draft_file(const Gguf& g, const Config& of) {
	return draft_kind(g) == DraftKind::Eagle ? read_eagle(g, of) : read_assistant(g, of);
}

} // namespace kvrun
