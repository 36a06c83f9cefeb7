// Options that constrain the form of an answer.
#include "tools/args_grammar.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvrun {
namespace {

constexpr size_t kMostText = size_t(1) << 20; // bytes

std::string text_of(const std::string& given, const char* option, bool is_text) {
	if (given.empty() || is_text) return given;
	std::error_code error;
	if (given.size() > 4096 || !std::filesystem::is_regular_file(sys::path_of(given), error))
		fail(Code::NotFound, "{} is '{}', which is neither a file nor the text itself", option, one_line(given, 60));
	std::ifstream file(sys::path_of(given), std::ios::binary);
	std::ostringstream text;
	text << file.rdbuf();
	if (!file) fail(Code::Io, "{}: {} cannot be read", option, one_line(given));
	if (text.str().empty() || text.str().size() > kMostText)
		fail(Code::Format, "{}: {} has {} bytes, expected 1 to {}", option, one_line(given), text.str().size(),
		     kMostText);
	return text.str();
}

} // namespace

std::string GrammarArgs::gbnf() const {
	if (!grammar.empty() && !json_schema.empty())
		fail(Code::Invalid, "--grammar and --json-schema are both given; give one of them");
	return text_of(grammar, "--grammar", grammar.find("::=") != grammar.npos);
}

std::string GrammarArgs::schema() const {
	const size_t first = json_schema.find_first_not_of(" \t\r\n");
	return text_of(json_schema, "--json-schema", first != json_schema.npos && json_schema[first] == '{');
}

void add_grammar_options(Command& c, GrammarArgs& a, const char* group) {
	add_text(c, "--grammar,--grammar-file", a.grammar, "FILE|TEXT",
	         "hold the answer to this grammar, in GBNF; its rule root is the answer")
	    ->group(group);
	const Option* schema =
	    add_text(c, "--json-schema,-j,--json-schema-file,-jf", a.json_schema, "FILE|TEXT",
	             "the answer is JSON that is valid under this schema (draft 2020-12); {} is any JSON")
	        ->group(group);
	c.before_run.push_back([schema, &a] { // of a variable: the answer would be no JSON
		if (schema->typed() && a.json_schema.empty())
			fail(Code::Invalid, "--json-schema is empty, expected a file or a schema, like {{}}");
	});
}

} // namespace kvrun
