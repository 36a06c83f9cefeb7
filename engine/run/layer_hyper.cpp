// Hyper-connections: what attention and MLP read of several residual streams, and n-grams that are added to these.
#include "engine/run/layer_runner.h"
#include <algorithm>

namespace kvrun {

void LayerRunner::enter(uint32_t l, const LayerRows& r, std::span<const StateGroup> gram_states, bool decode) {
	if (cfg_.streams.n < 2) return;
	if (r.sum) {
		attend_streams(r.x, r.streams, cfg_.streams.read(l), weights_of(l).attn_mixer);
		if (cfg_.streams.begins(l)) be_.activate(r.sum, r.x, {}, {.scale = 0});
		return;
	}
	if (!cfg_.streams.hyper()) return predict_streams(l, r, decode);
	if (cfg_.ngrams.longest && cfg_.ngrams.layer == l) add_ngrams(l, r, gram_states, decode);
	connect(r, weights_of(l).attn_mixer, decode);
}

void LayerRunner::connect(const LayerRows& r, const MixerWeights& w, bool decode) {
	if (cfg_.streams.kind == StreamKind::Manifold) return sum_streams(r.x, r.inject, r.streams, w, decode);
	mix_streams(r.x, r.inject, all_rows(r.streams, r.n), w, decode);
}

// (n, streams * dim) of rows inside a layer.
View LayerRunner::all_rows(const StreamRows& s, uint32_t n) const {
	return rows(shaped(s.v, s.v.shape[0], cfg_.streams.n * cfg_.dim), s.first, n);
}

// x (n, streams * dim), s: norm of each stream over their number, by weights of its own.
//   out = sum over streams of sigmoid(up . silu(down . s)) * s,  inject = 2 * sigmoid(inject . s)
void LayerRunner::mix_streams(const View& out, const View& inject, const View& x, const MixerWeights& w, bool decode) {
	const uint32_t n = x.shape[0], m = cfg_.streams.n, dim = cfg_.dim;
	const View normed = rows(streams_.normed, 0, n), gates = rows(streams_.gates, 0, n), low = rows(streams_.low, 0, n);
	const View flat = shaped(normed, n, m * dim);
	be_.rmsnorm(shaped(normed, n * m, dim), shaped(x, n * m, dim), w.norm, cfg_.norm_eps);
	const Proj down[] = {{low, w.down, {}}, {inject, w.inject, {}}};
	multiply(std::span(down).first(w.inject ? 2 : 1), flat, Epilogue::None, decode);
	be_.activate(low, low, {}, {.function = Activation::Silu});
	const Proj up[] = {{shaped(gates, n, m * dim), w.up, {}}};
	multiply(up, low, Epilogue::None, decode);
	be_.stream_mix(out, normed, gates);
	if (w.inject) be_.activate(inject, inject, {}, {.function = Activation::Sigmoid, .scale = 2});
}

// out = sum of the streams with factors; then the streams are mixed. The model's output has no `inject`, and its
// streams stay as they are.
void LayerRunner::sum_streams(const View& out, const View& inject, const StreamRows& streams, const MixerWeights& w,
                              bool decode) {
	const Streams& s = cfg_.streams;
	const uint32_t n = out.shape[0], coefs = inject ? s.coefs() : s.n;
	const StreamRows one{shaped(out, 1, n, cfg_.dim)};
	const View normed = shaped(rows(streams_.normed, 0, n), n, s.n * cfg_.dim), factors = rows(streams_.factors, 0, n);
	const View made = shaped(streams_.coefs, n, coefs), mix = inject && s.rounds ? rows(streams_.mix, 0, n) : View();
	be_.rmsnorm(normed, all_rows(streams, n), rows(ones_, 0, s.n * cfg_.dim), cfg_.norm_eps);
	const Proj proj[] = {{made, w.coefs, {}}};
	multiply(proj, normed, Epilogue::None, decode);
	be_.stream_coefs(factors, inject, mix, made, w.scale, w.coef_base, {s.eps, s.post_scale, s.post_eps, s.rounds});
	be_.stream_sum(one, streams, shaped(factors, n, 1, s.n), /*adds=*/false);
	if (mix) be_.stream_sum(streams, streams, mix, /*adds=*/false);
}

// The model's output (n, dim), written over x (n, streams * dim), whose rows are wider.
View LayerRunner::mix_output(const View& x, bool decode) {
	const uint32_t n = x.shape[0];
	const View all = shaped(x, n * cfg_.streams.n, cfg_.dim);
	for (uint32_t at = 0; at < n; at += most_rows_) {
		const uint32_t some = std::min(most_rows_, n - at), m = cfg_.streams.n;
		const View from = rows(x, at, some), to = rows(all, at, some), sum = rows(h_, 0, some);
		const StreamRows streams{shaped(from, some, m, cfg_.dim), 0, true};
		if (cfg_.streams.kind == StreamKind::Gated) {
			mix_streams(to, {}, from, w_.out_mixer, decode);
			continue;
		}
		if (cfg_.streams.weighs_output) {
			sum_streams(sum, {}, streams, w_.out_mixer, decode);
		} else {
			be_.stream_sum({shaped(sum, 1, some, cfg_.dim)}, streams,
			               shaped(rows(streams_.others, 0, some), some, 1, m), /*adds=*/false);
			be_.activate(sum, sum, {}, {.scale = 1 / float(m)});
		}
		be_.copy(to, sum); // rows of `to` lie where the first of `from` do
	}
	return rows(all, 0, n);
}

// x += g + silu(convolution of norm(g)), each stream: g = gate * value of a token's rows of the table, with a gate by
// how well its key matches the stream.
void LayerRunner::add_ngrams(uint32_t l, const LayerRows& r, std::span<const StateGroup> states, bool decode) {
	const NGramWeights& w = weights_of(l).ngrams;
	const uint32_t n = r.n, m = cfg_.streams.n, dim = cfg_.dim;
	KV_ASSERT(r.ngrams.size() == size_t(n) * cfg_.ngrams.width());
	const View table_rows = rows(streams_.table_rows, 0, n), grams = rows(streams_.grams, 0, n),
	           keys = rows(streams_.gates, 0, n), queries = rows(streams_.normed, 0, n), x = all_rows(r.streams, r.n);
	const auto norm = [&](const View& out, const View& in, const View& weights) {
		be_.rmsnorm(shaped(out, n * m, dim), shaped(in, n * m, dim), weights, cfg_.norm_eps);
	};
	be_.write(*table_rows.buf, table_rows.at, std::as_bytes(r.ngrams));
	const Proj made[] = {{shaped(keys, n, m * dim), w.key, {}}, {r.h, w.value, {}}};
	multiply(made, table_rows, Epilogue::None, decode);
	norm(keys, keys, w.key_norm);
	norm(queries, x, w.query_norm);
	be_.stream_gate(grams, keys, queries, r.h);
	norm(keys, grams, w.conv_norm);
	const View conv = shaped(queries, n, m * dim);
	for (const StateGroup& g : states) be_.short_conv(conv, shaped(keys, n, m * dim), w.conv, g.conv, {});
	be_.activate(x, shaped(grams, n, m * dim), {}, {.add = true});
	be_.activate(x, conv, {}, {.add = true});
}

} // namespace kvrun
