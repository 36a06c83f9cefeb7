// Drivers that failed when they were tried.
#include "backends/vulkan/driver_memory.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/log.h"
#include "engine/core/private_file.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLargest = 1 << 18; // bytes
constexpr size_t kMostEntries = 64;    // the oldest goes first

fs::path path_in(const fs::path& folder) { return folder.empty() ? fs::path() : folder / "bad-drivers.json"; }

// Size, time and build of a file: what an update changes. The path alone without the file.
std::string stamp(const std::string& path) {
	struct stat st {};
	if (path.empty() || ::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return path;
	// the first page of a library has the linker's build ID, another one for each version, whatever times a package or
	// an image has given the file
	char page[4096];
	const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const ssize_t n = fd < 0 ? 0 : ::pread(fd, page, sizeof page, 0);
	if (fd >= 0) ::close(fd);
	return fmt::format("{} {} {}.{:09} {:016x}", path, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
	                   XXH3_64bits(page, size_t(std::max<ssize_t>(n, 0))));
}

std::string text_of(const Json& entry, const char* key) {
	const auto it = entry.find(key);
	return it != entry.end() && it->is_string() ? it->get<std::string>() : "";
}

} // namespace

std::string DriverMemory::identity(const IcdFile& icd) const {
	return fmt::format("{}; {}; {}", stamp(icd.library), stamp(icd.file), settings_);
}

DriverMemory::DriverMemory(const fs::path& folder) : path_(path_in(folder)) {
	if (path_.empty()) return;
	const std::string settings = driver_environment(/*choice=*/false);
	settings_ = fmt::format("{:016x}", XXH3_64bits(settings.data(), settings.size()));
	std::string why;
	const std::vector<std::byte> bytes = read_private_file(path_, kLargest, why);
	if (!why.empty()) log_at(1, "# {} is {}: ignored", path_.string(), why);
	const char* text = reinterpret_cast<const char*>(bytes.data());
	const auto shallow = [](int depth, auto, auto&) { return depth < 8; };
	const Json j = Json::parse(text, text + bytes.size(), shallow, /*allow_exceptions=*/false);
	const auto bad = j.is_object() ? j.find("bad") : j.end();
	if (!j.is_object() || bad == j.end() || !bad->is_array()) return;
	for (const Json& e : *bad)
		if (e.is_object() && entries_.size() < kMostEntries)
			entries_.push_back({text_of(e, "file"), text_of(e, "identity"), one_line(text_of(e, "why"), 500)});
}

std::string DriverMemory::failure(const IcdFile& icd) const {
	if (path_.empty()) return "";
	const std::string id = identity(icd);
	for (const Entry& e : entries_)
		if (e.file == icd.file && e.identity == id) return e.why;
	return "";
}

void DriverMemory::add(const IcdFile& icd, const std::string& why) {
	if (path_.empty()) return;
	if (entries_.size() >= kMostEntries) entries_.erase(entries_.begin());
	entries_.push_back({icd.file, identity(icd), why});
	changed_ = true;
}

void DriverMemory::save() noexcept try {
	if (!changed_) return;
	Json j;
	for (const Entry& e : entries_) j["bad"].push_back({{"file", e.file}, {"identity", e.identity}, {"why", e.why}});
	const std::string text = j.dump(1, '\t', false, Json::error_handler_t::replace) + "\n";
	std::string why;
	if (write_private_file(path_, {std::as_bytes(std::span(text))}, why) != Written::Yes)
		log_at(1, "# {}: {}", path_.string(), why);
} catch (...) {} // no memory: the driver is tried again next time

void forget_bad_drivers(const std::string& cache_dir) {
	std::error_code ec;
	if (!cache_dir.empty()) fs::remove(path_in(cache_dir), ec);
}

} // namespace kvrun::vk
