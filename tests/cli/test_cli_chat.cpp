// kvrun chat through pipes and on a terminal, with the bundled model, which tells stories and has no chat template.
#include "tests/cli/chat_keys.h"
#include "tests/cli/chat_state.h"
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvrun;

namespace {

size_t count(const std::string& text, const std::string& part) {
	size_t n = 0;
	for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
	return n;
}
void write_file(const std::string& path, const std::string& content) {
	std::ofstream(path, std::ios::binary) << content;
}
mode_t mode_of(const std::string& path) {
	struct stat st {};
	return stat(path.c_str(), &st) == 0 ? st.st_mode & 0777 : 0;
}

} // namespace

TEST_CASE("chat: a conversation is the same after /save, a new start and /load") {
	for (const std::string kv : {"fp16", "kivi2", "zipcache"})
		for (const std::vector<std::string>& sampling : {kGreedy, kWarm}) {
			const State state;
			CAPTURE(kv);
			// turns end with a token of their own, as for a model with a known template
			write_file(state.path + "/t.jinja",
			           "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ '\\n' }}{% endfor %}assistant:");
			const std::vector<std::string> own = with(sampling, {"--chat-template=" + state.path + "/t.jinja"});
			const std::vector<std::string> options = with(own, {"--kv", kv});
			const std::string whole = state.answers(options, "Hello\nOnce upon a time\nTell me a story.\n");
			const std::string first = state.answers(options, "Hello\nOnce upon a time\n/save x\n");
			const std::string rest = state.answers(own, "/load x\nTell me a story.\n"); // the chat's own policy
			CHECK(first + rest == whole);
			CHECK(state.chat("x")["kv"] == kv);
			CHECK(state.chat("x")["messages"].size() == 6);
			if (sampling == kWarm) CHECK(state.answers(options, "/set seed 7\nTell me a story.\n") != rest);
			// the cache is used: only the new message is read
			const Ran again = state.run(own, "/load x\nMore\n/stats\n");
			CAPTURE(again.err);
			CHECK(contains(again.err, "chat 'x': 6 messages"));
			CHECK(!contains(again.err, "not used"));
			const size_t read = again.err.find("last answer: ");
			REQUIRE(read != std::string::npos);
			CHECK(std::atoi(again.err.c_str() + read + 13) < 24);
			for (const char* file : {"chats/x.json", "chats/x.kv"})
				CHECK((mode_of(state.file(file)) == 0600 || windows_program()));
		}
}

TEST_CASE("chat: under a policy that fetches, the conversation is saved without its cache, and read again") {
	const State state;
	CHECK(state.run(kGreedy, "Hello\n/save x\n").code == 0); // a cache that the policy below has no use for
	CHECK(std::filesystem::exists(state.file("chats/x.kv")));
	const std::vector<std::string> fetching = with(kGreedy, {"--kv", "kivi2,fetch=4,recent_keep=8,flush=32"});
	const Ran first = state.run(with(fetching, {"--chat", "x"}), "Once upon a time\n/save\n/fork y\nMore\n");
	CAPTURE(first.err);
	CHECK(first.code == 0);
	CHECK(contains(first.err, "saved as 'x': 4 messages, without the cache, as policy kivi2,fetch=4"));
	CHECK(!std::filesystem::exists(state.file("chats/x.kv")));
	CHECK(!std::filesystem::exists(state.file("chats/y.kv")));
	CHECK(state.chat("y")["messages"].size() == 6);
	const Ran again = state.run(with(kGreedy, {"--chat", "y"}), "And?\n");
	CAPTURE(again.err);
	CHECK(again.code == 0);
	CHECK(!contains(again.err, "not used"));
	CHECK(contains(again.err, "chat 'y': 6 messages"));
	CHECK(state.chat("y")["messages"].size() == 8);
}

TEST_CASE("chat: /undo, /retry and /kv lead to what the same messages give without them") {
	const State state;
	const std::string plain = state.answers(kWarm, "Hello\n/set seed 3\nOnce upon a time\n");
	const std::string hello = state.answers(kWarm, "Hello\n");
	REQUIRE(plain.starts_with(hello));
	const std::string second = plain.substr(hello.size());
	const auto ends = [&](const std::string& input) { return state.answers(kWarm, input).ends_with(second); };
	CHECK(ends("Hello\nAnother\n/undo\n/set seed 3\nOnce upon a time\n"));
	CHECK(!ends("Hello\nAnother\n/set seed 3\nOnce upon a time\n"));
	CHECK(ends("Hello\nOnce upon a time\n/set seed 3\n/retry\n"));
	CHECK(ends("Hello\n/kv kivi2\n/kv fp16\n/set seed 3\nOnce upon a time\n"));
	CHECK(ends("\"\"\"\nHello\n\"\"\"\n/set seed 3\n\"\"\"Once upon a time\"\"\"\n"));
	CHECK(!ends("/system Be brief.\nHello\n/set seed 3\nOnce upon a time\n"));

	state.answers(kWarm, "Hello\nOnce upon a time\n/retry\n/save a\n");
	CHECK(state.chat("a")["messages"].size() == 4);
	CHECK(state.chat("a")["answers"] == 3);
	const Ran r = state.run(kWarm, "Hello\n/kv kivi2 300\n/stats\n");
	CHECK(contains(r.err, "of 300 tokens"));
	CHECK(contains(r.err, "(kivi2): f16 "));
	const Ran bad = state.run(kWarm, "Hello\n/kv nonsense\nAgain\n");
	CHECK(bad.code == 2);
	CHECK(contains(bad.err, "error: no KV policy 'nonsense'"));
	CHECK(bad.out == hello);
}

TEST_CASE("chat: /fork goes on under another name, and names that exist are not written over") {
	const State state;
	state.answers(kWarm, "Hello\n/save one\nAgain\n/fork two\nMore\n");
	CHECK(state.chat("one")["messages"].size() == 4);
	CHECK(state.chat("two")["messages"].size() == 6);
	const std::string before = file_text(state.file("chats/one.json"));
	for (const char* input : {"Hi\n/save one\n", "Hi\n/fork one\n"}) {
		const Ran r = state.run(kWarm, input);
		CHECK(r.code == 2);
		CHECK(contains(r.err, "chat 'one' exists"));
	}
	CHECK(file_text(state.file("chats/one.json")) == before);
	CHECK(contains(state.run(kWarm, "/load\n").err, "saved chats: one, two"));
	const Ran none = state.run(kWarm, "/load three\n");
	CHECK(none.code == 3);
	CHECK(contains(none.err, "no chat 'three'; there are one, two"));
	for (const char* name : {"../x", "/etc/passwd", "..", ".x", "a/b", "a b", "\033[31m"}) {
		const Ran r = state.run(kWarm, fmt::format("/save {}\n", name));
		CAPTURE(r.err);
		CHECK(r.code == 2);
		CHECK(contains(r.err, "chat name '"));
		CHECK(!contains(r.err, "\033"));
	}
}

TEST_CASE("chat: --system of a saved chat, --stop, --ignore-eos, and a name that /clear leaves") {
	const State state;
	state.answers(with(kGreedy, {"--chat", "new", "--system", "A"}), "");
	CHECK(state.chat("new")["system"] == "A");
	state.answers(with(kGreedy, {"--chat", "new", "-sys", "B"}), ""); // it has no messages yet
	CHECK(state.chat("new")["system"] == "B");
	state.answers(with(kGreedy, {"--chat", "new"}), "Hello\n");
	const Ran late = state.run(with(kGreedy, {"--chat", "new", "--system", "C"}), "");
	CHECK(
	    contains(late.err, "# chat 'new' keeps its instructions, because it has messages: /system TEXT changes them"));
	CHECK(state.chat("new")["system"] == "B");
	CHECK(!contains(state.run(with(kGreedy, {"--chat", "new", "--system", "B"}), "").err, "keeps its instructions"));
	CHECK(contains(state.run(with(kGreedy, {"--chat", "new"}), "/clear\n").err, "'new' stays as it is"));
	CHECK(state.chat("new")["messages"].size() == 2);

	const std::string whole = state.answers(kGreedy, "Hello\n");
	REQUIRE(whole.size() > 8);
	const std::string stop = whole.substr(4, 3);
	CHECK(state.answers(with(kGreedy, {"-r", stop}), "Hello\n") == whole.substr(0, whole.find(stop)) + "\n");
	CHECK(state.answers(with(kGreedy, {"--ignore-eos"}), "Hello\n").size() >= whole.size());
	CHECK(contains(state.run(with(kGreedy, {"-v"}), "Hello\n").err, "# last answer: "));
}

TEST_CASE("chat: the first message on the command line, and one alone") {
	const State state;
	const std::string one = state.answers(kGreedy, "Hello\n"), two = state.answers(kGreedy, "Hello\nAgain\n");
	CHECK(two.starts_with(one));
	CHECK(two.size() > one.size());
	CHECK(state.answers(with(kGreedy, {"-p", "Hello"}), "") == one);
	CHECK(state.answers(with(kGreedy, {"-p", "Hello"}), "Again\n") == two);
	CHECK(state.answers(with(kGreedy, {"-p", "Hello", "-st"}), "Again\n") == one);
	CHECK(state.answers(with(kGreedy, {"-st"}), "/stats\nHello\nAgain\n") == one);
	write_file(state.path + "/hello.txt", "Hello\n");
	CHECK(state.answers(with(kGreedy, {"-f", state.path + "/hello.txt"}), "Again\n") == two);
	state.answers(with(kGreedy, {"-p", "/help\\n1", "--chat", "slash", "-sysf", state.path + "/hello.txt"}), "");
	CHECK(state.chat("slash")["messages"][0]["content"] == "/help\n1"); // a message, whatever it begins with
	CHECK(state.chat("slash")["system"] == "Hello");
	state.answers(with(kGreedy, {"-p", "a\\n1", "--no-escape", "--chat", "plain"}), "");
	CHECK(state.chat("plain")["messages"][0]["content"] == "a\\n1");
	CHECK(state.run(with(kGreedy, {"-f", "/nowhere"}), "").code == 3);
	CHECK(contains(state.run(with(kGreedy, {"-p", "a", "-f", "b"}), "").err, "both given"));
}

TEST_CASE("chat: kill -9 during an answer loses that answer alone") {
	const State state;
	const std::string hello = state.answers(kWarm, "Hello\n/save x\n");
	const std::string expected = state.answers(kWarm, "Hello\nOnce upon a time\n").substr(hello.size());
	RunSpec spec = state.spec({"--temp", "1.3", "--seed", "5", "--chat", "x"}, "Once upon a time\n");
	spec.watch = [](int pid, int, const std::string& out) {
		if (!out.empty() && !contains(out, "#")) kill(pid, SIGKILL);
	};
	const Ran killed = run_program(spec);
	REQUIRE(killed.killed);
	REQUIRE(state.chat("x")["messages"].size() == 3);
	const Ran r = state.run(kWarm, "/load x\n/retry\n");
	CAPTURE(r.err);
	CHECK(r.code == 0);
	CHECK(contains(r.err, "the last question has no answer"));
	CHECK(r.out == expected);
	CHECK(state.chat("x")["messages"].size() == 4);
}

TEST_CASE("chat: a full context is said with counts and choices, or the oldest messages are left out") {
	const State state;
	const std::string input = "Hello\nOnce upon a time\nTell me a story.\nAgain\nAgain\n";
	const Ran r = state.run(with(kGreedy, {"-c", "128", "--chat", "x"}), input);
	CAPTURE(r.err);
	CHECK(r.code == 6);
	CHECK(contains(r.err, "error: context full: the conversation has "));
	for (const char* part : {" tokens, the context 128 (fp16)", "/kv fp16 ", "/kv rtn8 ", "/clear", "drop-oldest"})
		CHECK_MESSAGE(contains(r.err, part), part);
	const size_t messages = state.chat("x")["messages"].size(); // without the question that did not fit
	CHECK(messages % 2 == 0);
	CHECK(messages >= 2);
	// the suggestions work
	CHECK(state.answers(kGreedy, "/load x\n/kv rtn8 512\nAgain\n") != "");
	const Ran dropped = state.run(with(kGreedy, {"-c", "128", "--on-full", "drop-oldest", "--chat", "y"}), input);
	CAPTURE(dropped.err);
	CHECK(dropped.code == 0);
	CHECK(contains(dropped.err, "# context full: left out the oldest "));
	CHECK(state.chat("y")["messages"].size() == 10);
	CHECK(state.chat("y")["left_out"] >= 2);
	const Ran large = state.run(with(kGreedy, {"-c", "64", "--on-full", "drop-oldest"}),
	                            fmt::format("/file {}/models/bundled/record40.txt\nWhat?\n", kRoot));
	CHECK(large.code == 6);                                                           // one message alone is too long
	CHECK(contains(large.err, "/undo, /clear, or begin with -c N or --kv POLICY\n")); // not what is set already
	const Ran cut = state.run({"--temp", "0", "-c", "48"}, "Hello\n");
	CHECK(contains(cut.err, "the answer ends here: context full"));
}

TEST_CASE("T27 chat: without a template the names are listed; a file is one") {
	const State state;
	RunSpec spec = state.spec(kGreedy, "Hello\n");
	std::erase(spec.args, "--chat-template"), std::erase(spec.args, "chatml");
	const Ran r = run_program(spec);
	CHECK(r.code == 3);
	CHECK(r.out == "");
	for (const char* part : {"error: ", "no chat template", "chatml", "llama3", "--chat-template NAME|FILE"})
		CHECK_MESSAGE(contains(r.err, part), part);
	spec.args.insert(spec.args.end(), {"--chat-template", "chatmll"});
	CHECK(contains(run_program(spec).err, "chatmll"));
	write_file(state.path + "/t.jinja", "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}");
	spec.args.back() = state.path + "/t.jinja";
	const Ran own = run_program(spec);
	CHECK(own.code == 0);
	CHECK(own.out != "");
	spec.args.back() = state.path + "/none.jinja";
	CHECK(run_program(spec).code == 3);
}

TEST_CASE("T43 chat: a damaged chat is refused by name and left alone; a damaged cache is read again") {
	const State state;
	const std::string hello = state.answers(kWarm, "Hello\n/save x\n");
	const std::string expected = state.answers(kWarm, "Hello\nAgain\n").substr(hello.size());
	const std::string path = state.file("chats/x.json"), cache = state.file("chats/x.kv");
	const std::string good = file_text(path);
	const auto changed = [&](const std::string& from, const std::string& to) {
		std::string out = good;
		const size_t at = out.find(from);
		REQUIRE(at != std::string::npos);
		return out.replace(at, from.size(), to);
	};
	const std::vector<std::pair<std::string, std::string>> bad = {
	    {"", "not JSON"},
	    {good.substr(0, good.size() / 2), "not JSON"},
	    {"[]", "no object"},
	    {changed("\"kvrun_chat\": 1", "\"kvrun_chat\": 2"), "kvrun_chat is 2"},
	    {changed("\"kvrun_chat\"", "\"x\""), "kvrun_chat is missing"},
	    {changed("\"system\": \"\"", "\"system\": 1"), "system is no text"},
	    {changed("\"kv\": \"fp16\"", "\"kv\": \"fp17\""), "damaged chat: kv: no KV policy 'fp17'"},
	    {changed("\"role\": \"user\"", "\"role\": \"root\""), "role is neither"},
	    {changed("\"role\": \"assistant\"", "\"role\": \"user\""), "role does not alternate"},
	    {changed("\"left_out\": 0", "\"left_out\": 9"), "left_out is 9"},
	    {changed("\"left_out\": 0", "\"left_out\": 1"), "left_out is not at a question"},
	    {changed("\"answers\": 1", "\"answers\": -1"), "answers is no number"},
	    {std::string(100000, '['), "not JSON"},
	};
	for (const auto& [content, says] : bad) {
		write_file(path, content);
		const Ran r = state.run(kWarm, "/load x\nAgain\n");
		CAPTURE(r.err);
		CHECK(r.code == 3);
		CHECK(contains(r.err, "error: " + path));
		CHECK(contains(r.err, says));
		CHECK(file_text(path) == content);
	}
	write_file(path, good);
	const std::string packed = file_text(cache);
	std::string flipped = packed;
	flipped[packed.size() / 2] = char(flipped[packed.size() / 2] ^ 1);
	for (const std::string& content : {flipped, packed.substr(0, 100), std::string()}) {
		write_file(path, good);
		write_file(cache, content);
		const Ran r = state.run(kWarm, "/load x\nAgain\n");
		CAPTURE(r.err);
		CHECK(r.code == 0);
		CHECK(count(r.err, "its cache is not used") == 1);
		CHECK(r.out == expected);
	}
	write_file(path, good);
	state.answers(kWarm, "Once upon a time\nthere was\n/save other\n");
	std::filesystem::copy_file(state.file("chats/other.kv"), cache, std::filesystem::copy_options::overwrite_existing);
	const Ran r = state.run(kWarm, "/load x\nAgain\n");
	CHECK(count(r.err, "it holds another conversation") == 1);
	CHECK(r.out == expected);
}

TEST_CASE("T61 chat: links in the place of its files are named and not followed") {
	if (needs_posix("symbolic links")) return;
	namespace fs = std::filesystem;
	const State state, other;
	const std::string hello = state.answers(kGreedy, "Hello\n/save x\n"),
	                  both = other.answers(kGreedy, "Hello\nAgain\n");
	const std::string expected = both.substr(hello.size());
	const std::string path = state.file("chats/x.json"), cache = state.file("chats/x.kv"), away = state.path + "/away";
	// the cache: recomputed from the conversation
	fs::rename(cache, away);
	fs::create_symlink(away, cache);
	Ran r = state.run(kGreedy, "/load x\nAgain\n");
	CAPTURE(r.err);
	CHECK(r.code == 0);
	CHECK(contains(r.err, "its cache is not used: it is a symbolic link"));
	CHECK(r.out == expected);
	// the conversation
	const std::string good = file_text(path);
	fs::rename(path, away);
	fs::create_symlink(away, path);
	r = state.run(kGreedy, "/load x\nAgain\n");
	CHECK(r.code == 3);
	CHECK(contains(r.err, "error: " + path + ": it is a symbolic link"));
	// a new conversation with that name replaces the link, not its target
	r = state.run(kGreedy, "Hello\n/save x\n");
	CHECK(file_text(away) == good);
	// a file left by a killed program is removed by the next one
	write_file(path + ".new-abcdef", "left");
	state.run(kGreedy, "/load x\n");
	CHECK(!fs::exists(path + ".new-abcdef"));
	// the folder
	fs::rename(state.file("chats"), away + "s");
	fs::create_symlink(away + "s", state.file("chats"));
	r = state.run(kGreedy, "Hello\n/save y\n");
	CHECK(contains(r.err, "symbolic link"));
	CHECK(!fs::exists(away + "s/y.json"));
}

TEST_CASE("chat: wrong commands and settings end a pipe, with what was meant") {
	const State state;
	const std::vector<std::array<std::string, 2>> bad = {{"/hlp", "did you mean '/help'?"},
	                                                     {"/home/me", "// begins a message with a slash"},
	                                                     {"/set temp hot", "temp is 'hot', expected a number from 0"},
	                                                     {"/set top-k 1.5", "an integer"},
	                                                     {"/set top-k", "/set top-k VALUE"},
	                                                     {"/set xtc-probability 2", "expected a number from 0 to 1"},
	                                                     {"/set colour red", "'colour' cannot be set"},
	                                                     {"/set think maybe", "on or off"},
	                                                     {"/set on-full never", "stop or drop-oldest"},
	                                                     {"/undo", "nothing to take back"},
	                                                     {"/retry", "no question"},
	                                                     {"/save", "has no name yet"},
	                                                     {"/kv", "needs a policy"},
	                                                     {"\"\"\"", "has no end"}};
	for (const auto& [input, says] : bad) {
		const Ran r = state.run(kGreedy, input + "\nHello\n");
		CAPTURE(r.err);
		CHECK(r.code == 2);
		CHECK(contains(r.err, says));
		CHECK(r.out == "");
	}
	const Ran zero = state.run(kGreedy, "/file /dev/zero\nHello\n");
	CHECK(zero.code == 3);
	CHECK(contains(zero.err, "no regular file"));
	const Ran open = state.run(with(kGreedy, {"--chat", "x"}), "/load x\nHello\n"); // nothing is to be done
	CHECK(open.code == 0);
	CHECK(contains(open.err, "# chat 'x' is the one that is open"));
	CHECK(state.chat("x")["messages"].size() == 2);
	CHECK(contains(state.run(kGreedy, "/system Be brief.\n").err, "# the next answer follows these instructions"));
	const Ran shown = state.run(kGreedy, "/set dry-multiplier 0.5\n");
	CHECK(shown.code == 0);
	CHECK(contains(shown.err, "min-p 0.05, dry-multiplier 0.5, max-tokens"));
	CHECK(state.run(kGreedy, "/file " + kModel + "\n").code == 3); // not a text file
	CHECK(state.run(kGreedy, "/file /nowhere\n").code == 3);
	const Ran help = state.run(with(kGreedy, {"-q"}), "/help\n/exit\nHello\n"); // -q is of what nobody asked for
	CHECK(help.out == "");
	for (const char* name : {"/help", "/set", "/system", "/file", "/save", "/load", "/fork", "/undo", "/retry",
	                         "/clear", "/stats", "/kv", "/exit"})
		CHECK_MESSAGE(contains(help.err, name), name);
	CHECK(contains(state.run(with(kGreedy, {"--no-think"}), "Hello\n").err, "think has no effect"));
}

TEST_CASE("chat: a terminal edits lines, keeps a private history, and takes pastes as text" *
          doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	const std::string prompt = "\033[?2004h> "; // written once for each line, however often the line is drawn
	const Ran r = type(state.spec(kGreedy), {{prompt, "Hello\r"},
	                                         {prompt, "\033[200~one\n/exit\033[201~\r"},
	                                         {prompt, "a\033\rb\r"},
	                                         {prompt, "\"\"\"x\r"},
	                                         {"\033[?2004h... ", "y\"\"\"\r"},
	                                         {prompt, "\004"}});
	CHECK(r.code == 0);
	const nlohmann::json messages = state.chat("last")["messages"];
	CAPTURE(r.out);
	REQUIRE(messages.size() == 8);
	CHECK(messages[0]["content"] == "Hello");
	CHECK(messages[2]["content"] == "one\n/exit");
	CHECK(messages[4]["content"] == "a\nb");
	CHECK(messages[6]["content"] == "x\ny");
	CHECK(mode_of(state.file("history")) == 0600);
	CHECK(mode_of(state.file("chats/last.json")) == 0600);
	CHECK(contains(file_text(state.file("history")), "Hello"));
	// the arrow key brings back the previous line
	type(state.spec(kGreedy), {{prompt, "again\r"}, {prompt, "\033[A\r"}, {prompt, "\004"}});
	CHECK(state.chat("last")["messages"].size() == 4);
	CHECK(state.chat("last")["messages"][2]["content"] == "again");

	const State none;
	type(none.spec(with(kGreedy, {"--no-history"})), {{prompt, "Hello\r"}, {prompt, "\004"}});
	CHECK(!std::filesystem::exists(none.file("history")));
	CHECK(!std::filesystem::exists(none.file("chats/last.json")));
}

TEST_CASE("chat: a terminal that moves no cursor gets prompts, and no escapes" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	RunSpec spec = state.spec(kGreedy);
	spec.terminal = Terminal{80, "dumb"};
	const Ran r = type(spec, {{"\n> ", "Hello\r"},
	                          {"\n> ", "/hlp\r"},
	                          {"did you mean", ""}, // and the chat goes on
	                          {"\n> ", "\"\"\"x\r"},
	                          {"... ", "y\"\"\"\r"},
	                          {"\n> ", "\004"}});
	CAPTURE(r.out);
	CHECK(r.code == 0);
	CHECK(!contains(r.out, "\033"));
	const nlohmann::json messages = state.chat("last")["messages"];
	REQUIRE(messages.size() == 4);
	CHECK(messages[0]["content"] == "Hello");
	CHECK(messages[2]["content"] == "x\ny");
}

TEST_CASE("chat: /edit sends what an editor leaves, and nothing where it fails" * doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	const std::string prompt = "\033[?2004h> ", editor = state.path + "/my editor";
	// It appends a line to its input; for "fail" it fails, for "none" it empties the text.
	write_file(editor,
	           "#!/bin/sh\ncase $(cat \"$2\") in fail) exit 3;; none) : > \"$2\";; *) echo more >> \"$2\";; esac\n"
	           "stat -c %a \"$2\" > \"$1\"\n");
	std::filesystem::permissions(editor, std::filesystem::perms::owner_all);
	RunSpec spec = state.spec(kGreedy);
	spec.env.push_back({"VISUAL", "'" + editor + "' '" + state.path + "/mode'"});
	spec.env.push_back({"TMPDIR", state.path});
	const Ran r = type(spec, {{prompt, "/edit Hello\r"},
	                          {prompt, "/edit fail\r"},
	                          {"ended with 3; nothing was sent", ""},
	                          {prompt, "/edit none\r"},
	                          {"the message is empty", ""},
	                          {prompt, "\004"}});
	CAPTURE(r.out);
	CHECK(r.code == 0);
	const nlohmann::json messages = state.chat("last")["messages"];
	REQUIRE(messages.size() == 2);
	CHECK(messages[0]["content"] == "Hello\nmore");
	CHECK(file_text(state.path + "/mode") == "600\n");
	for (const auto& file : std::filesystem::directory_iterator(state.path))
		CHECK(file.path().extension() != ".md"); // the message was removed
	CHECK(contains(state.run(kGreedy, "/edit x\n").err, "an editor needs a terminal"));
}

TEST_CASE("T77 chat: Ctrl-C ends the answer, twice it ends the program; at the prompt it leaves the second time" *
          doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const State state;
	const std::vector<std::string> endless = {"--temp", "1.3", "--seed", "5"};
	const Ran r =
	    type(state.spec(endless), {{"> ", "Hello\r"}, {"reading ", "\003"}, {"> ", "/stats\r"}, {"> ", "\004"}});
	CHECK(r.code == 0);
	CHECK(contains(r.out, "# last answer: "));
	// during the answer, or before its first word
	CHECK((state.chat("last")["messages"].size() == 2 || contains(r.out, "question is taken back")));

	const Ran left = type(state.spec(kGreedy), {{"> ", "half a line\003"}, {"Ctrl-C again", ""}, {"> ", "\003"}});
	CHECK(left.code == 0);

	std::string instructions;
	for (int i = 0; i < 150; ++i) instructions += "The dog ran to the tree. ";
	const Ran unread = type(state.spec(with(endless, {"--system", instructions})),
	                        {{"> ", "Hello\r"}, {"reading ", "\003"}, {"> ", "/stats\r"}, {"> ", "\004"}});
	const std::string says = "# last answer: ";
	if (const size_t at = unread.out.find(says); contains(unread.out, "taken back") && at != std::string::npos)
		CHECK(std::stoi(unread.out.substr(at + says.size())) < 1000); // not the whole prompt

	// The second Ctrl-C comes before the answer has ended, while a piece of a long prompt is read. A busy machine may
	// need several attempts.
	RunSpec slow = state.spec(with(endless, {"--system", instructions}));
	slow.timeout_s = 10; // the prompt may come before the second key; then nothing follows
	Ran twice;
	for (int attempt = 0; attempt < 30 && twice.code != 130; ++attempt)
		twice = type(slow, {{"> ", "Hello\r"}, {"reading ", "\003"}, {"^C", "\003"}, {"> ", "\004"}}, /*whole=*/false);
	CHECK(twice.code == 130);

	RunSpec pipe = state.spec(endless, "Hello\nAgain\n");
	pipe.watch = [](int pid, int, const std::string& out) {
		if (!contains(out, "#")) kill(pid, SIGINT);
	};
	CHECK(run_program(pipe).code == 130);
}

TEST_CASE("chat: what was attached waits again where Ctrl-C takes its question back" *
          doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const std::string prompt = "\033[?2004h> ";
	std::string text;
	for (int i = 0; i < 150; ++i) text += "The dog ran to the tree. ";
	// On a busy machine the answer may begin before Ctrl-C comes.
	for (int attempt = 0; attempt < 10; ++attempt) {
		const State state;
		write_file(state.path + "/text.txt", text);
		const Ran r = type(state.spec({"--temp", "0", "-n", "4"}), {{prompt, "/file " + state.path + "/text.txt\r"},
		                                                            {prompt, "Hello\r"},
		                                                            {"reading ", "\003"},
		                                                            {prompt, "Again\r"},
		                                                            {prompt, "More\r"},
		                                                            {prompt, "\004"}});
		CAPTURE(r.out);
		CHECK(r.code == 0);
		if (!contains(r.out, "question is taken back")) continue;
		CHECK(contains(r.out, "; what was attached waits for the next message"));
		const nlohmann::json messages = state.chat("last")["messages"];
		REQUIRE(messages.size() == 4);
		CHECK(messages[0]["content"] == text + "\n\nAgain");
		CHECK(messages[2]["content"] == "More"); // it is sent once
		return;
	}
	FAIL("no Ctrl-C came while the prompt was read");
}
