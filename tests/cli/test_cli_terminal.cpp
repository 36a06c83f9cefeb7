// kvrun on a terminal: the progress bar, and Ctrl-C twice. Skipped if no terminal can be created.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace kvrun;

namespace {

const std::string kRoot = KVRUN_SOURCE_DIR;
const std::string kRecord = kRoot + "/models/bundled/record40.txt";

// `kvrun run` with the bundled model, the cpu backend, and greedy sampling.
RunSpec run_spec(std::vector<std::string> more) {
	std::vector<std::string> args = {"run",    "-m", kRoot + "/models/bundled/recall-4m-f16.gguf", "--device", "cpu",
	                                 "--temp", "0"};
	args.insert(args.end(), more.begin(), more.end());
	return {.args = args};
}

} // namespace

TEST_CASE("T33 cli: a terminal gets a bar that fits, a dumb or narrow one gets none, nobody gets escapes") {
	if (no_terminal()) return;
	const std::string text = run_program(run_spec({"-p", "Once upon a time", "-n", "5"})).out;
	for (const char* term : {"xterm", "dumb", ""})
		for (const unsigned short columns : {0, 1, 10, 40, 80, 500}) {
			RunSpec spec = run_spec({"-p", "Once upon a time", "-n", "5"});
			spec.terminal = Terminal{columns, term};
			spec.env = {{"NO_COLOR", "1"}};
			const Ran r = run_program(spec);
			CAPTURE(term);
			CAPTURE(columns);
			CAPTURE(r.out);
			CHECK(r.code == 0);
			CHECK(!contains(r.out, "\033"));
			CHECK(contains(r.out, text + "\r\n# 5 tok")); // statistics on a separate line
			const bool bar = contains(r.out, "reading ");
			CHECK(bar == (std::string(term) == "xterm" && columns >= 40));
			std::string row; // the text after the last carriage return or newline
			for (const char c : r.out) {
				if (c == '\r' || c == '\n')
					row.clear();
				else
					row += c;
				if (contains(row, "reading ")) REQUIRE(row.size() < columns);
			}
		}
}

TEST_CASE("cli: the time that is left is not shown before something was measured") {
	if (no_terminal()) return;
	RunSpec spec = run_spec({"-f", kRecord, "-n", "1"});
	spec.terminal = Terminal{120, "xterm"};
	std::string row;
	for (const char c : run_program(spec).out) {
		row = c == '\r' ? "" : row + c;
		if (!row.ends_with(" left")) continue;
		const size_t share = row.find("] ");
		REQUIRE(share != std::string::npos);
		CHECK(std::atoi(row.c_str() + share + 2) >= 5); // the first piece also prepares the device
	}
}

TEST_CASE("T33 cli: a terminal that becomes narrow in between") {
	if (no_terminal()) return;
	RunSpec spec = run_spec({"-f", kRecord, "-n", "5"});
	spec.terminal = Terminal{120, "xterm"};
	bool resized = false;
	spec.watch = [&](int, int fd, const std::string& out) {
		if (resized || !contains(out, "reading ")) return;
		winsize size{24, 20, 0, 0};
		resized = ioctl(fd, TIOCSWINSZ, &size) == 0;
	};
	const Ran r = run_program(spec);
	CHECK(resized);
	CHECK(r.code == 0);
	CHECK(contains(r.out, "# 5 tok"));
}

// Waits until the process has received its SIGINT, because two pending ones count as one.
void wait_for_delivery(int pid) {
	for (int i = 0; i < 100000; ++i) {
		std::ifstream status(fmt::format("/proc/{}/status", pid));
		uint64_t pending = 0;
		for (std::string line; std::getline(status, line);)
			if (line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
				pending |= std::strtoull(line.c_str() + 7, nullptr, 16);
		if (!(pending >> (SIGINT - 1) & 1)) return;
	}
}

// The second one comes before the program has ended after the first; a busy machine may need several attempts.
TEST_CASE("T77 cli: Ctrl-C twice ends the program") {
	if (no_terminal()) return;
	RunSpec spec = run_spec({"-f", kRecord});
	spec.terminal = Terminal{};
	Ran r;
	for (int attempt = 0; attempt < 30 && r.code != 130; ++attempt) {
		int sent = 0;
		spec.watch = [&](int pid, int, const std::string& out) {
			if (sent > 0 || !contains(out, "reading ")) return;
			setpriority(PRIO_PROCESS, id_t(pid), 19); // on a busy machine the test must run before the program ends
			kill(pid, SIGINT), wait_for_delivery(pid), kill(pid, SIGINT);
			++sent;
		};
		r = run_program(spec);
		CHECK((r.code == 130 || r.code == 0));
		CHECK(!r.killed);
	}
	CHECK(r.code == 130);
}

TEST_CASE("tune: Ctrl-C ends it while the model reads a chunk, and nothing is written") {
	if (no_terminal()) return;
	const TempFolder folder;
	const std::string out = (folder.path / "tuning.json").string();
	RunSpec spec{.args = {"tune", kRoot + "/models/bundled/recall-4m-f16.gguf", "--device", "cpu", "-c", "512",
	                      "--chunks", "1", "-o", out}};
	spec.terminal = Terminal{};
	spec.input = std::nullopt;
	bool sent = false;
	spec.watch = [&](int pid, int, const std::string& shown) {
		if (!sent && contains(shown, "measuring")) sent = kill(pid, SIGINT) == 0;
	};
	const Ran r = run_program(spec);
	CAPTURE(r.out);
	CHECK(r.code == 130);
	CHECK(contains(r.out, "  0%")); // before the first step
	CHECK(!std::filesystem::exists(out));
}
