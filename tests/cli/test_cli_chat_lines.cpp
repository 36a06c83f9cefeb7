// Lines of kvrun chat: keys of its editor, operands of commands, and what is typed where output is no terminal.
#include "tests/cli/chat_keys.h"
#include "tests/cli/chat_state.h"
#include "tests/support/scoped_env.h"
#include <array>
#include <csignal>
#include <filesystem>
#include <sys/ioctl.h>

using namespace kvrun;

namespace {

const std::string kPrompt = "\033[?2004h> "; // written once for each line, however often the line is drawn
const std::vector<std::string> kShort = {"--temp", "0", "-n", "2"};

} // namespace

TEST_CASE("chat: keys of terminals move and delete, and no part of their sequence is typed" *
          doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	const std::string words = "two three\033[1;5D\033[1;3Done \033[4~ four\033[1~\033[1;5C\033[1;3C,\r";
	const std::string nothing = "a\033[5~\033[6~\033[15~\033[24~\033[2~\033[1;2A\033[1;6B\033[1;5H\033[15;2~\033OP"
	                            "\033[[A\033xb\r";
	const std::string deletes = "one two\001\033[3;5~\033[7~xx\033[8~y\033[H\033[3~\r";
	const Ran r =
	    type(state.spec(kShort), {{kPrompt, words}, {kPrompt, nothing}, {kPrompt, deletes}, {kPrompt, "\004"}});
	CAPTURE(r.out);
	CHECK(r.code == 0);
	const nlohmann::json messages = state.chat("last")["messages"];
	REQUIRE(messages.size() == 6);
	CHECK(messages[0]["content"] == "one two, three four");
	CHECK(messages[2]["content"] == "ab");
	CHECK(messages[4]["content"] == "x twoy");
}

TEST_CASE("chat: Tab completes commands and what follows them" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	std::filesystem::create_directory(state.path + "/texts");
	std::ofstream(state.path + "/texts/of mine.txt") << "one";
	const Ran r = type(state.spec(kShort), {{kPrompt, "/fi\t" + state.path + "/te\tof\t\r"}, // a folder, a file in it
	                                        {"of mine.txt: 3 B go in front", ""},
	                                        {kPrompt, "/s\t"}, // several: listed
	                                        {"/save   /set   /stats  /system ", "ta\t\r"},
	                                        {"# cache: ", ""},
	                                        {kPrompt, "/kv ziPC\t\025/kv zipc\t\r"},
	                                        {"policy zipcache: 0 of", ""},
	                                        {kPrompt, "/set top-n\t1 \r"}, // blanks behind a value are none of it
	                                        {"top-nsigma 1", ""},
	                                        {kPrompt, "a\tb\r"}, // in a message it does nothing
	                                        {kPrompt, "\004"}});
	CAPTURE(r.out);
	CHECK(r.code == 0);
	CHECK(contains(state.chat("last")["messages"][0]["content"].get<std::string>(), "ab"));
}

TEST_CASE("chat: a line is drawn again when the terminal gets another size" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	const std::string line = "one two three four five six seven eight nine ten";
	RunSpec spec = state.spec(kShort);
	spec.terminal = Terminal{};
	spec.input = std::nullopt;
	spec.timeout_s = 60;
	int step = 0;
	size_t seen = 0;
	const auto next = [&](int fd, const std::string& out, const std::string& after, const std::string& keys) {
		const size_t at = out.find(after, seen);
		if (at == out.npos) return;
		termios mode{};
		for (int i = 0; i < 500 && tcgetattr(fd, &mode) == 0 && (mode.c_lflag & ICANON); ++i) usleep(10000);
		CHECK(write(fd, keys.data(), keys.size()) == ssize_t(keys.size()));
		seen = out.size(), ++step;
	};
	spec.watch = [&](int, int fd, const std::string& out) {
		switch (step) {
		case 0: return next(fd, out, kPrompt, line);
		case 1: {
			if (out.find("ten", seen) == out.npos) return;
			winsize narrow{24, 20, 0, 0};
			CHECK(ioctl(fd, TIOCSWINSZ, &narrow) == 0);
			seen = out.size(), ++step;
			return;
		}
		// the beginning of the line is two lines up now: Home goes there
		case 2: return next(fd, out, "> one two", "\001x");
		case 3: return next(fd, out, "\033[2A", "\r");
		case 4: return next(fd, out, kPrompt, "\004");
		}
	};
	const Ran r = run_program(spec);
	CAPTURE(r.out);
	CHECK(r.code == 0);
	CHECK(step == 5);
	CHECK(state.chat("last")["messages"][0]["content"] == "x" + line);
}

TEST_CASE("chat: a signal that ends it at the prompt leaves the terminal as it was" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	for (const int signal : {SIGTERM, SIGHUP}) {
		const State state;
		RunSpec spec = state.spec(kShort);
		spec.terminal = Terminal{};
		spec.input = std::nullopt;
		bool sent = false;
		spec.watch = [&](int pid, int, const std::string& out) {
			if (!sent && contains(out, kPrompt)) sent = kill(pid, signal) == 0;
		};
		const Ran r = run_program(spec);
		CAPTURE(r.out);
		CHECK(r.code == 128 + signal);
		CHECK(r.out.ends_with("\033[?2004l")); // pastes are plain text again
	}
}

TEST_CASE("chat: where output alone is no terminal, prompts are on stderr" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	RunSpec spec = state.spec(kShort);
	spec.out = Out::Full; // standard input and standard error stay the terminal
	const Ran r = type(spec, {{"a line each; Ctrl-D ends\r\n>", "/stats\r"}, {"\n>", "\004"}});
	CAPTURE(r.out);
	CHECK(r.code == 0);
	CHECK(contains(r.out, "# context: "));
	CHECK(!contains(r.out, "\033"));
	CHECK(!contains(state.run(kShort, "/stats\n").err, "Ctrl-D"));
}

TEST_CASE("chat: operands of commands are those that the help names") {
	const State state;
	const std::vector<std::array<std::string, 2>> bad = {{"/file", "/file needs a PATH"},
	                                                     {"/image", "/image needs a PATH"},
	                                                     {"/fork", "/fork needs a NAME"},
	                                                     {"/delete", "/delete needs a NAME"},
	                                                     {"/undo 3", "/undo takes nothing behind it, and '3' follows"},
	                                                     {"/clear all", "/clear takes nothing"},
	                                                     {"/retry now", "/retry takes nothing"},
	                                                     {"/quit now", "/exit takes nothing"},
	                                                     {"/kv kivi2 4x", "'4x', expected an integer from 1 to"},
	                                                     {"/kv kivi2 17M", "like 4096 or 32k"}};
	for (const auto& [input, says] : bad) {
		const Ran r = state.run(kShort, input + "\nHello\n");
		CAPTURE(r.err);
		CHECK(r.code == 2);
		CHECK(contains(r.err, says));
		CHECK(r.out == "");
	}
	CHECK(contains(state.run(kShort, "/kv kivi2 1k\n").err, " of 1024 tokens"));
	const Ran folder = state.run(kShort, "/file " + state.path + " \n"); // blanks behind an operand are none of it
	CHECK(folder.code == 3);
	CHECK(contains(folder.err, state.path + " is a folder"));
	for (const char* seed : {"-1", "4294967295"}) // both mean a random one, as in --seed
		CHECK(contains(state.run(kShort, std::string("/set seed ") + seed + "\n").err, ", seed -1, "));
	CHECK(contains(state.run(kShort, "/set seed 4294967294\n").err, ", seed 4294967294, "));
	CHECK(state.run(kShort, "/set seed -2\n").code == 2);
	for (const char* leave : {"/exit", "/quit", "/bye "})
		CHECK(state.answers(kShort, std::string(leave) + "\nHello\n") == "");
}

TEST_CASE("chat: /file and /image know the home folder") {
	if (needs_posix("HOME")) return;
	const State state;
	const ScopedEnv home("HOME", state.path);
	std::ofstream(state.path + "/note.txt") << "A note.";
	state.answers(kShort, "/file ~/note.txt\nHello\n/save x\n");
	CHECK(state.chat("x")["messages"][0]["content"] == "A note.\n\nHello");
}

TEST_CASE("chat: /delete removes a chat, its cache and its lock, and none that is open") {
	const State state;
	state.answers(kShort, "Hello\n/save one\nAgain\n/fork two\n");
	REQUIRE(std::filesystem::exists(state.file("chats/one.kv")));
	const Ran open = state.run(with(kShort, {"--chat", "two"}), "/delete two\n");
	CHECK(open.code == 2);
	CHECK(contains(open.err, "chat 'two' is the one that is open"));
	const Ran none = state.run(kShort, "/delete three\n");
	CHECK(none.code == 3);
	CHECK(contains(none.err, "no chat 'three'; there are one, two"));
	CHECK(contains(state.run(kShort, "/delete ../x\n").err, "chat name '../x'"));

	state.answers(kShort, "/delete two\n");
	for (const char* ending : {".json", ".kv", ".lock"})
		CHECK(!std::filesystem::exists(state.file("chats/two") + ending));
	CHECK(contains(state.run(kShort, "/load two\n").err, "no chat 'two'"));
}

TEST_CASE("chat: /delete leaves a chat that another kvrun has open" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	state.answers(kShort, "Hello\n/save x\n");
	RunSpec open = state.spec(with(kShort, {"--chat", "x"}));
	open.terminal = Terminal{};
	open.input = std::nullopt;
	bool tried = false;
	open.watch = [&](int, int fd, const std::string& out) {
		if (tried || !contains(out, kPrompt)) return;
		tried = true;
		const Ran busy = state.run(kShort, "/delete x\n");
		CHECK(busy.code == 5);
		CHECK(contains(busy.err, "chat 'x' is open in another kvrun"));
		CHECK(write(fd, "\004", 1) == 1);
	};
	CHECK(run_program(open).code == 0);
	CHECK(tried);
	CHECK(state.chat("x")["messages"].size() == 2);
}
