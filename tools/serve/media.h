// Images and sounds in the messages of requests.
#pragma once
#include "engine/kvrun.h"
#include "tools/serve/error.h"

namespace kvrun::serve {

// Parts of a message in the form of OpenAI's chats. url: "data:image/...;base64,...".
Json image_part(std::string url);
Json audio_part(std::string base64);
// Whether a part is an image or a sound in this form. Throws ApiError 400 naming `where` for one without its content.
bool is_media_part(const Json& part, const std::string& where, const char* param);
// Messages, as JSON, with images and sounds of the engine in place of such parts. Throws ApiError 400 for one that
// cannot be read, and for any that the model does not read.
std::string take_media(kvrun_engine*, std::string messages);
// The engine's id of the sound of a file. Throws ApiError 400 that names the field.
std::string take_sound(kvrun_engine*, std::string_view file, const char* field);

} // namespace kvrun::serve
