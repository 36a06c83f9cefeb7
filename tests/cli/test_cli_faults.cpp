// The program when its surroundings fail: no memory, files that may not grow, death while saving, drivers that crash.
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <csignal>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <map>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const std::string kRoot = KVRUN_SOURCE_DIR;
const std::string kModel = kRoot + "/models/bundled/recall-4m-f16.gguf";
const std::string kTiny = kRoot + "/tests/golden/tiny/llama.gguf";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The name of the software driver as `kvrun devices` has it; empty where it is not installed.
std::string lavapipe() {
	for (const auto& e : fs::directory_iterator("/usr/share/vulkan/icd.d"))
		if (e.path().filename().string().starts_with("lvp_icd")) return e.path().string();
	MESSAGE("skipped: no lavapipe (package mesa-vulkan-drivers)");
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

std::vector<fs::path> files_in(const fs::path& folder) {
	std::vector<fs::path> out;
	std::error_code ec;
	for (const auto& e : fs::directory_iterator(folder, ec)) out.push_back(e.path());
	return out;
}

struct FileLimit { // no file of this process, or one it starts, becomes larger than this
	rlimit before{};
	explicit FileLimit(rlim_t bytes) {
		getrlimit(RLIMIT_FSIZE, &before);
		const rlimit now{bytes, before.rlim_max};
		setrlimit(RLIMIT_FSIZE, &now);
	}
	~FileLimit() { setrlimit(RLIMIT_FSIZE, &before); }
};

} // namespace

TEST_CASE("T70, T48 cli: SIGKILL in the middle of saving the pipeline cache leaves the old file or the new one") {
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
	for (const char* call : {"write", "rename"}) { // nothing is there yet, then a file of fewer pipelines
		CAPTURE(std::string(call));
		const size_t before = files_in(folder).size();
		Ran r = killed_in(call);
		CAPTURE(r.err);
		CHECK(r.code == 128 + SIGKILL);
		const std::vector<fs::path> left = files_in(folder);
		CHECK(left.size() == before + 1); // it did hit: the temporary file is there
		r = run_program(on_lavapipe(icd, cache));
		CAPTURE(r.err);
		CHECK(r.code == 0);
		if (answer.empty()) answer = r.out;
		CHECK(r.out == answer);
		CHECK(files_in(folder).size() == 1); // and has gone with the next save
		const fs::path file = files_in(folder)[0];
		CHECK(file.extension() == ".bin");
		fs::resize_file(file, 70); // so that the next run has something to save
	}
}

TEST_CASE("T70 cli: a pipeline cache that may not grow is a warning, and nothing is left of it") {
	const std::string icd = lavapipe();
	if (icd.empty()) return;
	const TempFolder cache;
	Ran r;
	{
		const FileLimit small(40); // lavapipe has little to keep
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
	for (const auto& [variable, n_calls] : total)
		for (const int sign : {1, -1}) {
			long step = 1;
			for (long n = 1; n <= n_calls; n += step) {
				step = std::max<long>(1, n / 80); // each of the first, then a sample to the end
				CAPTURE(variable);
				CAPTURE(n * sign);
				const Ran r = run_with(variable.c_str(), n * sign);
				CAPTURE(r.err);
				REQUIRE(!r.killed);
				REQUIRE((r.code == 4 || (sign < 0 && r.code >= 0 && r.code <= 6) || r.code == whole.code));
				if (r.code == 4) REQUIRE(contains(r.err, "error: "));
				if (r.code == 0) REQUIRE(r.out == whole.out);
			}
		}
}

TEST_CASE("T62 cli: a crash inside a driver's library says which one and ends with 4") {
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
