// What kvrun doctor looks at on Windows.
#include "engine/core/system/wide.h"
#include "engine/core/utf8.h"
#include "tools/doctor.h"
#include <cstdint>
#include <fmt/format.h>

namespace kvrun {

const char* const kWhereDriversComeFrom = "none is installed; a GPU's comes with its vendor's driver: update it";

void look_at_loader(Checkup& f) {
	const HMODULE loader = LoadLibraryW(L"vulkan-1.dll"); // stays loaded, as its drivers do
	if (!loader)
		return f.bad("Vulkan loader", "there is no vulkan-1.dll; the driver of a GPU brings it: update the driver");
	using Version = int(WINAPI*)(uint32_t*);
	const auto version =
	    reinterpret_cast<Version>(reinterpret_cast<void*>(GetProcAddress(loader, "vkEnumerateInstanceVersion")));
	uint32_t v = 0;
	if (!version || version(&v) != 0)
		f.bad("Vulkan loader", "vulkan-1.dll is one of Vulkan 1.0; kvrun needs 1.3");
	else
		f.ok("Vulkan loader", fmt::format("vulkan-1.dll, Vulkan {}.{}.{}", v >> 22 & 0x7f, v >> 12 & 0x3ff, v & 0xfff));
}

// The loader puts implicit layers into every program: names of values that are 0.
void look_at_layers(Checkup& f) {
	std::string implicit;
	for (const HKEY root : {HKEY_LOCAL_MACHINE, HKEY_CURRENT_USER}) {
		HKEY key;
		if (RegOpenKeyExW(root, L"SOFTWARE\\Khronos\\Vulkan\\ImplicitLayers", 0, KEY_READ, &key) != 0) continue;
		for (DWORD i = 0;; ++i) {
			wchar_t name[1024];
			DWORD length = DWORD(std::size(name)), off = 1, bytes = sizeof off;
			if (RegEnumValueW(key, i, name, &length, nullptr, nullptr, reinterpret_cast<BYTE*>(&off), &bytes) != 0)
				break;
			if (off == 0) implicit += (implicit.empty() ? "" : ", ") + one_line(sys::narrow({name, length}));
		}
		RegCloseKey(key);
	}
	if (implicit.empty()) return f.ok("Vulkan layers", "none that the loader puts into every program");
	f.note("Vulkan layers", implicit +
	                            ": the loader puts these into every program; one that misbehaves can be left out "
	                            "with VK_LOADER_LAYERS_DISABLE=~implicit~");
}

void look_at_permissions(Checkup&) {} // GPUs have no files there

std::string gpu_time_limits() {
	DWORD seconds = 2, bytes = sizeof seconds; // Windows' own
	RegGetValueW(HKEY_LOCAL_MACHINE, L"SYSTEM\\CurrentControlSet\\Control\\GraphicsDrivers", L"TdrDelay",
	             RRF_RT_REG_DWORD, nullptr, &seconds, &bytes);
	return fmt::format("Windows resets a GPU after {} s (TdrDelay)", seconds);
}

void look_at_limits(Checkup&) {} // a process has none of its own

} // namespace kvrun
