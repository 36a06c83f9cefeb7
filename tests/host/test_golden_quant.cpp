// Block formats against the floats that python gguf, or GGML, computes from the same bytes, bit by bit
// (tests/golden/quant).
#include "engine/core/block_quant.h"
#include "engine/core/npy.h"
#include <bit>
#include <doctest/doctest.h>
#include <fstream>
#include <iterator>

using namespace kvrun;

namespace {

std::vector<std::byte> file_bytes(const std::string& path) {
	std::ifstream in(path, std::ios::binary);
	REQUIRE_MESSAGE(in, path << " is missing; it is part of the repository");
	const std::string s{std::istreambuf_iterator<char>(in), {}};
	const auto bytes = std::as_bytes(std::span(s.data(), s.size()));
	return {bytes.begin(), bytes.end()};
}

} // namespace

TEST_CASE("golden quant: every block type gives the floats of python gguf or GGML, to the bit") {
	for (const DType type : kTensorTypes) {
		if (type == DType::F32) continue;
		const std::string stem = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/quant/" + dtype_info(type).name;
		CAPTURE(stem);
		const std::vector<std::byte> raw = file_bytes(stem + ".bin");
		const NpyArray expected = npy_read(stem + ".npy");
		const std::span<const float> want = expected.as<float>();
		REQUIRE(want.size() >= 1024);
		REQUIRE(raw.size() == dtype_row_bytes(type, want.size()));
		std::vector<float> got(want.size(), -1);
		dequantise_row(type, raw.data(), got.data(), got.size());
		size_t wrong = 0;
		for (size_t i = 0; i < want.size(); ++i) {
			if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i])) continue;
			if (wrong++ < 8)
				CHECK_MESSAGE(got[i] == want[i], "element " << i << " of block " << i / dtype_info(type).block);
		}
		CHECK(wrong == 0);
	}
}
