// The operation table: every op of a device, its arguments, and the description of its views. Code that treats all ops
// alike (shape checks, CheckedBackend, dumps, bytes of --ops, test backends) reads it and names no op.
//
// A new op is a struct in op_model.h, op_cache.h, op_rank.h, op_state.h or op_index.h with
//   name()    in messages, dumps and times
//   text()    its shape, for messages
//   views()   f(row, view) for each view, in the order of dumps and comparisons; lists of arguments go through
// f.items();
//             rows that depend on the device use f.device()
// and, only if the rows do not state it:
//   check()   conditions on the arguments
//   bytes()   read and written, at least; else the sum over all views
//   written() the parts of Memory that it writes
//   moves_bytes  the op computes nothing: every device gets the same bytes from it
// then its line in KV_EACH_OP and in OpCalls, and compute() in each backend.
//
// Shapes are (outermost, ..., innermost); T = rows (tokens) in this call. Activations are f32.
#pragma once
#include "backends/op_index.h"
#include "backends/op_model.h"
#include "backends/op_rank.h"
#include "backends/op_state.h"
#include <utility>
#include <variant>

namespace kvrun {

namespace op {

// Every op, once.
// clang-format off
#define KV_EACH_OP(X) \
	X(Embed) \
	X(RmsNorm) \
	X(LayerNorm) \
	X(MatchRms) \
	X(GaussianTopK) \
	X(StreamSum) \
	X(StreamMix) \
	X(StreamGate) \
	X(StreamCoefs) \
	X(StreamAttend) \
	X(Activate) \
	X(Matmul) \
	X(NormMatmul) \
	X(Route) \
	X(SortSlots) \
	X(ExpertMatmul) \
	X(ExpertSum) \
	X(ShortConv) \
	X(PoolBlocks) \
	X(DeltaRule) \
	X(SsmScan) \
	X(SelectiveScan) \
	X(RopeStore) \
	X(KvStore) \
	X(KvLoad) \
	X(JoinHeads) \
	X(Attend) \
	X(AttendPrompt) \
	X(UnpackLatents) \
	X(KvPack) \
	X(KvBlock) \
	X(ScorePrompt) \
	X(ScoreSlots) \
	X(ChannelMax) \
	X(KvBalance) \
	X(Copy) \
	X(Weigh) \
	X(TopK) \
	X(Candidates) \
	X(Scatter) \
	X(PartShare) \
	X(IndexScore) \
	X(IndexPick) \
	X(IndexLive)
// clang-format on

template <class First, class... Ops> using Rest = std::variant<Ops...>; // without the element before the first comma
struct Nothing {};
#define KV_COMMA_OP(O) , O
using Any = Rest<Nothing KV_EACH_OP(KV_COMMA_OP)>;
#undef KV_COMMA_OP

} // namespace op

using Op = op::Any;

// A call for each op: enqueues it and returns.
class OpCalls {
 public:
	virtual void run(const Op&) = 0;

	void embed(View out, View table, View tokens) { run(op::Embed{out, table, tokens}); }
	void rmsnorm(View out, View x, View w, float eps) { run(op::RmsNorm{out, x, w, eps}); }
	void layer_norm(View out, View x, View w, View b, float eps) { run(op::LayerNorm{out, x, w, b, eps}); }
	void match_rms(View out, View x, View w, View like, float eps) { run(op::MatchRms{out, x, w, like, eps}); }
	void gaussian_top_k(View out, View x, float cut) { run(op::GaussianTopK{out, x, cut}); }
	void stream_sum(const StreamRows& x, const StreamRows& y, View w, bool adds = true) {
		run(op::StreamSum{x, y, w, adds});
	}
	void stream_mix(View out, View x, View gate) { run(op::StreamMix{out, x, gate}); }
	void stream_gate(View out, View key, View query, View value) { run(op::StreamGate{out, key, query, value}); }
	void stream_coefs(View pre, View post, View mix, View x, View scale, View base, const ConnectArgs& how) {
		run(op::StreamCoefs{pre, post, mix, x, scale, base, how});
	}
	void stream_attend(View out, const StreamRows& x, View w, float eps) { run(op::StreamAttend{out, x, w, eps}); }
	void activate(View out, View x, View y, const Elementwise& how) { run(op::Activate{out, x, y, how}); }
	void matmul(std::span<const Proj> projs, View x, Epilogue epilogue, bool decode) {
		run(op::Matmul{projs, x, epilogue, decode});
	}
	void route(View ids, View weights, View logits, const RouteArgs& how) { run(op::Route{ids, weights, logits, how}); }
	void sort_slots(View tiles, View ids, uint32_t n_experts) { run(op::SortSlots{tiles, ids, n_experts}); }
	void expert_matmul(std::span<const Proj> projs, View x, const ExpertRows& rows, Epilogue epilogue, bool decode) {
		run(op::ExpertMatmul{projs, x, rows, epilogue, decode});
	}
	void expert_sum(View x, View y, View weights) { run(op::ExpertSum{x, y, weights}); }
	void short_conv(View out, View x, View w, const StateRows& rows, const ConvArgs& how) {
		run(op::ShortConv{out, x, w, rows, how});
	}
	void pool_blocks(View out, View x, View gates, View places, const StateRows& rows) {
		run(op::PoolBlocks{out, x, gates, places, rows});
	}
	void delta_rule(View out, View x, const DeltaGates& gates, const StateRows& rows, const DeltaArgs& how,
	                View own = {}) {
		run(op::DeltaRule{out, x, gates, rows, how, own});
	}
	void ssm_scan(View out, View x, const ScanGates& gates, const StateRows& rows, const ScanArgs& how) {
		run(op::SsmScan{out, x, gates, rows, how});
	}
	void selective_scan(View out, View x, const SelectiveGates& gates, const StateRows& rows) {
		run(op::SelectiveScan{out, x, gates, rows});
	}
	void rope_store(View q, View k, View v, const RopeArgs& rope, const HeadNorm& norm, const KvDst& dst) {
		run(op::RopeStore{q, k, v, rope, norm, dst});
	}
	void kv_store(const KvRows& src, uint32_t n, const KvDst& dst) { run(op::KvStore{src, n, dst}); }
	void kv_load(const KvRows& dst, uint32_t n, const KvDst& src) { run(op::KvLoad{dst, n, src}); }
	void join_heads(const HeadRows& out, const HeadRows& a, const HeadRows& b, uint32_t n) {
		run(op::JoinHeads{out, a, b, n});
	}
	void attend(View out, View lse, View q, const KvRead& kv) { run(op::Attend{out, lse, q, kv}); }
	void attend_prompt(View out, View lse, View q, const KvRows& own, const KvRead* older) {
		run(op::AttendPrompt{out, lse, q, own, older});
	}
	void unpack_latents(const KvRows& dst, const KvRead& from) {
		run(op::UnpackLatents{dst, from.groups, from.work, from.tables});
	}
	void kv_pack(const KvRows& src, const PackArgs& args) { run(op::KvPack{src, args}); }
	void kv_block(const KvRows& src, const BlockArgs& args) { run(op::KvBlock{src, args}); }
	void score_prompt(View score, View q, View lse, View rows, const KvRows& kv, Saliency saliency) {
		run(op::ScorePrompt{score, q, lse, rows, kv, saliency});
	}
	void score_slots(View q, View lse, const ScoreArgs& args) { run(op::ScoreSlots{q, lse, args}); }
	void channel_max(View out, View x) { run(op::ChannelMax{out, x}); }
	void kv_balance(View out, View q_max, const KvRows& k, uint32_t n) { run(op::KvBalance{out, q_max, k, n}); }
	void copy(View dst, View src) { run(op::Copy{dst, src}); }
	void weigh(View q, View lse, const WeighArgs& args) { run(op::Weigh{q, lse, args}); }
	void top_k(View picks, View weight, View work) { run(op::TopK{picks, weight, work}); }
	void candidates(View list, View block_max, View x, uint32_t k) { run(op::Candidates{list, block_max, x, k}); }
	void scatter(View words, View list) { run(op::Scatter{words, list}); }
	void part_share(View out, View parts, View work) { run(op::PartShare{out, parts, work}); }
	void index_score(View score, View q, View weights, View keys, View work, uint32_t pool = 0) {
		run(op::IndexScore{score, q, weights, keys, work, pool});
	}
	void index_pick(View bits, View score, View seen, uint32_t block, uint32_t most, uint32_t local = 0) {
		run(op::IndexPick{bits, score, seen, block, most, local});
	}
	void index_live(View tables, View bits, View work) { run(op::IndexLive{tables, bits, work}); }

 protected:
	~OpCalls() = default;
};

} // namespace kvrun
