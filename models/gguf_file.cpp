// The bytes of one GGUF file.
#include "models/gguf_file.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/synth/synth_file.h"
#include <cstring>

namespace kvrun {

GgufFile::GgufFile(const std::string& path) {
	if (is_synth(path)) {
		synth_ = std::make_unique<SynthFile>(parse_synth(std::string_view(path).substr(kSynthPrefix.size())));
		name_ = one_line(path), bytes_ = synth_->bytes();
		return;
	}
	file_.emplace(path, "name a GGUF file");
	name_ = file_->name(), bytes_ = file_->bytes();
}

GgufFile::GgufFile(std::string name, std::span<const std::byte> bytes)
    : name_(one_line(name)), bytes_(bytes.size()), memory_(bytes) {}

GgufFile::~GgufFile() = default;

void GgufFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	if (file_) return file_->read_at(at, dst);
	if (synth_) return synth_->read_at(at, dst);
	KV_ASSERT(at <= memory_.size() && dst.size() <= memory_.size() - at);
	if (!dst.empty()) std::memcpy(dst.data(), memory_.data() + at, dst.size());
}

} // namespace kvrun
