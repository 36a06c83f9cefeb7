// Several residual streams (AltUp), the low-rank branch beside attention (Laurel), and attention residuals.
#include "engine/run/layer_runner.h"
#include <array>
#include <cmath>
#include <span>

namespace kvrun {

constexpr float kTiny = 1e-20f; // keeps rows of zeros zero; others are not affected

// x: the first stream, which the others follow in memory.
View LayerRunner::all_streams(const View& x) const {
	View v = x;
	v.shape[0] = cfg_.streams.n, v.shape[1] = x.shape[0], v.shape[2] = cfg_.dim;
	return v;
}

// Rows first .. first + n - 1 of x. Side by side they are a view of their own.
StreamRows LayerRunner::streams_of(const View& x, uint32_t first, uint32_t n) const {
	if (!cfg_.streams.hyper()) return {all_streams(x), first};
	return {shaped(rows(x, first, n), n, cfg_.streams.n, cfg_.dim), 0, true};
}

View LayerRunner::stream(const StreamRows& s, uint32_t i, uint32_t n) const {
	View v = s.v;
	v.at += (size_t(i) * s.v.shape[1] + s.first) * cfg_.dim * sizeof(float);
	v.shape[0] = n, v.shape[1] = cfg_.dim, v.shape[2] = 1;
	return v;
}

// All streams of the first, which is the embedding: projections of it, as large as it is.
void LayerRunner::spread(const View& x, uint32_t first, uint32_t n, bool decode) {
	if (cfg_.streams.kind == StreamKind::Attended) return; // the others begin with blocks
	const StreamRows s = streams_of(x, first, n);
	if (s.by_row) // h_ has the embedding
		return be_.stream_sum(s, {shaped(rows(h_, 0, n), 1, n, cfg_.dim)},
		                      shaped(rows(streams_.others, 0, n), n, cfg_.streams.n, 1), /*adds=*/false);
	std::array<Proj, kMostStreams> all;
	for (uint32_t i = 1; i < cfg_.streams.n; ++i)
		all[i] = {stream(s, i, n), part(w_.streams_in, (i - 1) * cfg_.dim, cfg_.dim), {}};
	const std::span<const Proj> others = std::span(all).subspan(1, cfg_.streams.n - 1);
	multiply(others, stream(s, 0, n), Epilogue::None, decode);
	for (const Proj& p : others) be_.match_rms(p.out, p.out, rows(ones_, 0, cfg_.dim), stream(s, 0, n), kTiny);
}

View LayerRunner::merge_streams(const View& x, uint32_t first, uint32_t n, bool decode) {
	if (cfg_.streams.hyper()) return mix_output(rows(x, first, n), decode);
	const View merged = rows(x, first, n);
	if (cfg_.streams.n < 2) return merged;
	if (cfg_.streams.kind == StreamKind::Attended) {
		for (uint32_t at = 0, m = 0; at < n; at += m) {
			m = std::min(most_rows_, n - at);
			attend_streams(rows(h_, 0, m), {all_streams(x), first + at}, cfg_.streams.n, w_.out_mixer);
			be_.copy(rows(merged, at, m), rows(h_, 0, m));
		}
		return merged;
	}
	for (; n > most_rows_; first += most_rows_, n -= most_rows_) merge_streams(x, first, most_rows_, decode);
	const StreamRows s{all_streams(x), first};
	const View out = stream(s, 0, n), branch = rows(branch_, 0, n);
	for (uint32_t i = 1; i < cfg_.streams.n; ++i) {
		const View other = stream(s, i, n);
		const Proj p[] = {{branch, part(w_.streams_out, (i - 1) * cfg_.dim, cfg_.dim), {}}};
		multiply(p, other, Epilogue::None, decode);
		be_.match_rms(other, branch, rows(ones_, 0, cfg_.dim), out, kTiny);
	}
	const float share = 1 / float(cfg_.streams.n);
	be_.activate(out, out, {}, {.scale = share});
	for (uint32_t i = 1; i < cfg_.streams.n; ++i) be_.activate(out, stream(s, i, n), {}, {.scale = share, .add = true});
	return merged;
}

void LayerRunner::attend_streams(const View& out, StreamRows s, uint32_t n, const MixerWeights& w) {
	KV_ASSERT(!s.by_row && n <= s.streams());
	s.v.shape[0] = n;
	be_.stream_attend(out, s, w.attend, cfg_.norm_eps);
}

// What the router makes of x: (n, streams).
View LayerRunner::modes(const StreamWeights& w, const LayerRows& r, const View& x, bool decode) {
	const View out = rows(streams_.modes, 0, r.n);
	be_.rmsnorm(r.h, x, w.router_norm, cfg_.norm_eps);
	const Proj router[] = {{out, w.router, {}}};
	multiply(router, r.h, Epilogue::None, decode);
	be_.activate(out, out, {}, {.scale = 1 / float(cfg_.dim), .cap = 1}); // tanh
	return out;
}

// Predicts all streams; x becomes the active one.
void LayerRunner::predict_streams(uint32_t l, const LayerRows& r, bool decode) {
	const StreamWeights& w = weights_of(l).streams;
	const uint32_t n = cfg_.streams.n;
	const View active = stream(r.streams, cfg_.streams.active, r.n), coefs = rows(streams_.coefs, 0, r.n);
	const View m = modes(w, r, active, decode);
	const Proj predict[] = {{coefs, w.predict, {}}};
	multiply(predict, m, Epilogue::None, decode);
	be_.stream_sum(r.streams, r.streams, shaped(coefs, r.n, n, n));
	be_.copy(r.x, active);
}

// Corrects all streams by x, what the layer made of the active one; x becomes the corrected one, with a factor for each
// channel.
void LayerRunner::correct_streams(uint32_t l, const LayerRows& r, bool decode) {
	const StreamWeights& w = weights_of(l).streams;
	const uint32_t n = cfg_.streams.n;
	const View active = stream(r.streams, cfg_.streams.active, r.n), coefs = shaped(streams_.coefs, r.n, n);
	const View m = modes(w, r, r.x, decode);
	const Proj correct[] = {{coefs, w.correct, rows(ones_, 0, n)}}; // product + 1
	multiply(correct, m, Epilogue::None, decode);
	be_.activate(r.x, active, {}, {.scale = -1, .add = true});
	be_.stream_sum(r.streams, {shaped(r.x, 1, r.n, cfg_.dim)}, shaped(coefs, r.n, n, 1));
	be_.match_rms(r.x, active, w.scale, active, kTiny); // the norms are equal: only the factors are left
}

// Adds rows of `from` to all streams but the first.
void LayerRunner::add_to_others(const LayerRows& r, const View& from) {
	be_.stream_sum(r.streams, {shaped(from, 1, r.n, cfg_.dim)},
	               shaped(rows(streams_.others, 0, r.n), r.n, cfg_.streams.n, 1));
}

// h + norm(right(left(h))), for add_laurel().
void LayerRunner::project_laurel(uint32_t l, const LayerRows& r, bool decode) {
	const StreamWeights& w = weights_of(l).streams;
	const View low = rows(streams_.low, 0, r.n);
	const Proj left[] = {{low, w.left, {}}}, right[] = {{r.laurel, w.right, {}}};
	multiply(left, r.h, Epilogue::None, decode);
	multiply(right, low, Epilogue::None, decode);
	be_.rmsnorm(r.laurel, r.laurel, w.left_norm, cfg_.norm_eps);
	be_.activate(r.laurel, r.h, {}, {.add = true});
}

// x = (x + laurel) / sqrt(2)
void LayerRunner::add_laurel(const LayerRows& r) {
	be_.activate(r.x, r.x, {}, {.scale = std::sqrt(0.5f)});
	be_.activate(r.x, r.laurel, {}, {.scale = std::sqrt(0.5f), .add = true});
}

} // namespace kvrun
