// Parses the header of one GGUF file: keys and tensor table, checked against the file's length and against limits.
#pragma once
#include "models/gguf.h"
#include "models/gguf_file.h"

namespace kvrun {

// Limits on a header: far beyond real models, and small enough that a hostile file cannot exhaust memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t(256) << 20;
constexpr uint64_t kMaxNameBytes = uint64_t(64) << 10; // a key, or the name of a tensor
constexpr uint64_t kMaxTextBytes = uint64_t(64) << 20; // a string value
constexpr uint64_t kMaxEntries = 65536, kMaxTensors = 65536;
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t(1) << 20;

struct GgufHeader {
	uint32_t version = 0;
	std::vector<std::byte> bytes;    // the header as stored; entries and names of tensors point into it
	std::vector<GgufEntry> entries;  // in file order, keys distinct
	std::vector<GgufTensor> tensors; // in file order, names distinct; aligned; they cover all of the data
};

// `part` is written into every tensor.
GgufHeader parse_header(const GgufFile&, uint32_t part);

} // namespace kvrun
