// Questions of a file for kvrun eval --task FILE.
#pragma once
#include "tools/eval/evaluate.h"

namespace kvrun {

// One question per line, each a JSON object {"context": text, "question": text, "answers": [text, ..]}; other fields
// are ignored, empty lines skipped. The first `most` of them. The model reads the context, an empty line and "Question:
// ...\n Answer:". Throws Error{Format} that names file, line and field.
std::vector<Question> questions_of_file(const std::string& path, size_t most);

} // namespace kvrun
