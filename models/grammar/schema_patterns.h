// patternProperties of JSON schemas: which names match which pattern.
#pragma once
#include "models/grammar/json_text.h"
#include <nlohmann/json_fwd.hpp>

namespace kvrun::grammar {

class NamePatterns {
 public:
	NamePatterns() = default; // no patterns
	// keyword: the value of patternProperties, which must outlive this. names: those that the schema says otherwise.
	// Throws Error{Unsupported} or Error{Format} with the place of a bad pattern.
	NamePatterns(const nlohmann::ordered_json& keyword, std::vector<std::string> names, const std::string& at);

	struct One {
		std::string pattern, at;
		const nlohmann::ordered_json* schema;
		std::vector<bool> matches; // each of the names
		bool any() const;          // matches one of them
	};
	const std::vector<One>& all() const { return all_; }
	// What the patterns say about a name: an array of schemas.
	nlohmann::ordered_json schemas_of(const std::string& name) const;

 private:
	std::vector<std::string> names_; // sorted
	std::vector<One> all_;
};

} // namespace kvrun::grammar
