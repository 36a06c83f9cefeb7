// Rows of the operation table: what a model computes between its layers' attention, experts included.
#pragma once
#include "backends/op_views.h"
#include "backends/ops.h"
#include "backends/tolerance.h"
#include "shared/experts.h"

namespace kvrun {

namespace op {

using enum DType;

struct Embed { // out (T, dim) f32 = table[tokens (T) u32]
	View out, table, tokens;

	const char* name() const { return "embed"; }
	std::string text() const;
	double bytes() const;
	double read_share() const { return double(out.shape[0]) / table.shape[0]; } // of the table's rows
	static void views(auto& o, auto& f) {
		const uint64_t T = o.out.shape[0], dim = o.table.shape[1];
		f(output("out", F32, {T, dim}, "embed"), o.out);
		f(weight_input("table", o.table.shape[0], dim), o.table);
		f(input("tokens", U32, {T}), o.tokens);
	}
};

struct RmsNorm { // out (T, dim) = x / rms(x) * w; w is (dim), or (groups, dim): row t has the weights t % groups
	View out, x, w;
	float eps;

	const char* name() const { return "rmsnorm"; }
	std::string text() const;
	uint32_t groups() const { return std::max(uint32_t(w.elements() / x.row_elements()), 1u); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements();
		f(output("out", F32, {T, dim}, "rmsnorm"), o.out);
		f(input("x", F32, {T, dim}), o.x);
		f(input("w", F32, {o.groups() * dim}).uploaded(), o.w);
	}
};

// out (T, dim) = (x - mean) / sqrt(variance + eps) * w + b, of each row; w and b as in RmsNorm, b may be empty
struct LayerNorm {
	View out, x, w, b;
	float eps;

	const char* name() const { return "layer_norm"; }
	std::string text() const { return shape_text(x); }
	uint32_t groups() const { return std::max(uint32_t(w.elements() / x.row_elements()), 1u); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements();
		f(output("out", F32, {T, dim}, "rmsnorm"), o.out);
		f(input("x", F32, {T, dim}), o.x);
		f(input("w", F32, {o.groups() * dim}).uploaded(), o.w);
		f(input("b", F32, {o.groups() * dim}).optional(), o.b);
	}
};

// out (T, dim) = x * w (dim) * rms(like) / rms(x), of each row; eps is added to both means of squares. x and like may
// be the same.
struct MatchRms {
	View out, x, w, like;
	float eps;

	const char* name() const { return "match_rms"; }
	std::string text() const { return shape_text(x); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements();
		f(output("out", F32, {T, dim}, "rmsnorm"), o.out);
		f(input("x", F32, {T, dim}), o.x);
		f(input("w", F32, {dim}).uploaded(), o.w);
		f(input("like", F32, {T, dim}), o.like);
	}
};

// out (T, n) = max(x - (mean + cut * deviation), 0), mean and standard deviation of each row. Of values with a normal
// distribution those above its quantile `cut` are left.
struct GaussianTopK {
	View out, x;
	float cut;

	const char* name() const { return "gaussian_top_k"; }
	std::string text() const { return shape_text(x); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.row_elements();
		f(output("out", F32, {T, n}, "gaussian_top_k"), o.out);
		f(input("x", F32, {T, n}), o.x);
	}
};

// Of each token t and stream i: x[i][t] += sum over j of w[t][i][j] * y[j][t]; w (T, m, k) f32. y may be x: then the
// sums are of what x was. Up to kMostStreams streams. The layouts of x and y may differ.
struct StreamSum {
	StreamRows x, y;
	View w;
	bool adds = true; // false: x becomes the sum; what it held may be anything

	const char* name() const { return "stream_sum"; }
	std::string text() const { return fmt::format("{}, {}", shape_text(w), x.dim()); }
	void check() const {
		KV_ASSERT(x.streams() <= kMostStreams && y.streams() <= kMostStreams);
		KV_ASSERT(uint64_t(x.first) + w.shape[0] <= x.capacity() && uint64_t(y.first) + w.shape[0] <= y.capacity());
	}
	double bytes() const {
		return 4. * w.shape[0] * x.dim() * ((adds ? 2 : 1) * x.streams() + y.streams()) + double(w.bytes());
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.w.shape[0], dim = o.x.dim();
		const View &x = o.x.v, &y = o.y.v;
		const ViewRow sums = output("x", F32, {x.shape[0], x.shape[1], dim}, "expert_sum");
		const bool kept = T < o.x.capacity(); // rows of x that are not written: without adds they may hold anything
		f(sums.added_to_if(o.adds || kept).slots(kept && !o.adds), o.x.v);
		f(input("y", F32, {y.shape[0], y.shape[1], dim}), o.y.v);
		f(input("w", F32, {T, o.x.streams(), o.y.streams()}), o.w);
	}
};

// out (T, dim) = sum over streams i of sigmoid(gate[t][i]) * x[t][i]; x, gate (T, m, dim). Up to kMostStreams streams.
struct StreamMix {
	View out, x, gate;

	const char* name() const { return "stream_mix"; }
	std::string text() const { return shape_text(x); }
	void check() const { KV_ASSERT(x.shape[1] <= kMostStreams); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], m = o.x.shape[1], dim = o.x.shape[2];
		f(output("out", F32, {T, dim}, "activate"), o.out);
		f(input("x", F32, {T, m, dim}), o.x);
		f(input("gate", F32, {T, m, dim}), o.gate);
	}
};

// Coefficients of hyper-connections between m streams. Of each token, with s = scale[k] * x + base in part k of x:
//   pre (T, m) = sigmoid(s) + eps                 of the first m
//   post (T, m) = post_scale * sigmoid(s) + post_eps  of the next m
//   mix (T, m, m)[to][from]: exp of the last m * m, by `from`, then by `to`, divided by its row's sum (of all `to`),
//   plus
//     eps; then columns and rows are divided by their sums plus eps, in turns: `rounds` times columns, rows between.
// post and mix may be empty; x and base end with the last part that there is.
struct StreamCoefs {
	View pre, post, mix;
	View x;           // (T, m), (T, 2 * m) or (T, 2 * m + m * m) f32
	View scale, base; // (parts), as a row of x
	ConnectArgs how;

	const char* name() const { return "stream_coefs"; }
	std::string text() const { return fmt::format("{} of {}", shape_text(x), pre.shape[1]); }
	uint32_t streams() const { return pre.shape[1]; }
	void check() const {
		KV_ASSERT(streams() >= 1 && streams() <= kMostStreams && how.eps >= 0 && how.rounds <= 1000);
		KV_ASSERT((post || !mix) && (!mix || how.rounds >= 1));
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], m = o.pre.shape[1], parts = 1 + bool(o.post) + bool(o.mix);
		const uint64_t n = (parts < 3 ? parts : 2 + m) * m;
		f(output("pre", F32, {T, m}, "stream_coefs"), o.pre);
		f(output("post", F32, {T, m}, "stream_coefs").optional(), o.post);
		f(output("mix", F32, {T, m, m}, "stream_coefs").optional(), o.mix);
		f(input("x", F32, {T, n}), o.x);
		f(input("scale", F32, {parts}).undumped(), o.scale);
		f(input("base", F32, {n}).undumped(), o.base);
	}
};

// out (T, dim) = sum over streams i of share i * x[i][t], the shares a softmax of w (dim) . x[i][t] / rms, with rms =
// sqrt(mean of the squares of x[i][t] + eps). Up to kMostAttended streams.
struct StreamAttend {
	View out;
	StreamRows x;
	View w;
	float eps;

	const char* name() const { return "stream_attend"; }
	std::string text() const { return fmt::format("{} of {} streams", shape_text(out), x.streams()); }
	void check() const {
		KV_ASSERT(x.streams() >= 1 && x.streams() <= kMostAttended);
		KV_ASSERT(uint64_t(x.first) + out.shape[0] <= x.capacity());
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.out.shape[0], dim = o.x.dim();
		const View& x = o.x.v;
		f(output("out", F32, {T, dim}, "stream_attend"), o.out);
		f(input("x", F32, {x.shape[0], x.shape[1], dim}), o.x.v);
		f(input("w", F32, {dim}).uploaded(), o.w);
	}
};

// out (T, m, dim): out[t][i] = sigmoid(root(s)) * value[t], s = key[t][i] . query[t][i] / sqrt(dim), root(s) = sign(s)
// * sqrt(max(|s|, KV_GATE_LEAST)), 0 of 0. key, query (T, m, dim), value (T, dim); out may be key.
struct StreamGate {
	View out, key, query, value;

	const char* name() const { return "stream_gate"; }
	std::string text() const { return shape_text(key); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.key.shape[0], m = o.key.shape[1], dim = o.key.shape[2];
		f(output("out", F32, {T, m, dim}, "stream_gate"), o.out);
		f(input("key", F32, {T, m, dim}), o.key);
		f(input("query", F32, {T, m, dim}), o.query);
		f(input("value", F32, {T, dim}), o.value);
	}
};

// v = scale * function(x) * y, then the cap; out = v or out + v. All have one shape; y may be empty; out may be x or y.
// With how.each > 1 element i of out and y meets element i / each of x.
struct Activate {
	View out, x, y;
	Elementwise how;

	const char* name() const { return "activate"; }
	std::string text() const { return shape_text(x); }
	void check() const { KV_ASSERT(how.cap >= 0 && how.each >= 1); }
	static void views(auto& o, auto& f) {
		const uint64_t n = o.x.elements() * o.how.each;
		f(input("x", F32, {o.x.elements()}), o.x);
		f(input("y", F32, {n}).optional(), o.y);
		f(output("out", F32, {n}, "activate").added_to_if(o.how.add), o.out);
	}
};

// Projections of rows of n elements; `out`: all extents of the results but the last.
void projection_views(auto& projs, auto& f, uint64_t T, uint64_t n, Epilogue epilogue, bool decode) {
	const bool gated = epilogue == Epilogue::SwiGLU;
	bool first = true;
	for (auto& p : f.items(projs)) {
		const uint64_t d = p.w.shape[0];
		f(weight_input("w", d, n), p.w);
		f(input("bias", F32, {d}).optional(), p.bias);
		const ViewRow out = output("out", F32, {T, d}, matmul_tolerance(f.device(), p.w.type, gated, decode));
		f(out.added_to_if(epilogue == Epilogue::Add).only_if(first || !gated), p.out);
		first = false;
	}
}
std::string projection_text(const View& x, std::span<const Proj>);
void check_projections(std::span<const Proj>, const View& x, Epilogue);

// All projections read the same x (T, n). `decode`: rows of decode steps, else rows of a prompt. A row's result depends
// on `decode`, but neither on T nor on the other rows.
struct Matmul {
	std::span<const Proj> projs;
	View x;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "matvec" : "matmul"; }
	std::string text() const { return projection_text(x, projs); }
	void check() const { check_projections(projs, x, epilogue); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.row_elements();
		f(input("x", F32, {T, n}), o.x);
		projection_views(o.projs, f, T, n, o.epilogue, o.decode);
	}
};

// Matmul of RmsNorm of x. `h` (T, n) is scratch for the norm; its contents are undefined afterwards.
struct NormMatmul {
	std::span<const Proj> projs;
	View h, x, w;
	float eps;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "matvec" : "matmul"; }
	std::string text() const { return projection_text(x, projs); }
	void check() const { check_projections(projs, x, epilogue); }
	RmsNorm norm() const { return {h, x, w, eps}; } // as a separate op
	Matmul product() const { return {projs, h, epilogue, decode}; }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], n = o.x.row_elements();
		f(input("x", F32, {T, n}), o.x);
		f(input("norm", F32, {n}).uploaded(), o.w);
		f(scratch("h", F32, {T, n}), o.h);
		projection_views(o.projs, f, T, n, o.epilogue, o.decode);
	}
};

// ---- mixtures of experts: see RouteArgs for slots. At most KV_MOST_EXPERTS experts, KV_MOST_USED of them for a row.

// ids, weights (T, used) of logits (T, n_experts): the largest in descending order; among equal ones the first comes
// first. With RouteArgs::of_tokens the ids are those of the row's token. If logits are not finite, weights may not be
// finite; ids are nevertheless valid and different.
struct Route {
	View ids, weights, logits;
	RouteArgs how;

	const char* name() const { return "route"; }
	std::string text() const;
	void check() const;
	// Logits choose the same experts on all devices. A bias is added to weights, whose last bits differ between devices
	// and may change the choice; then nothing is compared.
	static void views(auto& o, auto& f) {
		const uint64_t T = o.logits.shape[0], n = o.logits.shape[1], used = o.ids.shape[1];
		const bool biased = bool(o.how.bias);
		f(output("ids", U32, {T, used}, "copy").words().adopted_if(biased), o.ids);
		f(output("weights", F32, {T, used}, "route").adopted_if(biased), o.weights);
		f(input("logits", F32, {T, n}), o.logits);
		f(input("bias", F32, {n}).optional().undumped(), o.how.bias);
		f(input("expert_scale", F32, {n}).optional().undumped(), o.how.expert_scale);
		f(input("of_tokens", U32, {o.how.of_tokens.elements()}).optional().undumped(), o.how.of_tokens);
		f(input("tokens", U32, {T}).optional(), o.how.tokens);
	}
};

// tiles (expert_tiles(), KV_TILE_WORDS) u32: the slots of ids (T, used) by expert, see shaders/shared/experts.h.
struct SortSlots {
	View tiles, ids;
	uint32_t n_experts;

	const char* name() const { return "sort_slots"; }
	std::string text() const { return shape_text(ids); }
	void check() const { KV_ASSERT(ids.elements() >= 1 && n_experts >= 1 && n_experts <= KV_MOST_EXPERTS); }
	static void views(auto& o, auto& f) {
		const uint64_t slots = o.ids.elements();
		f(output("tiles", U32, {expert_tiles(uint32_t(slots), o.n_experts), KV_TILE_WORDS}, "copy").words(), o.tiles);
		f(input("ids", U32, {slots}), o.ids);
	}
};

// For each slot: out (T, used, d) = x . w^T + bias with w (n_experts * d, n) and bias (n_experts * d) f32, rows e * d
// .. e * d + d - 1 of expert e = ids[slot]. x (T, n), or (T * used, n): a row for each slot. Epilogues: None and the
// .. e * d + d - 1 of expert e = ids[slot]. x (T, n), or (T * used, n): a row for each slot. Epilogues: None and the
// two gated ones. decode: as in Matmul; a slot's result depends on nothing else.
struct ExpertMatmul {
	std::span<const Proj> projs;
	View x;
	ExpertRows rows;
	Epilogue epilogue;
	bool decode;

	const char* name() const { return decode ? "expert_matvec" : "expert_matmul"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	double read_share() const; // share of the experts, at most
	static void views(auto& o, auto& f) {
		const uint64_t T = o.rows.ids.shape[0], used = o.rows.ids.shape[1], n = o.x.row_elements();
		const uint64_t tiles = expert_tiles(uint32_t(T * used), o.rows.n_experts);
		const bool gated = o.epilogue != Epilogue::None;
		f(input("x", F32, {o.x.shape[0], n}), o.x);
		f(input("ids", U32, {T, used}), o.rows.ids);
		f(input("tiles", U32, {tiles, KV_TILE_WORDS}).only_if(!o.decode).undumped(), o.rows.tiles);
		bool first = true;
		for (auto& p : f.items(o.projs)) {
			const uint64_t d = p.w.shape[0];
			f(weight_input("w", d, n), p.w);
			f(input("bias", F32, {d}).optional(), p.bias);
			const ViewRow out = output("out", F32, {T, used, d / o.rows.n_experts},
			                           matmul_tolerance(f.device(), p.w.type, gated, o.decode));
			f(out.only_if(first || !gated), p.out);
			first = false;
		}
	}
};

// x (T, dim) += sum over j of weights[t][j] * y[t][j]; y (T, used, dim), weights (T, used).
struct ExpertSum {
	View x, y, weights;

	const char* name() const { return "expert_sum"; }
	std::string text() const { return shape_text(y); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], dim = o.x.row_elements(), used = o.weights.shape[1];
		f(inout("x", F32, {T, dim}, "expert_sum"), o.x);
		f(input("y", F32, {T, used, dim}), o.y);
		f(input("weights", F32, {T, used}), o.weights);
	}
};

} // namespace op
} // namespace kvrun
