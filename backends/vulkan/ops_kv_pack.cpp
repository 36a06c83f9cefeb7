// kv_pack, kv_block on Vulkan: f16 tokens into packed pages and parameter blocks.
#include "backends/check.h"
#include "backends/vulkan/vulkan_backend.h"
#include "engine/kv/quant.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

constexpr uint32_t kBlock = 1, kBalanceKeys = 2;            // FLAGS of kv_pack_channels.comp, kv_block.comp
constexpr uint32_t kValues = 1, kBalance = 2, kFactors = 4; // FLAGS of kv_pack_tokens.comp
constexpr uint32_t kLocal = 64;

uint32_t groups(uint64_t n, uint32_t each) { return uint32_t((n + each - 1) / each); }

std::vector<SpecValue> channels_spec(const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {{SPEC_HEAD_DIM, head_dim}, {SPEC_K_BITS, q.bits}, {SPEC_PAGE, page}, {SPEC_FLAGS, flags}};
}
std::vector<SpecValue> tokens_spec(const Caps& c, const Quant& q, uint32_t head_dim, uint32_t page, uint32_t flags) {
	return {{SPEC_LOCAL_X, c.is_cpu ? c.subgroup : kLocal},
	        {SPEC_HEAD_DIM, head_dim},
	        {SPEC_K_BITS, q.bits},
	        {SPEC_K_GROUP, q.group},
	        {SPEC_PAGE, page},
	        {SPEC_FLAGS, flags}};
}

} // namespace

void VulkanBackend::kv_pack(const PromptKv& src, const PackArgs& a) {
	check_kv_pack(src, a);
	const uint32_t n_kv_heads = src.k.shape[0], t_cap = src.k.shape[1], head_dim = src.k.shape[2],
	               n_work = a.work.shape[0];
	const double tokens = double(a.sources.elements()) * n_kv_heads * head_dim;
	bool continues = false;
	const auto side = [&](const Quant& q, bool values, const View& x, const View& codes, const View& params) {
		if (!q.bits) return;
		const Relax relax(q.relax);
		const KvPackPush push{.t_cap = t_cap, .n_kv_heads = n_kv_heads, .shift = relax.shift, .shrink = relax.shrink};
		const double bytes = tokens * (2 + q.bits / 8.0);
		// A page's parts are apart from each other: K and V of the same tokens need not wait for one another. Channel
		// factors are read from memory that is bound together with the codes written before, which counts as a hazard.
		if (!values && q.scale == Scale::PerChannel) {
			const uint32_t flags = (a.k_block ? kBlock : 0) | (a.balance ? kBalanceKeys : 0);
			Pipeline& p = kernels_.get(Kernel::kv_pack_channels, channels_spec(q, head_dim, a.page, flags));
			rec_.dispatch(p, push, {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work), bind(a.balance)},
			              {n_work, n_kv_heads, 1}, {.label = "kv_pack", .bytes = bytes, .continues = continues});
		} else {
			const bool factors = values && q.norm == Norm::SqrtMax, balance = !values && q.norm == Norm::Balance;
			const uint32_t flags = (values ? kValues : 0) | (balance ? kBalance : 0) | (factors ? kFactors : 0);
			const std::vector<SpecValue> spec = tokens_spec(caps(), q, head_dim, a.page, flags);
			Pipeline& p = kernels_.get(Kernel::kv_pack_tokens, spec);
			const uint64_t pairs = uint64_t(a.page) * n_kv_heads * head_dim / q.group;
			rec_.dispatch(p, push,
			              {bind(codes), bind(params), bind(x), bind(a.sources), bind(a.work),
			               bind(balance   ? a.balance
			                    : factors ? a.v_factors
			                              : View()),
			               bind(factors ? a.factors : View())},
			              {groups(pairs, spec[0].value), n_work, 1},
			              {.label = "kv_pack", .bytes = bytes, .continues = continues && !factors});
		}
		continues = true;
	};
	side(a.format.k, false, src.k, a.k_codes, a.k_params);
	side(a.format.v, true, src.v, a.v_codes, a.v_params);
}

void VulkanBackend::kv_block(const PromptKv& src, const BlockArgs& a) {
	check_kv_block(src, a);
	const uint32_t n_kv_heads = src.k.shape[0], head_dim = src.k.shape[2], n_work = a.work.shape[0];
	const bool all = a.head == UINT32_MAX;
	const KvBlockPush push{.t_cap = src.k.shape[1], .head_dim = head_dim, .first_head = all ? 0 : a.head};
	const bool balanced = a.format.k.norm == Norm::Balance && a.balance;
	Pipeline& p = kernels_.get(Kernel::kv_block, {{SPEC_K_BITS, std::max<uint32_t>(a.format.k.bits, 1)},
	                                              {SPEC_FLAGS, balanced ? kBalanceKeys : 0}});
	rec_.dispatch(
	    p, push,
	    {bind(a.words), bind(src.k), bind(src.v), bind(a.sources), bind(a.work), bind(balanced ? a.balance : View())},
	    {groups(head_dim / 2, 32), all ? n_kv_heads : 1, n_work},
	    {.label = "kv_block", .bytes = 4.0 * double(a.sources.elements()) * (all ? n_kv_heads : 1) * head_dim});
}

void kv_pack_uses(const Caps& c, std::vector<KernelUse>& out) {
	const std::pair<uint32_t, const char*> channels[] = {
	    {0, ""}, {kBlock, ", in blocks"}, {kBalanceKeys, ", balanced"}};
	const std::pair<uint32_t, const char*> tokens[] = {
	    {0, "keys"}, {kBalance, "balanced keys"}, {kValues, "values"}, {kValues | kFactors, "values with factors"}};
	for (const uint32_t d : {64u, 80u, 96u, 128u})
		for (const uint8_t bits : {uint8_t(1), uint8_t(2), uint8_t(4), uint8_t(8)})
			for (const uint32_t page : {32u, 64u, 128u}) {
				const std::string shape = fmt::format("head_dim {}, {} bit, pages of {}", d, bits, page);
				const Quant q{.bits = bits, .group = uint16_t(d % 32 ? d : 32)};
				for (const auto& [flags, text] : channels)
					out.push_back({Kernel::kv_pack_channels, channels_spec(q, d, page, flags), shape + text});
				if (page != 64)
					for (const auto& [flags, text] : tokens)
						out.push_back({Kernel::kv_pack_tokens, tokens_spec(c, q, d, page, flags),
						               fmt::format("{}, {}", shape, text)});
			}
	for (const uint32_t bits : {1u, 2u, 4u, 8u}) {
		out.push_back({Kernel::kv_block, {{SPEC_K_BITS, bits}, {SPEC_FLAGS, 0u}}, fmt::format("{} bit", bits)});
		out.push_back({Kernel::kv_block,
		               {{SPEC_K_BITS, bits}, {SPEC_FLAGS, kBalanceKeys}},
		               fmt::format("{} bit, balanced", bits)});
	}
}

} // namespace kvrun::vk
