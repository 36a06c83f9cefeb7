// A short test of a device: the main ops on small inputs, against the cpu backend.
#include "backends/self_test.h"
#include "backends/tolerance.h"
#include "engine/core/block_quant.h"
#include "engine/core/block_scales.h"
#include "engine/core/f16.h"
#include "engine/core/splitmix64.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

namespace kvrun {
namespace {

constexpr uint32_t kHeads = 4, kKvHeads = 2, kHeadDim = 64, kPage = 32, kPrompt = 40; // page, prompt: tokens
constexpr Quant kPackedK = {.bits = 2, .scale = Scale::PerChannel, .group = kPage};
constexpr Quant kPackedV = {.bits = 2, .scale = Scale::PerToken, .group = 32};

struct Result { // one output of one op
	std::string what;
	std::string_view rule; // of limit()
	std::vector<float> x;
};

// How far a correct device may be from the cpu backend here. tolerance() covers differences from the kernels' own
// rounding. The comments below have what Vulkan allows drivers ("Precision and Operation of SPIR-V Instructions"). Sums
// in any order, with or without FMA, rounded to nearest or towards zero, are off by at most 1 ULP (2^-23) per term. f32
// denormals do not occur. Halves are normal numbers or zero, because a device may flush denormal halves.
Tolerance limit(std::string_view rule) {
	struct Row {
		std::string_view rule;
		Tolerance t;
	};
	constexpr Row table[] = {
	    {"rmsnorm", {2e-5, 2e-6}},  // 96 terms; sqrt, inversesqrt 2 ULP, division 2.5 ULP
	    {"activate", {1e-5, 1e-5}}, // exp 3 + 2 |x| ULP, |x| < 4 here, of numbers below 8; division 2.5 ULP
	    {"matvec", {1e-5, 1e-4}},   // 256 terms
	    {"matmul", {1e-5, 1e-4}},
	    {"rope", {1e-5, 1e-5}},   // two products and a sum
	    {"kv", {1e-3, 1e-5}},     // conversion to f16 rounds to either neighbour: 1 ULP, 2^-10
	    {"attend", {1e-4, 1e-4}}, // exp 3 + 2 |x| ULP, |x| < 8 here; 64 terms of a score
	    {"attend_prompt", {1e-4, 1e-4}},
	    // The scale is a quotient (2.5 ULP), rounded to f16 (1 ULP, 2^-10); a value of 2 bits is at most 3 scales above
	    // its zero point.
	    {"attend packed", {3e-3, 1e-2}},
	};
	for (const Row& r : table)
		if (r.rule == rule) return r.t;
	return tolerance(rule); // f16 and int8 kernels round far more than these limits
}

uint32_t number(uint64_t seed, uint64_t i) { return uint32_t(splitmix64(seed * 1000003 + i * kSplitmixStep) >> 32); }

// Multiples of 2^-8 between -1 and 1, which f16 holds exactly.
std::vector<float> numbers(size_t n, uint64_t seed) {
	std::vector<float> out(n);
	for (size_t i = 0; i < n; ++i) out[i] = float(int(number(seed, i) % 513) - 256) / 256;
	return out;
}

// The same numbers for keys (tokens, kKvHeads, kHeadDim) that no rotation by `angles` brings near zero, so that they
// are normal as halves.
std::vector<float> rotatable(size_t tokens, uint64_t seed, const std::vector<float>& angles) {
	constexpr uint32_t kPairs = kHeadDim / 2;
	constexpr float kLeast = 1.f / 1024;
	std::vector<float> out = numbers(tokens * kKvHeads * kHeadDim, seed);
	for (size_t row = 0; row < tokens * kKvHeads; ++row)
		for (size_t p = 0; p < kPairs; ++p) {
			const float *cs = &angles[(row / kKvHeads * kPairs + p) * 2], c = cs[0], s = cs[1];
			float &a = out[row * kHeadDim + p], &b = out[row * kHeadDim + p + kPairs];
			for (uint64_t i = out.size(); std::abs(a * c - b * s) < kLeast || std::abs(a * s + b * c) < kLeast; i += 2)
				a = numbers(1, seed + i)[0], b = numbers(1, seed + i + 1)[0];
		}
	return out;
}

// Keys or values (kv heads, kPage, head_dim) that 2-bit codes hold exactly, so that rounding makes no difference: every
// group, along tokens or along channels, has its least and its largest value among the first two.
std::vector<float> four_levels(bool along_tokens, uint64_t seed) {
	std::vector<float> out(size_t(kKvHeads) * kPage * kHeadDim);
	for (size_t i = 0; i < out.size(); ++i) {
		const size_t at = along_tokens ? i / kHeadDim % kPage : i % kPackedV.group;
		const uint32_t code = at == 0 ? 0 : at == 1 ? 3 : number(seed, i) % 4;
		out[i] = 0.5f * float(code) - 0.75f;
	}
	return out;
}

class SelfTestRun { // the ops on one backend
 public:
	explicit SelfTestRun(Backend& b) : b_(b) {}
	void norm();
	void project(DType, bool decode);
	void prompt();
	void packed();
	void index();
	std::vector<Result> results;

 private:
	View upload(DType type, const void* data, size_t bytes, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		held_.push_back(b_.alloc((bytes + 15) / 16 * 16, Mem::Device, "self-test"));
		if (data) b_.write(held_.back(), 0, std::span(static_cast<const std::byte*>(data), bytes));
		return view(held_.back(), 0, type, d0, d1, d2);
	}
	View f32(const std::vector<float>& x, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		return upload(DType::F32, x.data(), x.size() * 4, d0, d1, d2);
	}
	View u32(const std::vector<uint32_t>& x, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		return upload(DType::U32, x.data(), x.size() * 4, d0, d1, d2);
	}
	View f16(const std::vector<float>& x, uint32_t d0, uint32_t d1, uint32_t d2) {
		std::vector<uint16_t> h;
		for (const float v : x) h.push_back(f32_to_f16(v));
		return upload(DType::F16, h.data(), h.size() * 2, d0, d1, d2);
	}
	View space(DType type, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) { // contents: zero
		return upload(type, nullptr, size_t(d0) * d1 * d2 * dtype_info(type).bytes, d0, d1, d2);
	}
	void keep(std::string what, std::string_view rule, const View& v) {
		std::vector<std::byte> bytes(v.bytes());
		b_.read(*v.buf, v.at, bytes);
		b_.submit();
		b_.wait();
		std::vector<float> x(v.elements());
		dequantise_row(v.type, bytes.data(), x.data(), x.size());
		results.push_back({std::move(what), rule, std::move(x)});
	}

	Backend& b_;
	std::deque<Buffer> held_; // a deque keeps addresses stable
};

void SelfTestRun::norm() {
	const View out = space(DType::F32, 3, 96);
	b_.rmsnorm(out, f32(numbers(3 * 96, 1), 3, 96), f32(numbers(96, 2), 96), 1e-5f);
	keep("rmsnorm", "rmsnorm", out);
	b_.layer_norm(out, f32(numbers(3 * 96, 1), 3, 96), f32(numbers(96, 2), 96), f32(numbers(96, 3), 96), 1e-5f);
	keep("layer_norm", "rmsnorm", out);
	b_.match_rms(out, f32(numbers(3 * 96, 1), 3, 96), f32(numbers(96, 2), 96), f32(numbers(3 * 96, 4), 3, 96), 1e-20f);
	keep("match_rms", "rmsnorm", out);
	b_.gaussian_top_k(out, f32(numbers(3 * 96, 1), 3, 96), 0.5f);
	keep("gaussian_top_k", "gaussian_top_k", out);
	const View streams = f32(numbers(2 * 3 * 96, 1), 2, 3, 96);
	b_.stream_sum({streams, 1}, {streams, 1}, f32(numbers(8, 2), 2, 2, 2));
	keep("stream_sum", "expert_sum", streams);
	const View by_row = f32(numbers(3 * 2 * 96, 3), 3, 2, 96), gate = f32(numbers(3 * 2 * 96, 4), 3, 2, 96);
	b_.stream_mix(out, by_row, gate);
	keep("stream_mix", "activate", out);
	const View pre = space(DType::F32, 3, 2), post = space(DType::F32, 3, 2), mix = space(DType::F32, 3, 2, 2);
	b_.stream_coefs(pre, post, mix, f32(numbers(3 * 8, 7), 3, 8), f32(numbers(3, 8), 3), f32(numbers(8, 9), 8),
	                {1e-6f, 2, 0, 3});
	for (const View& v : {pre, post, mix}) keep("stream_coefs", "stream_coefs", v);
	b_.stream_attend(out, {by_row, 0, /*by_row=*/true}, f32(numbers(96, 5), 96), 1e-5f);
	keep("stream_attend", "stream_attend", out);
	b_.stream_gate(by_row, by_row, gate, f32(numbers(3 * 96, 5), 3, 96));
	keep("stream_gate", "stream_gate", by_row);
	b_.stream_sum({by_row, 0, /*by_row=*/true}, {streams}, f32(numbers(12, 6), 3, 2, 2), /*adds=*/false);
	keep("stream_sum", "expert_sum", by_row);
	b_.activate(out, f32(numbers(3 * 96, 1), 3, 96), f32(numbers(3 * 96, 2), 3, 96),
	            {.function = Activation::GeluTanh, .scale = 3, .cap = 2, .add = true});
	keep("activate", "activate", out);
}

// Arbitrary codes, with scales that make elements of about 1.
void SelfTestRun::project(DType type, bool decode) {
	constexpr uint32_t kCols = 256, kRows = 40;
	const DTypeInfo info = dtype_info(type);
	std::vector<std::byte> bytes(kRows * dtype_row_bytes(type, kCols));
	for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(number(3, i));
	for (size_t at = 0; at < bytes.size(); at += info.bytes) {
		if (is_quantised(type)) {
			set_block_scales(type, &bytes[at], 1);
			continue;
		}
		const uint16_t h = f32_to_f16(numbers(1, at)[0]); // F16
		std::memcpy(&bytes[at], &h, 2);
	}
	const uint32_t T = decode ? 1 : 33;
	const View x = f32(numbers(size_t(T) * kCols, 4), T, kCols), out = space(DType::F32, T, kRows);
	held_.push_back(b_.alloc(kRows * b_.weight_row_bytes(type, kCols), Mem::Device, "self-test"));
	const Proj p{out, view(held_.back(), 0, type, kRows, kCols), {}};
	b_.write_weight(p.w, 0, kRows, bytes, {});
	b_.matmul({&p, 1}, x, Epilogue::None, decode);
	keep(fmt::format("{} of {}", decode ? "matvec" : "matmul", info.name),
	     matmul_tolerance(b_.info(), type, /*swiglu=*/false, decode), out);
}

// Rotation, keys and values as f16, and causal attention over them.
void SelfTestRun::prompt() {
	const uint32_t T = kPrompt, pairs = kHeadDim / 2;
	std::vector<float> angles;
	std::vector<uint32_t> at;
	for (uint32_t t = 0; t < T; ++t) {
		for (uint32_t p = 0; p < pairs; ++p) {
			const double angle = t * std::pow(10000., -double(p) / pairs);
			angles.push_back(float(std::cos(angle))), angles.push_back(float(std::sin(angle)));
		}
		for (uint32_t h = 0; h < kKvHeads; ++h) at.insert(at.end(), 2, (h * T + t) * pairs);
	}
	const View q = f32(numbers(size_t(T) * kHeads * kHeadDim, 5), T, kHeads, kHeadDim);
	const View k = f32(rotatable(T, 6, angles), T, kKvHeads, kHeadDim);
	const View v = f32(numbers(size_t(T) * kKvHeads * kHeadDim, 7), T, kKvHeads, kHeadDim);
	const KvRows own{space(DType::F16, kKvHeads, T, kHeadDim), space(DType::F16, kKvHeads, T, kHeadDim)};
	const KvDst dst{as_words(own.k), as_words(own.v), u32(at, T, kKvHeads, 2), 1};
	b_.rope_store(q, k, v, {f32(angles, T, pairs, 2), kHeadDim, /*neox=*/true}, {}, dst);
	keep("rope_store", "rope", q);
	keep("rope_store", "kv", own.k);
	keep("rope_store", "kv", own.v);
	// Keys and values that f16 holds exactly, so that the device's rounding of `own` is not counted twice.
	const KvRows exact{f16(numbers(own.k.elements(), 11), kKvHeads, T, kHeadDim),
	                   f16(numbers(own.v.elements(), 12), kKvHeads, T, kHeadDim)};
	const View joined = space(DType::F32, T, kKvHeads, 2 * kHeadDim - 8);
	b_.join_heads({joined}, {exact.k}, {f32(numbers(size_t(T) * kHeadDim, 13), T, 1, kHeadDim)}, T);
	keep("join_heads", "copy", joined);
	b_.join_heads({own.k}, {k}, {}, T);
	keep("join_heads", "kv", own.k);
	const View out = space(DType::F32, T, kHeads, kHeadDim);
	b_.attend_prompt(out, {}, q, exact, nullptr);
	keep("attend_prompt", attend_tolerance(b_.info(), /*prompt=*/true, /*packed=*/false, "attend_prompt"), out);
}

// Packs one page of 2-bit keys and values; then one row attends to it, in pieces.
void SelfTestRun::packed() {
	const uint32_t codes = kv_code_words(kKvHeads, kHeadDim, 2, kPage);
	const uint32_t k_params = 2 * codes, v_params = k_params + kv_channel_param_words(kKvHeads, kHeadDim);
	const uint32_t words = v_params + kv_token_param_words(kKvHeads, kHeadDim, kPackedV.group, kPage);
	const View pool = space(DType::U32, words);
	std::vector<uint32_t> sources(kPage);
	for (uint32_t i = 0; i < kPage; ++i) sources[i] = i;
	PackArgs pack{};
	pack.format = {kPackedK, kPackedV}, pack.page = kPage;
	pack.k_codes = pack.v_codes = pack.k_params = pack.v_params = pool;
	pack.sources = u32(sources, kPage);
	pack.work = u32({0, kPage, UINT32_MAX, 0, 0, codes, k_params, v_params, kSkip, kSkip}, 1, PACK_WORDS);
	b_.kv_pack(
	    {f16(four_levels(true, 8), kKvHeads, kPage, kHeadDim), f16(four_levels(false, 9), kKvHeads, kPage, kHeadDim)},
	    pack);

	AttendGroup group{.format = pack.format, .page = kPage};
	group.k_codes = group.v_codes = group.k_params = group.v_params = pool;
	group.n_pages = 1;
	const View q = f32(numbers(size_t(kHeads) * kHeadDim, 10), 1, kHeads, kHeadDim);
	for (const uint32_t n_parts : {3u, 10u}) { // a device may merge few partial states differently from many
		std::vector<uint32_t> tables{0, codes, k_params, v_params}, work; // the page's entry; live bits of each part
		for (uint32_t i = 0; i < n_parts; ++i) {
			const uint32_t first = kPage * i / n_parts, end = kPage * (i + 1) / n_parts;
			const uint32_t live = uint32_t((uint64_t(1) << end) - (uint64_t(1) << first));
			work.insert(work.end(), {0, i, 1, 0, uint32_t(tables.size()), 0, 0, 0});
			tables.insert(tables.end(), {live, 0, 0, 0});
		}
		group.n_work = n_parts;
		KvRead read{};
		read.groups = {&group, 1};
		read.tables = u32(tables, uint32_t(tables.size()));
		read.work = u32(work, n_parts, ATTEND_WORDS);
		read.row_parts = u32({0, n_parts}, 1, 2);
		read.parts = space(DType::F32, n_parts, kHeads, kHeadDim + 2);
		read.n_kv_heads = kKvHeads, read.most_parts = n_parts;
		const View out = space(DType::F32, 1, kHeads, kHeadDim);
		b_.attend(out, {}, q, read);
		keep("kv_pack and attend", attend_tolerance(b_.info(), /*prompt=*/false, /*packed=*/true, "attend packed"),
		     out);
	}
}

// Scores of keys. What chooses tokens by them only compares and moves bits.
void SelfTestRun::index() {
	const uint32_t T = 3, n = 20;
	const View keys = f16(numbers(size_t(n) * kHeadDim, 14), n, 1, kHeadDim), score = space(DType::F32, T, n);
	b_.index_score(score, f32(numbers(size_t(T) * kHeads * kHeadDim, 15), T, kHeads, kHeadDim),
	               f32(numbers(T * kHeads, 16), T, kHeads), as_words(keys),
	               u32({0, T, 0, n, 0, 0, 0, 0}, 1, INDEX_WORDS));
	keep("index_score", "index_score", score);
}

std::vector<Result> run(Backend& b) {
	SelfTestRun r(b);
	r.norm();
	for (const DType type : {DType::F16, DType::Q8_0, DType::Q4_K})
		for (const bool decode : {true, false}) r.project(type, decode);
	r.prompt();
	r.packed();
	r.index();
	return std::move(r.results);
}

} // namespace

std::string self_test(Backend& device, Backend& reference) {
	const std::vector<Result> have = run(device), want = run(reference);
	for (size_t i = 0; i < have.size(); ++i) {
		const Difference d = compare(have[i].x, want[i].x, limit(have[i].rule));
		if (!d.n_bad) continue;
		const auto n = std::ranges::count_if(have[i].x, [](float x) { return !std::isfinite(x); });
		const std::string how = n ? fmt::format("{} are not finite", n) : fmt::format("by up to {:.3g}", d.max_error);
		return fmt::format("its driver computes wrongly: {} of {} results of {} differ from the cpu backend's, {}; "
		                   "update the driver",
		                   d.n_bad, d.n, have[i].what, how);
	}
	return "";
}

} // namespace kvrun
