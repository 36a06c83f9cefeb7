// attn_kv_b of files with latent attention that were made before 2025-04: of each head the rows that make keys of a
// latent, then those that make values. What kvrun uses are two tensors: attn_k_b, of each head the first rows
// transposed, and attn_v_b, the other rows.
#pragma once
#include "models/gguf.h"
#include <functional>

namespace kvrun {

// attn_k_b and attn_v_b of `whole`, whose heads have so many rows of keys and of values. Keys of a block format become
// F16: a transposed row has no blocks.
struct KvBParts {
	GgufTensor keys, values;
};
// Empty if the tensor does not have these sizes.
std::optional<KvBParts> split_kv_b(const GgufTensor& whole, uint32_t n_heads, uint32_t keys, uint32_t values);
// Bytes [offset, offset + dst.size()) of a part, whole elements or blocks; read(at, bytes) reads from the file.
void read_kv_b(const GgufTensor& part, uint64_t offset, std::span<std::byte> dst,
               const std::function<void(uint64_t at, std::span<std::byte>)>& read);

} // namespace kvrun
