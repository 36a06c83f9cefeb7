// Calls of tools in the text of an answer, in the forms of families that mark them by texts of their own.
#pragma once
#include "models/chat/features.h"
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

constexpr size_t kMoreText = SIZE_MAX;   // the call is not complete
constexpr size_t kNoCall = SIZE_MAX - 1; // this is no call
constexpr int kMaxCallNesting = 64;      // of arguments; a call that is nested deeper is text
constexpr std::string_view kCallSpaces = " \t\r\n";

struct FoundCall {
	std::string name, id; // id: as the model gave it; empty: it did not
	Json arguments;
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

// Reads calls from the front of `text`, which begins with the marker of the format (call_marker()), and says where they
// end. last: no more text comes.
size_t read_calls(const CallForm&, std::string_view text, bool last, std::vector<FoundCall>& out);

} // namespace kvrun
