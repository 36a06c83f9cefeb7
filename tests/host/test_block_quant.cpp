// Block formats against an element-wise definition written from the format description, on random bytes.
#include "engine/core/block_quant.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <random>
#include <vector>

using namespace kvrun;

namespace {
using Block = std::vector<uint8_t>;

float half(const Block& b, size_t at) { return f16_to_f32(uint16_t(b[at] + 256 * b[at + 1])); }
// `n` bits of b starting at bit `bit` of byte `byte`.
unsigned bits(const Block& b, size_t byte, unsigned bit, unsigned n) { return (b[byte] >> bit) % (1u << n); }

unsigned k_scale(const Block& b, unsigned run) { // b[4 .. 16) holds the 12 scale bytes
	return run < 4 ? bits(b, 4 + run, 0, 6) : bits(b, 8 + run, 0, 4) + 16 * bits(b, run, 6, 2);
}
unsigned k_min(const Block& b, unsigned run) {
	return run < 4 ? bits(b, 8 + run, 0, 6) : bits(b, 8 + run, 4, 4) + 16 * bits(b, 4 + run, 6, 2);
}

float element(DType t, const Block& b, unsigned i) {
	switch (t) {
	case DType::Q8_0: return float(int8_t(b[2 + i])) * half(b, 0);
	case DType::Q4_0: return float(int(bits(b, 2 + i % 16, i / 16 * 4, 4)) - 8) * half(b, 0);
	case DType::Q4_1: {
		const volatile float product = float(bits(b, 4 + i % 16, i / 16 * 4, 4)) * half(b, 0);
		return product + half(b, 2);
	}
	case DType::Q4_K: {
		const float scale = half(b, 0) * float(k_scale(b, i / 32)), min = half(b, 2) * float(k_min(b, i / 32));
		const volatile float product = scale * float(bits(b, 16 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4));
		return product - min;
	}
	case DType::Q5_K: {
		const float scale = half(b, 0) * float(k_scale(b, i / 32)), min = half(b, 2) * float(k_min(b, i / 32));
		const unsigned q = bits(b, 48 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4) + 16 * bits(b, 16 + i % 32, i / 32, 1);
		const volatile float product = scale * float(q);
		return product - min;
	}
	case DType::Q6_K: {
		const unsigned low = bits(b, i / 128 * 64 + i % 64, i % 128 / 64 * 4, 4);
		const unsigned high = bits(b, 128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2);
		const float scale = half(b, 208) * float(int8_t(b[192 + i / 16]));
		return scale * float(int(low + 16 * high) - 32);
	}
	default: return NAN;
	}
}

bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)); }
} // namespace

TEST_CASE("block_quant: every block type equals its element-wise definition bit for bit") {
	std::mt19937 rng(7);
	for (DType t : {DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
		CAPTURE(dtype_info(t).name);
		const auto [name, block, bytes] = dtype_info(t);
		for (int round = 0; round < 50; ++round) {
			const unsigned n = 3; // blocks in the row
			std::vector<std::byte> row(n * bytes + 1);
			for (auto& x : row) x = std::byte(rng());
			std::vector<float> out(n * block + 1, 12345.f);
			dequantise_row(t, row.data() + 1, out.data(), n * block); // odd address
			CHECK(out.back() == 12345.f);
			for (unsigned i = 0; i < n * block; ++i) {
				const auto* at = reinterpret_cast<const uint8_t*>(row.data()) + 1 + i / block * bytes;
				const float want = element(t, Block(at, at + bytes), i % block);
				if (!same(out[i], want)) FAIL("element " << i << " is " << out[i] << ", expected " << want);
			}
		}
	}
}

TEST_CASE("block_quant: plain types") {
	std::vector<uint16_t> all(65536);
	for (uint32_t h = 0; h < 65536; ++h) all[h] = uint16_t(h);
	std::vector<float> out(65536);
	dequantise_row(DType::F16, reinterpret_cast<const std::byte*>(all.data()), out.data(), 65536);
	uint32_t wrong = 0;
	for (uint32_t h = 0; h < 65536; ++h) wrong += !same(out[h], f16_to_f32(uint16_t(h)));
	CHECK(wrong == 0);
	dequantise_row(DType::BF16, reinterpret_cast<const std::byte*>(all.data()), out.data(), 65536);
	for (uint32_t h = 0; h < 65536; ++h) wrong += !same(out[h], bf16_to_f32(uint16_t(h)));
	CHECK(wrong == 0);
	const float x[3] = {1.5f, -0.f, 3e-42f};
	dequantise_row(DType::F32, reinterpret_cast<const std::byte*>(x), out.data(), 3);
	CHECK(std::memcmp(x, out.data(), 12) == 0);
	CHECK_THROWS_AS(dequantise_row(DType::U32, reinterpret_cast<const std::byte*>(x), out.data(), 3), Error);
	CHECK_THROWS_AS(dequantise_row(DType::Q8_0, reinterpret_cast<const std::byte*>(x), out.data(), 31), Error);
}
