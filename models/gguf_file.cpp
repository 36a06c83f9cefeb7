// The bytes of one GGUF file.
#include "models/gguf_file.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <cstring>

namespace kvrun {

GgufFile::GgufFile(const std::string& path)
    : file_(std::in_place, path, "name a GGUF file"), name_(file_->name()), bytes_(file_->bytes()) {}

GgufFile::GgufFile(std::string name, std::span<const std::byte> bytes)
    : name_(one_line(name)), bytes_(bytes.size()), memory_(bytes) {}

void GgufFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	if (file_) return file_->read_at(at, dst);
	KV_ASSERT(at <= memory_.size() && dst.size() <= memory_.size() - at);
	if (!dst.empty()) std::memcpy(dst.data(), memory_.data() + at, dst.size());
}

} // namespace kvrun
