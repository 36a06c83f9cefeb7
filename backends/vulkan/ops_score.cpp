// score_prompt, score_slots, channel_max, kv_balance on Vulkan: inputs of saliency and channel balancing.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"

namespace kvrun::vk {

void VulkanBackend::compute(const op::ScorePrompt& o) {
	const auto& [score, q, lse, rows, kv, s] = o;
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_kv_heads = kv.k.shape[0],
	               n_tokens = kv.first + q.shape[0], n_rows = uint32_t(rows.elements());
	check_head_dim(head_dim);
	const View& q_rope = kv.softmax.q_rope;
	const bool softcap = kv.softmax.softcap > 0;
	const ScoreChoice how =
	    q_rope ? choose_score_latent(caps(), head_dim, kv.v.shape[2], softcap, bool(kv.seen))
	           : choose_score_prompt(caps(), head_dim, n_heads / n_kv_heads, n_rows, s, softcap, bool(kv.seen));
	const ScorePromptPush push{.first = kv.first,
	                           .n_tokens = n_tokens,
	                           .n_rows = n_rows,
	                           .n_heads = n_heads,
	                           .n_kv_heads = n_kv_heads,
	                           .t_cap = kv.k.shape[1],
	                           .stride = score.shape[1],
	                           .scale = score_scale(head_dim),
	                           .softcap = kv.softmax.softcap,
	                           .seen_words = kv.seen.shape[1],
	                           .seen_at = kv.seen_at,
	                           .seen_sets = kv.seen_sets(q.shape[0])};
	const double pairs = double(n_rows) * (kv.first + 0.5 * q.shape[0]);
	std::vector<Bind> binds{bind(score), bind(q), bind(kv.k), bind(lse), bind(rows)};
	if (q_rope) binds.insert(binds.end(), {bind(kv.v), bind(q_rope)});
	binds.push_back(bind(kv.seen));
	rec_.dispatch(pipeline(how), push, binds, {ceil_div(n_tokens, how.tokens), n_kv_heads, 1},
	              {.label = "score_prompt",
	               .bytes = 2.0 * n_tokens * n_kv_heads * head_dim + 4.0 * n_rows * n_heads * head_dim,
	               .flops = 2.0 * pairs * n_heads * head_dim});
}

void VulkanBackend::compute(const op::ScoreSlots& o) {
	const auto& [q, lse, a] = o;
	const uint32_t n_heads = q.shape[1], head_dim = q.shape[2], n_rows = uint32_t(a.rows.elements());
	check_head_dim(head_dim);
	bool first = true;
	for (const ScoreGroup& g : a.groups) {
		const bool softcap = a.softcap > 0;
		const Choice how = a.q_rope ? choose_score_latent_slots(caps(), head_dim, a.q_rope.shape[2], g.page, softcap)
		                            : choose_score_slots(caps(), head_dim, n_heads / a.n_kv_heads, n_rows, g.page,
		                                                 g.saliency, softcap);
		const ScoreSlotsPush push{.first_work = g.first_work,
		                          .n_heads = n_heads,
		                          .n_kv_heads = a.n_kv_heads,
		                          .scale = score_scale(head_dim),
		                          .softcap = a.softcap};
		const double tokens = double(g.n_pages) * g.page;
		std::vector<Bind> binds{bind(a.score), bind(q),      bind(g.k_codes), bind(lse),
		                        bind(a.rows),  bind(a.work), bind(a.tables)};
		if (a.q_rope) binds.insert(binds.end(), {bind(g.v_codes), bind(a.q_rope)});
		rec_.dispatch(pipeline(how), push, binds, {g.n_work, a.n_kv_heads, 1},
		              {.label = "score_slots",
		               .bytes = 2.0 * tokens * a.n_kv_heads * head_dim,
		               .flops = 2.0 * tokens * n_rows * n_heads * head_dim,
		               .continues = !first && g.apart}); // work items score different slots
		first = false;
	}
}

void VulkanBackend::compute(const op::ChannelMax& o) {
	const auto& [out, x] = o;
	const uint32_t n_kv_heads = out.shape[0], head_dim = out.shape[1];
	const Choice how = choose_channel_max(caps());
	const ChannelMaxPush push{
	    .n_rows = x.shape[0], .n_heads = x.shape[1], .n_kv_heads = n_kv_heads, .head_dim = head_dim};
	rec_.dispatch(pipeline(how), push, {bind(out), bind(x)}, {ceil_div(head_dim, 32), n_kv_heads, 1},
	              {.label = "channel_max", .bytes = 4.0 * double(x.elements())});
}

void VulkanBackend::compute(const op::KvBalance& o) {
	const auto& [out, q_max, k, n] = o;
	const uint32_t n_kv_heads = k.k.shape[0], head_dim = k.k.shape[2];
	const KvBalancePush push{.n = n, .t_cap = k.k.shape[1], .head_dim = head_dim};
	rec_.dispatch(pipeline(choose_kv_balance(caps())), push, {bind(out), bind(q_max), bind(k.k)},
	              {ceil_div(head_dim / 2, 32), n_kv_heads, 1},
	              {.label = "kv_balance", .bytes = 2.0 * double(n) * n_kv_heads * head_dim});
}

} // namespace kvrun::vk
