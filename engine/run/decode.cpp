// Decode steps: the next token of any number of sequences at once.
#include "engine/run/decode.h"
#include "engine/run/arena.h"

namespace kvrun {

Decoder::Decoder(Graph& graph, KvScratch& scratch, uint32_t most_rows)
    : graph_(graph), scratch_(scratch), most_rows_(most_rows) {
	KV_ASSERT(most_rows >= 1 && most_rows <= Graph::kLogitRows && most_rows <= graph.most_rows());
	const Config& cfg = graph.config();
	allocate(graph.backend(), memory_, "decode rows", [&](Arena& a) {
		x_ = a.take(DType::F32, most_rows, cfg.dim);
		tokens_ = a.take(DType::U32, most_rows);
		rope_ = a.take(DType::F32, most_rows, std::max(cfg.rope.dim / 2, 1u), 2);
	});
}

std::span<const float> Decoder::decode(KvPool& pool, std::span<const DecodeRow> step) {
	const uint32_t n = uint32_t(step.size());
	KV_ASSERT(n >= 1 && n <= most_rows_);
	Backend& be = graph_.backend();
	std::vector<uint32_t> tokens;
	std::vector<KvSequence*> seqs;
	host_rope_.clear();
	for (const DecodeRow& r : step) {
		tokens.push_back(r.token);
		seqs.push_back(r.seq);
		r.rope->append(r.seq->n_tokens(), 1, host_rope_);
	}
	KvStep kv(be, scratch_, pool, seqs, graph_.config().n_heads);
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
	}
	graph_.logits(rows.x, logits_, /*decode=*/true);
	be.submit();
	be.wait();
	kv.end();
	return logits_;
}

} // namespace kvrun
