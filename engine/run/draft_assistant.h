// An assistant as a drafter (--draft FILE).
#pragma once
#include "engine/run/assistant.h"
#include "engine/run/draft.h"

namespace kvrun {

// Drafts one answer of the session. Both must outlive the drafter.
std::unique_ptr<Drafter> make_assistant_drafter(Assistant&, Session&);

} // namespace kvrun
