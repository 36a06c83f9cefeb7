// attend and attend_prompt on Vulkan.
#include "backends/check.h"
#include "backends/vulkan/vulkan_backend.h"
#include "engine/kv/plan.h"
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace kvrun::vk {
namespace {

constexpr uint32_t kPerChannel = 1, kFactors = 2, kBalance = 4; // FLAGS of attend.comp
constexpr uint32_t kPartial = 1, kPromptLse = 2;                // FLAGS of attend_prompt.comp
constexpr uint32_t kMergeLse = 1;                               // FLAGS of attend_merge.comp
constexpr uint32_t kAmd = 0x1002, kNvidia = 0x10de;

// How a workgroup is cut: by the device and the number of query heads per kv head.
struct AttendCut {
	uint32_t local;  // lanes
	uint32_t heads;  // query heads of a kv head in one workgroup
	uint32_t blocks; // workgroups that share a kv head
	uint32_t tokens; // rows of a workgroup, where there are several
};

void cut_heads(AttendCut& cut, uint32_t share, uint32_t most) {
	cut.blocks = (share + most - 1) / most;
	cut.heads = (share + cut.blocks - 1) / cut.blocks;
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

bool packed(const Quant& q) { return q.bits < 16; }

// Shared memory of attend.comp, bytes: queries, scaled queries or weights, quads, reductions (lib/attend.glsl).
uint32_t shared_bytes(const AttendCut& cut, const Format& f, uint32_t head_dim, uint32_t page) {
	const bool scaled = packed(f.k) && f.k.scale == Scale::PerChannel, fold = packed(f.v) && f.v.norm != Norm::SqrtMax;
	const uint32_t n = cut.heads * cut.tokens, queries = n * head_dim * 4,
	               runs = fold && f.v.group < head_dim ? head_dim / f.v.group : 1;
	const uint32_t work = std::max(
	    {scaled ? std::max(1u, cut.local * 4 / page) * queries : 0, runs * n * cut.local * 16, cut.local * 32});
	const uint32_t zeros = fold ? runs * n * cut.local * 4 : 0;
	return queries + work + zeros + cut.local * 16 + n * (cut.local + 8) * 4;
}
// Rows of decode steps have caches of their own; those of a prompt share one, and a workgroup takes several.
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

// The texel build takes one subgroup of at least 8 lanes.
bool texels(const Caps& c) { return c.texel_range && c.subgroup >= 8; }
Kernel attend_kernel(const Caps& c) { return texels(c) ? Kernel::attend_texel : Kernel::attend; }
Kernel prompt_kernel(const Caps& c) { return texels(c) ? Kernel::attend_prompt_texel : Kernel::attend_prompt; }

// Parts of a format that change nothing are left at one value, so that pipelines are shared.
std::vector<SpecValue> attend_spec(const AttendCut& cut, const Format& f, uint32_t head_dim, uint32_t page) {
	const bool k_token = packed(f.k) && f.k.scale == Scale::PerToken;
	const uint32_t flags = (packed(f.k) && !k_token ? kPerChannel : 0) |
	                       (packed(f.v) && f.v.norm == Norm::SqrtMax ? kFactors : 0) |
	                       (f.k.norm == Norm::Balance ? kBalance : 0);
	return {{SPEC_LOCAL_X, cut.local},
	        {SPEC_HEAD_DIM, head_dim},
	        {SPEC_K_BITS, f.k.bits},
	        {SPEC_V_BITS, f.v.bits},
	        {SPEC_K_GROUP, k_token ? f.k.group : head_dim},
	        {SPEC_V_GROUP, packed(f.v) ? f.v.group : head_dim},
	        {SPEC_FLAGS, flags},
	        {SPEC_PAGE, page},
	        {SPEC_HEADS, cut.heads},
	        {SPEC_COLS, cut.tokens}};
}
void check_format(const Format& f, uint32_t head_dim) {
	for (const Quant& q : {f.k, f.v}) {
		const bool bits = q.bits == 1 || q.bits == 2 || q.bits == 4 || q.bits == 8 || q.bits == 16;
		const bool runs = !packed(q) || q.scale == Scale::PerChannel || q.group % head_dim == 0 ||
		                  (q.group % 32 == 0 && head_dim % q.group == 0);
		if (!bits || !runs || (&q == &f.v && packed(q) && q.scale == Scale::PerChannel))
			fail(Code::Unsupported, "attention over {} bits per {} in groups of {} is not there on Vulkan", q.bits,
			     q.scale == Scale::PerChannel ? "channel" : "token", q.group);
	}
}
std::vector<SpecValue> prompt_spec(const AttendCut& cut, uint32_t head_dim, uint32_t flags) {
	return {{SPEC_LOCAL_X, cut.local},
	        {SPEC_HEAD_DIM, head_dim},
	        {SPEC_FLAGS, flags},
	        {SPEC_HEADS, cut.heads},
	        {SPEC_COLS, cut.tokens}};
}
std::vector<SpecValue> merge_spec(const Caps& c, uint32_t head_dim, uint32_t flags) {
	return {{SPEC_LOCAL_X, c.is_cpu ? 8u : std::min(256u, std::bit_floor(c.workgroup))},
	        {SPEC_HEAD_DIM, head_dim},
	        {SPEC_FLAGS, flags}};
}

void check_head_dim(uint32_t head_dim) {
	if (head_dim % 8 || head_dim > 256)
		fail(Code::Unsupported, "head_dim {}: attention on Vulkan needs a multiple of 8, at most 256; use --device cpu",
		     head_dim);
}
float score_scale(uint32_t head_dim) { return 1 / std::sqrt(float(head_dim)); }

} // namespace

// Enqueues the partial states of all work items.
void VulkanBackend::attend_pages(const char* label, View q, const KvRead& kv, bool prompt) {
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_pages = kv.pages.shape[0];
	bool continues = false;
	for (const AttendGroup& g : kv.groups) {
		check_format(g.format, head_dim);
		const AttendCut cut = attend_cut(caps(), n_heads / kv.n_kv_heads, g.format, head_dim, g.page, prompt);
		Pipeline& p = kernels_.get(attend_kernel(caps()), attend_spec(cut, g.format, head_dim, g.page));
		const double page_bytes = 4.0 * (kv_code_words(kv.n_kv_heads, head_dim, g.format.k.bits, g.page) +
		                                 kv_code_words(kv.n_kv_heads, head_dim, g.format.v.bits, g.page));
		const double read = (g.n_pages ? g.n_pages : n_pages) * page_bytes; // of the group, each page once
		const double tokens = double(g.n_pages ? g.n_pages : n_pages) * g.page * q.shape[0];
		const uint32_t row_blocks = (kv.item_rows + cut.tokens - 1) / cut.tokens,
		               groups = row_blocks * cut.blocks; // of a work item
		const uint32_t most = std::max(1u, caps().groups[0] / groups);
		for (uint32_t done = 0; done < g.n_work; done += most, continues = true) {
			const uint32_t n = std::min(most, g.n_work - done);
			const AttendPush push{.first_work = g.first_work + done,
			                      .n_heads = n_heads,
			                      .n_kv_heads = kv.n_kv_heads,
			                      .blocks = cut.blocks,
			                      .live_stride = kv.live.shape[0] > 1 ? n_pages * 4 : 0,
			                      .n_rows = q.shape[0],
			                      .item_rows = kv.item_rows,
			                      .row_blocks = row_blocks,
			                      .part_step = kv.part_step,
			                      .scale = score_scale(head_dim)};
			const double part = double(n) / g.n_work;
			const Bind binds[] = {bind(kv.parts),   bind(q),          bind(g.k_codes),   bind(g.v_codes),
			                      bind(kv.work),    bind(kv.pages),   bind(kv.live),     bind(g.k_params),
			                      bind(g.v_params), bind(kv.factors), bind(g.v_factors), bind(kv.balance)};
			rec_.dispatch(p, push, binds, {n * groups, kv.n_kv_heads, 1},
			              {.label = label,
			               .bytes = read * part,
			               .flops = 4.0 * tokens * n_heads * head_dim * part,
			               .continues = continues});
		}
	}
}

void VulkanBackend::merge_parts(const char* label, View out, View lse, const KvRead& kv) {
	const uint32_t rows = out.shape[0], n_heads = out.shape[1], head_dim = out.shape[2];
	Pipeline& p = kernels_.get(Kernel::attend_merge, merge_spec(caps(), head_dim, lse ? kMergeLse : 0));
	rec_.dispatch(p, AttendMergePush{.n_heads = n_heads},
	              {bind(out), bind(kv.parts), bind(kv.row_parts), bind(lse ? lse : out)}, {n_heads, rows, 1},
	              {.label = label, .bytes = 4.0 * double(out.elements() + kv.parts.elements())});
}

void VulkanBackend::attend(View out, View q, const KvRead& kv) {
	check_attend(out, q, kv);
	check_head_dim(q.shape[2]);
	attend_pages("attend", q, kv, /*prompt=*/false);
	merge_parts("attend", out, kv.lse, kv);
}

void VulkanBackend::attend_prompt(View out, View q, const PromptKv& own, const KvRead* older) {
	check_attend_prompt(out, q, own, older);
	const uint32_t rows = q.shape[0], n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = own.k.shape[0];
	check_head_dim(head_dim);
	constexpr const char* label = "attend_prompt";
	if (older) attend_pages(label, q, *older, /*prompt=*/true);
	const AttendCut cut = attend_cut(caps(), n_heads / n_kv_heads);
	Pipeline& p = kernels_.get(prompt_kernel(caps()), prompt_spec(cut, head_dim,
	                                                              older     ? kPartial
	                                                              : own.lse ? kPromptLse
	                                                                        : 0));
	const double tokens = own.first + rows, pairs = double(rows) * (own.first + 0.5 * (rows + 1));
	const AttendPromptPush push{.first = own.first,
	                            .n_rows = rows,
	                            .n_heads = n_heads,
	                            .n_kv_heads = n_kv_heads,
	                            .t_cap = own.k.shape[1],
	                            .blocks = cut.blocks,
	                            .scale = score_scale(head_dim)};
	const View result =
	    older ? older->parts : out; // also stands in for an lse nobody wants: a bind for writing counts as a write
	rec_.dispatch(p, push,
	              {bind(result), bind(q), bind(own.k), bind(own.v), bind(older ? older->row_parts : View()),
	               bind(!older && own.lse ? own.lse : result)},
	              {(rows + cut.tokens - 1) / cut.tokens, n_kv_heads * cut.blocks, 1},
	              {.label = label,
	               .bytes = 4.0 * tokens * n_kv_heads * head_dim + 8.0 * double(q.elements()),
	               .flops = 4.0 * pairs * n_heads * head_dim,
	               .continues = older != nullptr && !older->groups.empty()});
	if (older) merge_parts(label, out, own.lse, *older);
}

// ---- what is compiled to look at it

namespace {

struct FormatUse {
	Format fmt;
	uint32_t page; // tokens
};

std::string quant_text(const Quant& q) {
	if (!packed(q)) return "f16";
	const char* norm = q.norm == Norm::Balance ? ", balanced" : q.norm == Norm::SqrtMax ? ", factors" : "";
	if (q.scale == Scale::PerChannel) return fmt::format("{} bit per channel{}", q.bits, norm);
	return fmt::format("{} bit per {} channels{}", q.bits, q.group, norm);
}

void add_format(std::vector<FormatUse>& all, const Format& f, uint32_t page) {
	for (const FormatUse& u : all)
		if (u.fmt == f && u.page == page) return;
	all.push_back({f, page});
}

// What policies store, those of the table and what their options make of them.
std::vector<FormatUse> formats_of_policies(uint32_t head_dim) {
	std::vector<KvPolicy> policies = all_policies();
	for (const char* text :
	     {"rtn4,k.bits=8", "rtn4,k.bits=16", "rtn4,v.bits=16", "rtn4,bits=1", "kivi2,bits=8", "asymkv1/1",
	      "zipcache,salient.bits=8", "zipcache,bits=1", "mikv,bits=4", "mikv,bits=1", "mikv,salient.bits=4"})
		policies.push_back(parse_policy(text));
	std::vector<FormatUse> all;
	for (const KvPolicy& p : policies) {
		const KvPlan plan = make_plan(p, {32, 8, head_dim});
		for (const PageFormat& f : plan.formats)
			if (f.page) add_format(all, f.fmt, f.page);
	}
	return all;
}

// Every width of K beside every width of V, keys per channel and per token.
std::vector<FormatUse> all_formats() {
	std::vector<FormatUse> all;
	for (const uint8_t k : {1, 2, 4, 8, 16})
		for (const Scale scale : {Scale::PerChannel, Scale::PerToken})
			for (const uint8_t v : {1, 2, 4, 8, 16}) {
				Format f{{.bits = k}, {.bits = v}};
				if (k < 16) f.k.scale = scale;
				add_format(all, f, k < 16 && scale == Scale::PerChannel ? 32 : 128);
			}
	return all;
}

} // namespace

void attend_uses(const Caps& c, std::vector<KernelUse>& out) {
	const auto add = [&](uint32_t d, uint32_t share, const FormatUse& u, bool prompt) {
		const std::vector<SpecValue> spec =
		    attend_spec(attend_cut(c, share, u.fmt, d, u.page, prompt), u.fmt, d, u.page);
		for (const KernelUse& known : out) // formats that need the same pipeline are one use
			if (known.kernel == attend_kernel(c) && known.spec == spec) return;
		out.push_back({attend_kernel(c), spec,
		               fmt::format("head_dim {}, {} heads, K {}, V {}, pages of {}{}", d, share, quant_text(u.fmt.k),
		                           quant_text(u.fmt.v), u.page, prompt ? ", rows of a prompt" : "")});
	};
	for (uint32_t d : {64u, 80u, 96u, 128u, 256u}) {
		for (uint32_t share : {1u, 4u, 8u}) {
			for (const FormatUse& u : formats_of_policies(d))
				for (const bool prompt : {false, true}) add(d, share, u, prompt);
			const AttendCut cut = attend_cut(c, share);
			const std::pair<uint32_t, const char*> ways[] = {{0, ""}, {kPartial, ", state"}, {kPromptLse, ", lse"}};
			for (const auto& [flags, text] : ways)
				out.push_back({prompt_kernel(c), prompt_spec(cut, d, flags),
				               fmt::format("head_dim {}, {} heads{}", d, share, text)});
		}
		out.push_back({Kernel::attend_merge, merge_spec(c, d, 0), fmt::format("head_dim {}", d)});
		out.push_back({Kernel::attend_merge, merge_spec(c, d, kMergeLse), fmt::format("head_dim {}, lse", d)});
	}
	for (const FormatUse& u : all_formats()) add(128, 4, u, false);
}

} // namespace kvrun::vk
