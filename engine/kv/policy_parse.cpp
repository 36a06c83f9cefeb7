// Parses "name,key=value,..." into a KvPolicy; refuses an invalid value in one line that says what is valid.
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/kv/policy.h"
#include <algorithm>
#include <charconv>
#include <optional>

namespace kvrun {
namespace {

struct Layered { // "regular.k.bits@0-3=4", applied after everything else
	std::string path, value;
	uint16_t first, last; // layers [first, last)
};
struct Draft {
	KvPolicy p;
	std::optional<uint16_t> kq, vq;        // layers below store 2 bits, the rest 1
	std::optional<double> eta, eta1, eta2; // relax of all, of 1-bit, of 2-bit formats
	std::optional<uint32_t> recent;        // cap of the window
	bool typed_flush = false, typed_keep = false;
	std::vector<Layered> layered;
};

double number(std::string_view key, std::string_view v, double lo, double hi) {
	double x = 0;
	bool percent = !v.empty() && v.back() == '%';
	if (percent) v.remove_suffix(1);
	const auto r = std::from_chars(v.data(), v.data() + v.size(), x);
	if (r.ec != std::errc() || r.ptr != v.data() + v.size() || !(x == x))
		fail(Code::Invalid, "{} is '{}{}': expected a number from {} to {}", key, v, percent ? "%" : "", lo, hi);
	if (percent) x /= 100;
	if (!(x >= lo && x <= hi)) fail(Code::Invalid, "{} is {}: expected {} to {}", key, x, lo, hi);
	return x;
}
uint32_t whole(std::string_view key, std::string_view v, uint32_t lo, uint32_t hi) {
	uint64_t x = 0;
	const auto r = std::from_chars(v.data(), v.data() + v.size(), x);
	if (r.ec != std::errc() || r.ptr != v.data() + v.size() || x < lo || x > hi)
		fail(Code::Invalid, "{} is '{}': expected a whole number from {} to {}", key, v, lo, hi);
	return uint32_t(x);
}
uint16_t layer_number(std::string_view key, std::string_view v) {
	if (v == "all") return UINT16_MAX;
	return uint16_t(whole(key, v, 0, UINT16_MAX));
}
bool on_off(std::string_view key, std::string_view v) {
	if (v == "on" || v == "true" || v == "1") return true;
	if (v == "off" || v == "false" || v == "0") return false;
	fail(Code::Invalid, "{} is '{}': expected on or off", key, v);
}
double eta_value(std::string_view key, std::string_view v) {
	const double x = number(key, v, 0, 1);
	if (x >= 0.5)
		fail(Code::Invalid, "{} is {}: expected 0 to below 0.5, where all codes would decode to one value", key, x);
	return x;
}

void set_bits(Quant& q, std::string_view key, std::string_view v) {
	for (const uint8_t bits : {0, 1, 2, 4, 8, 16})
		if (v == fmt::format("{}", bits)) {
			q.bits = bits;
			return;
		}
	fail(Code::Invalid, "{} is '{}': expected one of 1, 2, 4, 8, 16, and 0 (evict)", key, v);
}
void set_group(Quant& q, std::string_view key, std::string_view v) {
	const bool channel = q.scale == Scale::PerChannel;
	if (v == "all") {
		q.group = kGroupAll;
	} else if (!channel && (v == "head" || v == "half")) {
		q.group = v == "head" ? kGroupHead : kGroupHalf;
	} else {
		if (channel && v != "32" && v != "64" && v != "128")
			fail(Code::Invalid,
			     "{} is '{}': keys per channel are grouped by 32, 64 or 128 tokens, or all (compressed together)", key,
			     v);
		uint32_t n = 0;
		const auto r = std::from_chars(v.data(), v.data() + v.size(), n);
		if (r.ec != std::errc() || r.ptr != v.data() + v.size() || n < 1 || n > 32768)
			fail(Code::Invalid,
			     "{} is '{}': expected channels that share a scale, as 32, 64 or 128 (at most 32768), or half, head, "
			     "all",
			     key, v);
		q.group = uint16_t(n);
	}
}
void set_norm(Quant& q, std::string_view key, std::string_view v) {
	if (v == "none" || v == "off")
		q.norm = Norm::None;
	else if (v == "sqrtmax")
		q.norm = Norm::SqrtMax;
	else if (v == "balance")
		q.norm = Norm::Balance;
	else
		fail(Code::Invalid,
		     "{} is '{}': expected none, sqrtmax (values: channel-separable), balance (keys: channel balancer)", key,
		     v);
}
void set_scale(Quant& q, std::string_view key, std::string_view v) {
	if (v == "channel")
		q.scale = Scale::PerChannel;
	else if (v == "token")
		q.scale = Scale::PerToken;
	else
		fail(Code::Invalid, "{} is '{}': expected channel or token", key, v);
	if (q.scale == Scale::PerChannel && (q.group == kGroupHead || q.group == kGroupHalf)) q.group = 32;
}
constexpr std::string_view kFields[] = {"bits", "group", "scale", "norm", "eta"};

bool set_field(Quant& q, std::string_view field, std::string_view key, std::string_view v) {
	if (field == "bits")
		set_bits(q, key, v);
	else if (field == "group")
		set_group(q, key, v);
	else if (field == "scale")
		set_scale(q, key, v);
	else if (field == "norm")
		set_norm(q, key, v);
	else if (field == "eta")
		q.relax = eta_value(key, v);
	else
		return false;
	return true;
}

struct Path { // [salient.|regular.][k.|v.]field
	bool salient = true, regular = true, k = true, v = true, named_tier = false, named_side = false;
	std::string_view field;
};
Path read_path(std::string_view key) {
	Path p;
	auto take = [&](std::string_view prefix) {
		if (!key.starts_with(prefix)) return false;
		key.remove_prefix(prefix.size());
		return true;
	};
	if (take("salient."))
		p.regular = false, p.named_tier = true;
	else if (take("regular."))
		p.salient = false, p.named_tier = true;
	if (take("k."))
		p.v = false, p.named_side = true;
	else if (take("v."))
		p.k = false, p.named_side = true;
	p.field = key;
	return p;
}

// Sets a field of the formats a path names. Without a tier: Regular, and for all but bits also a packed Salient.
bool set_path(KvPolicy& p, std::string_view key, std::string_view v) {
	const Path at = read_path(key);
	if (std::find(std::begin(kFields), std::end(kFields), at.field) == std::end(kFields)) return false;
	auto side = [&](Quant& q) { return set_field(q, at.field, key, v); };
	auto value_side =
	    [&](Quant& q) { // "group=all", "norm=..." for both sides: values have no balancer, keys no sqrtmax
		    if (!at.named_side && at.field == "scale" && v == "channel") return true;
		    return side(q);
	    };
	const bool salient = at.salient && (at.named_tier || (at.field != "bits" && p.salient.k.bits < 16));
	if (at.regular && at.k) side(p.regular.k);
	if (at.regular && at.v) value_side(p.regular.v);
	if (salient && at.k) side(p.salient.k);
	if (salient && at.v) value_side(p.salient.v);
	if (at.regular && at.field != "bits")
		for (LayerRule& r : p.layers)
			if (r.is_k ? at.k : at.v) r.is_k ? side(r.quant) : value_side(r.quant);
	// A run of channels that is typed must fit as it is; tokens per group fit every head_dim.
	if (at.field == "group" && (at.v || p.regular.k.scale == Scale::PerToken)) p.fit_groups = false;
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
	else
		fail(Code::Invalid, "{} is '{}': expected sum (accumulated), mean (normalised), log or none", key, v);
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
     "how tokens are ranked: sum (attention received), mean (the same per row that could see the token), log or none",
     [](Draft& d, auto k, auto v) { set_rank(d.p.select, k, v); }},
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
     [](Draft& d, auto k, auto v) { d.p.regular.k.norm = on_off(k, v) ? Norm::Balance : Norm::None; }},
    {"fetch", "packed tokens per layer and KV head that each step reads in f16 from a copy in host memory; 0: none",
     [](Draft& d, auto k, auto v) { d.p.fetch = whole(k, v, 0, 1u << 16); }},
    {"fetch_mode",
     "spec: fetched ahead, chosen by a speculative token; sync: chosen by the token itself, whose attention is done "
     "twice",
     [](Draft& d, auto k, auto v) { set_fetch_mode(d.p, k, v); }},
    {"page", "tokens per page where the formats leave a choice: 32, 64, 128",
     [](Draft& d, auto k, auto v) { set_page(d.p, k, v); }},
};

std::string nearest(std::string_view typed, const std::vector<std::string>& known) {
	if (typed.size() > 64) return {}; // text from outside is compared with every name
	const auto d = [&](const std::string& k) { return edit_distance(typed, k); };
	const auto best = std::min_element(known.begin(), known.end(), [&](auto& a, auto& b) { return d(a) < d(b); });
	const size_t most = typed.size() <= 3 ? typed.size() / 2 : std::max<size_t>(2, typed.size() / 3);
	return d(*best) <= most ? fmt::format("; did you mean {}?", *best) : std::string();
}
std::string policy_names() {
	std::string out;
	for (const KvPolicy& p : all_policies()) out += fmt::format("{}{}", out.empty() ? "" : " ", p.name);
	return out;
}

[[noreturn]] void unknown_name(std::string_view name) {
	if (name.find_first_of(" ;:=") != std::string_view::npos)
		fail(Code::Invalid, "no KV policy '{}': options follow the name after commas, as in NAME,group=64,flush=64",
		     name);
	std::string bits; // of a family: "name3" -> name4 name2 name1
	const size_t digits = name.find_first_of("0123456789");
	if (digits != std::string_view::npos && digits > 0)
		for (const KvPolicy& p : all_policies())
			if (p.name.find_first_of("0123456789") == digits && p.name.starts_with(name.substr(0, digits)))
				bits += fmt::format(" {}", p.name);
	if (!bits.empty())
		fail(Code::Invalid, "no KV policy '{}'; available are{}, or bits=1, 2, 4 or 8 after the name", name, bits);
	std::vector<std::string> names;
	for (const KvPolicy& p : all_policies()) names.push_back(p.name);
	const std::string near = nearest(name, names);
	fail(Code::Invalid, "no KV policy '{}'{} Available are {}", name, near.empty() ? "." : near, policy_names());
}

// Layers below n store 2 bits, the others what the policy says.
void split_layers(KvPolicy& p, bool is_k, uint16_t n) {
	const Quant& base = is_k ? p.regular.k : p.regular.v;
	if (base.bits != 1) {
		std::string names; // of policies this is possible for
		for (const KvPolicy& q : all_policies())
			if ((is_k ? q.regular.k : q.regular.v).bits == 1)
				names += fmt::format("{}{}", names.empty() ? "" : ", ", q.name);
		fail(Code::Invalid, "{} splits layers into 2 and 1 bit, but {} stores {} at {} bits; start from {}",
		     is_k ? "kq" : "vq", p.text, is_k ? "keys" : "values", base.bits, names);
	}
	for (LayerRule& r : p.layers)
		if (r.is_k == is_k && r.tier == Tier::Regular) {
			r.last = n;
			return;
		}
	LayerRule r{.first = 0, .last = n, .tier = Tier::Regular, .is_k = is_k, .quant = base};
	r.quant.bits = 2;
	p.layers.push_back(r);
}

// "NAMEa/b", for policies that take layer numbers: K and V at 2 bits below these layers.
const KvPolicy* read_layer_numbers(Draft& d, std::string_view name) {
	for (const KvPolicy& p : all_policies()) {
		if (!p.takes_layers || !name.starts_with(p.name)) continue;
		std::string_view rest = name.substr(p.name.size());
		if (rest.starts_with("-")) rest.remove_prefix(1);
		const size_t slash = rest.find('/');
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

void read_layered(Draft& d, std::string_view key, std::string_view value) {
	const size_t at = key.find('@');
	const std::string_view range = key.substr(at + 1);
	const size_t dash = range.find('-');
	Layered l{std::string(key.substr(0, at)), std::string(value), 0, 0};
	l.first = uint16_t(whole(key, range.substr(0, dash), 0, UINT16_MAX - 1));
	const uint32_t last =
	    dash == std::string_view::npos ? l.first : whole(key, range.substr(dash + 1), l.first, UINT16_MAX - 1);
	l.last = uint16_t(last + 1);
	const Path path = read_path(l.path);
	if (std::find(std::begin(kFields), std::end(kFields), path.field) == std::end(kFields))
		fail(Code::Invalid,
		     "'{}' cannot differ by layer; bits, group, scale, norm and eta can, as in regular.k.bits@0-3=4", l.path);
	d.layered.push_back(std::move(l));
}

void apply_layered(KvPolicy& p, const Layered& l) {
	const Path path = read_path(l.path);
	for (bool is_k : {true, false}) {
		if (!(is_k ? path.k : path.v)) continue;
		const Tier tier = path.named_tier && path.salient ? Tier::Salient : Tier::Regular;
		const Format& f = tier == Tier::Salient ? p.salient : p.regular;
		LayerRule r{.first = l.first, .last = l.last, .tier = tier, .is_k = is_k, .quant = is_k ? f.k : f.v};
		set_field(r.quant, path.field, l.path, l.value);
		p.layers.push_back(r);
	}
}

void set_key(Draft& d, std::string_view key, std::string_view value) {
	if (key.empty()) fail(Code::Invalid, "'={}' has no key; options are key=value, as group=64", value);
	if (value.empty()) fail(Code::Invalid, "'{}' has no value", key);
	if (key.find('@') != std::string_view::npos) return read_layered(d, key, value);
	for (const Key& k : kKeys)
		if (key == k.name) return k.set(d, key, value);
	if (set_path(d.p, key, value)) return;
	std::vector<std::string> known;
	for (const Key& k : kKeys) known.push_back(k.name);
	for (const char* tier : {"", "salient.", "regular."})
		for (const char* side : {"", "k.", "v."})
			for (std::string_view f : kFields) known.push_back(fmt::format("{}{}{}", tier, side, f));
	fail(Code::Invalid, "KV policy {} has no option '{}'{}; 'kvrun plan --help' lists them", d.p.name, key,
	     nearest(key, known));
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
	// Keys grouped by more tokens than leave at a time would wait in f16 beside the window; keep its size instead.
	const Quant& k = d.p.regular.k;
	const uint32_t group = k.bits && k.bits < 16 && k.scale == Scale::PerChannel && k.group != kGroupAll ? k.group : 0;
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
		fail(Code::Invalid, "{}: ratio and budget need score=sum or score=mean", p.text);
	if (scored && !(s.ratio > 0) && !s.budget)
		fail(Code::Invalid,
		     "{}: a policy that ranks by score needs salient tokens: ratio above 0, as 0.2, or budget in tokens",
		     p.text);
	if (scored && s.probe_recent <= 0 && s.probe_random <= 0)
		fail(Code::Invalid, "{}: no row feeds the score; give probe", p.text);
	if (s.probe_recent + s.probe_random > 1 + 1e-9)
		fail(Code::Invalid, "{}: probe.recent + probe.random is {}, more than all rows", p.text,
		     s.probe_recent + s.probe_random);
	if (s.per_head && !scored)
		fail(Code::Invalid,
		     "{}: per_head=on needs score=sum or score=mean; all heads share the tokens of other policies", p.text);
	const bool salient_16 = p.salient.k.bits == 16 && p.salient.v.bits == 16;
	if (p.salient.k.bits == 0 || p.salient.v.bits == 0)
		fail(Code::Invalid, "{}: salient tokens are stored; bits 1, 2, 4, 8 or 16", p.text);
	if (!scored && !salient_16)
		fail(Code::Invalid, "{}: only ranking by score packs salient tokens; salient.bits is 16 here", p.text);
	if (scored && !salient_16 && s.budget)
		fail(Code::Invalid, "{}: budget caps tokens kept in f16; packed salient tokens take ratio", p.text);
	if ((p.regular.k.bits == 0) != (p.regular.v.bits == 0))
		fail(Code::Invalid, "{}: eviction drops K and V together; bits is 0 for one of them", p.text);
	std::vector<std::pair<bool, const Quant*>> all = {
	    {true, &p.salient.k}, {false, &p.salient.v}, {true, &p.regular.k}, {false, &p.regular.v}};
	for (const LayerRule& r : p.layers) all.push_back({r.is_k, &r.quant});
	for (auto [is_k, q] : all) {
		if (q->bits == 0 || q->bits == 16) continue;
		if (!is_k && q->scale == Scale::PerChannel)
			fail(Code::Invalid, "{}: values have scales per token; only keys can be per channel", p.text);
		if (!is_k && q->norm == Norm::Balance)
			fail(Code::Invalid, "{}: the balancer is for keys; values take norm=sqrtmax or none", p.text);
		if (is_k && q->norm == Norm::SqrtMax)
			fail(Code::Invalid, "{}: sqrtmax is for values; keys take norm=balance or none", p.text);
	}
}

} // namespace

KvPolicy parse_policy(std::string_view text) {
	while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
	while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
	std::string_view name = text.substr(0, text.find(','));
	Draft d;
	const KvPolicy* entry = find_policy(name);
	if (!entry) entry = read_layer_numbers(d, name);
	if (!entry) unknown_name(name);
	d.p = *entry;
	d.p.text = text;
	for (size_t at = name.size(); at < text.size();) {
		const size_t end = std::min(text.find(',', at + 1), text.size());
		const std::string_view item = text.substr(at + 1, end - at - 1);
		const size_t eq = item.find('=');
		if (eq == std::string_view::npos)
			fail(Code::Invalid, "'{}' in '{}' is not key=value; a policy is name,key=value,...", item, text);
		set_key(d, item.substr(0, eq), item.substr(eq + 1));
		at = end;
	}
	if (d.kq) split_layers(d.p, true, *d.kq);
	if (d.vq) split_layers(d.p, false, *d.vq);
	std::vector<Quant*> formats = {&d.p.regular.k, &d.p.regular.v, &d.p.salient.k, &d.p.salient.v};
	for (LayerRule& r : d.p.layers) formats.push_back(&r.quant);
	for (Quant* q : formats) {
		if (d.eta) q->relax = *d.eta;
		if (d.eta1 && q->bits == 1) q->relax = *d.eta1;
		if (d.eta2 && q->bits == 2) q->relax = *d.eta2;
	}
	for (const Layered& l : d.layered) apply_layered(d.p, l);
	finish_window(d);
	check(d.p);
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
	    {"bits", "of regular tokens: 1, 2, 4, 8, 16; 0 evicts them"},
	    {"group",
	     "quantization group: tokens (keys per channel) or channels (per token) that share a scale; head, half "
	     "or all"},
	    {"scale",
	     "channel: a scale per channel and group of tokens (keys only); token: per token and group of channels"},
	    {"norm", "sqrtmax: values divided by a factor per channel; balance: keys balanced against queries; none"}};
	for (const Key& k : kKeys) out.push_back({k.name, k.help});
	out.push_back({"[salient.|regular.][k.|v.]KEY[@FIRST-LAST]",
	               "bits, group, scale, norm or eta of one tier, of keys or values only, of a range of layers"});
	return out;
}

} // namespace kvrun
