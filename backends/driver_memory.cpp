// What is known of drivers.
#include "backends/driver_memory.h"
#include "engine/core/log.h"
#include "engine/core/private_file.h"
#include "engine/core/utf8.h"
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLargest = 1 << 18; // bytes
constexpr size_t kMostEntries = 64;    // the oldest goes first

fs::path path_in(const fs::path& folder) { return folder.empty() ? fs::path() : folder / "drivers.json"; }

std::string text_of(const Json& entry, const char* key) {
	const auto it = entry.find(key);
	return it != entry.end() && it->is_string() ? it->get<std::string>() : "";
}

} // namespace

DriverMemory::DriverMemory(const fs::path& folder) : path_(path_in(folder)) {
	if (path_.empty()) return;
	std::string why;
	const std::vector<std::byte> bytes = read_private_file(path_, kLargest, why);
	if (!why.empty()) log_at(1, "# {} is {}: ignored", path_.string(), why);
	const char* text = reinterpret_cast<const char*>(bytes.data());
	const auto shallow = [](int depth, auto, auto&) { return depth < 8; };
	const Json j = Json::parse(text, text + bytes.size(), shallow, /*allow_exceptions=*/false);
	const auto known = j.is_object() ? j.find("drivers") : j.end();
	if (!j.is_object() || known == j.end() || !known->is_array()) return;
	for (const Json& e : *known)
		if (e.is_object() && entries_.size() < kMostEntries)
			entries_.push_back({text_of(e, "name"), text_of(e, "build"), one_line(text_of(e, "why"), 500)});
}

const std::string* DriverMemory::find(const std::string& name, const std::string& build) const {
	for (const Entry& e : entries_)
		if (e.name == name && e.build == build) return &e.why;
	return nullptr;
}

void DriverMemory::add(const std::string& name, const std::string& build, const std::string& why) {
	if (path_.empty()) return;
	if (entries_.size() >= kMostEntries) entries_.erase(entries_.begin());
	entries_.push_back({name, build, why});
	changed_ = true;
}

void DriverMemory::save() noexcept try {
	if (!changed_) return;
	Json j;
	for (const Entry& e : entries_) j["drivers"].push_back({{"name", e.name}, {"build", e.build}, {"why", e.why}});
	const std::string text = j.dump(1, '\t', false, Json::error_handler_t::replace) + "\n";
	std::string why;
	if (write_private_file(path_, {std::as_bytes(std::span(text))}, why) != Written::Yes)
		log_at(1, "# {}: {}", path_.string(), why);
} catch (...) {} // no memory: the driver is tried again next time

void DriverMemory::forget(const fs::path& folder) {
	std::error_code ec;
	if (!folder.empty()) fs::remove(path_in(folder), ec);
}

} // namespace kvrun
