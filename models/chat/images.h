// Images and sounds in conversations: parts {"type": "image", "id": "..."} of messages, or of type "audio". A template
// sees a mark in their place, in the text of the message; behind it, the mark is where their tokens go.
#pragma once
#include "models/chat/template.h"
#include <functional>

namespace kvrun {

std::string image_id_text(uint64_t id); // 16 hexadecimal digits
// Turns each part that is an image into a mark in the text beside it. Throws Error{Invalid} if its id is none.
void mark_images(Json& messages);
// The tokens of a conversation whose marks are images.
using ImageTokens = std::function<std::vector<uint32_t>(uint64_t id)>;
struct ChatPiece { // of a rendered conversation: text, then an image
	Rendered text;
	std::optional<uint64_t> image; // or sound; none behind the last piece
	bool audio = false;            // it is a sound
};
std::vector<ChatPiece> split_at_images(const Rendered&);

} // namespace kvrun
