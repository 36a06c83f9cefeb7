// Shape checks of every op: throw Error{Internal} with the condition that does not hold. Every backend may call them.
#pragma once
#include "backends/ops.h"

namespace kvrun {

void check_embed(const View& out, const View& table, const View& tokens);
void check_rmsnorm(const View& out, const View& x, const View& w);
void check_layer_norm(const View& out, const View& x, const View& w, const View& b);
void check_activate(const View& out, const View& x, const View& y, const Elementwise&);
void check_matmul(std::span<const Proj>, const View& x, Epilogue);
void check_route(const View& ids, const View& weights, const View& logits, const RouteArgs&);
void check_sort_slots(const View& tiles, const View& ids, uint32_t n_experts);
void check_expert_matmul(std::span<const Proj>, const View& x, const ExpertRows&, Epilogue, bool decode);
void check_expert_sum(const View& x, const View& y, const View& weights);
void check_rope_store(const View& q, const View& k, const View& v, const RopeArgs&, const HeadNorm&, const KvDst&);
void check_kv_store(const KvRows&, uint32_t n, const KvDst&); // and kv_load()
void check_attend(const View& out, const View& lse, const View& q, const KvRead&);
void check_attend_prompt(const View& out, const View& lse, const View& q, const KvRows&, const KvRead* older);
void check_copy(const View& dst, const View& src);
void check_kv_pack(const KvRows& src, const PackArgs&);
void check_kv_block(const KvRows& src, const BlockArgs&);
void check_score_prompt(const View& score, const View& q, const View& lse, const View& rows, const KvRows&);
void check_score_slots(const View& q, const View& lse, const ScoreArgs&);
void check_weigh(const View& q, const View& lse, const WeighArgs&);
void check_candidates(const View& list, const View& block_max, const View& x, uint32_t k);
void check_top_k(const View& picks, const View& weight, const View& work);
void check_scatter(const View& words, const View& list);
void check_part_share(const View& out, const View& parts, const View& work);
void check_transfer(const View& dst, const View& src);
void check_channel_max(const View& out, const View& x);
void check_kv_balance(const View& out, const View& q_max, const KvRows& k, uint32_t n);

} // namespace kvrun
