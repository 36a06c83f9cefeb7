// Prompts of the C API.
#pragma once
#include "engine/api/objects.h"

namespace kvrun::api {

kvrun_generate_options read_generate_options(const kvrun_generate_options* given);
std::span<const uint32_t> prompt_span(const uint32_t* tokens, size_t count);
// Reads a prompt into the session, taking turns with other threads; `hooks` are called during this thread's turns.
// Returns the logits of the last token.
std::vector<float> read_prompt(InUse&, std::span<const uint32_t> prompt, const kvrun_generate_options*, PrefillHooks);

} // namespace kvrun::api
