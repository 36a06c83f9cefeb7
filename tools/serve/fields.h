// Reads the fields of a request's body, and notes on the log what is not done about them.
#pragma once
#include "tools/serve/error.h"
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>

namespace kvrun::serve {

constexpr size_t kMaxDepth = 64;       // nesting depth of arrays and objects
constexpr size_t kMaxValues = 2 << 20; // values in a body's JSON, including arrays and objects
constexpr size_t kMaxKeys = 64 << 10;  // keys of all objects of a body

using Stop = std::function<bool()>; // true if nobody waits for the answer any more; empty if somebody always does

// Takes time linear in the body's length. Throws ApiError 400 whose message says what is wrong.
Json parse_body(const std::string& body, const Stop& = {});

Json json_or_null(const std::string&); // null if the text is not valid JSON
std::string shown(const Json& value);  // for messages: its beginning

// Writes each text once to the log. Any thread may call.
class Notices {
 public:
	void once(const std::string& text);

 private:
	static constexpr size_t kMost = 200; // clients choose the texts
	std::mutex mutex_;
	std::set<std::string> told_;
};

// How requests are read that ask for more than this server does.
struct Rules {
	bool strict = false; // unknown fields are refused
	Notices* notices = nullptr;
	void ignored(const std::string& text) const { // says so once
		if (notices) notices->once(text);
	}
};

// Reads the fields of one object; a null field counts as absent. Throws ApiError 400 that names the field.
class Fields {
 public:
	// where: prefix of field names in messages, for example "stream_options."
	explicit Fields(const Json& object, std::string where = {}) : object_(object), where_(std::move(where)) {}
	const Json* find(const char* name) const; // null if absent
	// said: the lowest number in messages, if others than it have a meaning here
	std::optional<double> number(const char* name, double lowest, double highest,
	                             std::optional<double> said = {}) const;
	std::optional<int64_t> integer(const char* name, int64_t lowest, int64_t highest) const;
	std::optional<std::string> text(const char* name) const;
	bool flag(const char* name, bool fallback) const;
	// Fields that were not read and are not in `harmless` are ignored with a notice, or refused by strict rules.
	void check_unknown(std::span<const char* const> harmless, const Rules&) const;

 private:
	[[noreturn]] void refuse(const char* name, const std::string& expected) const;
	const Json& object_;
	const std::string where_;
	mutable std::set<std::string_view> asked_; // names
};

// Fields that do not change the answer, such as who asks, what is kept, and priority.
std::span<const char* const> harmless_fields();

} // namespace kvrun::serve
