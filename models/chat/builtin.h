// Which chat template a model is used with: its own, a variant of it, or one of those kvrun knows by name.
#pragma once
#include "models/chat/template.h"
#include "models/gguf.h"

namespace kvrun {

std::vector<std::string_view> builtin_chat_templates();        // names, sorted
std::string_view builtin_chat_template(std::string_view name); // Jinja text; empty: no such name
std::vector<std::string> model_chat_templates(const Gguf&);    // names in the file, "default" first; may be empty

// `name`: one in the file or a built-in one; empty: the file's own, or its variant "tool_use" where there is one and
// `tools`. No template is assumed: Error{NotFound} lists the names where the file has none or `name` is unknown.
ChatTemplate choose_chat_template(const Gguf&, std::string_view name, bool tools);

} // namespace kvrun
