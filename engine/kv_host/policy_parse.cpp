// Parses "name,key=value,..." into a KvPolicy; refuses an invalid value in one line that gives the valid ones.
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/kv_host/policy_fields.h"
#include <algorithm>
#include <optional>

namespace kvrun {
namespace {

struct Layered { // "regular.k.bits@0-3=4", applied after all other options
	std::string path, value;
	uint16_t first, last; // layers [first, last)
};
struct Draft {
	KvPolicy p;
	std::optional<uint16_t> kq, vq;        // layers below store 2 bits, the rest 1
	std::optional<double> eta, eta1, eta2; // eta of all, of 1-bit, of 2-bit formats
	std::optional<uint32_t> recent;        // cap of the window
	bool typed_flush = false, typed_keep = false;
	std::vector<std::pair<std::string, std::string>> bits; // of "NAMEa/b"
	std::vector<Layered> layered;
	std::vector<std::string> typed; // keys, without their layers
};

bool known_field(std::string_view field) {
	const std::vector<std::string_view> all = quant_fields();
	return std::ranges::find(all, field) != all.end();
}
// Whether a path without k. or v. includes this side: scales per channel and means apply to keys only.
bool means_side(const Path& at, bool is_k, std::string_view v) {
	if (!(is_k ? at.k : at.v)) return false;
	return is_k || at.named_side || !((at.field == "scale" && v == "channel") || at.field == "mean");
}
// A path without a tier includes Regular, and for all fields but bits also a packed Salient.
bool means_tier(const KvPolicy& p, const Path& at, Tier t) {
	if (t == Tier::Regular) return at.regular;
	return at.salient && (at.named_tier || (at.field != "bits" && p.salient.k.bits < 16));
}

// Sets a field of the formats a path names, in all layers.
bool set_path(KvPolicy& p, std::string_view key, std::string_view v) {
	const Path at = read_path(key);
	if (!known_field(at.field)) return false;
	for (const Tier t : {Tier::Regular, Tier::Salient})
		for (const bool is_k : {true, false}) {
			if (!means_tier(p, at, t) || !means_side(at, is_k, v)) continue;
			Format& f = t == Tier::Salient ? p.salient : p.regular;
			set_field(is_k ? f.k : f.v, at.field, key, v);
			for (LayerRule& r : p.layers)
				if (r.tier == t && r.is_k == is_k) set_field(r.quant, at.field, key, v);
		}
	// A run of channels given by the user must fit unchanged; tokens per group fit every head_dim.
	const auto in_runs = [](const Quant& q) { return q.scale == Scale::PerToken; };
	if (at.field == "group" && ((at.v && in_runs(p.regular.v)) || (at.k && in_runs(p.regular.k)))) p.fit_groups = false;
	return true;
}

void set_probe(Select& s, std::string_view key, std::string_view v) {
	if (v == "all")
		s.probe_recent = 1, s.probe_random = 0;
	else if (v == "recent")
		s.probe_recent = 0.1, s.probe_random = 0;
	else if (v == "random")
		s.probe_recent = 0, s.probe_random = 0.1;
	else if (v == "hybrid")
		s.probe_recent = s.probe_random = 0.05;
	else if (v.empty() || (v[0] != '.' && (v[0] < '0' || v[0] > '9')))
		fail(
		    Code::Invalid,
		    "{} is '{}': expected all, recent, random, hybrid, or the share of rows (half newest, half random), as 0.1",
		    key, v);
	else {
		const double share = number(key, v, 0, 1);
		if (share == 0)
			fail(Code::Invalid, "{} is 0: without scored rows there is no score; expected more than 0, at most 1", key);
		s.probe_recent = share == 1 ? 1 : share / 2;
		s.probe_random = share == 1 ? 0 : share / 2;
	}
}
void set_rank(Select& s, std::string_view key, std::string_view v) {
	if (v == "none")
		s.rank = Rank::None;
	else if (v == "log")
		s.rank = Rank::LogWindow;
	else if (v == "sum" || v == "accumulated")
		s.rank = Rank::ScoreSum;
	else if (v == "mean" || v == "normalized" || v == "normalised")
		s.rank = Rank::ScoreMean;
	else if (v == "key_length")
		s.rank = Rank::KeyLength, s.key_length = KeyLength::Large;
	else
		fail(Code::Invalid, "{} is '{}': expected sum (accumulated), mean (normalised), key_length, log or none", key,
		     v);
}
void set_key_length(Select& s, std::string_view key, std::string_view v) {
	if (v == "large")
		s.key_length = KeyLength::Large;
	else if (v == "small")
		s.key_length = KeyLength::Small;
	else if (v == "off")
		s.key_length = KeyLength::Ignored;
	else
		fail(Code::Invalid, "{} is '{}': expected large, small or off", key, v);
}
void set_w(Draft& d, std::string_view key, std::string_view v) {
	if (d.p.select.rank != Rank::LogWindow)
		fail(Code::Invalid, "{} is the window of policies with score=log; {} has recent_keep and flush", key, d.p.name);
	const uint32_t w = whole(key, v, 1, 1u << 20);
	d.p.select.recent_keep = w;
	d.p.select.flush = 2 * w;
	d.typed_keep = d.typed_flush = true;
}
void set_page(KvPolicy& p, std::string_view key, std::string_view v) {
	p.page = uint16_t(whole(key, v, 32, 128));
	if (p.page != 32 && p.page != 64 && p.page != 128)
		fail(Code::Invalid, "{} is {}: expected 32, 64 or 128 tokens", key, p.page);
}

constexpr std::string_view kRopeBits = "rope.bits";
uint8_t rope_bits_value(std::string_view key, std::string_view v) {
	for (const uint8_t bits : {4, 8})
		if (v == fmt::format("{}", bits)) return bits;
	fail(Code::Invalid, "{} is '{}': expected 8 or 4", key, v);
}
void set_fetch_mode(KvPolicy& p, std::string_view key, std::string_view v) {
	if (v != "spec" && v != "sync") fail(Code::Invalid, "{} is '{}': expected spec or sync", key, v);
	p.fetch_sync = v == "sync";
}

struct Key {
	const char* name;
	const char* help; // one line
	void (*set)(Draft&, std::string_view key, std::string_view value);
};
constexpr uint32_t kMaxTokens = 1u << 24;
const Key kKeys[] = {
    {"recent_keep", "newest tokens that stay in f16",
     [](Draft& d, auto k, auto v) { d.p.select.recent_keep = whole(k, v, 0, kMaxTokens), d.typed_keep = true; }},
    {"flush", "tokens that leave the f16 window at a time",
     [](Draft& d, auto k, auto v) { d.p.select.flush = whole(k, v, 1, kMaxTokens), d.typed_flush = true; }},
    {"recent", "most tokens the f16 window holds: recent_keep + flush (with score=log: 3 W)",
     [](Draft& d, auto k, auto v) { d.recent = whole(k, v, 1, kMaxTokens); }},
    {"sinks", "first tokens of the sequence that stay in f16",
     [](Draft& d, auto k, auto v) { d.p.select.sinks = whole(k, v, 0, kMaxTokens); }},
    {"W", "window of score=log: at most 3 W tokens in f16", [](Draft& d, auto k, auto v) { set_w(d, k, v); }},
    {"eta", "calibration: the end points of each quantization group move inwards by this share of its range",
     [](Draft& d, auto k, auto v) { d.eta = eta_value(k, v); }},
    {"eta1", "eta of 1-bit formats", [](Draft& d, auto k, auto v) { d.eta1 = eta_value(k, v); }},
    {"eta2", "eta of 2-bit formats", [](Draft& d, auto k, auto v) { d.eta2 = eta_value(k, v); }},
    {"kq", "layers below store keys at 2 bits, the rest at 1",
     [](Draft& d, auto k, auto v) { d.kq = layer_number(k, v), d.p.depth = 0; }},
    {"vq", "layers below store values at 2 bits, the rest at 1",
     [](Draft& d, auto k, auto v) { d.vq = layer_number(k, v), d.p.depth = 0; }},
    {"km", "from this layer on, odd layers read the key codes of the layer below",
     [](Draft& d, auto k, auto v) { d.p.share.k_first = layer_number(k, v), d.p.depth = 0; }},
    {"vm", "from this layer on, odd layers read the value codes of the layer below",
     [](Draft& d, auto k, auto v) { d.p.share.v_first = layer_number(k, v), d.p.depth = 0; }},
    {"stride", "layers that share codes; the first of them stores them",
     [](Draft& d, auto k, auto v) { d.p.share.stride = uint16_t(whole(k, v, 2, 64)); }},
    {"score",
     "how tokens are ranked: sum (attention received), mean (the same per row that could see the token), "
     "key_length, log or none",
     [](Draft& d, auto k, auto v) { set_rank(d.p.select, k, v); }},
    {"key_length", "large: scores are multiplied by the length of the token's key; small: divided by it; off",
     [](Draft& d, auto k, auto v) { set_key_length(d.p.select, k, v); }},
    {"ratio", "share of the tokens leaving the window that are salient",
     [](Draft& d, auto k, auto v) { d.p.select.ratio = number(k, v, 0, 1); }},
    {"budget", "most tokens kept in f16 for their score",
     [](Draft& d, auto k, auto v) { d.p.select.budget = whole(k, v, 0, kMaxTokens); }},
    {"probe", "query rows that feed the score: all, recent, random, hybrid, or their share",
     [](Draft& d, auto k, auto v) { set_probe(d.p.select, k, v); }},
    {"probe.recent", "share of query rows that feed the score: the newest",
     [](Draft& d, auto k, auto v) { d.p.select.probe_recent = number(k, v, 0, 1); }},
    {"probe.random", "share of query rows that feed the score: drawn from the others",
     [](Draft& d, auto k, auto v) { d.p.select.probe_random = number(k, v, 0, 1); }},
    {"per_head", "on: every KV head picks its own tokens; off: one set per layer",
     [](Draft& d, auto k, auto v) { d.p.select.per_head = on_off(k, v); }},
    {"balance", "on: regular keys are balanced against queries by channel",
     [](Draft& d, auto k, auto v) { d.p.regular.k.prescale = on_off(k, v) ? Prescale::Balance : Prescale::None; }},
    {"fetch", "packed tokens per layer and KV head that each step reads in f16 from a copy in host memory; 0: none",
     [](Draft& d, auto k, auto v) { d.p.fetch = whole(k, v, 0, 1u << 16); }},
    {"fetch_mode",
     "spec: fetched ahead, chosen by a speculative token; sync: chosen by the token itself, whose attention is done "
     "twice",
     [](Draft& d, auto k, auto v) { set_fetch_mode(d.p, k, v); }},
    {"rope.bits",
     "of models with latent attention, whose latents are stored as keys are: bits of the rotated key beside them, 8 or "
     "4; rope.bits@FIRST-LAST: in these layers",
     [](Draft& d, auto k, auto v) { d.p.rope_bits = rope_bits_value(k, v); }},
    {"page", "tokens per page where the formats leave a choice: 32, 64, 128",
     [](Draft& d, auto k, auto v) { set_page(d.p, k, v); }},
};

constexpr bool kBothSides[] = {true, false};

std::string nearest(std::string_view typed, const std::vector<std::string>& known) {
	if (typed.size() > 64) return {}; // untrusted text is compared with every name
	const auto d = [&](const std::string& k) { return edit_distance(typed, k); };
	const auto best = std::min_element(known.begin(), known.end(), [&](auto& a, auto& b) { return d(a) < d(b); });
	const size_t most = typed.size() <= 3 ? typed.size() / 2 : std::max<size_t>(2, typed.size() / 3);
	return d(*best) <= most ? fmt::format("; did you mean {}?", *best) : std::string();
}
std::string policy_names() {
	std::string out;
	for (const KvPolicy& p : all_policies())
		out += fmt::format("{}{}{}", out.empty() ? "" : " ", p.name,
		                   p.takes_bits     ? "[K/V]"
		                   : p.takes_layers ? "[A/B]"
		                                    : "");
	return out + " auto tuned:BITS";
}

[[noreturn]] void unknown_name(std::string_view typed) {
	std::string small(typed.substr(0, 64));
	for (char& c : small) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
	for (const KvPolicy& p : all_policies())
		if (small == p.name && small != typed)
			fail(Code::Invalid, "no KV policy '{}'; did you mean {}?", typed, p.name);
	const std::string_view name = typed;
	if (name.find_first_of(" ;:=") != std::string_view::npos)
		fail(Code::Invalid, "no KV policy '{}': options follow the name after commas, as in NAME,group=64,flush=64",
		     name);
	std::string bits; // "name3" of a family -> name4 name2 name1
	const size_t digits = name.find_first_of("0123456789");
	if (digits != std::string_view::npos && digits > 0)
		for (const KvPolicy& p : all_policies())
			if (p.name.find_first_of("0123456789") == digits && p.name.starts_with(name.substr(0, digits)))
				bits += fmt::format(" {}", p.name);
	if (!bits.empty())
		fail(Code::Invalid, "no KV policy '{}'; available are{}, or bits=1, 2, 4 or 8 after the name", name, bits);
	std::vector<std::string> names;
	for (const KvPolicy& p : all_policies()) names.push_back(p.name);
	const std::string similar = nearest(small, names);
	fail(Code::Invalid, "no KV policy '{}'{} Available are {}", name, similar.empty() ? "." : similar, policy_names());
}

// Layers below n store 2 bits, the others the bits of the policy.
void split_layers(KvPolicy& p, bool is_k, uint16_t n) {
	const Quant& base = is_k ? p.regular.k : p.regular.v;
	if (base.bits != 1) {
		std::string names; // of policies that allow it
		for (const KvPolicy& q : all_policies())
			if ((is_k ? q.regular.k : q.regular.v).bits == 1)
				names += fmt::format("{}{}", names.empty() ? "" : ", ", q.name);
		fail(Code::Invalid, "{} splits layers into 2 and 1 bit, but {} stores {} at {} bits; start from {}",
		     is_k ? "kq" : "vq", p.text, is_k ? "keys" : "values", base.bits, names);
	}
	for (LayerRule& r : p.layers)
		if (r.is_k == is_k && r.tier == Tier::Regular) {
			r.last = n;
			r.quant.bits = 2;
			return;
		}
	LayerRule r{.first = 0, .last = n, .tier = Tier::Regular, .is_k = is_k, .quant = base};
	r.quant.bits = 2;
	p.layers.push_back(r);
}

// "NAMEa/b": for policies with layer numbers, K and V have 2 bits below layers a and b; for policies with bits, a and b
// are the bits of K and V.
const KvPolicy* read_two_numbers(Draft& d, std::string_view name) {
	for (const KvPolicy& p : all_policies()) {
		if (!(p.takes_layers || p.takes_bits) || !name.starts_with(p.name)) continue;
		std::string_view rest = name.substr(p.name.size());
		if (p.takes_layers && rest.starts_with("-")) rest.remove_prefix(1);
		const size_t slash = rest.find('/');
		if (p.takes_bits) { // "NAMEa": both sides
			const std::string_view k = rest.substr(0, slash), v = slash == rest.npos ? k : rest.substr(slash + 1);
			if (k.find_first_not_of("0123456789") != k.npos && slash == rest.npos) continue; // another name
			d.bits.push_back({"k.bits", std::string(k)});
			d.bits.push_back({"v.bits", std::string(v)});
			return &p;
		}
		if (slash == std::string_view::npos)
			fail(Code::Invalid,
			     "no KV policy '{}': {}A/B stores K below layer A and V below layer B at 2 bits, as {}32/0", name,
			     p.name, p.name);
		d.kq = layer_number(fmt::format("{}'s first number", p.name), rest.substr(0, slash));
		d.vq = layer_number(fmt::format("{}'s second number", p.name), rest.substr(slash + 1));
		return &p;
	}
	return nullptr;
}

std::string field_list() {
	const std::vector<std::string_view> all = quant_fields();
	std::string out;
	for (size_t i = 0; i < all.size(); ++i)
		out += fmt::format("{}{}", i == 0 ? "" : i + 1 == all.size() ? " and " : ", ", all[i]);
	return out;
}

void read_layered(Draft& d, std::string_view key, std::string_view value) {
	const size_t at = key.find('@');
	const std::string_view range = key.substr(at + 1);
	const size_t dash = range.find('-');
	Layered l{std::string(key.substr(0, at)), std::string(value), 0, 0};
	l.first = uint16_t(whole(key, range.substr(0, dash), 0, UINT16_MAX - 1));
	const uint32_t last =
	    dash == std::string_view::npos ? l.first : whole(key, range.substr(dash + 1), l.first, UINT16_MAX - 1);
	l.last = uint16_t(last + 1);
	if (l.path == kRopeBits) return d.p.rope_layers.push_back({l.first, l.last, rope_bits_value(key, value)});
	if (!known_field(read_path(l.path).field))
		fail(Code::Invalid, "'{}' cannot differ by layer; {} can, as in regular.k.bits@0-3=4", l.path, field_list());
	d.layered.push_back(std::move(l));
}

// Later options of the same layers add to earlier ones.
void apply_layered(KvPolicy& p, const Layered& l) {
	const Path at = read_path(l.path);
	for (const Tier t : {Tier::Regular, Tier::Salient})
		for (const bool is_k : {true, false}) {
			if (!means_tier(p, at, t) || !means_side(at, is_k, l.value)) continue;
			const Format& f = t == Tier::Salient ? p.salient : p.regular;
			LayerRule rule{.first = l.first, .last = l.last, .tier = t, .is_k = is_k, .quant = is_k ? f.k : f.v};
			for (const LayerRule& r : p.layers) // the value that the first of the layers has so far
				if (r.tier == t && r.is_k == is_k && r.first <= l.first && r.last > l.first)
					rule.quant = with_fields(rule.quant, r.quant, r.fields);
			rule.fields = set_field(rule.quant, at.field, l.path, l.value);
			rule.scales = false;
			p.layers.push_back(rule);
		}
}

void set_key(Draft& d, std::string_view key, std::string_view value) {
	if (key.empty()) fail(Code::Invalid, "'={}' has no key; options are key=value, as group=64", value);
	if (value.empty()) fail(Code::Invalid, "'{}' has no value", key);
	d.typed.emplace_back(key.substr(0, key.find('@')));
	if (key.find('@') != std::string_view::npos) return read_layered(d, key, value);
	for (const Key& k : kKeys)
		if (key == k.name) return k.set(d, key, value);
	if (set_path(d.p, key, value)) return;
	std::vector<std::string> known;
	for (const Key& k : kKeys) known.push_back(k.name);
	for (const char* tier : {"", "salient.", "regular."})
		for (const char* side : {"", "k.", "v."})
			for (std::string_view f : quant_fields()) known.push_back(fmt::format("{}{}{}", tier, side, f));
	fail(Code::Invalid, "KV policy {} has no option '{}'{}; 'kvrun plan --help' lists them", d.p.name, key,
	     nearest(key, known));
}

// Applies eta, eta1 and eta2 below any eta that was given for a range of layers.
void set_eta(Draft& d) {
	std::vector<std::pair<Quant*, uint8_t*>> formats; // and the fields set by a rule
	for (Format* f : {&d.p.regular, &d.p.salient})
		formats.push_back({&f->k, nullptr}), formats.push_back({&f->v, nullptr});
	for (LayerRule& r : d.p.layers)
		if (r.fields == kAllFields || (r.fields & kFieldBits)) formats.push_back({&r.quant, &r.fields});
	for (const auto& [q, fields] : formats) {
		const std::optional<double> eta = q->bits == 1 && d.eta1 ? d.eta1 : q->bits == 2 && d.eta2 ? d.eta2 : d.eta;
		if (!eta) continue;
		q->eta = *eta;
		if (fields) *fields |= kFieldEta;
	}
}

void finish_window(Draft& d) {
	Select& s = d.p.select;
	if (d.recent) {
		if (s.rank == Rank::LogWindow) {
			if (*d.recent < 3)
				fail(Code::Invalid, "recent is {}: score=log needs at least 3 (W = recent / 3)", *d.recent);
			s.recent_keep = *d.recent / 3, s.flush = 2 * s.recent_keep;
		} else {
			if (*d.recent < s.flush)
				fail(Code::Invalid, "recent is {}, less than flush = {}; give a smaller flush", *d.recent, s.flush);
			s.recent_keep = *d.recent - s.flush;
		}
	}
	// Keys grouped by more tokens than leave at a time would wait in f16 beside the window; keep the window's size
	// instead.
	const Quant& k = d.p.regular.k;
	const uint32_t group = k.bits && k.bits < 16 && k.scale != Scale::PerToken && k.group != kGroupAll ? k.group : 0;
	if (s.rank == Rank::None && group > s.flush && !d.typed_flush && !d.typed_keep) {
		const uint32_t window = std::max(s.recent_keep + s.flush, group);
		s.flush = group, s.recent_keep = window - group;
	}
	if (s.rank == Rank::LogWindow && s.flush != 2 * s.recent_keep)
		fail(Code::Invalid, "score=log needs flush = 2 * recent_keep, not {} and {}; W sets both", s.flush,
		     s.recent_keep);
}

void check(const KvPolicy& p) {
	const Select& s = p.select;
	const bool scored = ranks_by_score(s.rank);
	if (!scored && (s.ratio > 0 || s.budget > 0))
		fail(Code::Invalid, "{}: ratio and budget need score=sum, mean or key_length", p.text);
	if (scored && !(s.ratio > 0) && !s.budget)
		fail(Code::Invalid,
		     "{}: a policy that ranks by score needs salient tokens: ratio above 0, as 0.2, or budget in tokens",
		     p.text);
	if (scored && s.probe_recent <= 0 && s.probe_random <= 0)
		fail(Code::Invalid, "{}: no row feeds the score; give probe", p.text);
	if (s.probe_recent + s.probe_random > 1 + 1e-9)
		fail(Code::Invalid, "{}: probe.recent + probe.random is {}, more than all rows", p.text,
		     s.probe_recent + s.probe_random);
	if (s.rank == Rank::KeyLength && s.key_length == KeyLength::Ignored)
		fail(Code::Invalid, "{}: score=key_length ranks by the length of keys; key_length is large or small", p.text);
	if (s.per_head && !scored)
		fail(Code::Invalid,
		     "{}: per_head=on needs score=sum, mean or key_length; all heads share the tokens of other policies",
		     p.text);
	const bool salient_16 = p.salient.k.bits == 16 && p.salient.v.bits == 16;
	if (p.salient.k.bits == 0 || p.salient.v.bits == 0)
		fail(Code::Invalid, "{}: salient tokens are stored; bits 1, 2, 4, 8 or 16", p.text);
	if (!scored && !salient_16)
		fail(Code::Invalid, "{}: only ranking by score packs salient tokens; salient.bits is 16 here", p.text);
	if (scored && !salient_16 && s.budget)
		fail(Code::Invalid, "{}: budget caps tokens kept in f16; packed salient tokens take ratio", p.text);
	if ((p.regular.k.bits == 0) != (p.regular.v.bits == 0))
		fail(Code::Invalid, "{}: eviction drops K and V together; bits is 0 for one of them", p.text);
	for (const Format* f : {&p.salient, &p.regular}) check_quant(p.text, f->k, true), check_quant(p.text, f->v, false);
	for (const LayerRule& r : p.layers) check_quant(p.text, r.quant, r.is_k);
}

// Refuses options that have no effect on the policy.
void check_use(const Draft& d) {
	const KvPolicy& p = d.p;
	const auto refuse = [&](std::string_view key, std::string_view why) {
		fail(Code::Invalid, "{}: {} has no effect: {}", p.text, key, why);
	};
	std::vector<const Quant*> sides[2]; // of values, of keys; over all tiers and layers
	for (const Format* f : {&p.salient, &p.regular}) sides[1].push_back(&f->k), sides[0].push_back(&f->v);
	for (const LayerRule& r : p.layers) sides[r.is_k].push_back(&r.quant);
	const auto any = [&](bool is_k, auto matches) { return std::ranges::any_of(sides[is_k], matches); };
	const auto packed = [](const Quant* q) { return q->bits > 0 && q->bits < 16; };
	for (const std::string& key : d.typed) {
		const Path at = read_path(key);
		if ((key.starts_with("probe") || key == "key_length") && !ranks_by_score(p.select.rank))
			refuse(key, "no score is kept; give score=sum or score=mean");
		if (key.starts_with("probe") && p.select.rank == Rank::KeyLength)
			refuse(key, "with score=key_length one row reads the length of all keys");
		if (key == "stride" && p.share.k_first == UINT16_MAX && p.share.v_first == UINT16_MAX)
			refuse(key, "no layers share codes; give km or vm");
		if (known_field(at.field) && at.field != "bits" && !(at.k && any(true, packed)) &&
		    !(at.v && any(false, packed)))
			refuse(key, "nothing it could be of is packed");
		const auto book = [](const Quant* q) { return q->scale == Scale::Codebook && q->bits >= 1 && q->bits <= 4; };
		const auto few = [](const Quant* q) { return q->bits >= 1 && q->bits <= 4; };
		if (at.field == "param_bits" && !(at.k && any(true, few)) && !(at.v && any(false, few)))
			refuse(key, "nothing has codes of 1 to 4 bits");
		const bool of_book = at.field == "rotate" || at.field == "mean";
		if (of_book && !(at.k && any(true, book)) && !(at.v && any(false, book)))
			refuse(key, "nothing has a codebook; those are scale=codebook at 1 to 4 bits");
		for (const uint8_t bits : {1, 2})
			if (key == fmt::format("eta{}", bits) && std::ranges::none_of(kBothSides, [&](bool is_k) {
				    return any(is_k, [&](auto q) { return q->bits == bits; });
			    }))
				refuse(key, fmt::format("nothing is stored at {} bit{}", bits, bits == 1 ? "" : "s"));
	}
}

// Renamed options: the old names are still accepted, and a warning gives the new ones.
struct Renamed {
	std::string_view field, value, new_field, new_value; // value: "" for any, which stays
};
constexpr Renamed kRenamed[] = {
    {"norm", "", "prescale", ""},
    {"key_norm", "", "key_length", ""},
    {"scale", "norm", "scale", "codebook"},
    {"score", "norm", "score", "key_length"},
};
std::pair<std::string, std::string> current_names(std::string_view key, std::string_view value) {
	const std::string_view path = key.substr(0, key.find('@'));
	const std::string_view field = path.substr(path.rfind('.') + 1); // npos + 1 is 0
	for (const Renamed& r : kRenamed) {
		if (field != r.field || (!r.value.empty() && value != r.value)) continue;
		std::string new_key(key), new_value(r.new_value.empty() ? value : r.new_value);
		new_key.replace(path.size() - field.size(), field.size(), r.new_field);
		warn_once(fmt::format("the policy option {}={} is now written {}={}", key, value, new_key, new_value));
		return {new_key, new_value};
	}
	return {std::string(key), std::string(value)};
}

} // namespace

// The summary of a table's entry, with the bits that were given instead of its own.
static std::string summary_with_bits(const KvPolicy& entry, const KvPolicy& p) {
	const auto bits_of = [](const KvPolicy& x) {
		return fmt::format("keys {} bit{}, values {}", x.regular.k.bits, x.regular.k.bits == 1 ? "" : "s",
		                   x.regular.v.bits);
	};
	std::string out = entry.summary;
	const std::string own = bits_of(entry);
	if (const size_t at = out.find(own); at != out.npos)
		out.replace(at, own.size(), p.layers.empty() ? bits_of(p) : "keys and values by layer");
	return out;
}

KvPolicy parse_policy(std::string_view text) {
	while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
	while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
	std::string_view name = text.substr(0, text.find(','));
	Draft d;
	const KvPolicy* entry = find_policy(name);
	if (!entry) entry = read_two_numbers(d, name);
	if (!entry)
		if (const std::optional<KvPolicy> choice = parse_choice(text)) return *choice;
	if (!entry) unknown_name(name);
	d.p = *entry;
	d.p.text = text;
	for (const auto& [key, value] : d.bits) set_path(d.p, key, value);
	for (size_t at = name.size(); at < text.size();) {
		const size_t end = std::min(text.find(',', at + 1), text.size());
		const std::string_view item = text.substr(at + 1, end - at - 1);
		const size_t eq = item.find('=');
		if (eq == std::string_view::npos)
			fail(Code::Invalid, "'{}' in '{}' is not key=value; a policy is name,key=value,...", item, text);
		const auto [key, value] = current_names(item.substr(0, eq), item.substr(eq + 1));
		set_key(d, key, value);
		at = end;
	}
	if (d.kq) split_layers(d.p, true, *d.kq);
	if (d.vq) split_layers(d.p, false, *d.vq);
	const std::vector<Layered> layered = std::move(d.layered);
	for (const bool bits : {true, false}) // eta by bits needs the bits, so it comes after them
		for (const Layered& l : layered)
			if (l.path.ends_with("bits") == bits) apply_layered(d.p, l);
	set_eta(d);
	finish_window(d);
	d.p.fetch_sync &= d.p.fetch > 0; // else its sessions take steps like all others
	if (entry->takes_bits) d.p.summary = summary_with_bits(*entry, d.p);
	check(d.p);
	check_use(d);
	return d.p;
}

std::vector<KvPolicy> parse_policies(std::string_view text) {
	std::vector<std::string> parts;
	for (size_t at = 0; at <= text.size();) {
		const size_t end = std::min(text.find(',', at), text.size());
		const std::string_view part = text.substr(at, end - at);
		if (part.find('=') != std::string_view::npos && !parts.empty())
			parts.back() += fmt::format(",{}", part);
		else
			parts.emplace_back(part);
		at = end + 1;
	}
	std::vector<KvPolicy> out;
	for (const std::string& p : parts) out.push_back(parse_policy(p));
	return out;
}

std::vector<std::pair<std::string, std::string>> policy_options() {
	std::vector<std::pair<std::string, std::string>> out = {
	    {"bits", "of regular tokens: 1, 2, 3, 4, 8, 16; 0 evicts them"},
	    {"group",
	     "quantization group: tokens (keys per channel) or channels (per token) that share a scale; head, half "
	     "or all"},
	    {"scale",
	     "channel: a scale per channel and group of tokens (keys only); token: per token and group of channels; "
	     "codebook: one norm per token and head, with codes of a Gaussian codebook"},
	    {"prescale", "sqrtmax: values divided by a factor per channel; balance: keys balanced against queries; none"},
	    {"rotate", "on: a randomised Hadamard transform of each head, undone after attention"},
	    {"mean", "on: the mean of each channel of keys over a page is stored apart (scale=codebook)"},
	    {"param_bits", "of a scale, zero point or norm: 16 is f16, 8 is relative to the largest of its page"}};
	for (const Key& k : kKeys) out.push_back({k.name, k.help});
	out.push_back({"[salient.|regular.][k.|v.]KEY[@FIRST-LAST]",
	               field_list() + " of one tier, of keys or values only, of a range of layers"});
	return out;
}

} // namespace kvrun
