// Which installed Vulkan drivers are used: misbehaving ones are refused with a reason, and the others work.
#include "backends/driver_memory.h"
#include "backends/self_test.h"
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/probe.h"
#include "engine/core/log.h"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_folder.h"
#include "tests/vulkan/vulkan_device.h"
#include "tests/vulkan/vulkan_faults.h"
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const std::string kHostile = KVRUN_HOSTILE_DRIVER_ICD; // hostile_driver.cpp

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

struct Setting { // the loader finds only these ICD files; drivers are tested, and there are no remembered results
	explicit Setting(const std::string& icds, const std::string& how = "")
	    : files("VK_DRIVER_FILES", icds), names("VK_ICD_FILENAMES", icds), mode("KVRUN_HOSTILE_DRIVER", how),
	      probe("KVRUN_PROBE", KVRUN_PROBE_PROGRAM), cache("KVRUN_CACHE_DIR", folder.path.string()) {}
	TempFolder folder;
	ScopedEnv files, names, mode, probe, cache;
};

std::string good_driver(const std::string& name = test_driver()) { // an ICD file; empty if not installed
	const ScopedEnv files("VK_DRIVER_FILES", ""), names("VK_ICD_FILENAMES", "");
	try {
		select_test_device(name);
		return std::getenv("VK_DRIVER_FILES");
	} catch (const Error& e) {
		skip(name + ": " + e.what());
		return "";
	}
}

class Lines { // of the log, warnings only
 public:
	Lines() {
		set_log_sink([this](int, std::string_view line) { lines_.emplace_back(line); }, 0);
	}
	~Lines() { set_log_sink(stderr_sink, 0); }
	std::vector<std::string> taken() const { return lines_; }

 private:
	std::vector<std::string> lines_;
};

double seconds_of(const std::function<void()>& f) {
	const auto start = std::chrono::steady_clock::now();
	f();
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Processes that run the helper, or were forked by a driver inside it; killed ones may take a moment to end.
size_t count_helpers() {
	size_t n = 0;
	for (const auto& p : fs::directory_iterator("/proc")) {
		std::error_code ec;
		const fs::path exe = fs::read_symlink(p.path() / "exe", ec);
		n += !ec && exe == fs::canonical(KVRUN_PROBE_PROGRAM);
	}
	return n;
}

bool helpers_alive() {
	for (int i = 0; i < 100 && count_helpers(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
	return count_helpers() > 0;
}

std::string refusal_of(const std::vector<DeviceReport>& all, const std::string& driver) {
	for (const DeviceReport& r : all)
		if (has(r.info.name, driver)) return r.refused;
	return "no such report";
}

} // namespace

TEST_CASE("drivers: T62 one that exits, crashes, hangs, drips or forks is refused, and the good one is used") {
	const std::string good = good_driver();
	struct Row {
		const char *how, *reason;
	};
	const Row rows[] = {{"crash", "SIGABRT"},
	                    {"exit", "exit code 0 instead of"},
	                    {"silent exit", "exit code 0 instead of"},
	                    {"hang", "within 2 s"},
	                    {"drip", "within 2 s"},
	                    {"flood", "within 2 s"},
	                    {"lie", "exit code 0 instead of"},
	                    {"copy", "exit code 0 instead of"}};
	for (const Row& row : rows) {
		CAPTURE(row.how);
		const Setting both(good.empty() ? kHostile : kHostile + ":" + good, row.how);
		std::vector<DeviceReport> all;
		BackendOptions o = options_from_environment();
		o.probe_seconds = 2;
		CHECK(seconds_of([&] { all = list_devices(o); }) < 12); // 2, on a busy machine
		const std::string why = refusal_of(all, "hostile_driver");
		CHECK_MESSAGE(has(why, row.reason), why);
		CHECK_MESSAGE(why.find('\n') == why.npos, why);
		CHECK(has(why, "; update or remove it"));
		if (std::string(row.how) == "crash") CHECK(has(why, "no chip that this driver knows")); // its own message
		if (!good.empty()) {
			CHECK(all[0].refused.empty());
			Lines lines;
			CHECK(open_backend(o)->info().name == all[0].info.name);
			const std::vector<std::string> said = lines.taken();
			if (&row == rows) { // the first line names every refused driver and the reason; a warning is logged once
				REQUIRE(!said.empty());
				CHECK_MESSAGE((has(said[0], "no GPU is used, but " + all[0].info.name) && has(said[0], kHostile) &&
				               has(said[0], row.reason)),
				              said[0]);
			}
		}
		CHECK_FALSE(helpers_alive());
		CHECK(waitpid(-1, nullptr, WNOHANG) == -1); // no child is left either
	}
}

TEST_CASE("drivers: T62 a slow driver is waited for, and it is said which") {
	const Setting only(kHostile, "slow");
	BackendOptions o = options_from_environment();
	Lines lines;
	const vk::Drivers d = vk::probe_drivers(o);
	CHECK(d.bad.empty());
	const std::vector<std::string> said = lines.taken();
	REQUIRE(said.size() == 1);
	CHECK(said[0] == "waiting for driver " + kHostile + ", 60 s at most");
}

TEST_CASE("drivers: T62 a process that a driver leaves behind is ended, and the driver not blamed") {
	const Setting only(kHostile, "helper");
	double s = 0;
	vk::Drivers d;
	s = seconds_of([&] { d = vk::probe_drivers(options_from_environment()); });
	CHECK(d.bad.empty());
	CHECK(s < 4); // the pipe is not read to its end
	CHECK_FALSE(helpers_alive());
}

TEST_CASE("drivers: T62, T71 a bad driver is remembered until it changes, the settings change or it is tried again") {
	const TempFolder folder;
	const std::string library = folder.path / "driver.so", icd = folder.path / "driver_icd.json";
	fs::copy_file(KVRUN_HOSTILE_DRIVER_LIBRARY, library);
	std::ofstream(icd)
	    << R"({"file_format_version": "1.0.0", "ICD": {"library_path": "./driver.so", "api_version": "1.3.0"}})";
	const Setting only(icd, "exit");
	BackendOptions o = options_from_environment();
	o.probe_seconds = 2;
	int n = 0;
	const auto probe = [&](double most_s) { // the process also remembers: each call names the helper differently
		vk::Drivers d;
		o.set_driver_files = nullptr;
		o.probe = std::string(size_t(++n), '/') + KVRUN_PROBE_PROGRAM; // the same file
		CHECK(seconds_of([&] { d = vk::probe_drivers(o); }) < most_s);
		return d.bad.empty() ? std::string() : d.bad[0].why;
	};
	{ // it may be faster the next time
		const ScopedEnv late("KVRUN_HOSTILE_DRIVER", "hang");
		CHECK(probe(12) == "did not list its devices within 2 s");
		CHECK(probe(12) == "did not list its devices within 2 s");
		const ScopedEnv fine("KVRUN_HOSTILE_DRIVER", "none");
		CHECK(probe(12) == "");
	}
	CHECK(has(probe(12), "exit code 0"));
	const fs::path memory = only.folder.path / "drivers.json";
	REQUIRE(fs::exists(memory));
	struct stat st {};
	CHECK((stat(memory.c_str(), &st) == 0 && (st.st_mode & 0777) == 0600));
	CHECK(has(probe(2), "remembered"));
	{
		const ScopedEnv crash("KVRUN_HOSTILE_DRIVER", "crash");
		CHECK(has(probe(2), "listing its devices (remembered")); // not tested again
		const ScopedEnv other("RADV_DEBUG", "info");             // with another setting it may behave
		CHECK(has(probe(10), "SIGABRT"));
	}
	{ // an update
		const ScopedEnv crash("KVRUN_HOSTILE_DRIVER", "crash");
		fs::last_write_time(library, fs::last_write_time(library) - std::chrono::hours(1));
		CHECK(has(probe(10), "SIGABRT"));
		CHECK(has(probe(2), "SIGABRT): hostile_driver: no chip that this driver knows (remembered"));
	}
	{ // another version with the same size and time
		const ScopedEnv crash("KVRUN_HOSTILE_DRIVER", "crash");
		const auto time = fs::last_write_time(library);
		std::fstream f(library, std::ios::binary | std::ios::in | std::ios::out);
		f.seekp(62); // the index of the section names, which loaders do not read
		f.put('\x01');
		f.close();
		fs::last_write_time(library, time);
		const std::string why = probe(10);
		CHECK_MESSAGE((has(why, "SIGABRT") && !has(why, "remembered")), why);
		CHECK(has(probe(2), "remembered"));
	}
	{ // good again
		const ScopedEnv fine("KVRUN_HOSTILE_DRIVER", "none");
		CHECK(has(probe(2), "remembered"));
		DriverMemory::forget(o.cache_dir);
		CHECK(probe(10) == "");
	}
	for (const char* garbage : {"", "{", "[]", "{\"drivers\": 1}", "{\"drivers\": [1, {}, {\"name\": 1}]}"}) {
		std::ofstream(memory, std::ios::trunc) << garbage;
		const ScopedEnv crash("KVRUN_HOSTILE_DRIVER", "crash");
		CHECK(has(probe(10), "SIGABRT"));
	}
}

TEST_CASE("drivers: T71 a device whose driver compiles a kernel wrongly is refused at its first use, and remembered") {
	VulkanFaults& f = vulkan_faults();
	const std::string good = good_driver();
	if (good.empty()) return;
	const Setting only(good);
	const BackendOptions o = options_from_environment();
	const auto modules_of = [&](const BackendOptions& options) {
		f.reset();
		(void)open_backend(options);
		return f.calls["vkCreateShaderModule"];
	};
	const uint64_t modules = modules_of(o);
	MESSAGE(modules << " shaders are tested");
	REQUIRE(modules > 8);
	CHECK(modules_of(o) == 0); // remembered: nothing is compiled
	BackendOptions forgetful = o;
	forgetful.cache_dir.clear();
	CHECK(modules_of(forgetful) == 0); // cannot be remembered, so not tested
	for (uint64_t n = 1; n <= modules; ++n) {
		CAPTURE(n);
		DriverMemory::forget(o.cache_dir);
		f.reset();
		f.miscompiled = n;
		CHECK_THROWS_WITH_AS((void)open_backend(o), doctest::Contains("computes wrongly"), Error);
		f.reset(); // it would be correct now
		CHECK_THROWS_WITH_AS((void)open_backend(o), doctest::Contains("(remembered; `kvrun devices --retry`"), Error);
		CHECK(f.calls["vkCreateShaderModule"] == 0);
		CHECK(has(list_devices(o)[0].refused, "computes wrongly"));
	}
	DriverMemory::forget(o.cache_dir);
	CHECK(modules_of(o) == modules);
	CHECK(list_devices(o)[0].refused == "");
}

TEST_CASE("drivers: T71 a device at the limits of Vulkan's precision is not refused") {
	const std::string good = good_driver();
	if (good.empty()) return;
	const Setting only(good);
	BackendOptions o = options_from_environment(), cpu = o;
	cpu.backend = "cpu";
	for (const char* caps :
	     {"", "texel_range=0,cpu=0", "texel_range=0,cpu=0,subgroup_ops=0", "texel_range=0,cpu=0,int_dot=2"}) {
		CAPTURE(caps);
		o.test_caps = caps;
		for (const char* shaders : {"", KVRUN_ROUGH_SHADERS}) {
			o.shaders = shaders;
			CHECK(self_test(*open_backend(o), *open_backend(cpu)) == "");
		}
	}
}

TEST_CASE("drivers: T71 beside a device that computes wrongly the next best is used") {
	VulkanFaults& f = vulkan_faults();
	const std::string first = good_driver(), second = good_driver("swiftshader");
	if (first.empty() || second.empty() || first == second) return;
	const Setting both(first + ":" + second);
	const BackendOptions o = options_from_environment();
	const std::string best = find_device(o).info.name; // has the most free memory; loaders list equals in any order
	std::vector<std::string> others;
	for (const DeviceReport& r : list_devices(o))
		if (!r.build.empty() && r.refused.empty() && r.info.name != best) others.push_back(r.info.name);
	REQUIRE(others.size() == 1);
	f.reset();
	f.miscompiled = 1;
	CHECK(open_backend(o)->info().name == others[0]);
	BackendOptions named = o;
	named.device = best;
	CHECK_THROWS_WITH_AS((void)open_backend(named), doctest::Contains("computes wrongly"), Error);
	f.reset();
}

TEST_CASE("drivers: T62 a manifest that is none is refused by name and hides no good driver") {
	const std::string good = good_driver();
	const TempFolder folder;
	const std::string icd = folder.path / "garbage_icd.json";
	std::string deep(100000, '[');
	for (const std::string& text :
	     {std::string("\x7f"
	                  "ELF garbage"),
	      std::string("{}"), std::string(), deep, std::string(R"({"ICD": {"library_path": 7}})"),
	      std::string(R"({"ICD": {"library_path": ""}})")}) {
		std::ofstream(icd, std::ios::trunc) << text;
		const Setting both(good.empty() ? icd : icd + ":" + good);
		const std::vector<DeviceReport> all = list_devices(options_from_environment());
		const std::string why = refusal_of(all, "garbage_icd.json");
		CHECK_MESSAGE(has(why, "manifest"), why);
		if (!good.empty()) CHECK(all[0].refused.empty());
	}
	fs::remove(icd);
	REQUIRE(mkfifo(icd.c_str(), 0600) == 0); // there is no writer
	const Setting fifo(icd);
	const std::vector<DeviceReport> all = list_devices(options_from_environment());
	CHECK(has(refusal_of(all, "garbage_icd.json"), "FIFO"));
}

TEST_CASE("drivers: T62 without a helper, or with one that does not run, nobody is blamed") {
	const std::string good = good_driver();
	if (good.empty()) return;
	for (const char* helper : {"off", "/nonexistent/kvrun-probe", "/bin/false", "/bin/true", "/etc/hostname", "/bin"}) {
		CAPTURE(helper);
		const Setting only(good);
		const ScopedEnv probe("KVRUN_PROBE", helper);
		const std::vector<DeviceReport> all = list_devices(options_from_environment());
		REQUIRE(!all.empty());
		CHECK(all[0].refused.empty());
	}
}

TEST_CASE("drivers: T62 a library that may not change the environment refuses Vulkan while a bad driver is there") {
	const std::string good = good_driver();
	if (good.empty()) return;
	const Setting both(kHostile + ":" + good, "exit");
	BackendOptions o = options_from_environment();
	o.set_driver_files = nullptr;
	const std::vector<DeviceReport> all = list_devices(o);
	for (const DeviceReport& r : all) CHECK((r.backend != "vulkan" || !r.refused.empty()));
	CHECK(has(refusal_of(all, "hostile_driver"), "exit code 0"));
	bool said = false;
	for (const DeviceReport& r : all) said |= has(r.refused, "VK_DRIVER_FILES=" + good);
	CHECK(said);
	CHECK(std::string(std::getenv("VK_DRIVER_FILES")) == kHostile + ":" + good);
}

TEST_CASE("drivers: T62 an embedder that reaps all children, or ignores their end, takes no good driver away") {
	const std::string good = good_driver();
	if (good.empty()) return;
	struct sigaction ignore {
	}, before{};
	ignore.sa_handler = SIG_IGN;
	sigaction(SIGCHLD, &ignore, &before);
	{
		const Setting both(kHostile + ":" + good, "exit");
		const std::vector<DeviceReport> all = list_devices(options_from_environment());
		CHECK(all[0].refused.empty());
		CHECK(has(refusal_of(all, "hostile_driver"), "instead of listing its devices"));
	}
	sigaction(SIGCHLD, &before, nullptr);
}
