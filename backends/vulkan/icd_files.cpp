// The installed Vulkan drivers.
#include "backends/vulkan/icd_files.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/error.h"
#include "engine/core/regular_file.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/system/process.h"
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kLargestManifest = 1 << 20; // bytes; real ones have a few hundred

void add_files(std::vector<std::string>& out, const fs::path& p) {
	std::error_code ec;
	if (!fs::is_directory(p, ec)) {
		if (fs::exists(p, ec)) out.push_back(p.string());
		return;
	}
	std::vector<std::string> found;
	for (fs::directory_iterator it(p, ec), end; !ec && it != end; it.increment(ec))
		if (it->path().extension() == ".json") found.push_back(it->path().string());
	std::sort(found.begin(), found.end());
	for (std::string& f : found)
		if (std::find(out.begin(), out.end(), f) == out.end()) out.push_back(std::move(f));
}
void add_list(std::vector<std::string>& out, const char* list) {
	std::string all = list ? list : "";
	for (size_t at = 0; at < all.size();) {
		const size_t end = std::min(all.find(sys::kListSeparator, at), all.size());
		if (end > at) add_files(out, sys::path_of(all.substr(at, end - at)));
		at = end + 1;
	}
}

std::vector<std::string> manifests() {
	std::vector<std::string> out;
	for (const char* name : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"})
		if (const char* v = std::getenv(name); v && *v) return add_list(out, v), out;
	add_list(out, std::getenv("VK_ADD_DRIVER_FILES"));
	for (const std::string& place : sys::vulkan_driver_places()) add_files(out, sys::path_of(place));
	return out;
}

IcdFile read_manifest(const std::string& path) {
	IcdFile out{path, "", ""};
	try {
		const RegularFile file(path, "name the manifest of a Vulkan driver");
		std::string text(size_t(std::min(file.bytes(), kLargestManifest)), 0);
		file.read_at(0, std::as_writable_bytes(std::span(text)));
		const auto depth_limit = [](int depth, auto, auto&) { return depth < 16; };
		const nlohmann::json j = nlohmann::json::parse(text, depth_limit, /*allow_exceptions=*/false);
		const auto icd = j.is_object() ? j.find("ICD") : j.end();
		if (!j.is_object() || icd == j.end() || !icd->is_object())
			return out.problem = "is no manifest of a Vulkan driver", out;
		const auto library = icd->find("library_path");
		if (library == icd->end() || !library->is_string() || library->get_ref<const std::string&>().empty())
			return out.problem = "is a manifest that names no library", out;
		out.library = library->get<std::string>();
		// a path is relative to the manifest; a bare name is for the system's library search
		if (const fs::path library = sys::path_of(out.library); library.has_parent_path())
			out.library = (sys::path_of(path).parent_path() / library).lexically_normal().string();
	} catch (const Error& e) {
		const std::string_view what = e.what(); // begins with the file's name, which the caller adds
		const size_t colon = what.find(": ");
		out.problem = what.substr(colon == what.npos ? 0 : colon + 2);
	}
	return out;
}

// Size, time and build ID of a file, which an update changes. Only the path if there is no such file.
std::string stamp(const std::string& path) {
	sys::FileInfo info;
	if (path.empty() || !sys::stat_file(path, /*follow_link=*/true, info) || !info.regular()) return path;
	// the first page of a library has the linker's build ID, which differs for each version, whatever file times a
	// package or an image sets
	std::byte page[4096];
	const int fd = sys::open_file(path, sys::Open::Read);
	const ptrdiff_t n = fd < 0 ? 0 : sys::read_at(fd, 0, page);
	if (fd >= 0) sys::close_file(fd);
	constexpr int64_t kSecond = 1'000'000'000;
	return fmt::format("{} {} {}.{:09} {:016x}", path, info.bytes, info.changed_ns / kSecond, info.changed_ns % kSecond,
	                   XXH3_64bits(page, size_t(std::max<ptrdiff_t>(n, 0))));
}

} // namespace

std::vector<IcdFile> icd_files() {
	std::vector<IcdFile> out;
	for (const std::string& f : manifests()) out.push_back(read_manifest(f));
	return out;
}

std::string driver_environment(bool choice) {
	constexpr std::array kSettings = {"VK_",  "MESA_", "RADV_", "AMD_",  "ANV_",     "INTEL_", "LP_",
	                                  "NVK_", "TU_",   "DRI_",  "LIBGL", "GALLIUM_", "__GLX_", "__NV_"};
	constexpr std::array kChoice = {
	    "VK_DRIVER_FILES=", "VK_ICD_FILENAMES=", "VK_ADD_DRIVER_FILES=", "XDG_CONFIG_", "XDG_DATA_", "HOME=",
	    "LD_LIBRARY_PATH="};
	const auto begins = [](std::string_view e, const auto& prefixes) {
		return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* p) { return e.starts_with(p); });
	};
	std::vector<std::string> all = sys::environment();
	std::erase_if(all, [&](const std::string& e) { return !(begins(e, kChoice) ? choice : begins(e, kSettings)); });
	std::sort(all.begin(), all.end());
	std::string out;
	for (const std::string& e : all) out.append(e).push_back('\n');
	return out;
}

std::string driver_build(const IcdFile& icd) {
	const std::string settings = driver_environment(/*choice=*/false);
	return fmt::format("{}; {}; {:016x}", stamp(icd.library), stamp(icd.file),
	                   XXH3_64bits(settings.data(), settings.size()));
}

std::string find_icd(const std::string& prefix) {
	for (const std::string& f : manifests())
		if (sys::path_of(f).filename().string().starts_with(prefix)) return f;
	return "";
}

std::vector<std::string> radv_names(const std::string& chip) {
	constexpr std::array<std::array<const char*, 2>, 3> kRenamed = {
	    {{"gfx1100", "navi31"}, {"gfx1101", "navi32"}, {"gfx1102", "navi33"}}};
	for (const auto& [before, now] : kRenamed) {
		if (chip == before) return {chip, now};
		if (chip == now) return {chip, before};
	}
	return {chip};
}

} // namespace kvrun::vk
