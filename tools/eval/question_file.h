// Questions of a file for kvrun eval --task FILE.
#pragma once
#include "tools/eval/evaluate.h"

namespace kvrun {

// Reads the first `most` questions. A line is a JSON object {"context": text, "question": text, "answers": [text, ..]};
// other fields and empty lines are ignored. The model reads the context, an empty line and "Question: ...\n Answer:".
// Throws Error{Format} that names file, line and field.
std::vector<Question> questions_of_file(const std::string& path, size_t most);

} // namespace kvrun
