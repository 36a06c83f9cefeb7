// embed, rmsnorm, rope_store, kv_store, copy on Vulkan.
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {
namespace {

constexpr uint32_t kLocal = 128;      // every device has it
constexpr uint32_t kEmbedLocal = 64;  // times 16 channels
constexpr uint32_t kMostRows = 32768; // along one grid dimension, which may hold only 65535

constexpr uint32_t kNeox = 1, kNormQ = 2, kNormK = 4; // FLAGS of rope_store.comp

uint32_t groups(uint64_t n, uint32_t per_group) { return uint32_t((n + per_group - 1) / per_group); }
// Kernels that reduce over a workgroup. A software driver runs one subgroup without barriers many times faster than a
// workgroup with them.
uint32_t reduce_local(const Caps& c, uint32_t wanted) {
	return c.is_cpu && c.subgroup_ops ? c.subgroup : std::min(wanted, c.workgroup);
}
uint32_t norm_local(const Caps& c) { return reduce_local(c, 256); }
uint32_t store_local(const Caps& c) { return c.is_cpu ? 32 : kLocal; } // small prompts fill a few lanes only
uint32_t rope_local(const Caps& c, uint32_t head_dim) {
	return reduce_local(c, std::clamp(std::bit_ceil(head_dim / 2), 32u, kLocal));
}
// One build per way to read: single channels from anywhere, four at a time where all views start at multiples of 16
// bytes, four as a texel on software drivers.
Kernel norm_kernel(const Caps& c, bool by_four) {
	return !by_four ? Kernel::rmsnorm : c.texel_range ? Kernel::rmsnorm_texel : Kernel::rmsnorm_vec4;
}
Kernel rope_kernel(const Caps& c, bool by_four) {
	return !by_four ? Kernel::rope_store : c.texel_range ? Kernel::rope_store4_texel : Kernel::rope_store4;
}
bool aligned16(std::initializer_list<View> views) {
	return std::all_of(views.begin(), views.end(), [](const View& v) { return v.at % 16 == 0; });
}
bool rope_by_four(uint32_t head_dim, uint32_t rotary_dim, bool neox) {
	return head_dim % 4 == 0 && rotary_dim % (neox ? 8 : 4) == 0;
}

} // namespace

void VulkanBackend::copy(View dst, View src) {
	KV_ASSERT(dst.type == src.type && dst.elements() == src.elements());
	rec_.copy(bind(dst), bind(src));
}

void VulkanBackend::embed(View out, View table, View tokens) {
	const uint32_t n = uint32_t(tokens.elements()), dim = uint32_t(table.row_elements()), vocab = table.shape[0];
	KV_ASSERT(out.elements() == size_t(n) * dim && out.type == DType::F32 && tokens.type == DType::U32);
	Pipeline& p = kernels_.get(Kernel::embed, {{SPEC_LOCAL_X, kEmbedLocal}, {SPEC_WTYPE, uint32_t(table.type)}});
	const size_t row_bytes = weight_row_bytes(table.type, dim);
	const uint32_t piece = std::min(rows_per_binding(row_bytes, caps().range), vocab);
	for (uint32_t first = 0; first < vocab; first += piece) {
		const uint32_t rows = std::min(piece, vocab - first);
		const EmbedPush push{
		    .n_tokens = n, .dim = dim, .first_row = first, .n_rows = rows, .last_piece = first + rows == vocab};
		const Bind part{table.buf->id(), table.at + first * row_bytes, rows * row_bytes};
		rec_.dispatch(p, push, {bind(out), part, bind(tokens)},
		              {groups(dim, 16 * kEmbedLocal), std::min(n, kMostRows), groups(n, kMostRows)},
		              {.label = "embed", .bytes = double(n) * dim * 8, .flops = 0, .continues = first > 0});
	}
}

void VulkanBackend::rmsnorm(View out, View x, View w, float eps) {
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements());
	KV_ASSERT(out.elements() == x.elements() && w.elements() == dim);
	const bool by_four = dim % 4 == 0 && aligned16({out, x, w});
	Pipeline& p = kernels_.get(norm_kernel(caps(), by_four), {{SPEC_LOCAL_X, norm_local(caps())}});
	const uint32_t across = std::min(rows, kMostRows);
	const RmsNormPush push{.dim = dim, .rows = rows, .row_stride = across, .eps = eps};
	rec_.dispatch(p, push, {bind(out), bind(x), bind(w)}, {across, groups(rows, kMostRows), 1},
	              {.label = "rmsnorm", .bytes = 4.0 * (2.0 * double(x.elements()) + dim)});
}

void VulkanBackend::rope_store(View q, View k, View v, const RopeArgs& rope, const HeadNorm& norm, const KvDst& dst) {
	const uint32_t rows = q.shape[0], n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = k.shape[1];
	KV_ASSERT(k.shape[0] == rows && v.shape[0] == rows && k.shape[2] == head_dim && v.shape[1] == n_kv_heads &&
	          v.shape[2] == head_dim);
	KV_ASSERT(head_dim % 2 == 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= head_dim);
	const uint32_t flags = (rope.neox ? kNeox : 0) | (norm.q ? kNormQ : 0) | (norm.k ? kNormK : 0);
	const bool by_four =
	    rope_by_four(head_dim, rope.rotary_dim, rope.neox) && aligned16({q, k, v, rope.table, norm.q, norm.k});
	Pipeline& p =
	    kernels_.get(rope_kernel(caps(), by_four),
	                 {{SPEC_LOCAL_X, rope_local(caps(), head_dim)}, {SPEC_HEAD_DIM, head_dim}, {SPEC_FLAGS, flags}});
	const uint32_t across = std::min(rows, kMostRows);
	const RopeStorePush push{.n_heads = n_heads,
	                         .n_kv_heads = n_kv_heads,
	                         .rotary_dim = rope.rotary_dim,
	                         .k_word_stride = dst.k_word_stride,
	                         .rows = rows,
	                         .row_stride = across,
	                         .eps = norm.eps};
	const Bind binds[] = {bind(q),      bind(dst.k),  bind(dst.v),  bind(k), bind(v), bind(rope.table),
	                      bind(dst.at), bind(norm.q), bind(norm.k), bind(q)}; // the last: how rope_store4 reads q
	rec_.dispatch(
	    p, push, std::span(binds).first(by_four ? 10 : 9), {across, n_heads + 2 * n_kv_heads, groups(rows, kMostRows)},
	    {.label = "rope_store", .bytes = 8.0 * double(q.elements()) + 6.0 * double(k.elements() + v.elements())});
}

void VulkanBackend::kv_store(const PromptKv& src, uint32_t n, const KvDst& dst) {
	const uint32_t n_kv_heads = src.k.shape[0], t_cap = src.k.shape[1], head_dim = src.k.shape[2];
	KV_ASSERT(head_dim % 2 == 0 && uint64_t(src.first) + n <= t_cap && dst.at.shape[0] >= n);
	const uint32_t local = store_local(caps()), words = head_dim / 2;
	Pipeline& p = kernels_.get(Kernel::kv_store, {{SPEC_LOCAL_X, local}, {SPEC_HEAD_DIM, head_dim}});
	const KvStorePush push{.n_kv_heads = n_kv_heads,
	                       .head_words = words,
	                       .t_cap = t_cap,
	                       .first = src.first,
	                       .n = n,
	                       .k_word_stride = dst.k_word_stride};
	rec_.dispatch(p, push, {bind(dst.k), bind(dst.v), bind(src.k), bind(src.v), bind(dst.at)},
	              {groups(n, local), n_kv_heads, 2 * words},
	              {.label = "kv_store", .bytes = 8.0 * n * n_kv_heads * head_dim});
}

void basic_uses(const Caps& c, std::vector<KernelUse>& out) {
	for (DType t :
	     {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K})
		out.push_back({Kernel::embed, {{SPEC_LOCAL_X, kEmbedLocal}, {SPEC_WTYPE, uint32_t(t)}}, dtype_info(t).name});
	for (bool by_four : {false, true}) out.push_back({norm_kernel(c, by_four), {{SPEC_LOCAL_X, norm_local(c)}}, ""});
	for (uint32_t d : {64u, 80u, 96u, 128u, 256u}) {
		for (uint32_t f : {0u, kNeox, kNeox | kNormQ | kNormK})
			for (bool by_four : {false, true})
				out.push_back(
				    {rope_kernel(c, by_four),
				     {{SPEC_LOCAL_X, rope_local(c, d)}, {SPEC_HEAD_DIM, d}, {SPEC_FLAGS, f}},
				     fmt::format("head_dim {}{}{}", d, f & kNeox ? ", neox" : "", f & kNormQ ? ", head norm" : "")});
		out.push_back(
		    {Kernel::kv_store, {{SPEC_LOCAL_X, store_local(c)}, {SPEC_HEAD_DIM, d}}, fmt::format("head_dim {}", d)});
	}
}

} // namespace kvrun::vk
