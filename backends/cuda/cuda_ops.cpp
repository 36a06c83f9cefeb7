// All CUDA ops but those of recurrent layers: check shapes, fill the kernel's arguments, launch.
#include "backends/cuda/cuda_backend.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>

namespace kvrun::cuda {
namespace {

static_assert(kNoOffset == kSkip);

void check_head_dim(uint32_t head_dim) {
	if (head_dim % 4 || head_dim > kMaxHeadDim)
		fail(Code::Unsupported, "head_dim {}: attention on CUDA needs a multiple of 4, at most {}; use --device cpu",
		     head_dim, kMaxHeadDim);
}

} // namespace

void CudaBackend::run(const Op& op) {
	check_and_count(op);
	std::visit([this](const auto& o) { compute(o); }, op);
}

void CudaBackend::compute(const op::Embed& o) {
	const auto& [out, table, tokens] = o;
	const uint32_t T = out.shape[0], dim = table.shape[1];
	launch(kernels_.embed, {groups(dim, 16 * kThreads), std::min(T, kMostBlocks), 1}, kThreads,
	       EmbedArgs{data<float>(out), weight(table), data<uint32_t>(tokens), T, table.shape[0]},
	       {"embed", double(T) * (double(weight_row_bytes(table.type, dim)) + 4. * dim)});
}

void CudaBackend::compute(const op::RmsNorm& o) {
	const auto& [out, x, w, eps] = o;
	const uint32_t dim = uint32_t(x.row_elements());
	launch(kernels_.rmsnorm, {x.shape[0], 1, 1}, 256,
	       RmsNormArgs{data<float>(out), data<float>(x), data<float>(w), dim, o.groups(), eps},
	       {"rmsnorm", 4. * double(2 * x.elements() + dim)});
}

void CudaBackend::compute(const op::LayerNorm& o) {
	const auto& [out, x, w, b, eps] = o;
	const uint32_t dim = uint32_t(x.row_elements());
	launch(kernels_.layer_norm, {x.shape[0], 1, 1}, 256,
	       LayerNormArgs{data<float>(out), data<float>(x), data<float>(w), data<float>(b), dim, o.groups(), eps},
	       {"layer_norm", 4. * double(2 * x.elements() + 2 * dim)});
}

void CudaBackend::compute(const op::MatchRms& o) {
	const auto& [out, x, w, like, eps] = o;
	const uint32_t dim = uint32_t(x.row_elements());
	launch(kernels_.match_rms, {x.shape[0], 1, 1}, 256,
	       MatchRmsArgs{data<float>(out), data<float>(x), data<float>(w), data<float>(like), dim, eps},
	       {"match_rms", 4. * double(3 * x.elements() + dim)});
}

void CudaBackend::compute(const op::GaussianTopK& o) {
	const auto& [out, x, cut] = o;
	launch(kernels_.gaussian_top_k, {x.shape[0], 1, 1}, 256,
	       GaussianTopKArgs{data<float>(out), data<float>(x), uint32_t(x.row_elements()), cut},
	       {"gaussian_top_k", 8. * double(x.elements())});
}

static StreamPlaces stream_places(const StreamRows& s) { return {s.first, s.row_stride(), s.stream_stride()}; }

void CudaBackend::compute(const op::StreamSum& o) {
	const auto& [x, y, w, adds] = o;
	const uint32_t dim = x.dim();
	launch(kernels_.stream_sum, {w.shape[0], groups(dim, kThreads), 1}, kThreads,
	       StreamSumArgs{data<float>(x.v), data<float>(y.v), data<float>(w), dim, w.shape[1], w.shape[2],
	                     stream_places(x), stream_places(y), adds},
	       {"stream_sum", o.bytes()});
}

void CudaBackend::compute(const op::StreamMix& o) {
	const auto& [out, x, gate] = o;
	const uint32_t dim = x.shape[2];
	launch(kernels_.stream_mix, {x.shape[0], groups(dim, kThreads), 1}, kThreads,
	       StreamMixArgs{data<float>(out), data<float>(x), data<float>(gate), dim, x.shape[1]},
	       {"stream_mix", 4. * double(out.elements() + 2 * x.elements())});
}

void CudaBackend::compute(const op::StreamGate& o) {
	const auto& [out, key, query, value] = o;
	const uint32_t m = key.shape[1], dim = key.shape[2];
	launch(kernels_.stream_gate, {key.shape[0] * m, 1, 1}, 256,
	       StreamGateArgs{data<float>(out), data<float>(key), data<float>(query), data<float>(value), dim, m},
	       {"stream_gate", 4. * double(3 * key.elements() + value.elements())});
}

void CudaBackend::compute(const op::StreamCoefs& o) {
	const uint32_t tokens = o.x.shape[0];
	launch(kernels_.stream_coefs, {groups(tokens, kThreads), 1, 1}, kThreads,
	       StreamCoefsArgs{data<float>(o.pre), data<float>(o.post), data<float>(o.mix), data<float>(o.x),
	                       data<float>(o.scale), data<float>(o.base), tokens, o.streams(), uint32_t(o.x.row_elements()),
	                       o.how.rounds, o.how.eps, o.how.post_scale, o.how.post_eps},
	       {"stream_coefs", double(2 * o.x.bytes())});
}

void CudaBackend::compute(const op::StreamAttend& o) {
	const auto& [out, x, w, eps] = o;
	const uint32_t dim = x.dim();
	launch(
	    kernels_.stream_attend, {out.shape[0], 1, 1}, 256,
	    StreamAttendArgs{data<float>(out), data<float>(x.v), data<float>(w), dim, x.streams(), stream_places(x), eps},
	    {"stream_attend", 4. * out.shape[0] * dim * (2 * x.streams() + 1)});
}

void CudaBackend::compute(const op::Activate& o) {
	const auto& [out, x, y, e] = o;
	const uint64_t n = out.elements();
	const uint32_t blocks = groups(n, kThreads), across = std::min(blocks, kMostBlocks);
	launch(kernels_.activate, {across, groups(blocks, across), 1}, kThreads,
	       ActivateArgs{data<float>(out), data<float>(x), data<float>(y), n, uint32_t(e.function), e.scale, e.cap,
	                    e.add, e.xielu, e.range, e.each},
	       {"activate", 4. * double(n) * (2 + bool(y) + e.add)});
}

constexpr auto is_known = [](auto... types) { return (is_known_type(uint32_t(types)) && ...); };
static_assert(is_known(DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K));

// Whether kernels for one row of x and types known at compile time take these: they read whole units of 16 elements. q:
// a second weight, or none.
static bool reads_units(const View& w, const View& q, const View& x) {
	return is_known_type(uint32_t(w.type)) && (!q.buf || q.type == w.type) && w.shape[1] % 16 == 0 && x.at % 16 == 0;
}
// Blocks of these kernels for d rows of one weight, or of each of two.
static uint32_t row_blocks(uint32_t d, bool two) { return groups(d, two ? kVecRows / 2 : kVecRows); }

void CudaBackend::compute(const op::Matmul& o) {
	const auto& [projs, x, epilogue, decode] = o;
	const bool swiglu = epilogue == Epilogue::SwiGLU;
	const uint32_t T = x.shape[0], multiprocessors = info_.fill_workgroups / kAttendBlocks;
	for (size_t i = 0; i < (swiglu ? 1 : projs.size()); ++i) {
		const Proj &p = projs[i], second = swiglu ? projs[1] : Proj();
		const uint32_t d = p.w.shape[0];
		const MatmulArgs args{data<float>(p.out),
		                      data<float>(x),
		                      {weight(p.w), weight(second.w)},
		                      {data<float>(p.bias), data<float>(second.bias)},
		                      d,
		                      T,
		                      swiglu                      ? kSwiGlu
		                      : epilogue == Epilogue::Add ? kAdd
		                                                  : kStore};
		const double bytes = 4. * double(x.elements()) +
		                     double(d) * (double(weight_row_bytes(p.w.type, p.w.shape[1])) * (swiglu ? 2 : 1) + 4. * T);
		if (decode && T == 1 && reads_units(p.w, second.w, x))
			launch(kernels_.matvec_row, {row_blocks(d, swiglu), 1, 1}, kVecWarps * kWarp, args,
			       {"matvec", bytes, i == 0});
		else if (decode)
			launch(kernels_.matvec, {d, groups(T, kVecTokens), 1}, kVecWarps * kWarp, args, {"matvec", bytes, i == 0});
		else if (T > kTile && uint64_t(groups(d, kTileRows)) * groups(T, kWideTile) * 2 > multiprocessors)
			launch(kernels_.matmul_wide, {groups(d, kTileRows), groups(T, kWideTile), 1}, kMatmulThreads, args,
			       {"matmul", bytes, i == 0});
		else
			launch(kernels_.matmul, {groups(d, kTileRows), groups(T, kTile), 1}, kMatmulThreads, args,
			       {"matmul", bytes, i == 0});
	}
}

void CudaBackend::compute(const op::NormMatmul& o) {
	compute(o.norm());
	compute(o.product());
}

// ---- mixtures of experts

void CudaBackend::compute(const op::Route& o) {
	const auto& [ids, weights, logits, a] = o;
	const uint32_t n_experts = logits.shape[1];
	launch(kernels_.route, {ids.shape[0], 1, 1}, kThreads,
	       RouteArgs{data<uint32_t>(ids), data<float>(weights), data<float>(logits), data<float>(a.bias),
	                 data<float>(a.expert_scale), n_experts, ids.shape[1], a.n_groups, a.used_groups,
	                 a.gating == Gating::Sigmoid, a.normalise, a.scale, a.gating == Gating::Near,
	                 a.gating == Gating::SqrtSoftplus, data<uint32_t>(a.of_tokens), data<uint32_t>(a.tokens)},
	       {"route", 4. * double(logits.elements() + 2 * ids.elements())});
}

void CudaBackend::compute(const op::SortSlots& o) {
	const auto& [tiles, ids, n_experts] = o;
	launch(
	    kernels_.sort_slots, {1, 1, 1}, kThreads,
	    SortSlotsArgs{data<uint32_t>(tiles), data<uint32_t>(ids), n_experts, uint32_t(ids.elements()), tiles.shape[0]},
	    {"sort_slots", 4. * double(2 * ids.elements() + tiles.elements())});
}

void CudaBackend::compute(const op::ExpertMatmul& o) {
	const auto& [projs, x, e, epilogue, decode] = o;
	const bool gated = epilogue != Epilogue::None;
	const uint32_t slots = uint32_t(e.ids.elements());
	if (decode && slots > kMostBlocks)
		fail(Code::Unsupported, "{} choices of experts in one step, CUDA goes up to {}", slots, kMostBlocks);
	for (size_t i = 0; i < (gated ? 1 : projs.size()); ++i) {
		const Proj &p = projs[i], second = gated ? projs[1] : Proj();
		const uint32_t d = p.w.shape[0] / e.n_experts;
		const ExpertMatmulArgs args{{data<float>(p.out),
		                             data<float>(x),
		                             {weight(p.w), weight(second.w)},
		                             {data<float>(p.bias), data<float>(second.bias)},
		                             d,
		                             slots,
		                             epilogue == Epilogue::SwiGLU          ? kSwiGlu
		                             : epilogue == Epilogue::ClampedSwiGLU ? kClampedSwiGlu
		                                                                   : kStore},
		                            data<uint32_t>(decode ? e.ids : e.tiles),
		                            slots / x.shape[0]};
		const double rows = double(std::min(slots, e.n_experts)) * d * (gated ? 2 : 1);
		const OpInfo info{decode ? "expert_matvec" : "expert_matmul",
		                  4. * (double(x.elements()) + double(slots) * d) +
		                      rows * double(weight_row_bytes(p.w.type, p.w.shape[1])),
		                  i == 0};
		if (decode && reads_units(p.w, second.w, x))
			launch(kernels_.expert_matvec_row, {row_blocks(d, gated), slots, 1}, kVecWarps * kWarp, args, info);
		else if (decode)
			launch(kernels_.expert_matvec, {d, slots, 1}, kVecWarps * kWarp, args, info);
		else
			launch(kernels_.expert_matmul, {groups(d, kTileRows), e.tiles.shape[0], 1}, kMatmulThreads, args, info);
	}
}

void CudaBackend::compute(const op::ExpertSum& o) {
	const auto& [x, y, weights] = o;
	const uint32_t dim = uint32_t(x.row_elements());
	launch(kernels_.expert_sum, {x.shape[0], groups(dim, kThreads), 1}, kThreads,
	       ExpertSumArgs{data<float>(x), data<float>(y), data<float>(weights), dim, weights.shape[1]},
	       {"expert_sum", 4. * double(2 * x.elements() + y.elements())});
}

// ---- keys and values on their way into the cache

void CudaBackend::compute(const op::RopeStore& o) {
	const auto& [q, k, v, rope, norm, dst] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], n_kv_heads = k.shape[1], D = q.shape[2];
	check_head_dim(std::max(D, k.shape[2]));
	launch(
	    kernels_.rope_store, {T, n_heads + n_kv_heads, 1}, 64,
	    RopeStoreArgs{data<float>(q), data<float>(k), data<float>(v), data<float>(rope.table), data<float>(norm.q),
	                  data<float>(norm.k),
	                  KvPlace{data<uint32_t>(dst.k), data<uint32_t>(dst.v), data<uint32_t>(dst.at), dst.k_word_stride},
	                  n_heads, n_kv_heads, D, rope.rotary_dim, rope.neox, norm.eps, norm.weigh_last,
	                  rope.of_values ? k.shape[2] : 0, rope.first, rope.back},
	    {"rope_store", o.bytes()});
}

void CudaBackend::compute(const op::KvStore& o) {
	const auto& [src, n, dst] = o;
	move_rows(kernels_.kv_store, src, n, dst);
}
void CudaBackend::compute(const op::KvLoad& o) {
	const auto& [dst, n, src] = o;
	move_rows(kernels_.kv_load, dst, n, src);
}

void CudaBackend::compute(const op::JoinHeads& o) {
	const auto place = [this](const HeadRows& x) {
		if (!x.v) return HeadPlace{};
		const uint32_t per_word = x.halves() ? 2 : 1; // elements
		uint32_t* words = x.halves() ? data<uint32_t>(as_words(x.v)) : reinterpret_cast<uint32_t*>(data<float>(x.v));
		return HeadPlace{words + x.start() / per_word, x.head_stride() / per_word, x.token_stride() / per_word,
		                 x.channels() / 2, x.halves()};
	};
	JoinHeadsArgs args{place(o.out), place(o.a), place(o.b), o.n};
	if (o.b.v && o.b.n_heads() == 1) args.b.head_stride = 0;
	launch(kernels_.join_heads, {o.n, o.out.n_heads(), groups(args.out.pairs, kWarp)}, kWarp, args,
	       {"join_heads", o.bytes()});
}

// Moves rows outside of pages to their places in pages, or back.
void CudaBackend::move_rows(const Kernel<KvStoreArgs>& kernel, const KvRows& kv, uint32_t n, const KvDst& pages) {
	const uint32_t n_kv_heads = kv.k.shape[0], k_words = kv.k.shape[2] / 2, v_words = kv.v.shape[2] / 2;
	launch(kernel, {groups(std::max(k_words, v_words), kWarp), n_kv_heads, std::min(n, kMostBlocks)}, kWarp,
	       KvStoreArgs{
	           data<uint32_t>(as_words(kv.k)), data<uint32_t>(as_words(kv.v)),
	           KvPlace{data<uint32_t>(pages.k), data<uint32_t>(pages.v), data<uint32_t>(pages.at), pages.k_word_stride},
	           n_kv_heads, kv.k.shape[1], kv.first, n, k_words, v_words},
	       {kernel.name, 8. * n * n_kv_heads * (k_words + v_words)});
}

// ---- packing

static CodeSide side_of(const Quant& q) {
	return {q.bits,   q.group, q.scale == Scale::PerChannel,   q.scale == Scale::Codebook, q.param_bits,
	        q.rotate, q.mean,  q.prescale == Prescale::SqrtMax};
}

void CudaBackend::pack_side(const KvRows& src, const PackArgs& a, bool is_k) {
	const Quant& q = is_k ? a.format.k : a.format.v;
	const View &rows = is_k ? src.k : src.v, &codes = is_k ? a.k_codes : a.v_codes;
	const uint32_t n_kv_heads = rows.shape[0], D = rows.shape[2], n_work = a.work.shape[0];
	const bool per_channel = q.scale == Scale::PerChannel, with_norm = q.prescale != Prescale::None;
	if (q.scale == Scale::PerToken && n_kv_heads * D / q.group > kMaxRuns)
		fail(Code::Unsupported, "groups of {} channels: a token has {} of them, CUDA goes up to {}; use larger groups",
		     q.group, n_kv_heads * D / q.group, kMaxRuns);
	const PackSideArgs args{half_words(rows),
	                        data<uint32_t>(a.sources),
	                        data<uint32_t>(a.work),
	                        data<uint32_t>(codes),
	                        data<uint32_t>(is_k ? a.k_params : a.v_params),
	                        with_norm ? data<uint32_t>(is_k ? a.balance : a.v_factors) : nullptr,
	                        side_of(q),
	                        is_k,
	                        is_k && a.k_block,
	                        rows.shape[1],
	                        n_kv_heads,
	                        D,
	                        a.page,
	                        float(q.eta),
	                        float(1. - 2. * q.eta)};
	const OpInfo info{"kv_pack", double(a.n_heads) * D * (2 + q.bits / 8.), is_k || a.format.k.bits == 0};
	if (q.scale == Scale::Codebook)
		launch(kernels_.pack_pages, {n_work, n_kv_heads, 1}, kThreads, args, info);
	else if (!per_channel && q.param_bits == 8)
		launch(kernels_.pack_runs, {n_work, n_kv_heads, 1}, kThreads, args, info);
	else if (per_channel)
		launch(kernels_.pack_channels, {n_work, n_kv_heads, 1}, kThreads, args, info);
	else
		launch(kernels_.pack_tokens, {n_work, a.page, 1}, kThreads, args, info);
}

void CudaBackend::compute(const op::KvPack& o) {
	const auto& [src, a] = o;
	check_head_dim(src.k.shape[2]);
	if (a.format.k.bits) pack_side(src, a, true);
	if (a.format.v.bits) pack_side(src, a, false);
}

void CudaBackend::compute(const op::KvBlock& o) {
	const auto& [src, a] = o;
	const uint32_t n_kv_heads = src.k.shape[0], D = src.k.shape[2];
	const bool balanced = a.format.k.prescale == Prescale::Balance;
	launch(kernels_.kv_block, {groups(D / 2, kWarp), n_kv_heads, a.work.shape[0]}, kWarp,
	       KvBlockArgs{half_words(src.k), half_words(src.v), data<uint32_t>(a.sources), data<uint32_t>(a.work),
	                   data<uint32_t>(a.words), balanced ? data<uint32_t>(a.balance) : nullptr, a.format.k.bits,
	                   src.k.shape[1], n_kv_heads, D},
	       {"kv_block", 4. * double(a.sources.elements()) * n_kv_heads * D});
}

// ---- saliency

static Scores scores_of(uint32_t head_dim, float softcap) { return {1 / std::sqrt(float(head_dim)), softcap}; }

static ScoreBy score_by(Saliency s) {
	return {s.attention, s.key_length == KeyLength::Large, s.key_length == KeyLength::Small};
}

void CudaBackend::compute(const op::ScorePrompt& o) {
	const auto& [score, q, lse, rows, kv, s] = o;
	const uint32_t n_heads = q.shape[1], D = q.shape[2], n_kv_heads = kv.k.shape[0];
	const uint32_t n = kv.first + q.shape[0], n_rows = uint32_t(rows.elements());
	const SeenTokens seen{data<uint32_t>(kv.seen), kv.seen.shape[1], kv.seen_at, kv.seen_sets(q.shape[0])};
	launch(kernels_.score_prompt, {groups(n, kThreads), n_kv_heads, 1}, kThreads,
	       ScorePromptArgs{data<float>(score), data<float>(q), data<float>(lse), data<uint32_t>(rows), half_words(kv.k),
	                       kv.first, n, n_rows, n_heads, n_kv_heads, D, kv.k.shape[1], score.shape[1],
	                       scores_of(D, kv.softmax.softcap), score_by(s), data<float>(kv.softmax.q_rope),
	                       half_words(kv.v), kv.v.shape[2], seen},
	       {"score_prompt", 4. * n_rows * n_heads * D + 2. * n * n_kv_heads * D + 8. * n * n_kv_heads});
}

void CudaBackend::compute(const op::ScoreSlots& o) {
	const auto& [q, lse, a] = o;
	const uint32_t n_heads = q.shape[1], D = q.shape[2];
	bool first = true;
	for (const ScoreGroup& g : a.groups) {
		launch(kernels_.score_slots, {g.n_work, a.n_kv_heads, 1}, kThreads,
		       ScoreSlotsArgs{data<float>(a.score), data<float>(q), data<float>(lse), data<uint32_t>(a.rows),
		                      data<uint32_t>(a.work), data<uint32_t>(a.tables), data<uint32_t>(g.k_codes), g.first_work,
		                      g.page, n_heads, a.n_kv_heads, D, scores_of(D, a.softcap), score_by(g.saliency),
		                      data<float>(a.q_rope), data<uint32_t>(g.v_codes), a.q_rope.shape[2]},
		       {"score_slots", 2. * g.n_pages * g.page * a.n_kv_heads * D, first});
		first = false;
	}
}

// ---- fetching

void CudaBackend::compute(const op::Weigh& o) {
	const auto& [q, lse, a] = o;
	const uint32_t n_heads = q.shape[1], D = q.shape[2];
	bool first = true;
	for (const WeighGroup& g : a.groups) {
		launch(kernels_.weigh, {g.n_work, a.n_kv_heads, 1}, kThreads,
		       WeighArgs{data<float>(a.weight),
		                 data<float>(q),
		                 data<float>(lse),
		                 data<uint32_t>(a.work),
		                 data<uint32_t>(a.tables),
		                 data<uint32_t>(g.k_codes),
		                 g.k.bits == 16 ? nullptr : data<uint32_t>(g.k_params),
		                 g.k.prescale == Prescale::Balance ? data<uint32_t>(a.balance) : nullptr,
		                 side_of(g.k),
		                 g.first_work,
		                 g.page,
		                 n_heads,
		                 a.n_kv_heads,
		                 D,
		                 scores_of(D, a.softcap),
		                 a.q_rope ? data<float>(a.q_rope) : nullptr,
		                 a.q_rope ? data<uint32_t>(g.v_codes) : nullptr,
		                 a.q_rope && g.v.bits != 16 ? data<uint32_t>(g.v_params) : nullptr,
		                 side_of(g.v),
		                 a.q_rope ? a.q_rope.shape[2] : 0},
		       {"weigh", g.k.bits / 8. * g.n_pages * g.page * a.n_kv_heads * D, first});
		first = false;
	}
}

void CudaBackend::compute(const op::TopK& o) {
	const auto& [picks, weight, work] = o;
	launch(kernels_.top_k, {work.shape[0], 1, 1}, kWarp,
	       TopArgs{data<uint32_t>(picks), data<float>(weight), data<uint32_t>(work)},
	       {"top_k", 4. * double(weight.elements())});
}

void CudaBackend::compute(const op::Candidates& o) {
	const auto& [list, block_max, x, k] = o;
	const uint32_t rows = x.shape[0], blocks = block_max.shape[1];
	const CandidatesArgs args{data<uint32_t>(list), data<uint32_t>(block_max), data<float>(x), x.shape[1], blocks, k};
	launch(kernels_.block_max, {blocks, rows, 1}, kWarp, args, {"candidates", 4. * double(x.elements())});
	launch(kernels_.candidates, {rows, 1, 1}, kWarp, args, {"candidates", 132. * double(block_max.elements())});
}

void CudaBackend::compute(const op::Scatter& o) {
	const auto& [words, list] = o;
	launch(kernels_.scatter, {groups(list.shape[0], kThreads), 1, 1}, kThreads,
	       ScatterArgs{data<uint32_t>(words), data<uint32_t>(list), list.shape[0]}, {"scatter", 12. * list.shape[0]});
}

void CudaBackend::compute(const op::PartShare& o) {
	const auto& [out, parts, work] = o;
	const uint32_t n = out.shape[0], n_heads = parts.shape[1];
	launch(kernels_.part_share, {groups(n * n_heads, kThreads), 1, 1}, kThreads,
	       PartShareArgs{data<float>(out), data<float>(parts), data<uint32_t>(work), n, n_heads, parts.shape[2] - 2},
	       {"part_share", 8. * parts.shape[0] * n_heads});
}

// ---- channel statistics

void CudaBackend::compute(const op::ChannelMax& o) {
	const auto& [out, x] = o;
	const uint32_t n_kv_heads = out.shape[0], D = x.shape[2];
	launch(kernels_.channel_max, {groups(D, kWarp), n_kv_heads, 1}, kWarp,
	       ChannelMaxArgs{data<float>(out), data<float>(x), x.shape[0], x.shape[1], n_kv_heads, D},
	       {"channel_max", 4. * double(x.elements())});
}

void CudaBackend::compute(const op::KvBalance& o) {
	const auto& [out, q_max, k, n] = o;
	const uint32_t n_kv_heads = k.k.shape[0], D = k.k.shape[2];
	launch(kernels_.kv_balance, {groups(D / 2, kWarp), n_kv_heads, 1}, kWarp,
	       KvBalanceArgs{data<uint32_t>(as_words(out)), data<float>(q_max), half_words(k.k), n, k.k.shape[1],
	                     n_kv_heads, D},
	       {"kv_balance", 2. * n * n_kv_heads * D});
}

// ---- attention

// Enqueues the partial states of all work items.
void CudaBackend::attend_pages(const char* op, View q, const KvRead& kv) {
	const uint32_t n_heads = q.shape[1], D = q.shape[2], share = n_heads / kv.n_kv_heads;
	const View& q_rope = kv.softmax.q_rope;
	const uint32_t rope_dim = q_rope ? q_rope.shape[2] : 0, v_dim = q_rope ? rope_dim : D;
	bool first = true;
	for (const AttendGroup& g : kv.groups) {
		const Quant &k = g.format.k, &v = g.format.v;
		const uint32_t queries = kv.item_rows * share, blocks = groups(queries, kQueries);
		const double page_bytes = 4. * (kv_code_words(kv.n_kv_heads, D, k.bits, g.page) +
		                                kv_code_words(kv.n_kv_heads, v_dim, v.bits, g.page));
		const AttendArgs args{data<float>(kv.parts),
		                      data<float>(q),
		                      data<uint32_t>(g.k_codes),
		                      data<uint32_t>(g.v_codes),
		                      k.bits == 16 ? nullptr : data<uint32_t>(g.k_params),
		                      v.bits == 16 ? nullptr : data<uint32_t>(g.v_params),
		                      v.prescale == Prescale::SqrtMax ? data<uint32_t>(g.v_factors) : nullptr,
		                      k.prescale == Prescale::Balance ? data<uint32_t>(kv.balance) : nullptr,
		                      data<uint32_t>(kv.work),
		                      data<uint32_t>(kv.tables),
		                      side_of(k),
		                      side_of(v),
		                      g.first_work,
		                      g.page,
		                      q.shape[0],
		                      n_heads,
		                      kv.n_kv_heads,
		                      D,
		                      kv.item_rows,
		                      kv.part_step,
		                      blocks,
		                      scores_of(D, kv.softmax.softcap),
		                      data<float>(q_rope),
		                      rope_dim};
		const auto& kernel = q_rope          ? kernels_.attend_latent
		                     : queries == 1  ? kernels_.attend_1
		                     : queries == 2  ? kernels_.attend_2
		                     : queries <= 4  ? kernels_.attend_4
		                     : D <= kThreads ? kernels_.attend_narrow
		                                     : kernels_.attend;
		launch(kernel, {g.n_work * blocks, kv.n_kv_heads, 1}, kThreads, args, {op, g.n_pages * page_bytes, first});
		first = false;
	}
}

void CudaBackend::compute(const op::UnpackLatents& o) {
	const auto& [dst, all, work, tables] = o;
	const uint32_t k_dim = dst.k.shape[2], v_dim = dst.v.shape[2];
	check_head_dim(std::max(k_dim, v_dim));
	bool first = true;
	for (const AttendGroup& g : all) {
		const Quant &k = g.format.k, &v = g.format.v;
		const UnpackArgs args{data<uint32_t>(as_words(dst.k)),
		                      data<uint32_t>(as_words(dst.v)),
		                      data<uint32_t>(g.k_codes),
		                      data<uint32_t>(g.v_codes),
		                      k.bits == 16 ? nullptr : data<uint32_t>(g.k_params),
		                      v.bits == 16 ? nullptr : data<uint32_t>(g.v_params),
		                      data<uint32_t>(work),
		                      data<uint32_t>(tables),
		                      side_of(k),
		                      side_of(v),
		                      g.first_work,
		                      g.page,
		                      k_dim,
		                      v_dim,
		                      dst.first};
		launch(kernels_.unpack_latents, {g.n_work, 1, 1}, kThreads, args,
		       {"unpack_latents", o.bytes() / double(all.size()), first});
		first = false;
	}
}

void CudaBackend::merge_parts(const char* op, View out, View lse, const KvRead& kv) {
	const uint32_t rows = out.shape[0], n_heads = out.shape[1], D = out.shape[2];
	launch(kernels_.attend_merge, {rows, n_heads, 1}, kThreads,
	       AttendMergeArgs{data<float>(out), data<float>(lse), data<float>(kv.parts), data<uint32_t>(kv.row_parts),
	                       n_heads, D, data<float>(kv.softmax.sinks)},
	       {op, 4. * double(out.elements() + kv.parts.elements()), kv.groups.empty()});
}

void CudaBackend::compute(const op::Attend& o) {
	const auto& [out, lse, q, kv] = o;
	check_head_dim(q.shape[2]);
	attend_pages("attend", q, kv);
	merge_parts("attend", out, lse, kv);
}

void CudaBackend::compute(const op::AttendPrompt& o) {
	const auto& [out, lse, q, own, older] = o;
	const uint32_t rows = q.shape[0], n_heads = q.shape[1], D = q.shape[2], n_kv_heads = own.k.shape[0];
	check_head_dim(D);
	constexpr const char* op = "attend_prompt";
	if (older) attend_pages(op, q, *older);
	const AttendPromptArgs args{data<float>(out),
	                            data<float>(lse),
	                            older ? data<float>(older->parts) : nullptr,
	                            older ? data<uint32_t>(older->row_parts) : nullptr,
	                            data<float>(q),
	                            half_words(own.k),
	                            half_words(own.v),
	                            own.first,
	                            own.k.shape[1],
	                            rows,
	                            n_heads,
	                            n_kv_heads,
	                            D,
	                            scores_of(D, own.softmax.softcap),
	                            own.window ? own.window.tokens : UINT32_MAX,
	                            own.window.chunked,
	                            data<float>(own.softmax.sinks),
	                            data<float>(own.softmax.q_rope),
	                            own.softmax.q_rope ? own.v.shape[2] : 0,
	                            std::min(own.ahead, rows),
	                            {data<uint32_t>(own.seen), own.seen.shape[1], own.seen_at, own.seen_sets(rows)},
	                            data<float>(own.slopes)};
	const uint32_t queries = rows * (n_heads / n_kv_heads);
	const auto& kernel = own.softmax.q_rope ? kernels_.attend_latent_prompt
	                     : D <= kThreads    ? kernels_.attend_prompt_narrow
	                                        : kernels_.attend_prompt;
	launch(kernel, {groups(queries, kQueries), n_kv_heads, 1}, kThreads, args,
	       {op, 2. * (own.first + rows) * n_kv_heads * (D + own.v.shape[2]) + 8. * double(q.elements()),
	        !older || older->groups.empty()});
	if (older) merge_parts(op, out, lse, *older);
}

} // namespace kvrun::cuda
