// What reading a file, perhaps a changed one, as one that drafts for a model says.
#pragma once
#include "models/draft_file.h"
#include "tests/host/file_edits.h"

namespace kvrun {

inline std::string said(const Bytes& draft, const Bytes& model) { // empty: it fits
	const Config of = config_of(model);
	return error_of([&] { read_draft_file(Gguf::parse("draft.gguf", draft), of); });
}

inline void check_said(const Bytes& draft, const Bytes& model, std::string_view words) {
	const std::string text = said(draft, model);
	CHECK_MESSAGE(text.find(words) != text.npos, text << " / " << words);
}

} // namespace kvrun
