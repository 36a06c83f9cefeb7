// Choice of a model's chat template: its own, a variant of it, or a built-in one by name.
#pragma once
#include "models/chat/template.h"
#include "models/gguf.h"

namespace kvrun {

std::vector<std::string_view> builtin_chat_templates();        // names, sorted
std::string_view builtin_chat_template(std::string_view name); // Jinja text; empty: unknown name
std::vector<std::string> model_chat_templates(const Gguf&);    // names in the file, "default" first; may be empty

// `name`: a template of the file or a built-in one. Empty: the file's own; with `tools`, its variant "tool_use" if it
// has one. Throws Error{NotFound}, which lists the names, if the file has no template or `name` is unknown.
ChatTemplate choose_chat_template(const Gguf&, std::string_view name, bool tools);

} // namespace kvrun
