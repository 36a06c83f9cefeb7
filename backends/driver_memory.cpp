// Test results of drivers.
#include "backends/driver_memory.h"
#include "engine/core/log.h"
#include "engine/core/private_file.h"
#include "engine/core/utf8.h"
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLargest = 1 << 18; // bytes
constexpr size_t kMostEntries = 64;    // the oldest is removed first

fs::path path_in(const fs::path& folder) { return folder.empty() ? fs::path() : folder / "drivers.json"; }

// Collects the strings of the objects in "drivers" while parsing. A parsed tree of values would allocate in its
// destructor, and end the program if there is no memory.
class Reader final : public nlohmann::json_sax<Json> {
 public:
	using Entry = std::map<std::string, std::string>;
	std::vector<Entry> entries;

	bool null() override { return true; }
	bool boolean(bool) override { return true; }
	bool number_integer(number_integer_t) override { return true; }
	bool number_unsigned(number_unsigned_t) override { return true; }
	bool number_float(number_float_t, const string_t&) override { return true; }
	bool string(string_t& s) override {
		if (depth_ == kOfEntry && drivers_) entries.back()[key_] = s;
		return true;
	}
	bool binary(binary_t&) override { return true; }
	bool start_object(size_t) override {
		if (++depth_ == kOfEntry && drivers_) entries.emplace_back();
		return depth_ <= kOfEntry && entries.size() <= kMostEntries;
	}
	bool key(string_t& s) override {
		key_ = s;
		if (depth_ == 1) drivers_ = s == "drivers";
		return true;
	}
	bool end_object() override { return --depth_ >= 0; }
	bool start_array(size_t) override { return ++depth_ < kOfEntry; }
	bool end_array() override { return --depth_ >= 0; }
	bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
	static constexpr int kOfEntry = 3; // {"drivers": [{
	int depth_ = 0;
	bool drivers_ = false;
	std::string key_;
};

std::string quoted(const std::string& s) { return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace); }

} // namespace

DriverMemory::DriverMemory(const fs::path& folder) : path_(path_in(folder)) {
	if (path_.empty()) return;
	std::string why;
	const std::vector<std::byte> bytes = read_private_file(path_, kLargest, why);
	if (!why.empty()) log_at(1, "# {} is {}: ignored", path_.string(), why);
	const char* text = reinterpret_cast<const char*>(bytes.data());
	Reader r;
	if (!Json::sax_parse(text, text + bytes.size(), &r)) return;
	for (Reader::Entry& e : r.entries)
		if (entries_.size() < kMostEntries) entries_.push_back({e["name"], e["build"], one_line(e["why"], 500)});
}

const std::string* DriverMemory::find(const std::string& name, const std::string& build) const {
	for (const Entry& e : entries_)
		if (e.name == name && e.build == build) return &e.why;
	return nullptr;
}

void DriverMemory::add(const std::string& name, const std::string& build, const std::string& why) {
	if (path_.empty()) return;
	std::erase_if(entries_, [&](const Entry& e) { return e.name == name && e.build == build; });
	if (entries_.size() >= kMostEntries) entries_.erase(entries_.begin());
	entries_.push_back({name, build, why});
	changed_ = true;
}

void DriverMemory::save() noexcept try {
	if (!changed_) return;
	std::string text = "{\n\t\"drivers\": [";
	for (const Entry& e : entries_)
		text += fmt::format("{}\n\t\t{{\"name\": {}, \"build\": {}, \"why\": {}}}", &e == entries_.data() ? "" : ",",
		                    quoted(e.name), quoted(e.build), quoted(e.why));
	text += "\n\t]\n}\n";
	std::string why;
	if (write_private_file(path_, {std::as_bytes(std::span(text))}, why) != Written::Yes)
		log_at(1, "# {}: {}", path_.string(), why);
} catch (...) {} // no memory: the driver is tested again next time

void DriverMemory::forget(const fs::path& folder) {
	std::error_code ec;
	if (!folder.empty()) fs::remove(path_in(folder), ec);
}

} // namespace kvrun
