// Opens the model of a command that is built on the C API.
#pragma once
#include "tools/api_call.h"
#include "tools/args_draft.h"

namespace kvrun {

// kv: the policy that --fit makes room for; empty for f16. answers: generated at once. show: progress on the terminal.
// `out` is null, or the engine if only --host-budget or --offload-dir is refused.
kvrun_status open_model(const ModelArgs&, const DraftArgs&, const std::string& kv, uint32_t answers, kvrun_canceller*,
                        bool show, EngineHandle& out);

} // namespace kvrun
