// patternProperties of JSON schemas: which names match which pattern.
#include "models/grammar/schema_patterns.h"
#include "engine/core/error.h"
#include "models/grammar/grammar.h"
#include "models/grammar/pattern.h"
#include "models/grammar/schema_keywords.h"
#include <algorithm>

namespace kvrun::grammar {
namespace {

constexpr size_t kMostPatterns = 100;

// By a grammar of the names that match, whose tokens are the names.
std::vector<bool> which_match(std::string_view pattern, const std::vector<std::string>& names) {
	Rules r;
	JsonText json(r);
	const RuleId root = r.add_rule("root");
	r.set_root(root);
	r.set_body(root, r.sequence({r.text("\""), pattern_text(r, json, pattern), r.text("\"")}));
	std::vector<std::string> texts;
	for (const std::string& n : names) texts.push_back(Json(n).dump(-1, ' ', false, Json::error_handler_t::replace));
	const auto g = std::make_shared<Grammar>(r, std::make_shared<TokenTrie>(texts, std::vector<uint32_t>{}));
	std::vector<bool> out;
	for (uint32_t i = 0; i < texts.size(); ++i) {
		Matcher m(g);
		out.push_back(m.accept(i) && m.may_end());
	}
	return out;
}

// The characters with which every match begins, as far as they are plain.
std::string beginning(std::string_view pattern) {
	if (!pattern.starts_with('^') || pattern.find('|') != pattern.npos) return {};
	const auto plain = [](char c) {
		return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-';
	};
	const auto end = std::find_if_not(pattern.begin() + 1, pattern.end(), plain);
	std::string out(pattern.begin() + 1, end);
	if (end != pattern.end() && (*end == '*' || *end == '?' || *end == '{') && !out.empty()) out.pop_back();
	return out;
}

bool begin_apart(const std::string& a, const std::string& b) { return !a.starts_with(b) && !b.starts_with(a); }

} // namespace

NamePatterns::NamePatterns(const Json& keyword, std::vector<std::string> names, const std::string& at)
    : names_(std::move(names)) {
	std::ranges::sort(names_);
	names_.erase(std::unique(names_.begin(), names_.end()), names_.end()); // as Generator::step(): not std::ranges
	const std::string where = at + "/patternProperties";
	if (!keyword.is_object()) refuse_schema(where, "it is not an object");
	if (keyword.size() > kMostPatterns)
		refuse_schema(where, "it has more than " + std::to_string(kMostPatterns) + " patterns");
	for (const auto& [pattern, schema] : keyword.items()) {
		const std::string here = where + "/" + escaped_key(pattern);
		for (const One& other : all_)
			if (*other.schema != schema && !begin_apart(beginning(pattern), beginning(other.pattern)))
				refuse_schema(here, "a name may also match the pattern " + other.pattern + ", which is not supported");
		try {
			all_.push_back({pattern, here, &schema, which_match(pattern, names_)});
		} catch (const Error& e) { refuse_schema(here, e.what()); }
	}
}

bool NamePatterns::One::any() const { return std::ranges::count(matches, true) > 0; }

Json NamePatterns::schemas_of(const std::string& name) const {
	Json out = Json::array();
	const auto at = std::ranges::lower_bound(names_, name);
	if (at == names_.end() || *at != name) return out;
	for (const One& one : all_)
		if (one.matches[size_t(at - names_.begin())]) out.push_back(*one.schema);
	return out;
}

} // namespace kvrun::grammar
