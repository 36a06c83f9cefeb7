// A message that is written in the user's editor.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

// What the program of $VISUAL, or else of $EDITOR, or else vi leaves of `text`, without the last newline. Throws
// ChatError where there is no terminal, the editor fails, or the result is not UTF-8.
std::string edit_text(std::string_view text);

} // namespace kvrun
