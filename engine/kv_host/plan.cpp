// KvPolicy + model shape -> KvPlan: formats per layer and page layout. Rejects policies that cannot be stored.
#include "engine/kv_host/plan.h"
#include "engine/core/error.h"
#include "engine/core/round.h"
#include "engine/kv_host/choose.h"
#include "engine/kv_host/quant.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>

namespace kvrun {

static bool packed(const Quant& q) { return q.bits > 0 && q.bits < 16; }
static bool per_channel(const Quant& q) { return packed(q) && q.scale == Scale::PerChannel; }
// Tokens wait in f16 until they fill a page, which is one group.
static bool in_whole_pages(const Quant& q) {
	return packed(q) && (q.scale == Scale::Codebook || (q.scale == Scale::PerChannel && q.group != kGroupAll));
}
static bool in_blocks(const Format& f) {
	return (per_channel(f.k) && f.k.group == kGroupAll) || (packed(f.v) && f.v.prescale == Prescale::SqrtMax);
}

// Runs of channels: whole words of any bit width inside a head, one head, or several whole heads.
static bool run_fits(uint32_t group, const KvShape& s) {
	return (group % 32 == 0 && s.head_dim % group == 0) ||
	       (group % s.head_dim == 0 && s.n_kv_heads * s.head_dim % group == 0);
}
static std::string runs_possible(const KvShape& s) {
	std::string out;
	for (uint32_t g = 1; g <= s.n_kv_heads * s.head_dim; ++g)
		if (run_fits(g, s))
			out += fmt::format("{}{}{}", out.empty() ? "" : ", ", g, g == s.head_dim ? " (one head)" : "");
	return out;
}
static uint16_t resolve_run(const Quant& q, const KvShape& s, bool fit, const char* side) {
	uint32_t g = q.group;
	if (g == kGroupAll) g = s.n_kv_heads * s.head_dim;
	if (g == kGroupHead) g = s.head_dim;
	if (g == kGroupHalf) { // the largest that fits up to half a head
		g = s.head_dim / 2;
		while (g > 0 && !run_fits(g, s)) --g;
		if (g == 0) g = s.head_dim;
	}
	if (!run_fits(g, s) && fit) {
		for (g = q.group; g < s.head_dim && !run_fits(g, s);) ++g;
		if (!run_fits(g, s)) g = s.head_dim;
	}
	if (!run_fits(g, s))
		fail(Code::Invalid, "{} group {} does not fit {} kv heads of head_dim {}; possible are {}", side, g,
		     s.n_kv_heads, s.head_dim, runs_possible(s));
	if (g > 32768) fail(Code::Invalid, "{} group {}: at most 32768 channels share a scale", side, g);
	return uint16_t(g);
}
static Quant resolve(const KvPolicy& p, Quant q, const KvShape& s, bool is_k) {
	check_quant(p.text, q, is_k);
	if (q.scale == Scale::Codebook &&
	    q.bits == 8) // uniform codes of 8 bits lose almost nothing and are cheap to decode
		q = is_k ? Quant{.bits = 8, .scale = Scale::PerChannel, .group = q.group}
		         : Quant{.bits = 8, .scale = Scale::PerToken, .group = kGroupHead};
	if (packed(q) && q.scale == Scale::PerToken) q.group = resolve_run(q, s, p.fit_groups, is_k ? "K" : "V");
	const bool in_one_head = packed(q) && q.scale == Scale::PerToken && q.param_bits == 8;
	if (in_one_head && p.fit_groups && q.group > s.head_dim) q.group = uint16_t(s.head_dim);
	if (in_one_head && q.group > s.head_dim)
		fail(Code::Invalid,
		     "{}: V group {}: with param_bits=8 a group lies in one head of {} channels; give v.group=head", p.text,
		     q.group, s.head_dim);
	if (!packed(q)) q = {.bits = q.bits}; // the other fields have no meaning
	const bool of_block = per_channel(q) && q.group == kGroupAll;
	if (q.eta == kEtaByBits) q.eta = q.scale == Scale::Codebook || of_block ? 0 : eta_of_bits(q.bits);
	if (of_block && q.eta > 0)
		fail(Code::Invalid, "{}: eta moves the ends of groups of 32, 64 or 128 tokens; with k.group=all give k.eta=0",
		     p.text);
	return q;
}

static uint16_t intern(KvPlan& plan, PageFormat f) {
	f.k_codes_at = 0;
	f.v_codes_at = f.k_codes_at + align_up(f.k_codes, 4u);
	f.k_params_at = f.v_codes_at + align_up(f.v_codes, 4u);
	f.v_params_at = f.k_params_at + align_up(f.k_params, 4u);
	f.words = f.v_params_at + align_up(f.v_params, 4u);
	for (size_t i = 0; i < plan.formats.size(); ++i)
		if (plan.formats[i] == f) return uint16_t(i);
	plan.formats.push_back(f);
	return uint16_t(plan.formats.size() - 1);
}

// Page layout of one tier of one layer; `own_k`, `own_v`: the layer stores its own codes.
static void lay_out(KvPlan& plan, TierPlan& t, Tier tier, bool own_k, bool own_v) {
	const uint32_t H = plan.shape.n_kv_heads, D = plan.shape.head_dim, V = plan.shape.v_dim(),
	               page = plan.page[size_t(tier)];
	if (plan.fill[size_t(tier)] == Fill::None) return;
	const bool block = plan.fill[size_t(tier)] == Fill::Block;
	PageFormat p{.fmt = t.fmt, .page = page};
	if (own_k) p.k_codes = kv_code_words(H, D, t.fmt.k.bits, page);
	if (own_v) p.v_codes = kv_code_words(H, V, t.fmt.v.bits, page);
	PageFormat b{.fmt = t.fmt, .page = 0};
	if (packed(t.fmt.k)) (block && per_channel(t.fmt.k) ? b : p).k_params = page_param_words(t.fmt.k, H, D, page);
	if (packed(t.fmt.v)) p.v_params = page_param_words(t.fmt.v, H, V, page);
	if (packed(t.fmt.v) && t.fmt.v.prescale == Prescale::SqrtMax) b.v_params = kv_factor_words(H, V);
	t.page_format = intern(plan, p);
	if (block) t.block_format = intern(plan, b);
}

static uint16_t scaled_layer(const KvPolicy& p, uint16_t layer, uint32_t n_layers, bool scales = true) {
	if (!p.depth || !scales || layer == UINT16_MAX) return layer;
	return uint16_t((uint64_t(layer) * n_layers * 2 + p.depth) / (2 * p.depth)); // rounded to the nearest
}

// How the rotated key beside a latent that is stored like this is stored in layer l.
static Quant rope_quant(const KvPolicy& p, uint32_t l, const Quant& latent) {
	if (!packed(latent)) return {.bits = latent.bits};
	uint8_t bits = p.rope_bits ? p.rope_bits : 8;
	for (const RopeRule& r : p.rope_layers)
		if (l >= r.first && l < r.last) bits = r.bits;
	return {.bits = bits, .group = kGroupHead};
}

// Formats of every layer, with groups resolved, and the owners of their codes.
static void resolve_layers(KvPlan& plan, const KvPolicy& p) {
	const KvShape& s = plan.shape;
	const auto check_layer = [&](uint32_t layer, uint32_t typed) { // where none attends, any may be named
		if (s.n_layers && layer >= s.n_layers)
			fail(Code::Invalid, "{}: there is no layer {}; the model has layers 0 to {}", p.text, typed,
			     s.n_layers - 1);
	};
	// A rule that names layers beyond the model is an error; a boundary of layers (kq, vq) may lie there.
	for (const LayerRule& r : p.layers) {
		check_layer(scaled_layer(p, r.first, s.n_layers, r.scales), r.first);
		if (!r.scales) check_layer(r.last - 1u, r.last - 1u);
	}
	for (const RopeRule& r : p.rope_layers) check_layer(r.last - 1u, r.last - 1u);
	const uint16_t k_first = scaled_layer(p, p.share.k_first, s.n_layers),
	               v_first = scaled_layer(p, p.share.v_first, s.n_layers);
	for (uint32_t l = 0; l < s.n_layers; ++l) {
		LayerPlan& L = plan.layers.emplace_back();
		Format f[kTiers] = {{}, p.salient, p.regular};
		for (const LayerRule& r : p.layers) {
			if (l < scaled_layer(p, r.first, s.n_layers, r.scales) ||
			    l >= scaled_layer(p, r.last, s.n_layers, r.scales))
				continue;
			Quant& q = r.is_k ? f[size_t(r.tier)].k : f[size_t(r.tier)].v;
			q = with_fields(q, r.quant, r.fields);
		}
		if (s.rope_dim)
			for (Format& tier : f) tier.v = rope_quant(p, l, tier.k);
		for (int t = 0; t < kTiers; ++t)
			L.tier[t].fmt = {resolve(p, f[t].k, s, true), resolve(p, f[t].v, s.of_v(), false)};
		const uint16_t owner = uint16_t(l - l % p.share.stride);
		const Format& regular = L.tier[size_t(Tier::Regular)].fmt;
		L.k_codes_of = l >= k_first && packed(regular.k) ? owner : uint16_t(l);
		L.v_codes_of = l >= v_first && packed(regular.v) && !s.rope_dim ? owner : uint16_t(l);
	}
}

// One Fill for all layers of a tier, because they share the token structure.
static void choose_fill(KvPlan& plan, Tier tier) {
	const int t = int(tier);
	uint32_t n_block = 0, group = 0;
	bool relative = false; // values have parameters relative to their page's
	for (const LayerPlan& L : plan.layers) {
		const Format& f = L.tier[t].fmt;
		if ((f.k.bits == 0) != (f.v.bits == 0))
			fail(Code::Invalid, "{}: eviction drops K and V together; one of them has 0 bits", plan.policy.text);
		if (f.k.bits == 0 && plan.layers[0].tier[t].fmt.k.bits != 0)
			fail(Code::Invalid, "{}: tokens are evicted in all layers or in none", plan.policy.text);
		if (in_blocks(f)) ++n_block;
		if (packed(f.v) && f.v.scale == Scale::PerToken && f.v.param_bits == 8) relative = true;
		if (in_blocks(f) && per_channel(f.k) && f.k.group != kGroupAll)
			fail(Code::Invalid,
			     "{}: prescale=sqrtmax needs all tokens compressed together; keys per channel then take k.group=all",
			     plan.policy.text);
		for (const Quant* q : {&f.k, &f.v}) {
			if (!in_whole_pages(*q)) continue;
			if (group && group != q->group)
				fail(Code::Invalid,
				     "{}: keys are grouped by {} and by {} tokens; all layers need the same, and values with "
				     "scale=codebook "
				     "too",
				     plan.policy.text, group, q->group);
			group = q->group;
		}
		if (in_blocks(f) && (f.k.scale == Scale::Codebook || f.v.scale == Scale::Codebook))
			fail(Code::Invalid,
			     "{}: scale=codebook fills whole pages, but k.group=all and prescale=sqrtmax compress any number of "
			     "tokens "
			     "together; give prescale=none and scale=codebook for keys and values",
			     plan.policy.text);
	}
	if (relative && !group)
		fail(Code::Invalid,
		     "{}: v.param_bits=8 is relative to a page that is written whole; give keys scale=channel (k.group=32, 64 "
		     "or "
		     "128) or scale=codebook",
		     plan.policy.text);
	if (n_block && n_block != plan.layers.size())
		fail(Code::Invalid,
		     "{}: all layers of a tier compress tokens together (k.group=all, prescale=sqrtmax), or none",
		     plan.policy.text);
	if (plan.layers[0].tier[t].fmt.k.bits == 0)
		plan.fill[t] = Fill::None;
	else
		plan.fill[t] = n_block ? Fill::Block : group ? Fill::Group : Fill::Append;
	// Pages that end with each compression are small, because the last one is partly empty; other pages are large.
	const uint32_t wanted = plan.policy.page;
	plan.page[t] = group ? group : wanted ? wanted : n_block ? 32 : 128;
	if (group && wanted && group != wanted)
		fail(Code::Invalid, "{}: page={} but keys are grouped by {} tokens, and a group is a page", plan.policy.text,
		     wanted, group);
}

static void check_sharing(const KvPlan& plan) {
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) {
		const LayerPlan& L = plan.layers[l];
		if (L.k_codes_of == l && L.v_codes_of == l) continue;
		if (plan.ranked())
			fail(Code::Invalid,
			     "{}: shared codes need the same tokens in both layers, but each layer ranks its own; give score=none, "
			     "or km and vm = all",
			     plan.policy.text);
		for (bool is_k : {true, false}) {
			const uint32_t o = is_k ? L.k_codes_of : L.v_codes_of;
			const Format &own = L.tier[size_t(Tier::Regular)].fmt,
			             &owner = plan.layers[o].tier[size_t(Tier::Regular)].fmt;
			const Quant &a = is_k ? own.k : own.v, &b = is_k ? owner.k : owner.v;
			if (a.bits != b.bits)
				fail(Code::Invalid,
				     "{}: shared codes need equal bits: layer {} has {}-bit {}, layer {}, whose codes it reads, {}-bit "
				     "ones; move {} or {}",
				     plan.policy.text, l, a.bits, is_k ? "keys" : "values", o, b.bits, is_k ? "kq" : "vq",
				     is_k ? "km" : "vm");
			if (o != l && (a.scale == Scale::Codebook || b.scale == Scale::Codebook))
				fail(
				    Code::Invalid,
				    "{}: layer {} cannot read the codes of layer {}: with scale=codebook they mean nothing without its "
				    "norms; "
				    "give scale=token or scale=channel",
				    plan.policy.text, l, o);
			if (o != l && (a.prescale != Prescale::None || b.prescale != Prescale::None))
				fail(Code::Invalid,
				     "{}: layer {} cannot read the codes of layer {}: norms differ by layer; give prescale=none",
				     plan.policy.text, l, o);
		}
	}
}

static void check_sets(const KvPlan& plan) {
	if (plan.n_heads == 1) return;
	for (const LayerPlan& L : plan.layers)
		for (Tier t : {Tier::Salient, Tier::Regular})
			for (const Quant* q : {&L.tier[size_t(t)].fmt.k, &L.tier[size_t(t)].fmt.v})
				if (plan.fill[size_t(t)] != Fill::None && packed(*q) && q->scale == Scale::PerToken &&
				    q->group > (q == &L.tier[size_t(t)].fmt.k ? plan.shape.head_dim : plan.shape.v_dim()))
					fail(Code::Invalid,
					     "{}: {} channels share a scale across kv heads, but per_head=on lets heads keep different "
					     "tokens; give per_head=off or group=head",
					     plan.policy.text, q->group);
}

// The device can weigh only packed keys with scale and zero point, in words that hold whole codes.
static void check_fetched(const KvPlan& plan) {
	if (!plan.fetches()) return;
	for (const LayerPlan& L : plan.layers)
		for (const Tier t : {Tier::Salient, Tier::Regular})
			for (const Quant& q : {L.tier[size_t(t)].fmt.k, L.tier[size_t(t)].fmt.v})
				if (plan.fill[size_t(t)] != Fill::None && (q.scale == Scale::Codebook || q.bits == 3))
					fail(Code::Invalid,
					     "{}: fetch={} is not there for {}; give 1, 2, 4 or 8 bits with scale and zero point",
					     plan.policy.text, plan.policy.fetch, q.bits == 3 ? "3 bits" : "codebooks (scale=codebook)");
}

static void check_latent(const KvPlan& plan) {
	const KvPolicy& p = plan.policy;
	if (!plan.shape.rope_dim) {
		if (p.rope_bits || !p.rope_layers.empty())
			fail(Code::Invalid, "{}: rope.bits is of models with latent attention, which this one is not", p.text);
		return;
	}
	const bool by_length = plan.ranked() && p.select.saliency().key_length != KeyLength::Ignored;
	const char* what = by_length ? "ranks tokens by the lengths of keys, which latents do not have" : nullptr;
	for (const LayerPlan& L : plan.layers)
		for (const Tier t : {Tier::Salient, Tier::Regular})
			if (!what && L.tier[size_t(t)].fmt.k.prescale == Prescale::Balance) what = "balances keys against queries";
	if (what)
		fail(Code::Unsupported,
		     "policy '{}' {}, which kvrun does not do for models with latent attention; give another one, as turbo3 or "
		     "kivi4",
		     p.text, what);
}

KvPlan make_plan(const KvPolicy& p, const KvShape& s) {
	if (s.n_layers > 4096 || !s.n_kv_heads || !s.head_dim || s.head_dim % 2 || s.rope_dim % 2 ||
	    s.n_kv_heads * uint64_t(s.head_dim) > 65536)
		fail(Code::Invalid,
		     "no KV cache for {} layers of {} kv heads of {} channels; head_dim is even, layers at most 4096",
		     s.n_layers, s.n_kv_heads, s.head_dim);
	if (is_choice(p))
		fail(Code::Invalid,
		     "{} stands for a policy that is chosen for a model and its memory, which are not known here", p.text);
	KvPlan plan;
	plan.shape = s;
	plan.policy = p;
	resolve_layers(plan, p);
	auto all_16 = [&](Tier t) {
		return std::all_of(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& L) {
			return L.tier[size_t(t)].fmt.k.bits == 16 && L.tier[size_t(t)].fmt.v.bits == 16;
		});
	};
	plan.keeps_all = all_16(Tier::Regular);
	if (plan.keeps_all) plan.policy.select = {.sinks = 0, .recent_keep = 0, .flush = 1}; // there is nothing to judge
	plan.salient_stays = all_16(Tier::Salient);
	plan.n_groups = plan.ranked() ? s.n_layers : 1;
	plan.n_heads = plan.ranked() && plan.policy.select.per_head ? s.n_kv_heads : 1;
	plan.fill[int(Tier::F16)] = Fill::Append;
	plan.page[int(Tier::F16)] = p.page ? p.page : plan.keeps_all ? 128 : 32;
	for (Tier t : {Tier::Salient, Tier::Regular}) {
		const bool used = t == Tier::Regular ? !plan.keeps_all : plan.ranked() && !plan.salient_stays;
		if (used)
			choose_fill(plan, t);
		else
			plan.fill[size_t(t)] = Fill::None, plan.page[size_t(t)] = 32;
	}
	const Select& select = plan.policy.select;
	plan.empties_f16 = !plan.keeps_all && !select.sinks && !select.recent_keep && select.rank != Rank::LogWindow &&
	                   !(plan.ranked() && plan.salient_stays) && plan.fill[int(Tier::Salient)] != Fill::Group &&
	                   plan.fill[int(Tier::Regular)] != Fill::Group;
	if (plan.fetches() && plan.fill[int(Tier::Regular)] == Fill::None)
		fail(Code::Invalid, "{}: fetch={} brings back packed tokens, and this policy {}; give bits=1, 2, 4 or 8",
		     p.text, p.fetch, plan.keeps_all ? "packs none" : "evicts them");
	check_latent(plan);
	check_fetched(plan);
	check_sharing(plan);
	check_sets(plan);
	for (uint32_t l = 0; l < s.n_layers; ++l) {
		LayerPlan& L = plan.layers[l];
		for (Tier t : kAllTiers) {
			const bool shared = t == Tier::Regular;
			lay_out(plan, L.tier[size_t(t)], t, !shared || L.k_codes_of == l, !shared || L.v_codes_of == l);
			if (plan.fill[size_t(t)] != Fill::None && L.tier[size_t(t)].fmt.k.prescale == Prescale::Balance)
				L.balanced = true;
		}
	}
	return plan;
}

KvPlan make_device_plan(const KvPolicy& p, const KvShape& shape) {
	KvPlan plan = make_plan(p, shape);
	for (const LayerPlan& L : plan.layers)
		for (const Tier t : {Tier::Salient, Tier::Regular}) {
			const Format& f = L.tier[size_t(t)].fmt;
			if (plan.fill[size_t(t)] != Fill::None && (f.k.bits == 16) != (f.v.bits == 16))
				fail(Code::Unsupported,
				     "{}: {} stay in f16 while {} are packed, which no device does; give 8 bits instead", p.text,
				     f.k.bits == 16 ? "keys" : "values", f.k.bits == 16 ? "values" : "keys");
		}
	return plan;
}

uint32_t KvPlan::fetch_slots(const uint32_t (&pages)[kTiers]) const {
	const uint64_t slots = uint64_t(pages[1]) * page[1] + uint64_t(pages[2]) * page[2];
	return uint32_t(std::min<uint64_t>(policy.fetch, slots));
}

uint32_t KvPlan::fetch_pages(const uint32_t (&pages)[kTiers]) const {
	return ceil_div(fetch_slots(pages), page[int(Tier::F16)]);
}

size_t KvPlan::balancer_bytes() const { return size_t(shape.n_kv_heads) * shape.head_dim * 2; }

} // namespace kvrun
