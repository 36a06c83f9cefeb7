// Runs steps of an encoder's projector on a backend.
#include "engine/run/row_steps.h"
#include "engine/run/arena.h"
#include "engine/run/mlp_memory.h"
#include "engine/run/row_encoder.h"
#include "engine/run/tile_encoder.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

struct QueryMemory { // of Step::Queries
	Buffer buffer;
	View placed, k, v;     // (n, columns) f32
	View queries, q, att;  // (queries, columns) f32
	View k_heads, v_heads; // (heads, n, kQueryHead) f16
};

// The step's attention to rows x; the result is in QueryMemory::att.
void ask(Backend& be, const StepWeights& s, const View& x, PatchGrid g, const QueryMemory& m) {
	const uint32_t n = x.shape[0], width = x.shape[1], heads = width / kQueryHead, asked = m.q.shape[0];
	write_view(be, m.placed, sine_positions(g, width));
	be.activate(m.placed, x, {}, {.add = true});
	write_view(be, m.queries, s.row);
	norm_rows(be, m.queries, s.norm, NormKind::LayerBiased, s.norm_eps);
	const auto multiply = [&](const View& to, const View& by, const View& w, const View& bias) {
		const Proj p[] = {{to, w, bias}};
		be.matmul(p, by, Epilogue::None, /*decode=*/false);
	};
	multiply(m.q, m.queries, s.wq, s.bq);
	multiply(m.k, m.placed, s.wk, s.bk);
	multiply(m.v, x, s.wv, s.bv);
	const auto split = [&](const View& v) { return shaped(v, v.shape[0], heads, kQueryHead); };
	be.join_heads({m.k_heads}, {split(m.k)}, {}, n);
	be.join_heads({m.v_heads}, {split(m.v)}, {}, n);
	// as many queries at once as there are keys, because the op's rows are the last tokens
	for (uint32_t first = 0; first < asked; first += n) {
		const uint32_t part = std::min(n, asked - first);
		const KvRows all{m.k_heads, m.v_heads, n - part, {}, {}, kAllRows};
		be.attend_prompt(rows(split(m.att), first, part), {}, rows(split(m.q), first, part), all, nullptr);
	}
}

} // namespace

std::vector<float> run_steps(Backend& be, std::span<const StepWeights> steps, const std::vector<float>& from,
                             uint32_t cols, float limit, PatchGrid grid) {
	uint32_t n = uint32_t(from.size() / cols);
	uint32_t widest = cols, hidden = 0, most = n;
	QueryMemory asking;
	for (const StepWeights& s : steps) {
		widest = std::max(widest, s.rows);
		if (s.gate) hidden = std::max(hidden, s.gate.shape[0]);
		if (s.kind != Step::Queries) continue;
		const uint32_t queries = uint32_t(s.row.size() / s.rows), heads = s.rows / kQueryHead;
		most = std::max(most, queries);
		allocate(be, asking.buffer, "queries of an image", [&](Arena& a) {
			for (View* to : {&asking.placed, &asking.k, &asking.v}) *to = a.take(DType::F32, n, s.rows);
			for (View* to : {&asking.queries, &asking.q, &asking.att}) *to = a.take(DType::F32, queries, s.rows);
			for (View* to : {&asking.k_heads, &asking.v_heads}) *to = a.take(DType::F16, heads, n, kQueryHead);
		});
	}
	Buffer memory;
	View now, next, gate, up; // x is in `now`, the result of a matrix goes to `next`
	allocate(be, memory, "rows of an encoder", [&](Arena& a) {
		now = a.take(DType::F32, most, widest);
		next = a.take(DType::F32, most, widest);
		if (hidden) gate = a.take(DType::F32, n, hidden), up = a.take(DType::F32, n, hidden);
	});
	View x = shaped(now, n, cols);
	write_view(be, x, from);
	be.at_layer(0);
	const auto multiply = [&](const View& by, const StepWeights& s) {
		x = shaped(next, n, s.rows);
		const Proj p[] = {{x, s.w, s.bias}};
		be.matmul(p, by, Epilogue::None, /*decode=*/false);
		std::swap(now, next);
	};
	for (const StepWeights& s : steps) {
		switch (s.kind) {
		case Step::Matrix:
		case Step::Turned: multiply(View(x), s); break;
		case Step::LayerNorm: norm_rows(be, x, s.norm, NormKind::LayerBiased, s.norm_eps); break;
		case Step::RmsNorm:
		case Step::UnitNorm: norm_rows(be, x, s.norm, NormKind::Rms, s.norm_eps); break;
		case Step::Activate: be.activate(x, x, {}, {.function = s.function}); break;
		case Step::GatedMlp: {
			const View g = shaped(gate, n, s.gate.shape[0]), u = shaped(up, n, s.gate.shape[0]);
			const Proj both[] = {{g, s.gate, {}}, {u, s.up, {}}};
			const bool limited = limit != kUnlimited;
			be.matmul(both, x, limited ? Epilogue::None : Epilogue::SwiGLU, /*decode=*/false);
			if (limited) limited_swiglu(be, g, u, limit, /*limits_gate=*/true);
			multiply(g, s);
			break;
		}
		case Step::Halves: {
			const View g = shaped(next, n, s.rows), u = shaped(gate, n, s.rows);
			const Proj both[] = {{g, s.gate, {}}, {u, s.up, {}}};
			be.matmul(both, x, Epilogue::SwiGLU, /*decode=*/false);
			x = g;
			std::swap(now, next);
			break;
		}
		case Step::Queries:
			ask(be, s, x, grid, asking);
			n = asking.att.shape[0];
			multiply(asking.att, s);
			break;
		case Step::Stack:
		case Step::Between:
		case Step::Behind:
		case Step::First:
		case Step::Last:
		case Step::End: break;
		}
	}
	std::vector<float> result = read_view(be, x);
	if (std::ranges::any_of(result, [](float v) { return !std::isfinite(v); }))
		fail(Code::Device, "the encoder's result is not finite; check its file with kvrun inspect --check, or "
		                   "try --device cpu");
	return result;
}

} // namespace kvrun
