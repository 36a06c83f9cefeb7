// Lets the user write a message in an external editor.
#include "tools/chat/external_editor.h"
#include "tools/chat/input.h"
#include "tools/env.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

constexpr size_t kLongestMessage = size_t(64) << 20; // bytes

// The first variable that is set, in the usual order. The value may have arguments: "code --wait".
std::string editor() {
	for (const char* name : {"VISUAL", "EDITOR"})
		if (std::string e = variable(name); !e.empty()) return e;
	return "vi";
}

std::string shell_quoted(std::string_view path) {
	std::string out = "'";
	for (const char c : path) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
	return out + "'";
}

// A temporary file with mode 0600; removed by the destructor.
class TemporaryText {
 public:
	explicit TemporaryText(std::string text) {
		if (!text.empty() && !text.ends_with('\n')) text += '\n'; // text files end with a newline
		std::string folder = variable("TMPDIR");
		if (folder.empty()) folder = "/tmp";
		path_ = folder + "/kvrun-XXXXXX.md"; // editors choose syntax highlighting by the extension
		const int fd = mkostemps(path_.data(), 3, O_CLOEXEC);
		FILE* f = fd >= 0 ? fdopen(fd, "w") : nullptr;
		const bool written = f && std::fwrite(text.data(), 1, text.size(), f) == text.size();
		const int error = errno;
		if ((f && std::fclose(f) != 0) || !written) {
			if (fd >= 0) unlink(path_.c_str());
			fail_status(KVRUN_EIO, "{}: {}", path_, std::generic_category().message(error));
		}
	}
	TemporaryText(const TemporaryText&) = delete;
	~TemporaryText() { unlink(path_.c_str()); }
	const std::string& path() const { return path_; }

 private:
	std::string path_;
};

} // namespace

std::string edit_text(std::string_view text) {
	if (!is_interactive()) fail_status(KVRUN_EINVALID, "an editor needs a terminal; give the message as lines");
	const TemporaryText file{std::string(text)};
	const std::string program = editor();
	// system() waits for the editor and ignores Ctrl-C meanwhile.
	const int status = std::system((program + " " + shell_quoted(file.path())).c_str());
	if (status != 0)
		fail_status(KVRUN_EIO, "'{}' ended with {}; nothing was sent. VISUAL or EDITOR name an editor", program,
		            status > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : status);
	std::string edited = read_text_file(file.path(), kLongestMessage);
	if (well_formed(edited) != edited) fail_status(KVRUN_EINVALID, "the edited message is no UTF-8 text");
	if (edited.ends_with('\n')) edited.pop_back();
	return edited;
}

} // namespace kvrun
