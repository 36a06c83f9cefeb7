// Texts and questions that commands read from files.
#include "tools/eval/text_file.h"
#include "engine/core/error.h"
#include "engine/core/regular_file.h"
#include "models/tokenizer.h"

namespace kvrun {

std::string read_text_file(const std::string& path, const char* instead, const char* of) {
	const RegularFile file(path, instead);
	if (file.bytes() > Tokenizer::kMaxText)
		fail(Code::Invalid, "{}: more than {} bytes of {}; cut it", file.name(), Tokenizer::kMaxText, of);
	std::string text(size_t(file.bytes()), 0);
	file.read_at(0, std::as_writable_bytes(std::span(text)));
	return text;
}

} // namespace kvrun
