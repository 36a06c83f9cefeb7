// Texts and questions that commands read from files.
#pragma once
#include <string>

namespace kvrun {

// The contents of a regular file of at most Tokenizer::kMaxText bytes. Throws Error{Io} where it cannot be read, with
// `instead` as the advice for what is no regular file, and Error{Invalid} where it is larger; `of` names its contents.
std::string read_text_file(const std::string& path, const char* instead = "name a text", const char* of = "text");

} // namespace kvrun
