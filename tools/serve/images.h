// Images in the messages of requests.
#pragma once
#include "engine/kvrun.h"
#include "tools/serve/error.h"

namespace kvrun::serve {

// A part of a message in the form of OpenAI's chats. url: "data:image/...;base64,...".
Json image_part(std::string url);
// Checks that a part is an image that image_part() could have made. Throws ApiError 400 naming `where`.
void check_image_part(const Json& part, const std::string& where, const char* param);
// Messages, as JSON, with images of the engine in place of such parts. Throws ApiError 400 for an image that cannot be
// read, and for any if the model reads none.
std::string take_images(kvrun_engine*, std::string messages);

} // namespace kvrun::serve
