// `auto` and `tuned:BITS`: the policy with the smallest loss within a budget, from the cost of each format for each
// layer's keys and values.
#include "engine/kv_host/choose.h"
#include "engine/core/error.h"
#include "engine/core/mebibytes.h"
#include "engine/kv_host/counts.h"
#include "engine/kv_host/policy_fields.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace kvrun {
namespace {

constexpr const char* kAuto = "auto";
constexpr const char* kTuned = "tuned";
constexpr double kMostBits = 16;

std::string rope_option(SideFormat f, size_t first, size_t last) {
	return fmt::format(",rope.bits@{}-{}={}", first, last, f.bits);
}
std::string bits_option(SideFormat f, bool is_k, size_t first, size_t last) {
	return fmt::format(",{}.bits@{}-{}={}", is_k ? 'k' : 'v', first, last, f.bits);
}
// At 8 bits uniform codes are the only choice.
bool has_scale_option(SideFormat f) { return f.uniform && f.bits < 8; }
std::string scale_option(SideFormat f, bool is_k, size_t first, size_t last) {
	if (!has_scale_option(f)) return {};
	return is_k ? fmt::format(",k.scale@{}-{}=channel", first, last)
	            : fmt::format(",v.scale@{0}-{1}=token,v.group@{0}-{1}=64", first, last);
}

// The options after the name: those of the chosen policy.
std::string options_of(const KvPolicy& p) {
	const size_t comma = p.text.find(',');
	return comma == std::string::npos ? std::string() : p.text.substr(comma);
}

using SideWords = std::array<uint32_t, kNSideFormats>; // words of a page, by format
struct Sizes {                                         // sizes of one layer
	SideWords k = {}, v = {};
	uint32_t page = 0; // tokens
};
Sizes sizes_of(const KvShape& shape, const std::string& options) {
	Sizes s;
	for (int i = 0; i < kNSideFormats; ++i) {
		const SideFormat format = kSideFormats[i];
		const bool latent = shape.rope_dim != 0;
		const SideFormat other = has_side_format(format, false, latent) ? format : kSideFormats[kEightBits];
		const KvPlan plan = make_plan(parse_policy("turbo4" + options + side_options(format, true, 0, 0) +
		                                           side_options(other, false, 0, 0, latent)),
		                              shape);
		const PageFormat& f = plan.page_format(0, Tier::Regular);
		s.k[i] = f.v_codes_at - f.k_codes_at + f.v_params_at - f.k_params_at;
		s.v[i] = f.k_params_at - f.v_codes_at + f.words - f.v_params_at;
		s.page = plan.page[int(Tier::Regular)];
	}
	return s;
}

// Keys or values of one layer, while bits are distributed.
struct Side {
	const SideCost* cost;
	const SideWords* words;
	uint8_t least; // fewest bits
	int at = 0;    // index of its current format
	bool may_have(int i) const { return kSideFormats[i].bits >= least && std::isfinite((*cost)[i]); }
	double gain(int to) const { return (*cost)[at] - (*cost)[to]; }
	int64_t growth(int to) const { return int64_t((*words)[to]) - int64_t((*words)[at]); }
	SideFormat format() const { return kSideFormats[at]; }
};
// Keys of all layers, then values of all layers.
using Sides = std::vector<Side>;

uint64_t words_of(const Sides& sides) {
	uint64_t sum = 0;
	for (const Side& s : sides) sum += (*s.words)[s.at];
	return sum;
}
double cost_of(const Sides& sides) {
	double sum = 0;
	for (const Side& s : sides) sum += (*s.cost)[s.at];
	return sum;
}

// Every side in the format with the fewest words, or with the most.
Sides ends_of(const Tuning& t, const Sizes& sizes, uint8_t least_k, bool most) {
	Sides sides;
	for (const LayerCost& c : t.layers) sides.push_back({&c.k, &sizes.k, least_k});
	for (const LayerCost& c : t.layers) sides.push_back({&c.v, &sizes.v, 1});
	for (Side& s : sides) {
		s.at = kEightBits;
		for (int i = 0; i < kNSideFormats; ++i)
			if (s.may_have(i) && (most ? s.growth(i) > 0 : s.growth(i) < 0)) s.at = i;
	}
	return sides;
}

struct Step { // of one side to another format
	Side* side;
	int to;
	double gain;
	int64_t growth;
};
std::vector<Step> steps_of(Sides& sides) {
	std::vector<Step> out;
	for (Side& s : sides)
		for (int i = 0; i < kNSideFormats; ++i)
			if (i != s.at && s.may_have(i)) out.push_back({&s, i, s.gain(i), s.growth(i)});
	return out;
}

// Takes the step with the largest gain per word among those that need at most `room` words; false: there is none.
bool raise(Sides& sides, int64_t room) {
	double best = 0;
	std::optional<Step> which;
	for (const Step& s : steps_of(sides))
		if (s.growth <= room)
			if (const double each = s.gain / double(std::max<int64_t>(s.growth, 1)); each > best)
				best = each, which = s;
	if (which) which->side->at = which->to;
	return which.has_value();
}

// Makes the best exchange, in which one side gets words that another gives up; false: none has a gain.
bool exchange(Sides& sides, int64_t room) {
	constexpr double kLeast = 1e-12; // a difference by rounding is no gain
	std::vector<Step> up = steps_of(sides), down = up;
	std::erase_if(up, [](const Step& s) { return s.gain <= kLeast; });
	std::erase_if(down, [](const Step& s) { return s.growth >= 0; });
	for (std::vector<Step>* steps : {&up, &down}) std::ranges::sort(*steps, std::ranges::greater{}, &Step::gain);
	double best = kLeast;
	const Step *a = nullptr, *b = nullptr;
	for (const Step& u : up)
		for (const Step& d : down) { // the first that gives up enough is the best for u
			if (u.gain + d.gain <= best) break;
			if (u.side == d.side || u.growth + d.growth > room) continue;
			best = u.gain + d.gain, a = &u, b = &d;
			break;
		}
	if (!a) return false;
	a->side->at = a->to, b->side->at = b->to;
	return true;
}

// The formats of lowest cost within `room` words for a page of every layer; keys have at least `least_k` bits.
Sides assign(const Tuning& t, const Sizes& sizes, uint64_t room, uint8_t least_k) {
	Sides sides = ends_of(t, sizes, least_k, /*most=*/false);
	const auto left = [&] { return int64_t(room) - int64_t(words_of(sides)); };
	do {
		while (raise(sides, left())) {}
	} while (exchange(sides, left()));
	return sides;
}

// The same for a budget of packed_bits().
Sides assign_bits_of(const Tuning& t, const KvShape& shape, double bits, const std::string& options) {
	KV_ASSERT(t.layers.size() == shape.n_layers && shape.n_layers > 0);
	const Sizes sizes = sizes_of(shape, options);
	const double elements = double(shape.n_layers) * double(shape.token_channels()) * sizes.page;
	const uint64_t room = uint64_t((bits + 1e-9) * elements / 32), least = words_of(ends_of(t, sizes, 1, false));
	if (room < least)
		fail(Code::Invalid, "tuned:{:.2f}: at least {:.2f} bits, of which parameters take {:.2f}, are possible here",
		     bits, double(least) * 32 / elements, double(least) * 32 / elements - 1);
	return assign(t, sizes, room, room >= words_of(ends_of(t, sizes, 2, false)) ? 2 : 1);
}

// Calls f(first, last) for each run of sides for which `key` is equal.
void for_runs(std::span<const Side> sides, auto key, auto f) {
	for (size_t first = 0, last; first < sides.size(); first = last + 1) {
		last = first;
		while (last + 1 < sides.size() && key(sides[last + 1]) == key(sides[first])) ++last;
		f(first, last);
	}
}
// "rope.bits@2-3=4" for layers whose rotated keys do not have 8 bits.
std::string rope_exceptions(std::span<const Side> sides) {
	std::string out;
	for_runs(
	    sides, [](const Side& s) { return s.format().bits; },
	    [&](size_t first, size_t last) {
		    if (sides[first].format().bits != 8) out += rope_option(sides[first].format(), first, last);
	    });
	return out;
}
// "k.bits@2-3=4,..." for layers that differ from `common`.
std::string exceptions(std::span<const Side> sides, uint8_t common, bool is_k) {
	std::string out;
	for_runs(
	    sides, [](const Side& s) { return s.format().bits; },
	    [&](size_t first, size_t last) {
		    if (sides[first].format().bits != common) out += bits_option(sides[first].format(), is_k, first, last);
	    });
	for_runs(
	    sides, [](const Side& s) { return has_scale_option(s.format()); },
	    [&](size_t first, size_t last) { out += scale_option(sides[first].format(), is_k, first, last); });
	return out;
}
// The most frequent number of bits, at most `most`.
uint8_t most_common(std::span<const Side> sides, uint8_t most) {
	const auto n = [&](uint8_t bits) {
		return std::ranges::count_if(sides, [&](const Side& s) { return s.format().bits == bits; });
	};
	uint8_t best = most;
	for (const Side& s : sides)
		if (const uint8_t bits = s.format().bits; bits <= most && n(bits) > n(best)) best = bits;
	return best;
}
std::string text_of(const Sides& sides, const std::string& options, bool of_latent) {
	const std::span<const Side> keys = std::span(sides).first(sides.size() / 2),
	                            values = std::span(sides).subspan(sides.size() / 2);
	// Options may be for codebooks, which have at most 4 bits: then the entry has at most 4 bits, whatever the layers
	// have.
	const uint8_t most = options.empty() ? 8 : 4, k = most_common(keys, most), v = most_common(values, most);
	if (of_latent) return fmt::format("turbo{}", k) + exceptions(keys, k, true) + rope_exceptions(values) + options;
	return fmt::format("turbo{}/{}", k, v) + exceptions(keys, k, true) + exceptions(values, v, false) + options;
}

std::string expected(double kld) { return kld < 0 ? "" : fmt::format(", expected KL divergence {:.5f}", kld); }

struct Fit { // one candidate of `auto`
	std::string text;
	double kld = -1; // as Choice::kld
	KvPlan plan;
	size_t bytes = 0; // with the window full
	bool fits = false;
};

class Auto {
 public:
	Auto(const KvPolicy& asked, const KvShape& shape, const Tuning& t, bool measured, uint64_t n_tokens, size_t budget)
	    : options_(options_of(asked)), shape_(shape), tuning_(t), sizes_(sizes_of(shape, options_)),
	      measured_(measured), n_tokens_(n_tokens), budget_(budget) {}

	// or_fewer: where n_tokens do not fit, choose for as many as do.
	Choice choose(const std::string& asked, bool or_fewer) const {
		const Fit f16 = look("fp16", measured_ ? 0 : -1);
		if (f16.fits) return choice(f16, nullptr);
		uint64_t room = words_of(ends_of(tuning_, sizes_, 2, false)),
		         over = words_of(ends_of(tuning_, sizes_, 2, true));
		Fit best = with_room(room), better = with_room(over);
		if (!best.fits && or_fewer) {
			Auto fewer = *this;
			fewer.n_tokens_ = std::max<uint64_t>(tokens_that_fit(best.plan, budget_, n_tokens_), 1);
			return fewer.choose(asked, false);
		}
		if (!best.fits && n_tokens_ == 1) {
			const auto [needed, there] = mebibytes_apart(best.bytes, budget_);
			fail(
			    Code::OutOfMemory,
			    "{}: the first tokens take {} with keys at 2 bits and values at 1, and {} are there; raise --kv-budget",
			    asked, needed, there);
		}
		if (!best.fits)
			fail(Code::OutOfMemory,
			     "{}: {} tokens take {} with keys at 2 bits and values at 1, and {} are there; raise --kv-budget, "
			     "lower -c, or give --kv tuned:1.3",
			     asked, n_tokens_, mebibytes(best.bytes), mebibytes(budget_));
		if (better.fits) return choice(better, &f16);
		while (over - room > 1) { // `room` fits, `over` does not
			const uint64_t middle = room + (over - room) / 2;
			Fit f = with_room(middle);
			(f.fits ? room : over) = middle;
			(f.fits ? best : better) = std::move(f);
		}
		return choice(best, &better);
	}

	std::vector<CacheStep> steps() const {
		std::vector<CacheStep> out = {{parse_policy("fp16"), 0}};
		for (const auto& [k, v] : kSteps) {
			const Sides sides = assign(tuning_, sizes_, shape_.n_layers * uint64_t(sizes_.k[k] + sizes_.v[v]), 2);
			const double guessed = kGuessedNats / shape_.n_layers;
			out.push_back({parse_policy(text_of(sides, options_, shape_.rope_dim != 0)),
			               cost_of(sides) * (measured_ ? 1 : guessed)});
		}
		return out;
	}

 private:
	// Indices of kSideFormats whose sizes are the room of a step: 8 bits, 4, 3, 3/2, 2, 2/1.
	static constexpr std::pair<int, int> kSteps[] = {{kEightBits, kEightBits}, {3, 3}, {2, 2}, {2, 1}, {1, 1}, {1, 0}};
	// Nats per unit of guessed_tuning()'s cost, summed over layers: a middle of what SmolLM2-135M gives for turbo4
	// (0.025), turbo3 (0.03), turbo3/2 (0.04) and turbo2/1 (0.06), from tools/dev/quality_smollm2.csv.
	static constexpr double kGuessedNats = 0.03;
	Fit look(const std::string& text, double kld) const {
		Fit f{.text = text, .kld = kld, .plan = make_plan(parse_policy(text), shape_)};
		f.bytes = most_bytes(f.plan, n_tokens_);
		f.fits = f.bytes <= budget_;
		return f;
	}
	Fit with_room(uint64_t words) const {
		const Sides sides = assign(tuning_, sizes_, words, 2);
		return look(text_of(sides, options_, shape_.rope_dim != 0), measured_ ? cost_of(sides) : -1);
	}
	Choice choice(const Fit& f, const Fit* better) const {
		std::string why = fmt::format("{}: {} tokens take at most {} of {}{}", f.text, n_tokens_, mebibytes(f.bytes),
		                              mebibytes(budget_), expected(f.kld));
		if (better)
			why += fmt::format("; {} would need {}{}", better->text, mebibytes(better->bytes), expected(better->kld));
		return {f.plan.policy, why, f.kld};
	}

	std::string options_;
	KvShape shape_;
	const Tuning& tuning_;
	Sizes sizes_;
	bool measured_;
	uint64_t n_tokens_;
	size_t budget_;
};

} // namespace

bool has_side_format(SideFormat f, bool is_k, bool of_latent) {
	return is_k || !of_latent || (f.uniform && (f.bits == 4 || f.bits == 8));
}

std::string side_options(SideFormat f, bool is_k, size_t first, size_t last, bool of_latent) {
	KV_ASSERT(has_side_format(f, is_k, of_latent));
	if (of_latent && !is_k) return rope_option(f, first, last);
	return bits_option(f, is_k, first, last) + scale_option(f, is_k, first, last);
}

bool is_auto(const KvPolicy& p) { return p.name == kAuto; }

std::vector<CacheStep> auto_steps(const KvPolicy& asked, const KvShape& shape, const Tuning* tuning) {
	if (!shape.n_layers) return {{parse_policy("fp16"), 0}};
	const Tuning t = tuning ? *tuning : guessed_tuning(shape.n_layers, shape.rope_dim != 0);
	return Auto(asked, shape, t, tuning != nullptr, 0, 0).steps();
}

bool is_choice(const KvPolicy& p) { return p.name == kAuto || p.name == kTuned; }

// Options apply to the policy that is chosen. What is wrong with them is said about the choice.
static KvPolicy chosen_with(const std::string& options, const KvPolicy& choice) {
	const std::string one = "turbo2/1" + options;
	try {
		return parse_policy(one);
	} catch (const Error& e) {
		std::string what = e.what();
		const std::string names[][2] = {{one, choice.text}, {"policy turbo ", "policy " + choice.name + " "}};
		for (const auto& [own, given] : names)
			if (const size_t at = what.find(own); at != what.npos) what.replace(at, own.size(), given);
		throw Error(e.code, what);
	}
}

std::optional<KvPolicy> parse_choice(std::string_view text) {
	const std::string_view name = text.substr(0, text.find(','));
	KvPolicy p{.name = kAuto, .text = std::string(text)};
	if (name.starts_with(kTuned) && name.substr(5).starts_with(":")) {
		p.name = kTuned;
		number("tuned", name.substr(6), 1, kMostBits);
	} else if (name != kAuto) {
		return {};
	}
	const KvPolicy chosen = chosen_with(options_of(p), p);
	if (chosen.fetch)
		fail(Code::Invalid,
		     "{}: fetch={} is not there for codebooks, which {} chooses; name a policy with scale and zero point, as "
		     "kivi2,fetch={}",
		     p.text, chosen.fetch, p.name, chosen.fetch);
	if (chosen.regular.k.bits != 2 || chosen.regular.v.bits != 1 || !chosen.layers.empty() || chosen.rope_bits ||
	    !chosen.rope_layers.empty())
		fail(Code::Invalid, "{}: bits and layers are what {} chooses; name a policy to give them, as turbo3/2", p.text,
		     p.name);
	return p;
}

Tuning guessed_tuning(uint32_t n_layers, bool of_latent) {
	// Squared errors for Gaussian values: of the codebooks, with the best of their scales for heads of 128; at 8 bits
	// of uniform codes for 6 standard deviations.
	constexpr double kCodebook[] = {0, 0.3634, 0.1165, 0.0327, 0.0083}, kEight = 0.00005;
	LayerCost c;
	for (int i = 0; i < kNSideFormats; ++i) {
		const SideFormat f = kSideFormats[i];
		const double error = !f.uniform    ? kCodebook[f.bits]
		                     : f.bits == 8 ? kEight
		                                   : std::numeric_limits<double>::infinity();
		c.k[i] = 10 * error;
		c.v[i] = has_side_format(f, false, of_latent) ? error : std::numeric_limits<double>::infinity();
	}
	return {std::vector<LayerCost>(n_layers, c)};
}

double packed_bits(const KvPlan& plan) {
	const int t = int(Tier::Regular);
	if (plan.fill[t] == Fill::None) return plan.keeps_all ? 16 : 0;
	double words = 0;
	for (const LayerPlan& L : plan.layers) words += plan.formats[L.tier[t].page_format].words;
	return words * 32 / (double(plan.shape.n_layers) * double(plan.shape.token_channels()) * plan.page[t]);
}

std::string assign_bits(const Tuning& t, const KvShape& shape, double bits, const std::string& options) {
	return text_of(assign_bits_of(t, shape, bits, options), options, shape.rope_dim != 0);
}

Choice choose_policy(const KvPolicy& asked, const KvShape& shape, const Tuning* tuning, uint64_t n_tokens,
                     size_t budget_bytes, bool or_fewer) {
	if (!is_choice(asked)) return {asked, {}};
	if (!shape.n_layers) return {parse_policy("fp16"), "no layer attends"};
	const Tuning t = tuning ? *tuning : guessed_tuning(shape.n_layers, shape.rope_dim != 0);
	if (asked.name == kAuto)
		return Auto(asked, shape, t, tuning != nullptr, n_tokens, budget_bytes).choose(asked.text, or_fewer);
	const std::string_view name = std::string_view(asked.text).substr(0, asked.text.find(','));
	const std::string options = options_of(asked);
	const Sides sides = assign_bits_of(t, shape, number("tuned", name.substr(6), 1, kMostBits), options);
	const KvPlan plan = make_plan(parse_policy(text_of(sides, options, shape.rope_dim != 0)), shape);
	const double kld = tuning ? cost_of(sides) : -1;
	return {
	    plan.policy,
	    fmt::format("{}: {:.2f} bits per element of full pages{}", plan.policy.text, packed_bits(plan), expected(kld)),
	    kld};
}

} // namespace kvrun
