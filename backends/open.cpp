// Device choice: name -> Backend, best available first, with the reasons others were refused.
#include "backends/backend.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/env.h"
#include <algorithm>
#include <cctype>
#include <charconv>

namespace kvrun {
namespace {

std::string lower(std::string s) {
	for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
	return s;
}

DeviceReport cpu_report() {
	DeviceReport r;
	r.backend = "cpu";
	r.info = make_cpu_backend()->info();
	return r;
}

std::vector<DeviceReport> with_cpu(const vk::VulkanDevices& vulkan) {
	std::vector<DeviceReport> all = vulkan.reports();
	all.push_back(cpu_report());
	return all;
}

// Everything that stands in the way, in one line.
std::string refusals(const std::vector<DeviceReport>& all) {
	std::string s;
	for (const DeviceReport& r : all) {
		if (r.refused.empty()) continue;
		if (!s.empty()) s += "; ";
		s += r.info.name.empty() ? r.refused : r.info.name + ": " + r.refused;
	}
	return s;
}

std::string names(const std::vector<DeviceReport>& all) {
	std::string s;
	for (size_t i = 0; i < all.size(); ++i)
		if (all[i].refused.empty())
			s += fmt::format("{}{} {}", s.empty() ? "" : ", ", i, all[i].backend == "cpu" ? "cpu" : all[i].info.name);
	return s;
}

size_t choose(const std::vector<DeviceReport>& all, const std::string& which) {
	if (which.empty()) { // best first: a software device comes up only where there is nothing else
		for (size_t i = 0; i < all.size(); ++i)
			if (all[i].refused.empty() && all[i].backend != "cpu") return i;
		fail(Code::Device, "no usable Vulkan device: {}; `--device cpu` runs the slow reference", refusals(all));
	}
	const std::string want = lower(which);
	if (want == "cpu") return all.size() - 1;
	size_t index = 0;
	const char* end = which.data() + which.size();
	if (auto [last, ec] = std::from_chars(which.data(), end, index); ec == std::errc() && last == end) {
		if (index < all.size()) return index;
		fail(Code::Device, "there is no device {}; there are {}", which, names(all));
	}
	for (bool usable : {true, false})
		for (size_t i = 0; i < all.size(); ++i)
			if (all[i].refused.empty() == usable && lower(all[i].info.name).find(want) != std::string::npos) return i;
	const std::string why = refusals(all);
	fail(Code::Device, "no device is called '{}'; there are {}{}{}", which, names(all),
	     why.empty() ? "" : "; refused: ", why);
}

} // namespace

std::vector<DeviceReport> list_devices() { return with_cpu(vk::VulkanDevices()); }

std::unique_ptr<Backend> open_backend(const std::string& which) {
	std::string want = which.empty() ? env_text(Env::Device) : which;
	const std::string kind = env_text(Env::Backend);
	if (kind != "" && kind != "vulkan" && kind != "cpu")
		fail(Code::Invalid, "KVRUN_BACKEND is '{}', expected vulkan or cpu", kind);
	if (want.empty() && kind == "cpu") want = "cpu";
	std::unique_ptr<Backend> b;
	if (lower(want) == "cpu") { // without looking at drivers
		b = make_cpu_backend();
	} else {
		vk::VulkanDevices vulkan;
		const std::vector<DeviceReport> all = with_cpu(vulkan);
		const size_t i = choose(all, want);
		b = all[i].backend == "cpu" ? make_cpu_backend() : vulkan.open(i);
	}
	if (env_flag(Env::Check))
		b = make_checked_backend(std::move(b), make_cpu_backend());
	else if (!env_text(Env::Dump).empty())
		b = make_checked_backend(std::move(b), nullptr);
	return b;
}

} // namespace kvrun
