// Windows: no editor is started for a message.
#include "tools/chat/external_editor.h"
#include "tools/text.h"

namespace kvrun {

std::string edit_text(std::string_view) {
	fail_status(KVRUN_EINVALID, "an editor is not started on Windows yet; give the message as lines, in \"\"\"");
}

} // namespace kvrun
