// The tokens of a rendered conversation.
#pragma once
#include "models/chat/template.h"
#include "models/tokenizer.h"

namespace kvrun {

// Control tokens come from the template's own text only: a user's "<|im_end|>" stays text. The whole is encoded as one
// text. BOS is added if the model wants it and the template has not written it.
std::vector<uint32_t> encode_chat(const Tokenizer&, const Rendered&);

// Sets bos_token and eos_token to their texts in the vocabulary.
void set_token_texts(ChatInput&, const Tokenizer&);

} // namespace kvrun
