// A prompt given as tensors through the device's own cache path.
#include "tools/eval/replay.h"
#include "engine/core/system/files.h"
#include "engine/kv_device/prefill.h"
#include "engine/kv_device/readback.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint64_t kMostOfADim = 1 << 24;
constexpr uint32_t kUbatch = 512; // prompt rows that go through a layer together

void check(const KvPlan& plan, const ReplayInput& in) {
	const KvShape& s = plan.shape;
	KV_ASSERT(s.n_layers == in.n_layers && s.n_kv_heads == in.n_kv_heads && s.head_dim == in.head_dim);
	const size_t rows = size_t(in.n_layers) * in.n_tokens;
	KV_ASSERT(in.q.size() == rows * in.n_heads * in.head_dim && in.k.size() == rows * in.n_kv_heads * in.head_dim &&
	          in.v.size() == in.k.size() && in.dq.size() == size_t(in.n_queries) * in.n_heads * in.head_dim);
	if (plan.fetches())
		fail(Code::Unsupported,
		     "{}: what a decode step fetches is chosen by the step before it, and replay has no steps; give fetch=0, "
		     "which stores the same",
		     plan.policy.text);
	if (!in.n_tokens || !in.n_queries || !in.n_heads || in.n_heads % in.n_kv_heads)
		fail(Code::Invalid,
		     "{} tokens, {} queries, {} query heads over {} kv heads; at least one of each, query heads a multiple",
		     in.n_tokens, in.n_queries, in.n_heads, in.n_kv_heads);
	for (size_t i = 0; i < in.probes.size(); ++i)
		if (in.probes[i] >= in.n_tokens || (i && in.probes[i] <= in.probes[i - 1]))
			fail(Code::Invalid, "probe rows are ascending and below {}, row {} is {}", in.n_tokens, i, in.probes[i]);
}

NpyArray read_tensor(const std::string& path, const char* name, const char* dims, size_t rank, float limit) {
	NpyArray a = npy_read(sys::path_of(path), [&](const NpyHeader& h) {
		std::string shape;
		for (const uint64_t d : h.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", d);
		if (h.type != NpyType::F32 || h.shape.size() != rank)
			fail(Code::Invalid, "--{} {}: {} of shape ({}), expected float32 of shape ({})", name, path,
			     npy_type_info(h.type).name, shape, dims);
		for (const uint64_t d : h.shape)
			if (d == 0 || d > kMostOfADim)
				fail(Code::Invalid, "--{} {}: shape ({}); every dimension is 1 to {}", name, path, shape, kMostOfADim);
	});
	const std::span<const float> x = a.as<float>();
	for (size_t i = 0; i < x.size(); ++i)
		if (!(std::fabs(x[i]) <= limit))
			fail(Code::Invalid, "--{} {}: element {} is {}, expected numbers within +-{}", name, path, i, x[i], limit);
	return a;
}

void expect_dim(const NpyArray& a, size_t dim, uint64_t want, const std::string& path, const char* what,
                const std::string& other) {
	if (a.shape[dim] != want)
		fail(Code::Invalid, "{}: {} {}, but {} has {}; the files are not of one case", path, a.shape[dim], what, other,
		     want);
}

// Everything of one replay on the device.
class Replay {
 public:
	Replay(Backend& be, const KvPlan& plan, const ReplayInput& in)
	    : be_(be), plan_(plan), in_(in), pool_(be, plan.shape.n_layers, be.info().free_bytes),
	      seq_(be, plan, pool_, in.n_tokens, in.seed), ubatch_(std::min(kUbatch, in.n_tokens)) {
		const uint32_t cap = in.n_tokens + KvPrefill::tail_rows(seq_), n_rows = std::max(ubatch_, in.n_queries);
		const size_t head = size_t(in.head_dim) * 4; // bytes of one head of one row
		const size_t scratch = size_t(cap) * in.n_kv_heads * in.head_dim * 2;
		if (scratch > be.info().max_view_bytes)
			fail(Code::OutOfMemory, "{} tokens of keys are {} bytes, this device binds at most {}; give fewer tokens",
			     in.n_tokens, scratch, be.info().max_view_bytes);
		k16_ = be.alloc(scratch, Mem::Device, "prompt keys");
		v16_ = be.alloc(scratch, Mem::Device, "prompt values");
		scratch_kv_ = {view(k16_, 0, DType::F16, in.n_kv_heads, cap, in.head_dim),
		               view(v16_, 0, DType::F16, in.n_kv_heads, cap, in.head_dim), 0};
		const auto f32 = [&](Buffer& b, uint32_t n, uint32_t heads, const char* label) {
			b = be_.alloc(size_t(n) * heads * head, Mem::Device, label);
			return view(b, 0, DType::F32, n, heads, in.head_dim);
		};
		q_ = f32(q_buffer_, n_rows, in.n_heads, "queries");
		att_ = f32(att_buffer_, n_rows, in.n_heads, "attention");
		k_ = f32(k_buffer_, ubatch_, in.n_kv_heads, "keys");
		v_ = f32(v_buffer_, ubatch_, in.n_kv_heads, "values");
		// The tensors are already rotated: all rotations are by angle 0.
		std::vector<float> table(size_t(ubatch_) * in.head_dim);
		for (size_t i = 0; i < table.size(); i += 2) table[i] = 1;
		rope_buffer_ = be_.alloc(table.size() * 4, Mem::Device, "rotations");
		rope_ = view(rope_buffer_, 0, DType::F32, ubatch_, in.head_dim / 2, 2);
		write(rope_, table);
	}

	ReplayResult run(const std::function<void(uint32_t)>& progress) {
		ReplayResult r;
		prompt(r, progress);
		decode(r);
		collect(r);
		return r;
	}

 private:
	void write(const View& v, std::span<const float> x) { be_.write(*v.buf, v.at, std::as_bytes(x)); }

	// Rows [first, first + n) of layer l of a tensor (n_layers, n_tokens, heads, head_dim).
	std::span<const float> part(std::span<const float> x, uint32_t heads, uint32_t l, uint32_t first,
	                            uint32_t n) const {
		const size_t row = size_t(heads) * in_.head_dim;
		return x.subspan((size_t(l) * in_.n_tokens + first) * row, n * row);
	}

	void prompt(ReplayResult& r, const std::function<void(uint32_t)>& progress) {
		const Select& s = plan_.policy.select;
		const bool probes =
		    s.rank != Rank::KeyLength && s.probe_recent + s.probe_random < 1; // else the policy's own rule
		KvPrefill prompt(be_, scratch_, seq_, in_.n_tokens, scratch_kv_, in_.n_heads, ubatch_,
		                 probes ? std::span<const uint32_t>(in_.probes) : std::span<const uint32_t>());
		for (uint32_t l = 0; l < in_.n_layers; ++l) {
			be_.at_layer(l);
			prompt.begin_layer(l);
			for (uint32_t at = 0; at < in_.n_tokens; at += ubatch_) {
				const uint32_t n = std::min(ubatch_, in_.n_tokens - at);
				const View q = rows(q_, 0, n), k = rows(k_, 0, n), v = rows(v_, 0, n);
				write(q, part(in_.q, in_.n_heads, l, at, n));
				write(k, part(in_.k, in_.n_kv_heads, l, at, n));
				write(v, part(in_.v, in_.n_kv_heads, l, at, n));
				be_.rope_store(q, k, v, {rows(rope_, 0, n), in_.head_dim, /*neox=*/true}, {},
				               prompt.destination(l, at, n));
				prompt.attend(l, rows(att_, 0, n), q, at);
				be_.submit();
				be_.wait(); // limits staging memory
			}
			prompt.end_layer(l);
			be_.submit();
			be_.wait();
			keep_scores(r, prompt);
			if (progress) progress(l + 1);
		}
		prompt.end();
	}

	// Scores in the form of the policy's rank: sums, or means over the scored rows that see a token.
	void keep_scores(ReplayResult& r, const KvPrefill& prompt) const {
		const std::span<const float> sums = prompt.layer_scores();
		if (sums.empty()) return;
		const bool mean = takes_mean(plan_.policy.select.rank);
		const std::span<const uint32_t> probes = prompt.probes();
		for (uint32_t t = 0; t < in_.n_tokens; ++t) {
			const auto seen_by = probes.end() - std::lower_bound(probes.begin(), probes.end(), t);
			for (uint32_t h = 0; h < in_.n_kv_heads; ++h)
				r.score.push_back(sums[size_t(h) * in_.n_tokens + t] /
				                  (mean ? float(std::max<ptrdiff_t>(seen_by, 1)) : 1.f));
		}
	}

	// Every row of dq attends to the last layer's cache, as in a decode step.
	void decode(ReplayResult& r) {
		const uint32_t l = in_.n_layers - 1;
		seq_.sync();
		ReadPlan plan;
		StepTable table;
		const ReadRows all{&seq_, 0, in_.n_queries, decode_piece(pool_.device(), seq_, l)};
		plan.build(l, {&all, 1}, /*extra=*/0, table);
		table.upload(be_, scratch_.step);
		const View parts = scratch_.parts_view(be_, plan.n_parts(), in_.n_heads, in_.head_dim);
		const View q = rows(q_, 0, in_.n_queries), out = rows(att_, 0, in_.n_queries);
		write(q, in_.dq);
		be_.at_layer(l);
		be_.attend(out, {}, q, plan.read(pool_, scratch_.step, parts, in_.n_kv_heads));
		r.out.resize(in_.dq.size());
		be_.read(*out.buf, out.at, std::as_writable_bytes(std::span(r.out)));
		be_.submit();
		be_.wait();
	}

	void collect(ReplayResult& r) {
		for (const LayerValues& L : read_back(be_, seq_)) {
			r.k_hat.insert(r.k_hat.end(), L.k.begin(), L.k.end());
			r.v_hat.insert(r.v_hat.end(), L.v.begin(), L.v.end());
		}
		const uint32_t n_kv = in_.n_kv_heads;
		r.tier.resize(size_t(in_.n_layers) * in_.n_tokens * n_kv);
		for (uint32_t l = 0; l < in_.n_layers; ++l)
			for (uint32_t h = 0; h < n_kv; ++h) {
				const std::vector<uint8_t> tiers = seq_.cache().tiers(l, h);
				for (uint32_t t = 0; t < in_.n_tokens; ++t)
					r.tier[(size_t(l) * in_.n_tokens + t) * n_kv + h] = tiers[t];
			}
		r.bytes = seq_.bytes();
		r.pool_bytes = pool_.allocated_bytes();
	}

	Backend& be_;
	const KvPlan& plan_;
	const ReplayInput& in_;
	KvPool pool_;
	KvSequence seq_;
	KvScratch scratch_;
	uint32_t ubatch_;
	Buffer k16_, v16_, q_buffer_, att_buffer_, k_buffer_, v_buffer_, rope_buffer_;
	KvRows scratch_kv_; // (n_kv_heads, n_tokens + tail, head_dim) f16
	View q_, att_;      // (max(ubatch, n_queries), n_heads, head_dim) f32
	View k_, v_;        // (ubatch, n_kv_heads, head_dim) f32
	View rope_;         // (ubatch, head_dim / 2, 2) f32
};

} // namespace

ReplayFiles::ReplayFiles(const Paths& p) {
	constexpr float kHalf = 65504; // largest f16: keys and values are stored as f16
	q_ = read_tensor(p.q, "q", "layers, tokens, heads, head_dim", 4, kHalf);
	k_ = read_tensor(p.k, "k", "layers, tokens, kv heads, head_dim", 4, kHalf);
	v_ = read_tensor(p.v, "v", "layers, tokens, kv heads, head_dim", 4, kHalf);
	dq_ = read_tensor(p.dq, "dq", "queries, heads, head_dim", 3, kHalf);
	expect_dim(k_, 0, q_.shape[0], p.k, "layers", p.q);
	expect_dim(k_, 1, q_.shape[1], p.k, "tokens", p.q);
	expect_dim(k_, 3, q_.shape[3], p.k, "channels per head", p.q);
	constexpr const char* dims[] = {"layers", "tokens", "kv heads", "channels per head"};
	for (size_t d = 0; d < 4; ++d) expect_dim(v_, d, k_.shape[d], p.v, dims[d], p.k);
	expect_dim(dq_, 1, q_.shape[2], p.dq, "query heads", p.q);
	expect_dim(dq_, 2, q_.shape[3], p.dq, "channels per head", p.q);
	if (q_.shape[2] % k_.shape[2])
		fail(Code::Invalid, "{} has {} query heads, {} has {} kv heads; the first is a multiple of the second", p.q,
		     q_.shape[2], p.k, k_.shape[2]);
	input = {uint32_t(q_.shape[0]), uint32_t(q_.shape[1]),  uint32_t(q_.shape[2]), uint32_t(k_.shape[2]),
	         uint32_t(q_.shape[3]), uint32_t(dq_.shape[0]), q_.as<float>(),        k_.as<float>(),
	         v_.as<float>(),        dq_.as<float>()};
	if (p.probes.empty()) return;
	const NpyArray probes = npy_read(sys::path_of(p.probes), [&](const NpyHeader& h) {
		if (h.type != NpyType::I64 || h.shape.size() != 1 || h.count() == 0)
			fail(Code::Invalid, "--probes {}: {} of {} dimensions and {} elements, expected int64 of shape (rows)",
			     p.probes, npy_type_info(h.type).name, h.shape.size(), h.count());
	});
	int64_t before = -1;
	for (const int64_t row : probes.as<int64_t>()) {
		if (row <= before || row >= int64_t(input.n_tokens))
			fail(Code::Invalid, "--probes {}: row {} after row {}; rows are ascending and below {}", p.probes, row,
			     before, input.n_tokens);
		input.probes.push_back(uint32_t(row));
		before = row;
	}
}

ReplayResult replay(Backend& be, const KvPlan& plan, const ReplayInput& in,
                    const std::function<void(uint32_t)>& progress) {
	check(plan, in);
	return Replay(be, plan, in).run(progress);
}

} // namespace kvrun
