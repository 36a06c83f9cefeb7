// Messages of a conversation as JSON.
#pragma once
#include "models/chat/template.h"

namespace kvrun {

Json message(const char* role, Json content);
Json text_part(const std::string& text); // content in parts: [{"type": "text", "text": ...}]
bool has_role(const Json& message, const char* role);

// Adds the content of another message, behind a blank line; a text and parts become parts.
void append_content(Json& content, Json next);
// Adds a text at the end of a content: a string, parts, or none (null).
void append_text(Json& content, const std::string& text);

// The arguments of a call: JSON in a text becomes the object, an empty text an empty one. Other texts stay.
void parse_arguments(Json& arguments);

} // namespace kvrun
