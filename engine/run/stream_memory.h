// Activations of models with several residual streams.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct StreamMemory { // empty without Config::streams
	View x;           // (rows, dim) f32: the active stream inside a layer
	View laurel;      // (rows, dim) f32
	View low;         // (rows, laurel_rank) f32
	View modes;       // (rows, streams) f32: output of the router
	View coefs;       // (rows, streams * streams) f32
	View others;      // (rows, streams) f32: 1 for all streams but the first

	void lay(Arena& a, const Config& c, uint32_t rows) {
		const uint32_t n = c.streams.n;
		if (n < 2) return;
		x = a.take(DType::F32, rows, c.dim);
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

// Rows of the residual stream, of all streams if there are several: one after the other. The view has the first.
inline View take_streams(Arena& a, const Config& c, uint32_t rows) {
	View x = a.take(DType::F32, rows * c.streams.n, c.dim);
	x.shape[0] = rows;
	return x;
}

} // namespace kvrun
