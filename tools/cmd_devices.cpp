// `kvrun devices`: lists every device with its properties, or why it is refused; compiler statistics of the shaders.
#include "backends/driver_memory.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/new_file.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/env.h"
#include "tools/output.h"
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace kvrun {
namespace {

struct DevicesOptions {
	bool as_json = false, verbose = false, shaders = false, retry = false;
	std::string families; // comma-separated
	std::string kernel;   // beginning of a name
	std::string use;      // part of a use's description
	std::string assembly; // folder
};

std::string gib(size_t bytes) {
	if (bytes > size_t(1) << 50) return "unlimited";
	return bytes ? fmt::format("{:.1f} GiB", double(bytes) / double(1u << 30)) : "-";
}

// The device open_backend("") would take, or SIZE_MAX.
size_t best(const std::vector<DeviceReport>& all) {
	for (size_t i = 0; i < all.size(); ++i)
		for (const BackendRow& row : backend_table())
			if (row.automatic && all[i].backend == row.name && all[i].refused.empty()) return i;
	return SIZE_MAX;
}

// An earlier entry that is the same GPU under another backend, or SIZE_MAX.
size_t same_gpu(const std::vector<DeviceReport>& all, size_t i) {
	for (size_t other = 0; other < i; ++other)
		if (!all[i].uuid.empty() && all[other].uuid == all[i].uuid && all[other].backend != all[i].backend)
			return other;
	return SIZE_MAX;
}

void print_devices(const std::vector<DeviceReport>& all, bool verbose) {
	const size_t first = best(all);
	for (size_t i = 0; i < all.size(); ++i) {
		const DeviceReport& r = all[i];
		const std::string name = !r.info.name.empty() ? r.info.name : r.backend == "vulkan" ? "Vulkan" : r.backend;
		fmt::print("{}{:>2}  {}\n", i == first ? '*' : ' ', i, name);
		if (!r.refused.empty()) fmt::print("      refused: {}\n", r.refused);
		if (r.info.driver.empty() && r.limits.empty()) continue;
		fmt::print("      {}: {}, {}", r.backend, r.info.driver.empty() ? "unknown driver" : r.info.driver,
		           r.info.type);
		if (r.info.is_cpu) fmt::print(" (runs on the host's processor)");
		if (const size_t other = same_gpu(all, i); other != SIZE_MAX) fmt::print(" (the same GPU as {})", other);
		fmt::print("\n      memory {}, free {}", gib(r.info.memory_bytes), gib(r.info.free_bytes));
		if (r.info.max_buffer_bytes)
			fmt::print(", buffer {}, view {}", gib(r.info.max_buffer_bytes), gib(r.info.max_view_bytes));
		fmt::print("\n");
		std::string line;
		for (const auto& [limit, value] : r.limits) {
			if (line.size() + limit.size() + value.size() > 100) {
				fmt::print("      {}\n", line);
				line.clear();
			}
			line += fmt::format("{}{} {}", line.empty() ? "" : ", ", limit, value);
		}
		if (!line.empty()) fmt::print("      {}\n", line);
		if (r.tunable)
			fmt::print("      {}\n",
			           r.tuned.measured ? "tuned: " + tuning_text(r.tuned.values) : "not tuned (kvrun tune --kernels)");
	}
	if (first != SIZE_MAX)
		fmt::print("* is used when no --device is given\n");
	else
		fmt::print("no usable {} device; --device cpu runs the slow reference\n",
		           env_text(Env::Backend) == "cuda" ? "CUDA" : "Vulkan");
	if (!verbose) return;
	fmt::print("\nenvironment\n");
	for (size_t i = 0; i < env_table().size(); ++i) {
		const EnvInfo& e = env_table()[i];
		const std::string value = env_text(Env(i));
		fmt::print("  {:<18} {:<12} {}\n", e.name, value.empty() ? fmt::format("({})", e.fallback) : value, e.help);
	}
}

Json report_json(const std::vector<DeviceReport>& all, size_t index) {
	const DeviceReport& r = all[index];
	const size_t other = same_gpu(all, index);
	Json limits = Json::object();
	for (const auto& [k, v] : r.limits) limits[k] = v;
	Json tuned;
	if (r.tuned.measured) tuned = Json::object();
	for (const auto& [k, v] : r.tuned.values) tuned[k] = v;
	return {{"index", index},
	        {"backend", r.backend},
	        {"name", r.info.name},
	        {"driver", r.info.driver},
	        {"type", r.info.type},
	        {"is_cpu", r.info.is_cpu},
	        {"uuid", r.uuid},
	        {"same_gpu_as", other == SIZE_MAX ? Json() : Json(other)},
	        {"memory_bytes", r.info.memory_bytes},
	        {"free_bytes", r.info.free_bytes},
	        {"max_buffer_bytes", r.info.max_buffer_bytes},
	        {"max_view_bytes", r.info.max_view_bytes},
	        {"usable", r.refused.empty()},
	        {"default", index == best(all)},
	        {"refused", r.refused},
	        {"tunable", r.tunable},
	        {"tuned", tuned},
	        {"limits", limits}};
}

void print_devices_json(const std::vector<DeviceReport>& all, bool verbose) {
	Json out;
	out["devices"] = Json::array();
	for (size_t i = 0; i < all.size(); ++i) out["devices"].push_back(report_json(all, i));
	if (verbose)
		for (size_t i = 0; i < env_table().size(); ++i)
			out["environment"][env_table()[i].name] = {
			    {"value", env_text(Env(i))}, {"default", env_table()[i].fallback}, {"help", env_table()[i].help}};
	print_json(out);
}

// ---- --shaders

struct ShaderRun {
	std::string device;
	std::vector<vk::KernelReport> kernels;
	size_t failed = 0, spilling = 0;
};

// Writes one file per pipeline: a description, then the assembly text.
void write_assembly(const ShaderRun& run, const std::string& folder) {
	std::error_code error;
	std::filesystem::create_directories(sys::path_of(folder), error);
	size_t n = 0;
	for (const vk::KernelReport& k : run.kernels) {
		if (k.assembly.empty()) continue;
		const std::string text = fmt::format("; {}: {}, {}\n{}", run.device, k.kernel, k.use, k.assembly);
		NewFile file(fmt::format("{}/{}-{:04}.s", folder, k.kernel, ++n), Readers::ByUmask);
		file.write(std::as_bytes(std::span(text)));
		file.commit();
	}
	if (n == 0) fail(Code::Unsupported, "--assembly: the driver of {} gives no assembly", one_line(run.device));
}

ShaderRun compile_on(const vk::VulkanDevices& devices, size_t index, const DevicesOptions& o,
                     const std::string& family) {
	ShaderRun run;
	run.device = devices.reports()[index].info.name;
	run.kernels = devices.compile_all(
	    index,
	    [&](auto& name, auto& use) { return name.starts_with(o.kernel) && use.find(o.use) != std::string::npos; },
	    !o.assembly.empty());
	if (run.kernels.empty())
		fail(Code::Invalid, "no kernel{}{} is compiled for this device",
		     o.kernel.empty() ? "" : fmt::format(" whose name begins with '{}' (--kernel)", one_line(o.kernel)),
		     o.use.empty() ? "" : fmt::format(" for a use with '{}' (--use)", one_line(o.use)));
	for (const vk::KernelReport& k : run.kernels) {
		run.failed += !k.error.empty();
		run.spilling += k.spilling();
	}
	if (!o.assembly.empty()) write_assembly(run, family.empty() ? o.assembly : o.assembly + "/" + family);
	return run;
}

void print_shaders(const ShaderRun& run) {
	fmt::print("{}\n", run.device);
	const auto row = [](const auto&... x) {
		fmt::print("  {:<16} {:>5} {:>5} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>6} {:>8} {:>5} {:>5} {:>7}  {}\n",
		           x...);
	};
	row("kernel", "vregs", "sregs", "spills", "fills", "scratch", "shared", "code", "insns", "vector", "cycles",
	    "waves", "lanes", "ms", "use");
	for (const vk::KernelReport& k : run.kernels) {
		if (!k.error.empty())
			fmt::print("  {:<16} failed: {}\n", k.kernel, k.error);
		else
			row(k.kernel, k.vector_registers, k.scalar_registers, k.spills, k.fills, k.scratch_bytes, k.shared_bytes,
			    k.code_bytes, k.instructions, k.vector_instructions, k.cycles, k.waves, k.lanes,
			    fmt::format("{:.1f}", k.ms), k.use);
	}
	fmt::print("  {} of {} spill, {} failed\n", run.spilling, run.kernels.size(), run.failed);
	if (!run.kernels.empty() && !run.kernels.front().measured)
		fmt::print("  (this driver has no VK_KHR_pipeline_executable_properties: only shared memory is known)\n");
}

Json shaders_json(const ShaderRun& run) {
	Json kernels = Json::array();
	for (const vk::KernelReport& k : run.kernels)
		kernels.push_back({{"kernel", k.kernel},
		                   {"use", k.use},
		                   {"error", k.error},
		                   {"vector_registers", k.vector_registers},
		                   {"scalar_registers", k.scalar_registers},
		                   {"spills", k.spills},
		                   {"fills", k.fills},
		                   {"scratch_bytes", k.scratch_bytes},
		                   {"shared_bytes", k.shared_bytes},
		                   {"code_bytes", k.code_bytes},
		                   {"instructions", k.instructions},
		                   {"vector_instructions", k.vector_instructions},
		                   {"cycles", k.cycles},
		                   {"waves", k.waves},
		                   {"lanes", k.lanes},
		                   {"ms", k.ms}});
	return {{"device", run.device},
	        {"measured", !run.kernels.empty() && run.kernels.front().measured},
	        {"failed", run.failed},
	        {"spilling", run.spilling},
	        {"kernels", kernels}};
}

std::vector<std::string> split(const std::string& text) {
	std::vector<std::string> out;
	for (size_t at = 0; at <= text.size();) {
		const size_t end = std::min(text.find(',', at), text.size());
		if (end > at) out.push_back(text.substr(at, end - at));
		at = end + 1;
	}
	return out;
}

void run_shaders(const DevicesOptions& o) {
	std::vector<ShaderRun> runs;
	if (o.families.empty()) {
		const vk::VulkanDevices devices(options_from_environment());
		size_t n = 0;
		for (const DeviceReport& r : devices.reports()) n += !r.limits.empty();
		if (n == 0) fail(Code::Device, "{}", devices.reports().front().refused);
		for (size_t i = 0; i < n; ++i)
			runs.push_back(
			    compile_on(devices, i, o, n > 1 ? std::to_string(i) : "")); // failed drivers come after the devices
	} else {
		const std::string icd = vk::find_icd("radeon_icd");
		if (icd.empty()) fail(Code::Device, "--family needs the RADV driver; install package mesa-vulkan-drivers");
		for (const std::string& family : split(o.families)) { // the driver reads these when an instance is created
			std::unique_ptr<vk::VulkanDevices> devices;
			for (const std::string& name : vk::radv_names(family)) {
				set_driver_files(icd); // a driver that refused a name is left out from then on
				sys::set_variable("RADV_FORCE_FAMILY", name);
				devices = std::make_unique<vk::VulkanDevices>(options_from_environment());
				if (!devices->reports().front().limits.empty()) break;
			}
			const DeviceReport& found = devices->reports().front();
			if (found.limits.empty())
				fail(Code::Device, "--family {}: {} {}; newer RADV drivers have no RADV_FORCE_FAMILY, which it needs",
				     family, found.info.name, found.refused);
			runs.push_back(compile_on(*devices, 0, o, family));
		}
	}
	Json out = Json::array();
	size_t failed = 0, spilling = 0;
	for (const ShaderRun& run : runs) {
		if (o.as_json)
			out.push_back(shaders_json(run));
		else
			print_shaders(run);
		failed += run.failed;
		spilling += run.spilling;
	}
	if (o.as_json) print_json(out);
	if (failed || spilling) fail(Code::Device, "{} pipelines do not compile, {} spill registers", failed, spilling);
}

} // namespace

void add_devices(Command& root) {
	Command& c = add_command(root, "devices", "Lists devices, their limits, and why some are refused.");
	auto o = std::make_shared<DevicesOptions>();
	c.examples = {
	    {"kvrun devices", "all devices; * marks the default"},
	    {"kvrun devices --shaders --family navi21,gfx1100", "compile every shader for AMD GPUs, without one"}};
	add_flag(c, "--json", o->as_json, "print JSON");
	add_flag(c, "-v,--verbose", o->verbose, "also print every environment variable with its value");
	auto* shaders = add_flag(c, "--shaders", o->shaders,
	                         "compile every shader; print registers, spills, shared memory and code size");
	add_text(c, "--family", o->families, "NAMES",
	         "with --shaders: compile for these AMD GPUs, which need not be present, as navi21,gfx1100,vega20")
	    ->needs(shaders);
	add_text(c, "--kernel", o->kernel, "NAME", "with --shaders: only kernels whose name begins so, as attend")
	    ->needs(shaders);
	add_text(c, "--use", o->use, "TEXT", "with --shaders: only uses whose description contains TEXT, as 'head_dim 128'")
	    ->needs(shaders);
	add_text(c, "--assembly", o->assembly, "FOLDER",
	         "with --shaders: also write the assembly of each pipeline to a file, as FOLDER/attend-0001.s; several "
	         "devices have a folder each in it")
	    ->needs(shaders);
	add_flag(c, "--retry", o->retry, "try drivers again that failed, and test devices again whose results were wrong");
	c.sections = {json_section(
	    {{"devices", "[{index, backend, name, driver, type, is_cpu, uuid, same_gpu_as (index of the same card under "
	                 "another backend, or null), memory_bytes, free_bytes, max_buffer_bytes, max_view_bytes, usable, "
	                 "default (used without --device), refused (why; else empty), tunable, tuned (what tune --kernels "
	                 "chose, or null), limits {as printed}}]"},
	     {"environment", "with -v: of each variable {value, default, help}"},
	     {"with --shaders", "an array instead: [{device, measured, failed, spilling, kernels [..]}]"}})};
	c.run = [o] {
		if (o->retry) DriverMemory::forget(options_from_environment().cache_dir);
		if (o->shaders) return run_shaders(*o);
		const std::vector<DeviceReport> all = list_devices(options_from_environment());
		if (o->as_json)
			print_devices_json(all, o->verbose);
		else
			print_devices(all, o->verbose);
	};
}

} // namespace kvrun
