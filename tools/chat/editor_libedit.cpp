// A line editor on the terminal, with a history: libedit.
#include "tools/chat/input.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <algorithm>
#include <cerrno>
#include <climits>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kvrun {
namespace {

constexpr size_t kLongestPaste = size_t(64) << 20; // bytes
constexpr int kHistoryLines = 1000;

const char* shown_prompt = ""; // libedit's callback has no payload
char* prompt_text(EditLine*) { return const_cast<char*>(shown_prompt); }

unsigned char insert_newline(EditLine* el, int) { return el_insertstr(el, "\n") == 0 ? CC_REFRESH : CC_ERROR; }

// Handles a bracketed paste: everything up to ESC [ 201 ~ is inserted as text, even if it looks like keys.
unsigned char insert_paste(EditLine* el, int) {
	constexpr std::wstring_view end = L"\033[201~";
	std::wstring text;
	for (wchar_t c; !text.ends_with(end);) {
		if (el_wgetc(el, &c) != 1) return CC_EOF;
		if (text.size() < kLongestPaste / sizeof c) text += c == L'\r' ? L'\n' : c;
	}
	text.resize(text.size() - end.size());
	std::erase_if(text, [](wchar_t c) { return (c < 0x20 && c != L'\n' && c != L'\t') || c == 0x7f; });
	return text.empty() || el_winsertstr(el, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

volatile std::sig_atomic_t resized = 0;
void on_resize(int) { resized = 1; }

// Sets a handler of SIGWINCH while it exists. SA_RESTART: only poll(), which is never restarted, ends with EINTR.
class ResizeSignal {
 public:
	ResizeSignal() {
		struct sigaction now = {};
		now.sa_handler = on_resize;
		now.sa_flags = SA_RESTART;
		sigaction(SIGWINCH, &now, &before_);
	}
	~ResizeSignal() { sigaction(SIGWINCH, &before_, nullptr); }

 private:
	struct sigaction before_ = {};
};

// Reads a character for the editor. While it waits, it draws the line again when the terminal gets another size:
// libedit would do so only if it handled SIGINT, too, which ends an answer here.
int read_key(EditLine* el, wchar_t* out) {
	std::mbstate_t state{};
	for (int tries = 0; tries < MB_LEN_MAX;) {
		pollfd key = {STDIN_FILENO, POLLIN, 0};
		if (std::exchange(resized, 0)) {
			std::fputs("\r\033[J", stdout); // libedit then begins in the first column
			el_resize(el);
			el_set(el, EL_REFRESH);
		}
		if (poll(&key, 1, -1) < 0) {
			if (errno == EINTR && !EditingInterrupt::happened()) continue;
			return -1;
		}
		char c;
		const ssize_t n = ::read(STDIN_FILENO, &c, 1);
		if (n == 0) return 0;
		if (n < 0) {
			if ((errno == EINTR || errno == EAGAIN) && !EditingInterrupt::happened()) continue;
			return -1;
		}
		const size_t length = std::mbrtowc(out, &c, 1, &state);
		if (length != size_t(-1) && length != size_t(-2)) return 1; // 0: a zero byte, which is a key, too
		if (length == size_t(-1)) state = {}, tries = 0;            // no character begins so: the byte is dropped
		++tries;
	}
	return 0;
}

constexpr size_t kMostShown = 100; // words

// The Tab key: adds what all possible words have in common; lists them where there is nothing to add.
unsigned char insert_completion(EditLine* el, int) {
	const Completer* complete = nullptr;
	const LineInfo* line = el_line(el);
	if (el_get(el, EL_CLIENTDATA, &complete) != 0 || !*complete) return CC_NORM;
	const std::string_view typed(line->buffer, size_t(line->cursor - line->buffer));
	Completion c;
	try {
		c = (*complete)(typed);
	} catch (const std::exception&) { return CC_NORM; } // libedit is C
	std::string added = common_beginning(c.words);
	added.erase(0, typed.size() - c.from);
	if (!added.empty()) return el_insertstr(el, added.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
	if (c.words.size() < 2) return CC_NORM;
	std::string list;
	for (size_t i = 0; i < std::min(c.words.size(), kMostShown); ++i) list += c.words[i] + "  ";
	if (c.words.size() > kMostShown) list += fmt::format(".. ({})", c.words.size());
	std::fprintf(stdout, "\n%s\n", list.c_str()), std::fflush(stdout);
	return CC_REDISPLAY;
}

unsigned char ignore_key(EditLine*, int) { return CC_NORM; }

// Keys of xterm, rxvt and the Linux console that libedit has not: it would drop the beginning of their sequence and
// insert the rest. With the modifier M (2 to 16) a sequence is ESC [ 1 ; M LETTER or ESC [ NUMBER ; M ~.
void bind_keys(EditLine* el) {
	const auto bind = [el](const std::string& keys, const char* to) { el_set(el, EL_BIND, keys.c_str(), to, nullptr); };
	constexpr const char* nothing = "kvrun-nothing";
	constexpr int first = 1, last = 34; // numbers of keys: Home, Insert, Delete, End, pages, F1 to F20
	for (int n = first; n <= last; ++n) bind(fmt::format("\033[{}~", n), nothing);
	for (int modifier = 2; modifier <= 16; ++modifier) {
		for (const char letter : std::string_view("ABCDEFHPQRS"))
			bind(fmt::format("\033[1;{}{}", modifier, letter), nothing);
		for (int n = first; n <= last; ++n) bind(fmt::format("\033[{};{}~", n, modifier), nothing);
	}
	for (const char letter : std::string_view("PQRS")) bind(fmt::format("\033O{}", letter), nothing); // F1 to F4
	for (const char letter : std::string_view("ABCDE")) bind(fmt::format("\033[[{}", letter), nothing);
	for (const char* keys : {"\033x", "\033X"}) bind(keys, nothing); // libedit's own command line
	for (const char* keys : {"\033[1;5D", "\033[1;3D", "\033Od"}) bind(keys, "ed-prev-word"); // Ctrl-Left, Alt-Left
	for (const char* keys : {"\033[1;5C", "\033[1;3C", "\033Oc"}) bind(keys, "em-next-word");
	for (const char* keys : {"\033[1~", "\033[7~"}) bind(keys, "ed-move-to-beg");
	for (const char* keys : {"\033[4~", "\033[8~"}) bind(keys, "ed-move-to-end");
	bind("\033[3~", "ed-delete-next-char");
	bind("\033[3;5~", "em-delete-next-word"); // Ctrl-Delete
}

class EditorInput : public LineInput {
 public:
	EditorInput(const std::string& history_file, Completer complete)
	    : file_(history_file), complete_(std::move(complete)) {
		std::setlocale(LC_CTYPE, "");
		if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
		el_ = el_init("kvrun", stdin, stdout, stderr);
		history_ = history_init();
		if (!el_ || !history_) throw std::bad_alloc();
		HistEvent event;
		history(history_, &event, H_SETSIZE, kHistoryLines);
		history(history_, &event, H_SETUNIQUE, 1);
		if (!file_.empty()) {
			const int fd = open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
			struct stat st;
			if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
				fchmod(fd, 0600); // also for a file that the user created
				history(history_, &event, H_LOAD, fmt::format("/dev/fd/{}", fd).c_str());
			}
			if (fd >= 0) close(fd);
		}
		el_set(el_, EL_CLIENTDATA, &complete_);
		el_set(el_, EL_PROMPT, prompt_text);
		el_set(el_, EL_EDITOR, "emacs");
		el_set(el_, EL_SIGNAL, 0);
		el_set(el_, EL_GETCFN, read_key);
		el_set(el_, EL_HIST, history, history_);
		el_set(el_, EL_ADDFN, "kvrun-newline", "Insert a newline", insert_newline);
		el_set(el_, EL_ADDFN, "kvrun-paste", "Insert a bracketed paste", insert_paste);
		el_set(el_, EL_ADDFN, "kvrun-complete", "Complete a word", insert_completion);
		el_set(el_, EL_ADDFN, "kvrun-nothing", "Do nothing", ignore_key);
		bind_keys(el_);
		for (const char* keys : {"\033\r", "\033\n"}) el_set(el_, EL_BIND, keys, "kvrun-newline", nullptr);
		el_set(el_, EL_BIND, "\033[200~", "kvrun-paste", nullptr);
		el_set(el_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
		el_set(el_, EL_BIND, "^I", "kvrun-complete", nullptr);
	}
	~EditorInput() override {
		el_end(el_);
		history_end(history_);
	}

	Got read(const char* prompt, std::string& line) override {
		shown_prompt = prompt;
		el_resize(el_);
		std::fputs("\033[?2004h", stdout), std::fflush(stdout); // turns on bracketed paste
		int length = 0;
		errno = 0;
		const EditingInterrupt interrupt;
		const char* typed = el_gets(el_, &length);
		std::fputs("\033[?2004l", stdout), std::fflush(stdout);
		if (EditingInterrupt::happened()) {
			el_reset(el_);
			std::fputs("\n", stdout), std::fflush(stdout);
			return Got::Interrupt;
		}
		if (!typed || length <= 0) return std::fputs("\n", stdout), std::fflush(stdout), Got::End;
		line.assign(typed, size_t(length));
		if (line.ends_with('\n')) line.pop_back();
		return Got::Line;
	}

	void remember(const std::string& entry) override {
		HistEvent event;
		if (entry.empty() || history(history_, &event, H_ENTER, entry.c_str()) < 0 || file_.empty()) return;
		std::string next;
		const int fd = open_beside(file_, next);
		FILE* f = fd >= 0 ? fdopen(fd, "w") : nullptr;
		const bool written = f && history(history_, &event, H_SAVE_FP, f) >= 0;
		// a history that cannot be kept is no reason to end a chat
		if (f && std::fclose(f) == 0 && written)
			rename(next.c_str(), file_.c_str());
		else
			unlink(next.c_str());
	}

 private:
	std::string file_;
	Completer complete_;
	ResizeSignal resize_;
	EditLine* el_ = nullptr;
	History* history_ = nullptr;
};

} // namespace

std::unique_ptr<LineInput> editor_input(const std::string& history, Completer complete) {
	return std::make_unique<EditorInput>(history, std::move(complete));
}

} // namespace kvrun
