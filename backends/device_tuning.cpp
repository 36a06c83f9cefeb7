// Measured choices of a device, as a file.
#include "backends/device_tuning.h"
#include "engine/core/error.h"
#include "engine/core/private_file.h"
#include "engine/core/utf8.h"
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

using TuningJson = nlohmann::ordered_json;

constexpr uint64_t kMostTuningBytes = 64 << 10;
constexpr size_t kMostWord = 32; // of a name or a value
constexpr const char* kTuningFormat = "kvrun device tuning 1";

bool tuning_word(const std::string& s) {
	return !s.empty() && s.size() <= kMostWord &&
	       s.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == s.npos;
}

} // namespace

std::string tuning_text(const TunedValues& values) {
	std::string text;
	for (const auto& [name, value] : values) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
	return text.empty() ? "kvrun's own choices" : text;
}

std::filesystem::path device_tuning_path(const std::filesystem::path& folder, const std::string& id) {
	return folder.empty() ? std::filesystem::path() : folder / fmt::format("tuned-{}.json", id);
}

DeviceTuning read_device_tuning(const std::filesystem::path& path, std::string_view key, std::string& why) {
	if (path.empty()) return {};
	const std::vector<std::byte> bytes = read_private_file(path, kMostTuningBytes, why);
	if (bytes.empty()) return {};
	const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
	const auto damaged = [&] {
		why = "damaged";
		return DeviceTuning();
	};
	const TuningJson j = TuningJson::parse(text, nullptr, /*allow_exceptions=*/false);
	if (!j.is_object()) return damaged();
	if (j.value("format", TuningJson()) != kTuningFormat) return damaged();
	if (j.value("key", TuningJson()) != key) {
		why = "of another driver or version of kvrun";
		return {};
	}
	const TuningJson values = j.value("values", TuningJson());
	if (!values.is_object()) return damaged();
	DeviceTuning out{.measured = true, .values = {}};
	for (const auto& [name, value] : values.items()) {
		if (!value.is_string() || !tuning_word(name) || !tuning_word(value.get<std::string>())) return damaged();
		out.values.emplace_back(name, value.get<std::string>());
	}
	return out;
}

void write_device_tuning(const std::filesystem::path& path, std::string_view key, const std::string& device,
                         const TunedValues& values) {
	TuningJson j = {
	    {"format", kTuningFormat}, {"device", one_line(device)}, {"key", key}, {"values", TuningJson::object()}};
	for (const auto& [name, value] : values) j["values"][name] = value;
	const std::string text = j.dump(1, '\t', false, TuningJson::error_handler_t::replace) + "\n";
	std::string why;
	if (write_private_file(path, {std::as_bytes(std::span(text))}, why) != Written::Yes)
		fail(Code::Io, "{}: {}", path.string(), why);
}

} // namespace kvrun
