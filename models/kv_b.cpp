// attn_kv_b: two tensors that are computed from it when they are read.
#include "models/kv_b.h"
#include "engine/core/block_quant.h"
#include "engine/core/f16.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace kvrun {
namespace {

// x as an element of a plain type, appended at `to`.
void store_plain(DType type, float x, std::byte* to) {
	if (type == DType::F32) {
		std::memcpy(to, &x, sizeof x);
		return;
	}
	const uint16_t half = type == DType::BF16 ? uint16_t(std::bit_cast<uint32_t>(x) >> 16) : f32_to_f16(x);
	std::memcpy(to, &half, sizeof half);
}

void read_transposed(const GgufTensor& t, uint64_t offset, std::span<std::byte> dst,
                     const std::function<void(uint64_t, std::span<std::byte>)>& read) {
	const KvBPart& p = t.kv_b;
	const size_t unit = dtype_info(t.type).bytes, row_bytes = dtype_row_bytes(p.type, p.rank);
	const uint64_t per_head = uint64_t(p.rank) * p.keys, first = offset / unit, end = first + dst.size() / unit;
	KV_ASSERT(offset % unit == 0 && dst.size() % unit == 0);
	std::vector<std::byte> stored(size_t(p.keys) * row_bytes);
	std::vector<float> rows(static_cast<size_t>(per_head)); // (keys, rank)
	for (uint64_t head = first / per_head; head * per_head < end; ++head) {
		read(t.at + head * (p.keys + p.values) * row_bytes, stored);
		for (uint32_t k = 0; k < p.keys; ++k)
			dequantise_row(p.type, stored.data() + k * row_bytes, rows.data() + size_t(k) * p.rank, p.rank);
		const uint64_t last = std::min(end, (head + 1) * per_head);
		for (uint64_t i = std::max(first, head * per_head); i < last; ++i) {
			const uint64_t at = i - head * per_head;
			store_plain(t.type, rows[size_t(at % p.keys * p.rank + at / p.keys)], dst.data() + (i - first) * unit);
		}
	}
}

void read_rows_of_values(const GgufTensor& t, uint64_t offset, std::span<std::byte> dst,
                         const std::function<void(uint64_t, std::span<std::byte>)>& read) {
	const KvBPart& p = t.kv_b;
	const size_t row_bytes = dtype_row_bytes(p.type, p.rank);
	const uint64_t per_head = p.values * row_bytes;
	for (size_t done = 0; done < dst.size();) {
		const uint64_t at = offset + done, head = at / per_head, in_head = at % per_head;
		const size_t n = size_t(std::min<uint64_t>(dst.size() - done, per_head - in_head));
		read(t.at + (head * (p.keys + p.values) + p.keys) * row_bytes + in_head, dst.subspan(done, n));
		done += n;
	}
}

} // namespace

std::optional<KvBParts> split_kv_b(const GgufTensor& whole, uint32_t n_heads, uint32_t keys, uint32_t values) {
	const uint64_t rank = whole.cols();
	if (n_heads == 0 || keys == 0 || values == 0 || rank > UINT32_MAX) return {};
	if (whole.n_dims != 2 || whole.rows() != uint64_t(n_heads) * (uint64_t(keys) + values)) return {};
	KvBParts parts{whole, whole};
	parts.keys.kv_b = {KvBHalf::Keys, whole.type, uint32_t(rank), keys, values};
	parts.values.kv_b = parts.keys.kv_b;
	parts.values.kv_b.half = KvBHalf::Values;
	if (is_quantised(whole.type)) parts.keys.type = DType::F16;
	const auto shape = [&](GgufTensor& t, uint64_t cols, uint64_t rows) {
		t.n_dims = 3, t.shape[0] = cols, t.shape[1] = rows, t.shape[2] = n_heads, t.shape[3] = 1;
		t.bytes = dtype_row_bytes(t.type, cols) * rows * n_heads;
	};
	shape(parts.keys, keys, rank);
	shape(parts.values, rank, values);
	return parts;
}

void read_kv_b(const GgufTensor& part, uint64_t offset, std::span<std::byte> dst,
               const std::function<void(uint64_t at, std::span<std::byte>)>& read) {
	if (part.kv_b.half == KvBHalf::Keys)
		read_transposed(part, offset, dst, read);
	else
		read_rows_of_values(part, offset, dst, read);
}

} // namespace kvrun
