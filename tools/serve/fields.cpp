// Reads the fields of a request's body.
#include "tools/serve/fields.h"
#include "engine/core/json_reader.h"
#include "tools/text.h"
#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvrun::serve {

static constexpr const char* kHarmless[] = {
    // OpenAI's API: accounts, billing, retention of requests, service tier, length and style
    "client_metadata", "max_tool_calls", "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user", "verbosity", "web_search_options",
    // Anthropic's: what clients do when a conversation grows, speed, servers of tools
    "context_management", "mcp_servers", "speed",
    // other servers: names, queue priority, extra output about an answer
    "cache_reuse", "keep_alive", "n_keep", "priority", "request_id", "t_max_prompt_ms",
    // for beam search, which is refused
    "early_stopping", "length_penalty"};

std::string shown(const Json& value) {
	std::string text = dump(value);
	if (text.size() > 40) text = text.substr(0, 40) + "...";
	return text;
}

void Notices::once(const std::string& text) {
	constexpr size_t kLongest = 400; // bytes
	std::string line = well_formed(text.substr(0, kLongest));
	std::ranges::replace_if(
	    line, [](char c) { return uint8_t(c) < ' ' || c == 0x7f; }, ' '); // clients chose it
	std::lock_guard lock(mutex_);
	if (told_.size() >= kMost || !told_.insert(line).second) return;
	std::fprintf(stderr, "%s\n", line.c_str());
	if (told_.size() == kMost) std::fputs("no more notices of this kind are written\n", stderr);
}

Json parse_body(const std::string& body, const Stop& stop) {
	if (body.empty()) throw ApiError(400, "the body is empty, expected a JSON object");
	Json j;
	std::string why;
	if (!read_json(body, {kMaxDepth, kMaxValues, kMaxKeys, stop}, j, why)) throw ApiError(400, "the body " + why);
	if (!j.is_object()) throw ApiError(400, "the body is not a JSON object");
	return j;
}

Json json_or_null(const std::string& text) {
	Json j;
	std::string why;
	return read_json(text, {}, j, why) ? j : Json();
}

std::span<const char* const> harmless_fields() { return kHarmless; }

const Json* Fields::find(const char* name) const {
	asked_.insert(name);
	const auto at = object_.find(name);
	return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::refuse(const char* name, const std::string& expected) const {
	throw ApiError(400, where_ + name + " is " + shown(object_[name]) + ", expected " + expected, where_ + name);
}

void Fields::check_unknown(std::span<const char* const> harmless, const Rules& rules) const {
	for (const auto& [name, value] : object_.items()) {
		if (value.is_null() || asked_.contains(name)) continue;
		if (std::ranges::any_of(harmless, [&name = name](const char* h) { return name == h; })) continue;
		const std::string plain = where_ + (name.size() > 80 ? name.substr(0, 80) + "..." : name);
		if (rules.strict)
			throw ApiError(400, plain + " is a field that this server does not know; leave it out", plain,
			               "unknown_parameter");
		rules.ignored("request field '" + plain + "' is unknown and ignored");
	}
}

std::optional<double> Fields::number(const char* name, double lowest, double highest,
                                     std::optional<double> said) const {
	const Json* v = find(name);
	if (!v) return {};
	const double x = v->is_number() ? v->get<double>() : NAN;
	if (!(x >= lowest && x <= highest))
		refuse(name, "a number from " + dump(said.value_or(lowest)) + " to " + dump(highest));
	return x;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t lowest, int64_t highest) const {
	const Json* v = find(name);
	if (!v) return {};
	constexpr double kExact = 1ll << 53; // clients whose numbers are all doubles write 5 as 5.0
	const bool whole = v->is_number_float() && std::abs(v->get<double>()) <= kExact &&
	                   v->get<double>() == std::trunc(v->get<double>());
	const bool fits =
	    whole || (v->is_number_integer() && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(INT64_MAX)));
	const int64_t x = fits ? v->get<int64_t>() : 0;
	if (!fits || x < lowest || x > highest)
		refuse(name, "an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
	return x;
}

std::optional<std::string> Fields::text(const char* name) const {
	const Json* v = find(name);
	if (!v) return {};
	if (!v->is_string()) refuse(name, "a text");
	return v->get<std::string>();
}

bool Fields::flag(const char* name, bool fallback) const {
	const Json* v = find(name);
	if (!v) return fallback;
	if (!v->is_boolean()) refuse(name, "true or false");
	return v->get<bool>();
}

} // namespace kvrun::serve
