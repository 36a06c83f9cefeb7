// Lets the user write a message in an external editor.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

// Edits `text` with $VISUAL, else $EDITOR, else vi; returns the result without the last newline. Throws
// StatusError if there is no terminal, the editor fails, or the result is not UTF-8.
std::string edit_text(std::string_view text);

} // namespace kvrun
