// Activations of recurrent layers, and of output gates of attention.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct RecurrentMemory { // all recurrent layers of a model have the same shape; empty without them
	View mixed, conv;    // (rows, channels) f32: before and after the convolution
	View gate;           // (rows, values) f32
	View beta, alpha;    // (rows, n_heads), (rows, decays) f32
	View low, low_gate;  // (rows, k_dim) f32, of RecurrentKind::ChannelDelta
	// (rows, k_dim) f32 each and (rows, rank), of RecurrentKind::SelectiveScan
	View b, c, step_low;
	// Of RecurrentKind::Removal: mixed is (mixes * rows, values), beta (rows, decays); what decays, rates, shares and
	// the gate are made of, (rows, their rank) f32 each; shares and a row's own values.
	View rank_of[4], share, own; // (rows, values) f32
	View values;                 // (rows, values) f32
	View out_gate;               // (rows, widest gate_width()) f32, of Layer::output_gate

	void lay(Arena& a, const Config& cfg, uint32_t rows) {
		Recurrent r;
		uint32_t gated = 0;
		for (const Layer& l : cfg.layers) {
			if (l.recurrent.n_heads) r = l.recurrent;
			if (l.output_gate) gated = std::max(gated, gate_width(l));
		}
		if (gated) out_gate = a.take(DType::F32, rows, gated);
		if (!r.n_heads) return;
		mixed = a.take(DType::F32, rows, std::max(r.channels(), r.mixes() * r.values()));
		conv = a.take(DType::F32, rows, r.channels());
		gate = a.take(DType::F32, rows, r.values());
		beta = a.take(DType::F32, rows, r.kind == RecurrentKind::Removal ? r.decays() : r.n_heads);
		alpha = a.take(DType::F32, rows, r.decays());
		if (r.kind == RecurrentKind::ChannelDelta && !r.full_gates) {
			low = a.take(DType::F32, rows, r.k_dim);
			if (!r.full_gate) low_gate = a.take(DType::F32, rows, r.k_dim);
		}
		if (r.kind == RecurrentKind::SelectiveScan) {
			b = a.take(DType::F32, rows, r.k_dim), c = a.take(DType::F32, rows, r.k_dim);
			step_low = a.take(DType::F32, rows, r.rank);
		}
		if (r.kind == RecurrentKind::Removal) {
			const uint32_t ranks[] = {r.decay_rank, r.rate_rank, r.share_rank, r.gate_rank};
			for (uint32_t i = 0; i < 4; ++i)
				if (ranks[i]) rank_of[i] = a.take(DType::F32, rows, ranks[i]);
			share = a.take(DType::F32, rows, r.values()), own = a.take(DType::F32, rows, r.values());
		}
		values = a.take(DType::F32, rows, r.values());
	}
	static size_t bytes(const Config& cfg, uint32_t rows) {
		Arena dry(nullptr);
		RecurrentMemory().lay(dry, cfg, rows);
		return dry.bytes();
	}
};

} // namespace kvrun
