// Conversations in OpenAI's form, converted to the form that a chat template takes.
#pragma once
#include "models/chat/features.h"

namespace kvrun {

// Converts messages to the template's form: parts of text to one string (joined by newlines) or a string to parts,
// arguments to objects or strings, missing content to null or "", ids of calls to nine letters and digits.
// Text beside calls is left out if the template would leave out the calls.
// reasoning_content also becomes the field that the template reads. Several system messages at the beginning become one
// if the template does not take them; if it takes none, their text goes in front of the user's first message. Throws
// Error{Invalid} if a part is not text and the template accepts only strings.
Json fit_messages(const ChatFeatures&, Json messages);

// What the template has no place for becomes text (write_tools()), and the messages are fitted.
void fit_input(const ChatFeatures&, ChatInput&);

} // namespace kvrun
