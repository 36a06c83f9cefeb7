// Shared by op tests: guarded buffers with odd offsets on a backend, random numbers, random weights.
#pragma once
#include "backends/backend.h"
#include "backends/tolerance.h"
#include "engine/core/block_quant.h"
#include "engine/core/block_scales.h"
#include "engine/core/f16.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <doctest/doctest.h>
#include <exception>
#include <random>

namespace kvrun {

using Floats = std::vector<float>;
using Words = std::vector<uint32_t>;
inline float f16_of(const Words& words, size_t i) { return f16_to_f32(uint16_t(words[i / 2] >> i % 2 * 16)); }

// Normal numbers, the same on every platform (std::normal_distribution is not).
class Random {
 public:
	explicit Random(uint32_t seed) : rng_(seed) {}
	uint32_t below(uint32_t n) { return uint32_t(uint64_t(rng_()) * n >> 32); }
	float uniform(float lo, float hi) { return lo + (hi - lo) * (float(rng_() >> 8) / 16777216.f); }
	float normal() { // sum of 12 uniforms: variance 1, close enough to a normal distribution
		float s = -6;
		for (int i = 0; i < 12; ++i) s += uniform(0, 1);
		return s;
	}
	Floats normals(size_t n, float scale = 1) {
		Floats r(n);
		for (float& x : r) x = scale * normal();
		return r;
	}
	std::byte byte() { return std::byte(rng_() >> 24); }

 private:
	std::mt19937 rng_;
};

struct RandomWeight {
	std::vector<std::byte> bytes; // rows in GGUF layout
	Floats factors;               // one per row, or empty
	Floats values;                // (rows, cols), the dequantised values
	WeightRows rows() const { return {bytes, factors}; }
};
// n, or a little more, so that a row is whole blocks.
inline uint32_t whole_blocks(DType t, uint32_t n) {
	const uint32_t block = dtype_info(t).block;
	return (n + block - 1) / block * block;
}
inline RandomWeight random_weight(DType type, uint32_t n_rows, uint32_t cols, Random& random) {
	const DTypeInfo info = dtype_info(type);
	RandomWeight w;
	w.bytes.resize(n_rows * dtype_row_bytes(type, cols));
	const auto put_half = [&](size_t at, float x) {
		const uint16_t h = f32_to_f16(x);
		std::memcpy(&w.bytes[at], &h, 2);
	};
	for (size_t block = 0; block < w.bytes.size(); block += info.bytes) {
		if (type == DType::F32) {
			const float x = random.normal();
			std::memcpy(&w.bytes[block], &x, 4);
		} else if (type == DType::F16) {
			put_half(block, random.normal());
		} else if (type == DType::BF16) {
			const uint16_t h = uint16_t(std::bit_cast<uint32_t>(random.normal()) >> 16);
			std::memcpy(&w.bytes[block], &h, 2);
		} else {
			for (size_t i = 0; i < info.bytes; ++i) w.bytes[block + i] = random.byte();
			set_block_scales(type, &w.bytes[block], random.uniform(0.5f, 1.5f), random.uniform(0, 1));
		}
	}
	w.values.resize(size_t(n_rows) * cols);
	for (uint32_t r = 0; r < n_rows; ++r)
		dequantise_row(type, w.bytes.data() + r * dtype_row_bytes(type, cols), &w.values[size_t(r) * cols], cols);
	if (has_row_factor(type))
		for (uint32_t r = 0; r < n_rows; ++r) {
			w.factors.push_back(random.uniform(0.5f, 1.5f));
			for (uint32_t i = 0; i < cols; ++i) w.values[size_t(r) * cols + i] *= w.factors[r];
		}
	return w;
}

// Weights, or x, as rounded by matmul on this device.
inline std::vector<float> factors(Backend& backend, bool decode, std::vector<float> x) {
	if (!decode && backend.info().half_matmul)
		for (float& v : x) v = f16_to_f32(f32_to_f16(v));
	return x;
}

// x (T, n), n a multiple of 32, as rounded by matmul with a weight of this type.
inline std::vector<float> rounded_x(Backend& backend, bool decode, DType weight, std::vector<float> x) {
	if (!matmul_tolerance(backend.info(), weight, /*swiglu=*/false, decode).ends_with("int8"))
		return factors(backend, decode, std::move(x));
	for (size_t at = 0; at < x.size(); at += 32) {
		float most = 0;
		for (size_t i = at; i < at + 32; ++i) most = std::max(most, std::abs(x[i]));
		for (size_t i = at; i < at + 32 && most > 0; ++i) x[i] = std::nearbyint(x[i] * (127 / most)) * (most / 127);
	}
	return x;
}

// Largest error of a logit relative to the largest logit, for a tiny model of tests/golden/tiny. Keys and values in f16
// cause 3e-4 of it. Names of models with quantised weights contain "_q".
inline double logits_tolerance(const Backend& backend, std::string_view model, bool decode) {
	if (std::string_view(backend.name()) == "cpu") return 1e-3;
	const DType weights = model.find("_q") != model.npos ? DType::Q8_0 : DType::F16;
	return matmul_tolerance(backend.info(), weights, /*swiglu=*/false, decode).ends_with("int8") ? 4e-2 : 5e-3;
}

// The tolerance of attend_prompt on this device; `plain`: if it does not round to f16.
inline std::string_view prompt_tolerance(const Backend& backend, std::string_view plain = "attend_prompt") {
	return attend_tolerance(backend.info(), /*prompt=*/true, /*packed=*/false, plain);
}

// Buffers of one test row. Every view starts at an odd multiple of 16 bytes between two guards, which the destructor
// checks.
class Rig {
 public:
	explicit Rig(Backend& b) : backend(b) {}
	~Rig() { // after an error the device is not read
		if (!std::uncaught_exceptions()) check_guards();
	}
	Rig(const Rig&) = delete;

	View make(DType type, std::span<const std::byte> bytes, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1,
	          uint32_t d3 = 1) {
		const size_t head = kGuard + 16 * (held_.size() % 5), n = (bytes.size() + 3) / 4 * 4;
		std::vector<std::byte> all(head + n + kGuard, std::byte(0xA5));
		if (!bytes.empty()) std::memcpy(all.data() + head, bytes.data(), bytes.size());
		held_.push_back({backend.alloc(all.size(), Mem::Device, "test"), head, n});
		backend.write(held_.back().buffer, 0, all);
		const View v = view(held_.back().buffer, head, type, d0, d1, d2, d3);
		REQUIRE(v.elements() * dtype_info(type).bytes == bytes.size());
		return v;
	}
	View f32(const Floats& x, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
		return make(DType::F32, std::as_bytes(std::span(x)), d0, d1, d2, d3);
	}
	View u32(const Words& x, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
		return make(DType::U32, std::as_bytes(std::span(x)), d0, d1, d2, d3);
	}
	View f16(const Floats& x, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
		std::vector<uint16_t> h(x.size());
		for (size_t i = 0; i < x.size(); ++i) h[i] = f32_to_f16(x[i]);
		return make(DType::F16, std::as_bytes(std::span(h)), d0, d1, d2, d3);
	}
	// An output: filled with NaN, to detect elements that an op leaves out.
	View out(uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
		return u32_as(DType::F32, Words(size_t(d0) * d1 * d2 * d3, 0xffffffffu), d0, d1, d2, d3);
	}
	// A weight of which rows [first, first + n) are used; the other rows exist too.
	View weight(DType type, const RandomWeight& w, uint32_t n_rows, uint32_t cols, uint32_t first = 0, uint32_t n = 0) {
		const size_t row_bytes = backend.weight_row_bytes(type, cols);
		held_.push_back({backend.alloc(kGuard + n_rows * row_bytes, Mem::Device, "test weight"), 0, 0});
		View v = view(held_.back().buffer, kGuard, type, n_rows, cols);
		const uint32_t half = n_rows / 2; // in two pieces, as a loader writes it
		const size_t from = dtype_row_bytes(type, cols);
		if (half) backend.write_weight(v, 0, half, w.rows().rows(0, half, from), {});
		const WeightRows rest = w.rows().rows(half, n_rows - half, from);
		std::vector<std::byte> arranged((n_rows - half) * row_bytes);
		if (!backend.arrange_weight(type, cols, rest, arranged)) arranged.clear();
		backend.write_weight(v, half, n_rows - half, rest, arranged);
		if (n) v.at += first * row_bytes, v.shape[0] = n;
		return v;
	}

	template <class T> std::vector<T> get_as(const View& v) {
		std::vector<T> r((v.elements() * dtype_info(v.type).bytes + sizeof(T) - 1) / sizeof(T));
		backend.read(*v.buf, v.at, std::as_writable_bytes(std::span(r)).first(v.elements() * dtype_info(v.type).bytes));
		backend.submit();
		backend.wait();
		return r;
	}
	Floats get(const View& v) { return get_as<float>(v); }
	Words get_words(const View& v) { return get_as<uint32_t>(v); }

	void check_guards() {
		std::deque<std::vector<std::byte>> all;
		for (const Held& h : held_) {
			all.emplace_back(h.bytes ? h.buffer.bytes() : 0);
			if (h.bytes) backend.read(h.buffer, 0, all.back());
		}
		backend.submit();
		backend.wait();
		for (size_t i = 0; i < held_.size(); ++i) {
			size_t touched = 0;
			for (size_t at = 0; at < all[i].size(); ++at)
				if (at < held_[i].at || at >= held_[i].at + held_[i].bytes) touched += all[i][at] != std::byte(0xA5);
			if (touched)
				FAIL_CHECK("buffer " << i << " of the row: " << touched << " bytes around the view were overwritten");
		}
		held_.clear();
	}

	Backend& backend;

 private:
	static constexpr size_t kGuard = 64; // bytes
	struct Held {
		Buffer buffer;
		size_t at, bytes; // of the view; 0 bytes: not guarded
	};
	View u32_as(DType type, const Words& x, uint32_t d0, uint32_t d1, uint32_t d2, uint32_t d3) {
		return make(type, std::as_bytes(std::span(x)), d0, d1, d2, d3);
	}
	std::deque<Held> held_; // a deque keeps addresses stable
};

} // namespace kvrun
