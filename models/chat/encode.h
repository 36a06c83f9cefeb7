// The tokens of a rendered conversation.
#pragma once
#include "models/chat/images.h"
#include "models/tokenizer.h"

namespace kvrun {

// Control tokens come from the template's own text only: a user's "<|im_end|>" stays text. The whole is encoded as one
// text. BOS is added if the model wants it and the template has not written it.
// image: gives the tokens of the images that the conversation marks (mark_images()).
std::vector<uint32_t> encode_chat(const Tokenizer&, const Rendered&, const ImageTokens& image = {});

// Sets bos_token and eos_token to their texts in the vocabulary.
void set_token_texts(ChatInput&, const Tokenizer&);

} // namespace kvrun
