// Calls of tools in the text of an answer, in the forms of the families.
#pragma once
#include "models/chat/features.h"
#include "models/grammar/schema_types.h"
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

constexpr size_t kMoreText = SIZE_MAX;   // the call is not complete
constexpr size_t kNoCall = SIZE_MAX - 1; // the text is not a call
constexpr std::string_view kCallSpaces = " \t\r\n";
constexpr std::string_view kCharacterData = "<![CDATA["; // of XML, up to ]]>

struct FoundCall {
	std::string name, id;  // id: set if the model wrote it before the arguments
	std::string late_id;   // the id, wherever the model wrote it
	std::string arguments; // a JSON object; of an incomplete call: the part that is certain
	std::string rest;      // of an incomplete call: its text after these arguments
	size_t end = 0;        // end of its text
	bool whole = false;
	bool opened = false; // the name came before the arguments, so partial arguments belong to a known function
};

struct CallForm {
	ToolFormat format = ToolFormat::None;
	std::string begin, end;     // of Pythonic calls
	bool variant = false;       // ChatFeatures::tool_variant
	Json definitions = nullptr; // of tools; they give the types of arguments
	CallShape shape;            // ToolFormat::Shaped
};

size_t skip_spaces(std::string_view s, size_t at);
std::string_view without_spaces(std::string_view s); // at both ends
// End of the JSON object or array that begins at s[at]; or kMoreText, kNoCall.
size_t json_end(std::string_view s, size_t at);
// If `marker` is at s[at], moves `at` behind it and returns true. Sets `more` if more text may complete the marker.
bool take_marker(std::string_view s, size_t& at, std::string_view marker, bool& more);
// The same, where white space of the marker may be missing, and may be other or more in the text.
bool take_loosely(std::string_view s, size_t& at, std::string_view marker, bool& more);
Json parsed_json(std::string_view); // is_discarded(): the text is not JSON

// Reads the JSON object that begins at text[at] as the arguments of a call, which is added even if they are incomplete;
// returns where they end, or kMoreText, kNoCall.
size_t read_arguments(std::string_view text, size_t at, FoundCall, std::vector<FoundCall>& out);

// Whether forms that write strings without quotes do so for arguments of these types. A value is then text unless it is
// JSON of another one of the types. It is not so where nothing is known: there a value is text unless it is JSON.
bool bare_strings(grammar::Types);
// Whether the definitions have a tool of this name.
bool defines(const Json& definitions, std::string_view function);
// Beginnings of calls without the marker in front, which some models leave out at times.
std::vector<std::string> lone_beginnings(const CallForm&);
// Number of bytes at the end of `s` that may be the beginning of `marker`.
size_t begun(std::string_view s, std::string_view marker);

// Reads calls from the front of `text`, which begins with the marker of the format (call_marker()); returns where they
// end. If that is kMoreText or kNoCall, the last one of `out` may be incomplete. last: no more text comes.
size_t read_calls(const CallForm&, std::string_view text, bool last, std::vector<FoundCall>& out);

} // namespace kvrun
