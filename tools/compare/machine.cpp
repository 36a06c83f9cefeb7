// The machine of a comparison: processor and system, GPUs as reported by the kernel, the devices to compare.
#include "engine/core/system/machine.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/compare/compare.h"
#include "tools/host.h"
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

namespace kvrun::comparison {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
	std::ifstream in(file);
	std::string line;
	std::getline(in, line);
	return one_line(line, 200);
}

// The kernel's data on each graphics card: link, clocks, power state, firmware.
Json graphics_cards() {
	Json cards = Json::array();
	std::error_code error;
	std::set<fs::path> folders;
	for (const auto& e : fs::directory_iterator("/sys/class/drm", error)) {
		const std::string name = e.path().filename().string();
		if (name.starts_with("card") && name.find('-') == name.npos) folders.insert(e.path() / "device");
	}
	for (const fs::path& f : folders) {
		Json card;
		for (const char* file : {"vendor", "device", "current_link_speed", "current_link_width", "max_link_speed",
		                         "max_link_width", "power_state", "vbios_version", "pp_dpm_sclk", "pp_dpm_mclk"})
			if (const std::string value = first_line(f / file); !value.empty()) card[file] = value;
		if (!card.empty()) cards.push_back(card);
	}
	return cards;
}

// Clocks, power and firmware from NVIDIA's tool; empty if it is not installed.
std::string nvidia_smi() {
	std::string out;
	sys::run_shell("nvidia-smi --query-gpu=name,uuid,driver_version,vbios_version,pcie.link.gen.current,"
	               "pcie.link.width.current,clocks.sm,clocks.mem,clocks.max.sm,pstate,power.limit,temperature.gpu "
	               "--format=csv",
	               out);
	return out;
}

// "llvmpipe (LLVM 15.0.6, 256 bits)" -> "llvmpipe"
std::string short_name(const Json& report) {
	const std::string name = report["name"], backend = report["backend"];
	if (backend == "cpu") return "cpu";
	const std::string s = one_line(name.substr(0, name.find(" (")), 40);
	return backend == "vulkan" ? s : fmt::format("{} {}", backend, s);
}

std::string lower(std::string s) {
	std::ranges::transform(s, s.begin(), [](unsigned char c) { return char(std::tolower(c)); });
	return s;
}

// Whether a word of --device names it: an index, a backend, or a part of the name.
bool selects(const std::string& word, const Json& report) {
	const std::string w = lower(word);
	if (w == std::to_string(report["index"].get<int>()) || w == report["backend"].get<std::string>()) return true;
	const bool index = w.find_first_not_of("0123456789") == w.npos;
	return !index && lower(report["name"]).find(w) != std::string::npos;
}

} // namespace

Json find_machine(bool anonymous) {
	const sys::System system = sys::system_names();
	Json j = {{"name", anonymous ? "machine" : system.host},
	          {"processor", processor_name()},
	          {"threads", std::thread::hardware_concurrency()},
	          {"os", os_name()},
	          {"kernel", fmt::format("{} {} {}", system.name, system.release, system.machine)},
	          {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
	          {"graphics_cards", graphics_cards()}};
	if (const std::string nvidia = nvidia_smi(); !nvidia.empty()) j["nvidia_smi"] = nvidia;
	return j;
}

std::vector<Device> find_devices(const Options& o) {
	Options anew = o; // never taken from an earlier run: devices may change
	anew.again = true;
	// in its own process: a driver's threads would not survive the fork of later jobs
	const Json list = run_job(anew, {"devices", {}, [] { return run_command({"devices", "--json"}); }}, 0, 0);
	if (list.contains("error")) fail(Code::Device, "{}", list["error"].get<std::string>());
	std::vector<Device> out;
	std::set<std::string> taken;
	const std::vector<std::string> words = o.devices == "all" ? std::vector<std::string>() : split(o.devices, ',');
	std::set<std::string> unknown(words.begin(), words.end()); // words that name no usable device
	for (const Json& report : list["devices"]) {
		if (!report["usable"].get<bool>()) continue;
		bool wanted = o.devices == "all";
		for (const std::string& word : words)
			if (selects(word, report)) wanted = true, unknown.erase(word);
		if (!wanted) continue;
		Device d;
		d.label = short_name(report);
		if (!taken.insert(d.label).second) taken.insert(d.label += fmt::format(" #{}", report["index"].get<int>()));
		d.select = std::to_string(report["index"].get<int>());
		d.reference = report["backend"] == "cpu";
		d.report = report;
		out.push_back(std::move(d));
	}
	if (out.empty() || !unknown.empty())
		fail(Code::Device, "--device {}: no usable device; kvrun devices lists them",
		     one_line(unknown.empty() ? o.devices : *unknown.begin()));
	return out;
}

} // namespace kvrun::comparison
