// Which kernel an op takes on a device, with which constants.
#include "backends/vulkan/kernel_choice.h"
#include "engine/core/round.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {
namespace {

constexpr uint32_t kLocal = 128; // every device has it
constexpr uint32_t kAmd = 0x1002, kNvidia = 0x10de;

bool packed(const Quant& q) { return q.bits < 16; }

// Kernels that reduce over a workgroup. A software driver runs one subgroup without barriers many times faster than a
// workgroup with them.
uint32_t reduce_local(const Caps& c, uint32_t wanted) {
	return c.is_cpu && c.subgroup_ops ? c.subgroup : std::min(wanted, c.workgroup);
}
uint32_t lanes(const Caps& c) { return c.is_cpu ? c.subgroup : 64; }

} // namespace

// ---- embed, norms, RoPE, f16 keys and values

Choice choose_embed(DType t) { return {Kernel::embed, {{SPEC_LOCAL_X, kEmbedLocal}, {SPEC_WTYPE, uint32_t(t)}}}; }

Choice choose_rmsnorm(const Caps& c, bool by_four) {
	const Kernel k = !by_four ? Kernel::rmsnorm : soft(c) ? Kernel::soft_rmsnorm : Kernel::rmsnorm_vec4;
	return {k, {{SPEC_LOCAL_X, reduce_local(c, 256)}}};
}

Choice choose_rope_store(const Caps& c, bool by_four, uint32_t head_dim, uint32_t flags) {
	const Kernel k = !by_four ? Kernel::rope_store : soft(c) ? Kernel::soft_rope_store : Kernel::rope_store4;
	const uint32_t local = reduce_local(c, std::clamp(std::bit_ceil(head_dim / 2), 32u, kLocal));
	return {k, {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}, {SPEC_FLAGS, flags}}};
}

Choice choose_kv_store(const Caps& c, uint32_t head_dim) { // small prompts fill a few lanes only
	return {Kernel::kv_store, {{SPEC_LOCAL_X, c.is_cpu ? 32 : kLocal}, {SPEC_HEAD_DIM, head_dim}}};
}
Choice choose_kv_load() { return {Kernel::kv_load, {{SPEC_LOCAL_X, kLocal}}}; }

// ---- matmul

namespace {

constexpr uint32_t kTail = 4;       // FLAGS of the kernels: cols is no multiple of 32
constexpr uint32_t kVecLocal = 128; // workgroup of matvec.comp
constexpr uint32_t kTileRows = 64;  // of matmul.comp

// 4 rows per lane share the fetches and shuffles of x, 8 tokens the unpacking of weights: measured best on lavapipe.
MatmulChoice soft_matmul(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	const uint32_t cols = std::min(std::bit_ceil(tokens), 8u), each = 4;
	return {{Kernel::soft_matmul,
	         {{SPEC_LOCAL_X, c.subgroup},
	          {SPEC_ROWS, each},
	          {SPEC_COLS, cols},
	          {SPEC_WTYPE, uint32_t(type)},
	          {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, each * c.subgroup), ceil_div(tokens, cols), 1}};
}

// A group of lanes takes more rows where there are enough of them to fill the device anyway: x is read less often.
MatmulChoice matvec(const Caps& c, DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	uint32_t each = rows >= 8192 ? 4 : rows >= 1024 ? 2 : 1;
	if (tokens > 1) each = type == DType::F32 && tokens > 4 ? 2 : 4;
	if ((flags & 3) == MATMUL_SWIGLU) each = std::max(each, 2u);
	const uint32_t n = c.subgroup_ops ? std::min(c.subgroup, kVecLocal) : 32;
	return {{Kernel::matvec,
	         {{SPEC_LOCAL_X, kVecLocal},
	          {SPEC_ROWS, each},
	          {SPEC_COLS, tokens},
	          {SPEC_WTYPE, uint32_t(type)},
	          {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, kVecLocal / n * each), 1, 1}};
}

// Wide tiles do more work per byte from memory, narrow ones make more workgroups.
MatmulChoice matmul(DType type, uint32_t rows, uint32_t tokens, uint32_t flags) {
	const uint32_t wide = 64, narrow = 16, fill = 128; // workgroups that keep a device busy
	const bool big = tokens > narrow && uint64_t(ceil_div(rows, kTileRows)) * ceil_div(tokens, wide) >= fill;
	const uint32_t cols = big ? wide : narrow;
	return {{Kernel::matmul, {{SPEC_COLS, cols}, {SPEC_WTYPE, uint32_t(type)}, {SPEC_FLAGS, flags}}},
	        {ceil_div(rows, kTileRows), ceil_div(tokens, cols), 1}};
}

} // namespace

MatmulChoice choose_matmul(const Caps& c, DType type, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t epilogue,
                           bool decode) {
	const uint32_t flags = epilogue | (cols % 32 ? kTail : 0);
	if (soft(c)) return soft_matmul(c, type, rows, tokens, flags);
	return decode ? matvec(c, type, rows, tokens, flags) : matmul(type, rows, tokens, flags);
}

// ---- attention

namespace {

// FLAGS of attend.comp
constexpr uint32_t kPerChannel = 1, kFactors = 2, kBalance = 4, kNormsK = 8, kNormsV = 16, kRotatedK = 32,
                   kRotatedV = 64, kBytesK = 128, kBytesV = 256, kMeans = 512;

uint32_t attend_flags(const Format& f) {
	uint32_t flags = f.k.norm == Norm::Balance ? kBalance : 0;
	if (packed(f.k))
		flags |= (f.k.scale == Scale::PerChannel ? kPerChannel : 0) | (f.k.scale == Scale::Norm ? kNormsK : 0) |
		         (f.k.rotate ? kRotatedK : 0) | (f.k.norm_bits == 8 ? kBytesK : 0) | (f.k.mean ? kMeans : 0);
	if (packed(f.v))
		flags |= (f.v.norm == Norm::SqrtMax ? kFactors : 0) | (f.v.scale == Scale::Norm ? kNormsV : 0) |
		         (f.v.rotate ? kRotatedV : 0) | (f.v.norm_bits == 8 ? kBytesV : 0);
	return flags;
}
// Channels that share parameters; one head where those are of another kind.
uint32_t run_of(const Quant& q, uint32_t head_dim) {
	return packed(q) && q.scale == Scale::PerToken ? q.group : head_dim;
}

struct AttendCut {                  // how a workgroup is cut: by the device and the number of query heads per kv head
	uint32_t local;                 // lanes
	uint32_t heads, blocks, tokens; // as in AttendChoice
};

void cut_heads(AttendCut& cut, uint32_t share, uint32_t most) {
	cut.blocks = ceil_div(share, most);
	cut.heads = ceil_div(share, cut.blocks);
	cut.tokens = std::max(1u, most / cut.heads);
}
// A query costs a lane 12 registers and more: 8 fit where a lane may have 255 of them, or where registers are memory.
uint32_t most_queries(const Caps& c) { return c.is_cpu || c.vendor == kNvidia ? 8 : 4; }

AttendCut attend_cut(const Caps& c, uint32_t share) {
	AttendCut cut;
	cut_heads(cut, share, most_queries(c));
	cut.local = c.is_cpu ? 8 : c.vendor == kAmd ? 64 : 32;
	return cut;
}

// Shared memory of attend.comp, bytes: queries, scaled queries or weights, quads, reductions (lib/attend.glsl).
uint32_t shared_bytes(const AttendCut& cut, const Format& f, uint32_t head_dim, uint32_t page) {
	const bool scaled = packed(f.k) && f.k.scale == Scale::PerChannel, fold = packed(f.v) && f.v.norm != Norm::SqrtMax;
	const uint32_t n = cut.heads * cut.tokens, queries = n * head_dim * 4, run = run_of(f.v, head_dim),
	               runs = fold && run < head_dim ? head_dim / run : 1;
	const uint32_t work = std::max(
	    {scaled ? std::max(1u, cut.local * 4 / page) * queries : 0, runs * n * cut.local * 16, cut.local * 32});
	const uint32_t zeros = fold ? runs * n * cut.local * 4 : 0;
	return queries + work + zeros + cut.local * 16 + n * (cut.local + 8) * 4;
}

AttendCut attend_cut(const Caps& c, uint32_t share, const Format& f, uint32_t head_dim, uint32_t page, bool prompt) {
	AttendCut cut = attend_cut(c, share);
	if (!prompt) cut.tokens = 1;
	while (shared_bytes(cut, f, head_dim, page) > c.shared_bytes) {
		if (cut.local > 32)
			cut.local /= 2;
		else if (cut.tokens > 1)
			cut.tokens /= 2;
		else if (cut.heads > 1)
			cut_heads(cut, share, cut.heads / 2), cut.tokens = 1;
		else
			break;
	}
	return cut;
}

} // namespace

void check_attend_format(const Format& f, uint32_t head_dim) {
	for (const Quant& q : {f.k, f.v}) {
		const bool bits = (q.bits >= 1 && q.bits <= 4) || q.bits == 8 || q.bits == 16;
		const bool runs = !packed(q) || q.scale != Scale::PerToken || q.group % head_dim == 0 ||
		                  (q.group % 32 == 0 && head_dim % q.group == 0);
		if (!bits || !runs || (&q == &f.v && packed(q) && q.scale == Scale::PerChannel))
			fail(Code::Unsupported, "Vulkan has no attention over {} bits per {} in groups of {}", q.bits,
			     q.scale == Scale::PerChannel ? "channel" : "token", q.group);
	}
}

// Parts of a format that change nothing are left at one value, so that pipelines are shared.
AttendChoice choose_attend(const Caps& c, uint32_t share, const Format& f, uint32_t head_dim, uint32_t page,
                           bool prompt) {
	const AttendCut cut = attend_cut(c, share, f, head_dim, page, prompt);
	return {{soft(c) ? Kernel::soft_attend : Kernel::attend,
	         {{SPEC_LOCAL_X, cut.local},
	          {SPEC_HEAD_DIM, head_dim},
	          {SPEC_K_BITS, f.k.bits},
	          {SPEC_V_BITS, f.v.bits},
	          {SPEC_K_GROUP, run_of(f.k, head_dim)},
	          {SPEC_V_GROUP, run_of(f.v, head_dim)},
	          {SPEC_FLAGS, attend_flags(f)},
	          {SPEC_PAGE, page},
	          {SPEC_HEADS, cut.heads},
	          {SPEC_COLS, cut.tokens}}},
	        cut.heads,
	        cut.blocks,
	        cut.tokens};
}

AttendChoice choose_attend_prompt(const Caps& c, uint32_t share, uint32_t head_dim, uint32_t flags) {
	const AttendCut cut = attend_cut(c, share);
	return {{soft(c) ? Kernel::soft_attend_prompt : Kernel::attend_prompt,
	         {{SPEC_LOCAL_X, cut.local},
	          {SPEC_HEAD_DIM, head_dim},
	          {SPEC_FLAGS, flags},
	          {SPEC_HEADS, cut.heads},
	          {SPEC_COLS, cut.tokens}}},
	        cut.heads,
	        cut.blocks,
	        cut.tokens};
}

Choice choose_attend_merge(const Caps& c, uint32_t head_dim, uint32_t flags) {
	const uint32_t local = c.is_cpu ? 8u : std::min(256u, std::bit_floor(c.workgroup));
	return {Kernel::attend_merge, {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}, {SPEC_FLAGS, flags}}};
}

// ---- saliency

namespace {

constexpr uint32_t kQuadLanes = 8; // lanes of soft/score_*.comp, and its queries at a time

// One row, or as many at a time as there is room for beside the heads.
std::vector<SpecValue> soft_score(uint32_t head_dim, uint32_t share, uint32_t n_rows) {
	const uint32_t heads = std::min(share, kQuadLanes), rows = n_rows == 1 ? 1 : kQuadLanes / heads;
	return {{SPEC_LOCAL_X, kQuadLanes}, {SPEC_HEAD_DIM, head_dim}, {SPEC_HEADS, heads}, {SPEC_ROWS, rows}};
}

} // namespace

ScoreChoice choose_score_prompt(const Caps& c, uint32_t head_dim, uint32_t share, uint32_t n_rows) {
	if (soft(c)) return {{Kernel::soft_score_prompt, soft_score(head_dim, share, n_rows)}, kQuadLanes * 4};
	return {{Kernel::score_prompt, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, head_dim}}}, lanes(c)};
}

Choice choose_score_slots(const Caps& c, uint32_t head_dim, uint32_t share, uint32_t n_rows, uint32_t page) {
	Choice x{Kernel::score_slots, {{SPEC_LOCAL_X, lanes(c)}, {SPEC_HEAD_DIM, head_dim}}};
	if (soft(c)) x = {Kernel::soft_score_slots, soft_score(head_dim, share, n_rows)};
	x.spec.push_back({SPEC_PAGE, page});
	return x;
}

Choice choose_channel_max(const Caps& c) { return {Kernel::channel_max, {{SPEC_LOCAL_X, lanes(c)}}}; }

// ---- packing

Choice choose_pack_channels(const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {Kernel::kv_pack_channels,
	        {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_PAGE, page}, {SPEC_FLAGS, flags}}};
}
Choice choose_pack_tokens(const Caps& c, const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {Kernel::kv_pack_tokens,
	        {{SPEC_LOCAL_X, lanes(c)},
	         {SPEC_HEAD_DIM, head_dim},
	         {SPEC_K_BITS, q.bits},
	         {SPEC_K_GROUP, q.group},
	         {SPEC_PAGE, page},
	         {SPEC_FLAGS, flags}}};
}
Choice choose_pack_pages(const Quant& q, bool values, uint32_t head_dim, uint32_t page) {
	const uint32_t flags = (values ? kPackValues : 0) | (q.mean ? kPackMeans : 0) | (q.rotate ? kPackRotation : 0) |
	                       (q.norm_bits == 8 ? kPackBytes : 0);
	return {Kernel::kv_pack_pages,
	        {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_PAGE, page}, {SPEC_FLAGS, flags}}};
}
Choice choose_kv_block(uint32_t k_bits, bool balanced) {
	return {Kernel::kv_block, {{SPEC_K_BITS, std::max(k_bits, 1u)}, {SPEC_FLAGS, balanced ? kPackBalanceKeys : 0}}};
}

} // namespace kvrun::vk
