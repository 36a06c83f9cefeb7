// Parses values of policy options and sets fields of a Quant; refuses an invalid value in one line.
#include "engine/kv_host/policy_fields.h"
#include "engine/core/error.h"
#include <algorithm>
#include <charconv>

namespace kvrun {

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

namespace {

void set_bits(Quant& q, std::string_view key, std::string_view v) {
	for (const uint8_t bits : {0, 1, 2, 3, 4, 8, 16})
		if (v == fmt::format("{}", bits)) {
			q.bits = bits;
			return;
		}
	fail(Code::Invalid, "{} is '{}': expected one of 1, 2, 3, 4, 8, 16, and 0 (evict)", key, v);
}
void set_group(Quant& q, std::string_view key, std::string_view v) {
	const bool channel = q.scale != Scale::PerToken;
	if (v == "all" && q.scale != Scale::Codebook) {
		q.group = kGroupAll;
	} else if (!channel && (v == "head" || v == "half")) {
		q.group = v == "head" ? kGroupHead : kGroupHalf;
	} else {
		if (channel && v != "32" && v != "64" && v != "128") {
			if (q.scale == Scale::Codebook)
				fail(Code::Invalid, "{} is '{}': norms are stored by pages of 32, 64 or 128 tokens", key, v);
			fail(Code::Invalid,
			     "{} is '{}': keys per channel are grouped by 32, 64 or 128 tokens, or all (compressed together)", key,
			     v);
		}
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
void set_prescale(Quant& q, std::string_view key, std::string_view v) {
	if (v == "none" || v == "off")
		q.prescale = Prescale::None;
	else if (v == "sqrtmax")
		q.prescale = Prescale::SqrtMax;
	else if (v == "balance")
		q.prescale = Prescale::Balance;
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
	else if (v == "codebook")
		q.scale = Scale::Codebook;
	else
		fail(Code::Invalid, "{} is '{}': expected channel or token (uniform codes), codebook (a norm per token)", key,
		     v);
	const bool tokens = q.group == 32 || q.group == 64 || q.group == 128;
	if (q.scale == Scale::PerChannel && (q.group == kGroupHead || q.group == kGroupHalf)) q.group = 32;
	if (q.scale == Scale::Codebook && !tokens) q.group = 128;
	if (q.scale != Scale::Codebook) q.rotate = q.mean = false; // these fields apply to codebooks only
}
void set_param_bits(Quant& q, std::string_view key, std::string_view v) {
	if (v != "8" && v != "16")
		fail(Code::Invalid, "{} is '{}': expected 16 (f16), or 8 (relative to the largest of a page)", key, v);
	q.param_bits = v == "8" ? 8 : 16;
}
struct Field {
	std::string_view name;
	QuantField bit;
	void (*set)(Quant&, std::string_view key, std::string_view value);
};
constexpr Field kFields[] = {
    {"bits", kFieldBits, set_bits},
    {"group", kFieldGroup, set_group},
    {"scale", kFieldScale, set_scale},
    {"prescale", kFieldPrescale, set_prescale},
    {"eta", kFieldEta, [](Quant& q, auto k, auto v) { q.eta = eta_value(k, v); }},
    {"rotate", kFieldRotate, [](Quant& q, auto k, auto v) { q.rotate = on_off(k, v); }},
    {"mean", kFieldMean, [](Quant& q, auto k, auto v) { q.mean = on_off(k, v); }},
    {"param_bits", kFieldParamBits, set_param_bits},
};
const Field* find_field(std::string_view name) {
	const auto at = std::ranges::find(kFields, name, &Field::name);
	return at == std::end(kFields) ? nullptr : at;
}

} // namespace

std::vector<std::string_view> quant_fields() {
	std::vector<std::string_view> out;
	for (const Field& f : kFields) out.push_back(f.name);
	return out;
}

uint8_t set_field(Quant& q, std::string_view field, std::string_view key, std::string_view v) {
	const Field* f = find_field(field);
	if (!f) return 0;
	const Quant before = q;
	f->set(q, key, v);
	return uint8_t(f->bit | (q.group != before.group ? kFieldGroup : 0) |
	               (q.rotate != before.rotate ? kFieldRotate : 0) | (q.mean != before.mean ? kFieldMean : 0));
}

Quant with_fields(Quant to, const Quant& from, uint8_t fields) {
	if (fields & kFieldBits) to.bits = from.bits;
	if (fields & kFieldGroup) to.group = from.group;
	if (fields & kFieldScale) to.scale = from.scale;
	if (fields & kFieldPrescale) to.prescale = from.prescale;
	if (fields & kFieldEta) to.eta = from.eta;
	if (fields & kFieldRotate) to.rotate = from.rotate;
	if (fields & kFieldMean) to.mean = from.mean;
	if (fields & kFieldParamBits) to.param_bits = from.param_bits;
	return to;
}

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

void check_quant(std::string_view text, const Quant& q, bool is_k) {
	if (q.bits == 0 || q.bits == 16) return;
	const auto refuse = [&](std::string_view what) { fail(Code::Invalid, "{}: {}", text, what); };
	if (!is_k && q.scale == Scale::PerChannel) refuse("values have scales per token; only keys can be per channel");
	if (!is_k && q.prescale == Prescale::Balance)
		refuse("the balancer is for keys; values take prescale=sqrtmax or none");
	if (is_k && q.prescale == Prescale::SqrtMax) refuse("sqrtmax is for values; keys take prescale=balance or none");
	if (q.rotate && q.scale != Scale::Codebook) refuse("rotate=on is for scale=codebook");
	if (q.mean && !(is_k && q.scale == Scale::Codebook)) refuse("mean=on is for keys with scale=codebook");
	if (q.scale != Scale::Codebook) {
		if (q.param_bits == 16) return;
		if (q.bits == 8) refuse("codes of 8 bits need (scale, zero) in f16; give param_bits=16, or at most 4 bits");
		if (q.prescale == Prescale::SqrtMax || (is_k && q.scale == Scale::PerChannel && q.group == kGroupAll))
			refuse("param_bits=8 is relative to a page, but here any number of tokens is compressed together; give "
			       "prescale=none and k.group=32, 64 or 128");
		if (is_k && q.scale == Scale::PerToken)
			refuse("param_bits=8 is for keys with scale=channel or scale=codebook; give k.scale=channel");
		return;
	}
	if (q.prescale != Prescale::None) refuse("scale=codebook has one norm per token; give prescale=none");
	if (q.eta > 0) refuse("eta moves the ends of uniform codes, and scale=codebook has a codebook; leave it out");
}

} // namespace kvrun
