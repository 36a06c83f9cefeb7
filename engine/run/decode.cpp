// Decode steps: the next token of any number of sequences at once.
#include "engine/run/decode.h"
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include <algorithm>

namespace kvrun {

Decoder::Decoder(Graph& graph, KvScratch& scratch, uint32_t most_rows)
    : graph_(graph), scratch_(scratch), most_rows_(most_rows) {
	KV_ASSERT(most_rows >= 1 && most_rows <= Graph::kLogitRows && 2 * most_rows <= graph.most_rows());
	const Config& cfg = graph.config();
	allocate(graph.backend(), memory_, "decode rows", [&](Arena& a) {
		x_ = a.take(DType::F32, 2 * most_rows, cfg.dim);
		tokens_ = a.take(DType::U32, 2 * most_rows);
		rope_ = a.take(DType::F32, 2 * most_rows, std::max(cfg.rope.dim / 2, 1u), 2);
	});
}

std::span<const float> Decoder::decode(KvPool& pool, std::span<const DecodeRow> step) {
	KV_ASSERT(!step.empty() && step.size() <= most_rows_);
	std::vector<Row> first, rows, ahead;
	for (const DecodeRow& r : step) {
		KvFetch* f = r.seq->fetch();
		const uint32_t at = r.seq->n_tokens();
		rows.push_back({{r.seq, true}, r.rope, r.token, at});
		if (f && r.seq->plan().speculates() && !f->ready()) first.push_back({{r.seq, false}, r.rope, r.token, at});
	}
	try {
		if (!first.empty()) run(pool, first);
		for (const DecodeRow& r : step) {
			if (r.seq->fetch() && r.seq->fetch()->ready())
				ahead.push_back({{r.seq, false}, r.rope, r.seq->fetch()->token(), r.seq->n_tokens() + 1});
		}
		rows.insert(rows.end(), ahead.begin(), ahead.end());
		run(pool, rows);
	} catch (...) {
		for (const Row& r : first) r.step.seq->fetch()->forget(); // as if there had been no step
		throw;
	}
	return logits_;
}

// The device begins while the host still records: after the first layer, then after every quarter of them.
static bool is_handed_over(uint32_t layer, uint32_t n_layers) {
	const uint32_t quarter = std::max(ceil_div(n_layers, 4u), 4u);
	return layer + 1 < n_layers && (layer == 0 || (layer + 1) % quarter == 0);
}

void Decoder::run(KvPool& pool, std::span<const Row> step) {
	const uint32_t n = uint32_t(step.size());
	const uint32_t kept = uint32_t(std::ranges::count_if(step, [](const Row& r) { return r.step.keep; }));
	Backend& be = graph_.backend();
	std::vector<uint32_t> tokens;
	std::vector<StepRow> kv_rows;
	host_rope_.clear();
	for (const Row& r : step) {
		tokens.push_back(r.token);
		kv_rows.push_back(r.step);
		r.rope->append(r.position, 1, host_rope_);
	}
	KvStep kv(be, scratch_, pool, kv_rows, graph_.config().n_heads);
	be.write(*tokens_.buf, tokens_.at, std::as_bytes(std::span(tokens)));
	be.write(*rope_.buf, rope_.at, std::as_bytes(std::span(host_rope_)));
	const GraphRows rows = graph_.rows_of(x_, rope_, 0, n);
	graph_.embed(rows.x, kvrun::rows(tokens_, 0, n));
	for (uint32_t l = 0; l < graph_.config().n_layers; ++l) {
		be.at_layer(l);
		kv.before_layer(l);
		graph_.project_in(l, rows, /*decode=*/true);
		for (uint32_t i = 0; i < n;) { // rows whose pages are alike and lie in the same memory go together
			uint32_t same = 1;
			const KvDst dst = kv.destination(l, i, same);
			graph_.rotate(l, rows, i, same, dst);
			i += same;
		}
		kv.stored(l);
		kv.attend(l, rows.att, rows.q);
		graph_.project_out(l, rows, /*decode=*/true);
		if (is_handed_over(l, graph_.config().n_layers)) be.submit();
	}
	if (kept) graph_.logits(kvrun::rows(rows.x, 0, kept), logits_, /*decode=*/true);
	if (n > kept) graph_.logits(kvrun::rows(rows.x, kept, n - kept), guesses_, /*decode=*/true);
	kv.fetch_next();
	be.submit();
	be.wait();
	kv.end();
	const size_t vocab = graph_.config().vocab;
	for (uint32_t i = kept; i < n; ++i) {
		likeliest_.scan(std::span(guesses_).subspan((i - kept) * vocab, vocab));
		step[i].step.seq->fetch()->speculate(uint32_t(likeliest_.first_max()));
	}
}

} // namespace kvrun
