// Calls of tools in the text of an answer, in the forms of families that mark them by texts of their own.
#pragma once
#include "models/chat/features.h"
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

constexpr size_t kMoreText = SIZE_MAX;   // the call is not complete
constexpr size_t kNoCall = SIZE_MAX - 1; // this is no call
constexpr std::string_view kCallSpaces = " \t\r\n";

struct FoundCall {
	std::string name, id;  // id: as the model gave it before the arguments; empty: it did not
	std::string late_id;   // as it gave it anywhere
	std::string arguments; // a JSON object; of a call that is not whole: as far as is certain
	std::string rest;      // of a call that is not whole: its text behind these arguments
	size_t end = 0;        // where its text ends
	bool whole = false;
	bool opened = false; // the name came before the arguments, so they are known to be this function's as they come
};

struct CallForm {
	ToolFormat format = ToolFormat::None;
	std::string begin, end;     // of Pythonic calls
	bool variant = false;       // ChatFeatures::tool_variant
	Json definitions = nullptr; // of tools, which say what type an argument has
};

size_t skip_spaces(std::string_view s, size_t at);
// Where the JSON object or array that begins at s[at] ends; kMoreText or kNoCall.
size_t json_end(std::string_view s, size_t at);
// Reads s[at] on: true and behind `marker` if it is there; `more` if it may be there when more text comes.
bool take_marker(std::string_view s, size_t& at, std::string_view marker, bool& more);
Json parsed_json(std::string_view); // discarded: it is none

// A tool of this name is among the definitions.
bool defines(const Json& definitions, std::string_view function);
// Bytes at the end of `s` that may be the beginning of `marker`.
size_t begun(std::string_view s, std::string_view marker);

// Reads calls from the front of `text`, which begins with the marker of the format (call_marker()), and says where they
// end. The last one of `out` may not be whole, where that is kMoreText or kNoCall. last: no more text comes.
size_t read_calls(const CallForm&, std::string_view text, bool last, std::vector<FoundCall>& out);

} // namespace kvrun
