// Every KVRUN_* environment variable in one table: name, default, help.
#include "tools/env.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/system/process.h"
#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace kvrun {
namespace {
constexpr EnvInfo kTable[] = {
    {"KVRUN_BACKEND", "any", "look for devices of this backend only: vulkan or cpu"},
    {"KVRUN_DEVICE", "best", "device to use: index from `kvrun devices`, or part of its name"},
    {"KVRUN_LOG", "0", "0 warnings, 1 summary, 2 per step, 3 every op before it runs"},
    {"KVRUN_CHECK", "0", "1: run every op on the cpu backend too and stop at the first that differs"},
    {"KVRUN_DUMP", "", "folder[:op[:layer]]: write op inputs and outputs as .npy"},
    {"KVRUN_VALIDATE", "0",
     "1: Vulkan validation; sync: synchronisation validation; gpu: GPU-assisted; any message fails the run"},
    {"KVRUN_POISON", "0", "1: fill new device memory with NaN, so that reads of unwritten memory show"},
    {"KVRUN_PRECISION", "f16",
     "f32: multiply and attend in f32 also where the device has matrix units, which take f16, or integer dot products, "
     "which take int8"},
    {"KVRUN_SHADERS", "", "folder with .spv files that replace the embedded shaders"},
    {"KVRUN_TEST_CAPS", "", "clamp device limits, for tests: workgroup=128,shared=16384,ssbo=4,range=134217728,..."},
    {"KVRUN_SUBMIT_MS", "100", "target time of one submission to the device, in ms"},
    {"KVRUN_CACHE_DIR", "",
     "folder of the pipeline cache and of what is known of drivers; default $XDG_CACHE_HOME/kvrun or ~/.cache/kvrun; "
     "`off` for none"},
    {"KVRUN_PROBE", "",
     "program that tries Vulkan drivers first; default kvrun-probe beside kvrun or in " KVRUN_PROBE_FOLDER
     "; `off` for none"},
};
static_assert(std::size(kTable) == size_t(Env::Count));
} // namespace

std::span<const EnvInfo> env_table() { return kTable; }

std::string variable(const char* name) {
	const char* v = std::getenv(name);
	return v ? v : "";
}

std::string env_text(Env e, const char* fallback) {
	const char* v = std::getenv(kTable[size_t(e)].name);
	return v && *v ? v : fallback;
}

double env_number(Env e, double fallback) {
	const std::string v = env_text(e);
	if (v.empty()) return fallback;
	double out = 0;
	auto [end, ec] = std::from_chars(v.data(), v.data() + v.size(), out);
	if (ec != std::errc() || end != v.data() + v.size())
		fail(Code::Invalid, "{} is '{}', expected a number ({})", kTable[size_t(e)].name, v, kTable[size_t(e)].help);
	return out;
}

std::string pipeline_cache_folder() {
	const std::string own = env_text(Env::CacheDir);
	if (own == "off") return {};
	if (!own.empty()) return own;
	const std::string cache = sys::cache_folder();
	return cache.empty() ? cache : cache + "/kvrun";
}

std::string probe_program() {
	const std::string own = env_text(Env::Probe);
	if (own == "off") return {};
	if (!own.empty()) return own;
	const std::filesystem::path self = sys::path_of(sys::program_path()), here = self.parent_path();
	for (const char* place : {"kvrun-probe", KVRUN_PROBE_FOLDER "/kvrun-probe"}) {
		const std::string probe = (here / place).string() + self.extension().string(); // .exe on Windows
		if (!self.empty() && sys::may_execute(probe)) return probe;
	}
	return {};
}

bool f32_matmul() {
	const std::string precision = env_text(Env::Precision, "f16");
	if (precision != "f16" && precision != "f32")
		fail(Code::Invalid, "KVRUN_PRECISION is '{}', expected f16 or f32", precision);
	return precision == "f32";
}

void set_driver_files(const std::string& files) {
	sys::set_variable("VK_DRIVER_FILES", files);
	sys::set_variable("VK_ICD_FILENAMES", files); // the variable's name for older loaders
}

void log_to_stderr() { set_log_sink(stderr_sink, int(env_number(Env::Log, 0))); }

} // namespace kvrun
