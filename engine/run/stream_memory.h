// Activations of models with several residual streams.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct StreamMemory { // empty without Config::streams
	View x;           // (rows, dim) f32: inside a layer, the active stream, or what a mixer gives
	View laurel;      // (rows, dim) f32
	View low;         // (rows, laurel_rank) f32; (rows, Streams::rank)
	View modes;       // (rows, streams) f32: output of the router
	View coefs;       // (rows, streams * streams) f32; (rows, Streams::coefs()), of StreamKind::Manifold
	View others;      // (rows, streams) f32: 1 for all streams but the first; of hyper-connections for all
	// Of hyper-connections: all streams of a row, normed; gates of these; what goes through the convolution of n-grams.
	View normed, gates, grams; // (rows, streams, dim) f32
	View inject;               // (rows, streams) f32: factors of what is added to each stream
	View factors, mix;         // (rows, streams), (rows, streams, streams) f32, of StreamKind::Manifold
	View table_rows;           // (rows, NGrams::width()) f32

	void lay(Arena& a, const Config& c, uint32_t rows) {
		const uint32_t n = c.streams.n;
		if (n < 2) return;
		x = a.take(DType::F32, rows, c.dim);
		if (c.streams.kind == StreamKind::Attended) return;
		if (c.streams.hyper()) {
			normed = a.take(DType::F32, rows, n, c.dim);
			inject = a.take(DType::F32, rows, n), others = a.take(DType::F32, rows, n);
			if (c.streams.kind == StreamKind::Manifold) {
				coefs = a.take(DType::F32, rows, c.streams.coefs()), factors = a.take(DType::F32, rows, n);
				if (c.streams.rounds) mix = a.take(DType::F32, rows, n, n);
				return;
			}
			gates = a.take(DType::F32, rows, n, c.dim);
			low = a.take(DType::F32, rows, c.streams.rank);
			if (!c.ngrams.longest) return;
			grams = a.take(DType::F32, rows, n, c.dim);
			table_rows = a.take(DType::F32, rows, c.ngrams.width());
			return;
		}
		laurel = a.take(DType::F32, rows, c.dim);
		low = a.take(DType::F32, rows, c.layers[0].laurel_rank);
		modes = a.take(DType::F32, rows, n);
		coefs = a.take(DType::F32, rows, n * n);
		others = a.take(DType::F32, rows, n);
	}
	static size_t bytes(const Config& c, uint32_t rows) {
		Arena dry(nullptr);
		StreamMemory().lay(dry, c, rows);
		return dry.bytes();
	}
};

// Rows of the residual stream. If there are several: of hyper-connections a row has all of them, side by side; others
// follow each other, and the view has the first. Values of the first layer follow, too (Config::first_values).
inline View take_streams(Arena& a, const Config& c, uint32_t rows) {
	if (c.streams.hyper()) return a.take(DType::F32, rows, c.streams.n * c.dim);
	View x = a.take(DType::F32, rows * rows_per_token(c), c.dim);
	x.shape[0] = rows;
	return x;
}

} // namespace kvrun
