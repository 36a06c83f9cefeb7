// The program in a faulty environment: no memory, limited file sizes, death while saving, drivers that crash.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <csignal>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const std::string kRoot = KVRUN_SOURCE_DIR;
const std::string kModel = kRoot + "/models/bundled/recall-4m-f16.gguf";
const std::string kTiny = kRoot + "/tests/golden/tiny/llama.gguf";

// The name of the software driver in `kvrun devices`; empty if not installed.
std::string lavapipe() {
	for (const auto& e : fs::directory_iterator("/usr/share/vulkan/icd.d"))
		if (e.path().filename().string().starts_with("lvp_icd")) return e.path().string();
	skip("no lavapipe (package mesa-vulkan-drivers)");
	return "";
}

RunSpec on_lavapipe(const std::string& icd, const TempFolder& cache) {
	RunSpec spec{.args = {"run", "-m", kModel, "-p", "Once", "-n", "3", "--temp", "0", "--device", "0"}};
	spec.env = {{"VK_DRIVER_FILES", icd},
	            {"VK_ICD_FILENAMES", icd},
	            {"KVRUN_CACHE_DIR", cache.path / "kvrun"},
	            {"XDG_RUNTIME_DIR", "/tmp"}};
	return spec;
}

// Newer releases than Debian 12's keep memory in files that are mapped, and crash in LLVM where memory ends.
bool survives_limits(const std::string& icd, const TempFolder& cache) {
	RunSpec list = on_lavapipe(icd, cache);
	list.args = {"devices"};
	return contains(run_program(list).out, "Mesa 22.");
}

std::vector<fs::path> files_in(const fs::path& folder) { // except for the test results of drivers
	std::vector<fs::path> out;
	std::error_code ec;
	for (const auto& e : fs::directory_iterator(folder, ec))
		if (e.path().filename() != "drivers.json") out.push_back(e.path());
	return out;
}

struct FileLimit { // limits the size of files of this process and of those it starts
	rlimit before{};
	explicit FileLimit(rlim_t bytes) {
		getrlimit(RLIMIT_FSIZE, &before);
		const rlimit now{bytes, before.rlim_max};
		setrlimit(RLIMIT_FSIZE, &now);
	}
	~FileLimit() { setrlimit(RLIMIT_FSIZE, &before); }
};

} // namespace

TEST_CASE("T70, T48 cli: SIGKILL in the middle of saving the pipeline cache leaves the old file or the new one" *
          doctest::test_suite("lavapipe")) {
	if (needs_posix("libraries loaded before others")) return;
	const std::string icd = lavapipe();
	if (icd.empty()) return;
	const TempFolder cache;
	const fs::path folder = cache.path / "kvrun";
	const auto killed_in = [&](const char* call) {
		RunSpec spec = on_lavapipe(icd, cache);
		spec.env.insert(spec.env.end(), {{"LD_PRELOAD", KVRUN_FAULT_SHIM}, {"KVRUN_SHIM_KILL", call}});
		return run_program(spec);
	};
	std::string answer;
	for (const char* call : {"write", "rename"}) { // first there is no file, then one with fewer pipelines
		CAPTURE(std::string(call));
		const size_t before = files_in(folder).size();
		Ran r = killed_in(call);
		CAPTURE(r.err);
		CHECK(r.code == 128 + SIGKILL);
		const std::vector<fs::path> left = files_in(folder);
		CHECK(left.size() == before + 1); // the process was killed in time: the temporary file exists
		r = run_program(on_lavapipe(icd, cache));
		CAPTURE(r.err);
		CHECK(r.code == 0);
		if (answer.empty()) answer = r.out;
		CHECK(r.out == answer);
		CHECK(files_in(folder).size() == 1); // and is removed at the next save
		const fs::path file = files_in(folder)[0];
		CHECK(file.extension() == ".bin");
		fs::resize_file(file, 70); // so that the next run has something to save
	}
}

TEST_CASE("T70 cli: a pipeline cache that may not grow is a warning, and nothing is left of it" *
          doctest::test_suite("lavapipe")) {
	if (needs_posix("limits of file sizes")) return;
	const std::string icd = lavapipe();
	if (icd.empty()) return;
	const TempFolder cache;
	if (!survives_limits(icd, cache)) return skip("this lavapipe keeps its memory in files");
	Ran r;
	{
		const FileLimit small(40); // lavapipe's cache is small
		r = run_program(on_lavapipe(icd, cache));
	}
	CAPTURE(r.err);
	CHECK(r.code == 0);
	CHECK(r.out.size() > 2);
	CHECK(contains(r.err, "warning: pipeline cache "));
	CHECK(contains(r.err, "File too large"));
	CHECK(files_in(cache.path / "kvrun").empty());
}

TEST_CASE("T32 cli: results that may not grow end with 5, and no half of them stays") {
	if (needs_posix("limits of file sizes")) return;
	const TempFolder out;
	const std::string cases = kRoot + "/tests/golden/replay/";
	RunSpec spec{.args = {"replay", "--kv", "kivi2", "--q", cases + "q.npy", "--k", cases + "k.npy", "--v",
	                      cases + "v.npy", "--dq", cases + "dq.npy", "--device", "cpu", "--out", out.path}};
	Ran r;
	{
		const FileLimit small(4096);
		r = run_program(spec);
	}
	CAPTURE(r.err);
	CHECK(r.code == 5);
	CHECK(contains(r.err, "k_hat.npy: writing"));
	CHECK(files_in(out.path).empty());
}

TEST_CASE("T74 cli: memory that ends for good, at any allocation, is one line and exit code 4") {
	if (needs_posix("libraries loaded before others")) return;
	const TempFolder folder;
	const auto run_with = [&](const char* variable, long n) {
		RunSpec spec{.args = {"run", "-m", kTiny, "--device", "cpu", "-p", "a", "-n", "2", "--temp", "0", "--kv",
		                      "kivi2,recent_keep=8,flush=32"}};
		spec.env = {{"LD_PRELOAD", KVRUN_FAULT_SHIM},
		            {variable, std::to_string(n)},
		            {"KVRUN_SHIM_COUNT", folder.path / "count"}};
		spec.timeout_s = 20;
		return run_program(spec);
	};
	const Ran whole = run_with("KVRUN_SHIM_NEW", 0);
	CAPTURE(whole.err);
	REQUIRE((whole.code == 0 || whole.code == 3));
	std::ifstream counts(folder.path / "count");
	std::map<std::string, long> total;
	counts >> total["KVRUN_SHIM_NEW"] >> total["KVRUN_SHIM_MALLOC"];
	REQUIRE(total["KVRUN_SHIM_NEW"] > 1000);
	for (const auto& allocator : total)
		for (const int sign : {1, -1}) {
			long step = 1;
			for (long n = 1; n <= allocator.second; n += step) {
				step = std::max<long>(1, n / 80); // all of the first ones, then a sample
				CAPTURE(allocator.first);
				CAPTURE(n * sign);
				const Ran r = run_with(allocator.first.c_str(), n * sign);
				CAPTURE(r.err);
				REQUIRE(!r.killed);
				REQUIRE((r.code == 4 || (sign < 0 && r.code >= 0 && r.code <= 6) || r.code == whole.code));
				if (r.code == 4) REQUIRE(contains(r.err, "error: "));
				if (r.code == 0) REQUIRE(r.out == whole.out);
			}
		}
}

TEST_CASE("T62 cli: a crash inside a driver's library says which one and ends with 4") {
	if (needs_posix("a driver as a shared object")) return;
	RunSpec spec{.args = {"devices"}};
	spec.env = {{"VK_DRIVER_FILES", KVRUN_HOSTILE_DRIVER_ICD},
	            {"VK_ICD_FILENAMES", KVRUN_HOSTILE_DRIVER_ICD},
	            {"KVRUN_PROBE", "off"}};
	for (const char* how : {"crash", "segv", "null call"}) {
		CAPTURE(how);
		spec.env.resize(3);
		spec.env.push_back({"KVRUN_HOSTILE_DRIVER", how});
		const Ran r = run_program(spec);
		CAPTURE(r.err);
		CHECK(r.code == 4);
		CHECK(contains(r.err, std::string("error: crashed with ") + (how[0] == 'c' ? "SIGABRT" : "SIGSEGV")));
		CHECK(contains(r.err, "libkvrun_hostile_driver.so"));
	}
}

namespace {

// `kvrun run` with a model, written to `model`, whose tokens are escape sequences.
RunSpec run_of_escapes(const std::string& model) {
	std::vector<std::string> tokens = tiny_spm_tokens();
	for (size_t i = 3 + 128; i < tokens.size(); ++i) // OSC 52 writes the clipboard, CSI 2J clears, C1 CSI, backspace
		tokens[i] = fmt::format("{}]52;c;aGk={}{}[2J\xc2\x9b{}m\b\x7f", '\x1b', '\x07', '\x1b', i);
	GgufBuilder b = tiny_model();
	add_spm(b, tokens);
	const std::vector<std::byte> bytes = b.bytes();
	std::ofstream(model, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), ptrdiff_t(bytes.size()));
	return {.args = {"run",    "-m", model,    "--device", "cpu",     "-p", "",        "-n", "30",      "--ignore-eos",
	                 "--seed", "1",  "--temp", "100",      "--top-k", "0",  "--top-p", "1",  "--min-p", "0"}};
}

} // namespace

TEST_CASE("T33 cli: an answer in a pipe has its bytes as they are") {
	const TempFolder folder;
	const Ran piped = run_program(run_of_escapes(folder.path / "escapes.gguf"));
	CAPTURE(piped.err);
	REQUIRE(piped.code == 0);
	CHECK(contains(piped.out, "\x1b]52;c;aGk=\x07"));
}

TEST_CASE("T59 cli: an answer that -n ends inside a character is written without the beginning of it") {
	const TempFolder folder;
	const std::string model = folder.path / "bytes.gguf";
	const std::vector<std::byte> bytes = tiny_model().bytes(); // each byte of the character is a token
	std::ofstream(model, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), ptrdiff_t(bytes.size()));
	for (const char* n : {"1", "2", "3", "4"}) {
		RunSpec spec{
		    .args = {"run", model, "--device", "cpu", "-p", "", "--grammar", "root ::= \"a\xe2\x82\xac\"", "-n", n}};
		const Ran r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 0);
		CHECK(r.out == (*n == '4' ? "a\xe2\x82\xac" : "a"));
		spec.args.push_back("--json");
		const nlohmann::json j = nlohmann::json::parse(run_program(spec).out);
		CHECK(j["text"] == r.out);
		CHECK(j["tokens"].size() == size_t(*n - '0')); // all are there
	}
}

TEST_CASE("T33 cli: control characters of an answer do not reach a terminal, unless asked for" *
          doctest::test_suite("terminal")) {
	if (no_terminal()) return;
	const TempFolder folder;
	RunSpec spec = run_of_escapes(folder.path / "escapes.gguf");
	spec.terminal = Terminal{200, "dumb"};
	const Ran shown = run_program(spec);
	CHECK(shown.code == 0);
	CHECK(contains(shown.out, "\\x1b]52;c;aGk=\\x07"));
	for (const char* bad : {"\x1b", "\x07", "\b", "\x7f", "\xc2\x9b"}) CHECK(!contains(shown.out, bad));
	spec.args.push_back("--raw");
	CHECK(contains(run_program(spec).out, "\x1b]52;c;aGk=\x07"));
}

namespace {

// `kvrun run` with a tiny model, in a process group of its own, for signals of job control.
struct Job {
	pid_t pid = 0;
	int out = -1; // its standard output and error
	explicit Job(std::vector<std::string> args) {
		int fds[2];
		REQUIRE(pipe(fds) == 0);
		args.insert(args.begin(), std::getenv("KVRUN_PROGRAM"));
		std::vector<char*> argv;
		for (std::string& a : args) argv.push_back(a.data());
		argv.push_back(nullptr);
		pid = fork();
		if (pid == 0) {
			setpgid(0, 0);
			dup2(fds[1], 1), dup2(fds[1], 2);
			close(fds[0]), close(fds[1]);
			execv(argv[0], argv.data());
			_exit(127);
		}
		close(fds[1]);
		out = fds[0];
	}
	~Job() {
		kill(pid, SIGKILL);
		waitpid(pid, nullptr, 0);
		close(out);
	}
	std::string read_some() {
		char buffer[4096];
		const ssize_t n = read(out, buffer, sizeof buffer);
		return {buffer, size_t(std::max<ssize_t>(n, 0))};
	}
};

} // namespace

TEST_CASE("T77 cli: SIGHUP ends the program; one that is stopped and continued goes on as if nothing was") {
	if (needs_posix("signals of job control")) return;
	const std::vector<std::string> args = {"run",    "-m", kModel, "--device", "cpu",          "-p", "Once upon a time",
	                                       "--temp", "0",  "-n",   "150",      "--ignore-eos", "-c", "512"};
	const std::string whole = run_program(args).out;
	REQUIRE(whole.size() > 150);
	{
		Job job(args);
		(void)job.read_some(); // waits until it runs
		kill(job.pid, SIGHUP);
		int status = 0;
		CHECK(waitpid(job.pid, &status, 0) == job.pid);
		CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP));
		job.pid = fork(); // a child to reap
		if (job.pid == 0) _exit(0);
	}
	Job job(args);
	std::string all = job.read_some();
	kill(job.pid, SIGTSTP);
	int status = 0;
	REQUIRE(waitpid(job.pid, &status, WUNTRACED) == job.pid);
	REQUIRE((WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP));
	usleep(300000);
	kill(job.pid, SIGCONT);
	for (std::string piece; !(piece = job.read_some()).empty();) all += piece;
	CHECK(contains(all, whole.substr(whole.size() / 2)));
	CHECK(contains(all, "end: length"));
}

TEST_CASE("T78 cli: a clock that jumps changes no time that is measured") {
	if (needs_posix("libraries loaded before others")) return;
	for (const char* jump : {"-86400", "86400", "-1"}) {
		RunSpec spec{.args = {"run", "-m", kModel, "--device", "cpu", "-p", "Once upon a time", "-n", "20", "--json"}};
		spec.env = {{"LD_PRELOAD", KVRUN_FAULT_SHIM}, {"KVRUN_SHIM_CLOCK", jump}};
		const Ran r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 0);
		const auto t = nlohmann::json::parse(r.out)["timings"];
		for (const char* key : {"load_s", "prefill_s", "decode_s"}) {
			CHECK(t[key].get<double>() > 0);
			CHECK(t[key].get<double>() < 60);
		}
		for (const char* key : {"prefill_tok_s", "decode_tok_s"}) CHECK(t[key].get<double>() > 1);
	}
}

TEST_CASE("T83 cli: numbers are read and written the same in every locale" * doctest::test_suite("locales")) {
	const TempFolder locales; // Turkish i, decimal commas
	std::vector<std::string> made;
	for (const char* name : {"tr_TR", "de_DE"})
		if (std::system(
		        fmt::format("localedef -i {} -f UTF-8 '{}/{}.UTF-8' >/dev/null 2>&1", name, locales.path.string(), name)
		            .c_str()) == 0)
			made.push_back(std::string(name) + ".UTF-8");
	if (made.empty()) return skip("localedef makes no locales (package locales)");
	const std::vector<std::vector<std::string>> commands = {
	    {"run", "-m", kModel, "--device", "cpu", "-p", "I i", "-n", "12", "--temp", "0.75", "--top-p", "0.9", "--seed",
	     "3"},
	    {"run", "-m", kModel, "--device", "cpu", "-p", "x", "-n", "1", "--temp", "0,75"},
	    {"plan", "-m", kModel, "--kv", "zipcache,ratio=0.4,probe=0.25", "--memory", "2G", "--json"},
	    {"inspect", kModel, "--json"},
	    {"tokenize", "-m", kModel, "--special"}};
	for (const std::vector<std::string>& args : commands) {
		RunSpec spec{.args = args, .input = "Istanbul I\xc4\xb1 1.5"};
		spec.env = {{"LC_ALL", "C"}, {"KVRUN_DEVICE", "cpu"}, {"KVRUN_BACKEND", "cpu"}, {"KVRUN_SUBMIT_MS", "12.5"}};
		const Ran plain = run_program(spec);
		CAPTURE(args[0]);
		CAPTURE(plain.err);
		for (const std::string& name : made) {
			CAPTURE(name);
			spec.env[0].second = name;
			spec.env.resize(4);
			spec.env.push_back({"LOCPATH", locales.path});
			spec.env.push_back({"TZ", "Asia/Kathmandu"});
			const Ran r = run_program(spec);
			CHECK(r.code == plain.code);
			CHECK(r.out == plain.out);
		}
	}
}

TEST_CASE("T30 cli: a flag is stronger than the environment, and a bad variable is named") {
	RunSpec spec{.args = {"run", "-m", kModel, "-p", "x", "-n", "1", "--device", "cpu"}};
	spec.env = {{"KVRUN_DEVICE", "no-such-device"}};
	CHECK(run_program(spec).code == 0);
	spec.args.resize(7);
	Ran r = run_program(spec);
	CHECK(r.code == 4);
	CHECK(contains(r.err, "no-such-device"));
	const std::pair<const char*, const char*> bad[] = {{"KVRUN_LOG", "much"},
	                                                   {"KVRUN_CHECK", "yes"},
	                                                   {"KVRUN_POISON", "1x"},
	                                                   {"KVRUN_PRECISION", "f8"},
	                                                   {"KVRUN_SUBMIT_MS", "1,5"},
	                                                   {"KVRUN_BACKEND", "metal"},
	                                                   {"KVRUN_LOG", "\xef\xbb\xbf"
	                                                                 "1"},
	                                                   {"KVRUN_CHECK", "1\r"}};
	for (const auto& setting : bad) {
		CAPTURE(std::string(setting.first));
		spec.env = {{"KVRUN_DEVICE", "cpu"}, setting};
		r = run_program(spec);
		CHECK(r.code == 2);
		CHECK(contains(r.err, setting.first));
		CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
	}
}

TEST_CASE("T62, T74 cli: a driver in too little memory is no silent crash" * doctest::test_suite("lavapipe")) {
	if (needs_posix("limits of memory")) return;
	const std::string icd = lavapipe();
	if (icd.empty()) return;
	const TempFolder cache;
	const bool survives = survives_limits(icd, cache);
	// not 250: with room for one of its two threads, llvmpipe waits for the other for ever
	for (const size_t mib : {230, 300, 350, 400, 500, 600, 700}) {
		CAPTURE(mib);
		rlimit all{};
		getrlimit(RLIMIT_AS, &all);
		const rlimit limit{rlim_t(mib) << 20, all.rlim_max};
		setrlimit(RLIMIT_AS, &limit);
		Ran r;
		try {
			r = run_program(on_lavapipe(icd, cache));
		} catch (...) {}
		setrlimit(RLIMIT_AS, &all);
		CAPTURE(r.err);
		if (survives) CHECK(!r.killed);
		if (!r.killed) CHECK((r.code == 0 || r.code == 4));
		if (r.code != 0) CHECK(contains(r.err, "error: "));
	}
}
