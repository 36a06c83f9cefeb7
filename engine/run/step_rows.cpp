// Takes rows through the steps of an encoder's projector.
#include "engine/run/step_rows.h"
#include "engine/run/arena.h"
#include "engine/run/mlp_memory.h"
#include "engine/run/row_encoder.h"
#include "engine/run/tile_encoder.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

std::vector<float> step_rows(Backend& be, std::span<const StepWeights> steps, const std::vector<float>& from,
                             uint32_t cols, float limit) {
	const uint32_t n = uint32_t(from.size() / cols);
	uint32_t widest = cols, hidden = 0;
	for (const StepWeights& s : steps) {
		widest = std::max(widest, s.rows);
		if (s.gate) hidden = std::max(hidden, s.gate.shape[0]);
	}
	Buffer memory;
	View now, next, gate, up; // x is in `now`, the result of a matrix goes to `next`
	allocate(be, memory, "rows of an encoder", [&](Arena& a) {
		now = a.take(DType::F32, n, widest);
		next = a.take(DType::F32, n, widest);
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
