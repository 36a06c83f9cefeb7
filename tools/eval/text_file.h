// Texts and questions that commands read from files.
#pragma once
#include <string>

namespace kvrun {

// The contents of a regular file of at most Tokenizer::kMaxText bytes. Throws Error{Io} if it cannot be read
// (`instead`: advice if it is not a regular file), Error{Invalid} if it is larger (`of` names its contents).
std::string read_text_file(const std::string& path, const char* instead = "name a text", const char* of = "text");

} // namespace kvrun
