// Values of small tensors on the host, and matrices of values on a backend.
#include "models/tensor_values.h"
#include "engine/core/block_quant.h"
#include "engine/core/f16.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvrun {
namespace {

constexpr size_t kWriteBytes = size_t(8) << 20; // handed to the backend at once

// bytes(row, n): those of rows [row, row + n).
template <class Bytes> void write_rows(Backend& be, const View& v, size_t row_bytes, Bytes bytes) {
	const uint32_t step = uint32_t(std::max<size_t>(kWriteBytes / row_bytes, 1));
	for (uint32_t row = 0; row < v.shape[0]; row += step) {
		const uint32_t n = std::min(step, v.shape[0] - row);
		be.write_weight(v, row, n, WeightRows(bytes(row, n)), {});
		be.submit(); // the backend waits if it has no more staging memory
	}
}

} // namespace

std::vector<float> tensor_values(const Gguf& g, const GgufTensor& t) {
	std::vector<std::byte> bytes(t.bytes);
	g.read(t, 0, bytes);
	std::vector<float> out(t.rows() * t.cols());
	const size_t row_bytes = t.bytes / t.rows();
	for (uint64_t r = 0; r < t.rows(); ++r)
		dequantise_row(t.type, bytes.data() + r * row_bytes, out.data() + r * t.cols(), t.cols());
	if (std::ranges::any_of(out, [](float x) { return !std::isfinite(x); }))
		fail(Code::Format, "{}: tensor {} holds values that are not finite; get the file again", g.name(),
		     one_line(t.name));
	return out;
}

void write_values(Backend& be, const View& v, const std::vector<float>& values) {
	std::vector<std::byte> bytes(values.size() * dtype_info(v.type).bytes);
	if (v.type == DType::F32) {
		std::memcpy(bytes.data(), values.data(), bytes.size());
	} else {
		KV_ASSERT(v.type == DType::F16);
		for (size_t i = 0; i < values.size(); ++i) {
			const uint16_t half = f32_to_f16(std::clamp(values[i], -65504.f, 65504.f));
			std::memcpy(bytes.data() + 2 * i, &half, 2);
		}
	}
	const size_t row_bytes = bytes.size() / v.shape[0];
	write_rows(be, v, row_bytes,
	           [&](uint32_t row, uint32_t n) { return std::span(bytes).subspan(row * row_bytes, n * row_bytes); });
}

void write_tensor(Backend& be, const View& v, const Gguf& g, const GgufTensor& t, uint32_t first,
                  std::span<const uint32_t> order) {
	KV_ASSERT(v.type == t.type && uint64_t(first) + v.shape[0] <= t.rows() && v.shape[1] == t.cols());
	const size_t row_bytes = t.bytes / t.rows();
	std::vector<std::byte> piece;
	write_rows(be, v, row_bytes, [&](uint32_t row, uint32_t n) {
		piece.resize(n * row_bytes);
		if (order.empty()) g.read(t, (uint64_t(first) + row) * row_bytes, piece);
		for (uint32_t i = 0; i < n && !order.empty(); ++i)
			g.read(t, (uint64_t(first) + order[row + i]) * row_bytes,
			       std::span(piece).subspan(i * row_bytes, row_bytes));
		return std::span<const std::byte>(piece);
	});
}

} // namespace kvrun
