// Files that are no models: they draft for one (--draft FILE).
#pragma once
#include "models/families.h"

namespace kvrun {

DraftKind draft_kind(const Gguf&); // by its architecture; None: a model, or unknown
std::string draft_kind_text(const Family&);
// Its config. Throws Error{Invalid} naming what differs if it was made for another model than `of`; Format, Unsupported
// as read_config() does.
Config read_draft_file(const Gguf&, const Config& of);

} // namespace kvrun
