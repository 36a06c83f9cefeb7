// What kvrun doctor looks at on Linux.
#include "engine/core/utf8.h"
#include "tools/doctor.h"
#include "tools/hub/folders.h"
#include <cstdint>
#include <dlfcn.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace kvrun {
namespace fs = std::filesystem;

const char* const kWhereDriversComeFrom = "none is installed; a GPU's come with its vendor's driver or package "
                                          "mesa-vulkan-drivers, which has one for the processor too";

void look_at_loader(Checkup& f) {
	void* loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!loader) return f.bad("Vulkan loader", "there is no libvulkan.so.1; install package libvulkan1");
	using Version = int (*)(uint32_t*);
	const auto version = reinterpret_cast<Version>(dlsym(loader, "vkEnumerateInstanceVersion"));
	uint32_t v = 0;
	if (!version || version(&v) != 0)
		f.bad("Vulkan loader", "libvulkan.so.1 is one of Vulkan 1.0; kvrun needs 1.3");
	else
		f.ok("Vulkan loader",
		     fmt::format("libvulkan.so.1, Vulkan {}.{}.{}", v >> 22 & 0x7f, v >> 12 & 0x3ff, v & 0xfff));
	// stays loaded: drivers that it opened may crash if it is unloaded
}

void look_at_layers(Checkup& f) {
	std::vector<fs::path> folders = {"/etc/vulkan", "/usr/local/share/vulkan", "/usr/share/vulkan"};
	if (!home_folder().empty()) folders.push_back(home_folder() / ".local/share/vulkan");
	std::string implicit;
	bool validation = false;
	for (const fs::path& folder : folders)
		for (const char* kind : {"implicit_layer.d", "explicit_layer.d"}) {
			std::error_code ec;
			for (fs::directory_iterator it(folder / kind, ec), end; !ec && it != end; it.increment(ec)) {
				const std::string name = it->path().stem().native();
				validation |= name.find("validation") != name.npos;
				if (kind[0] == 'i') implicit += (implicit.empty() ? "" : ", ") + one_line(name);
			}
		}
	if (!implicit.empty())
		f.note("Vulkan layers", implicit +
		                            ": the loader puts these into every program; one that misbehaves can be left "
		                            "out with VK_LOADER_LAYERS_DISABLE=~implicit~");
	f.ok("Vulkan layers", validation ? "the validation layer is there (KVRUN_VALIDATE=1)"
	                                 : "no validation layer, which only developers need");
}

void look_at_permissions(Checkup& f) {
	std::error_code ec;
	size_t nodes = 0;
	for (fs::directory_iterator it("/dev/dri", ec), end; !ec && it != end; it.increment(ec)) {
		const fs::path p = it->path();
		if (!p.filename().native().starts_with("renderD")) continue;
		++nodes;
		if (access(p.c_str(), R_OK | W_OK) != 0)
			f.bad("permissions", fmt::format("{} may not be opened by you; add yourself to its group: sudo usermod -aG "
			                                 "render $USER, then log in again",
			                                 p.native()));
	}
	if (access("/dev/nvidiactl", F_OK) == 0) {
		++nodes;
		if (access("/dev/nvidiactl", R_OK | W_OK) != 0) f.bad("permissions", "/dev/nvidiactl may not be opened by you");
	}
	if (nodes == 0)
		f.note("permissions", "no GPU has a device file here (/dev/dri, /dev/nvidiactl): in a container, give it one "
		                      "(--device /dev/dri, --gpus all)");
	else
		f.ok("permissions", fmt::format("{} device files of GPUs were looked at", nodes));
}

static std::string first_word(const fs::path& p) {
	std::string s;
	std::ifstream(p) >> s;
	return s;
}

std::string gpu_time_limits() {
	std::string text;
	if (const std::string amd = first_word("/sys/module/amdgpu/parameters/lockup_timeout"); !amd.empty())
		text += fmt::format("amdgpu.lockup_timeout {} ms", amd);
	if (const std::string intel = first_word("/sys/class/drm/card0/engine/rcs0/preempt_timeout_ms"); !intel.empty())
		text += fmt::format("{}i915 preempt_timeout_ms {}", text.empty() ? "" : ", ", intel);
	return text;
}

void look_at_limits(Checkup& f) {
	struct {
		int what;
		const char* name;
		uint64_t least;
	} const limits[] = {{RLIMIT_AS, "address space (ulimit -v)", uint64_t(8) << 30},
	                    {RLIMIT_FSIZE, "length of a file (ulimit -f)", uint64_t(8) << 30},
	                    {RLIMIT_NOFILE, "open files (ulimit -n)", 256}};
	size_t low = 0;
	for (const auto& l : limits) {
		rlimit r{};
		if (getrlimit(__rlimit_resource_t(l.what), &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= l.least)
			continue;
		++low;
		f.note("limits", fmt::format("{}: {}, which is little", l.name, uint64_t(r.rlim_cur)));
	}
	if (!low) f.ok("limits", "of this process are wide enough");
}

} // namespace kvrun
