// `auto` and `tuned:BITS`: the policy that loses least in a budget, by what each layer's keys and values cost at each
// number of bits.
#include "engine/kv/choose.h"
#include "engine/core/error.h"
#include "engine/kv/counts.h"
#include "engine/kv/policy_fields.h"
#include <algorithm>
#include <span>

namespace kvrun {
namespace {

constexpr const char* kAuto = "auto";
constexpr const char* kTuned = "tuned";
constexpr double kMostBits = 16;

// What follows the name: options of the policy that is chosen.
std::string options_of(const KvPolicy& p) {
	const size_t comma = p.text.find(',');
	return comma == std::string::npos ? std::string() : p.text.substr(comma);
}

// Keys or values of one layer, while bits are given out.
struct Side {
	const double* cost;    // by bits
	const uint32_t* words; // of a page, by bits
	uint8_t bits, least;
	double gain(int to) const { return cost[bits] - cost[to]; }
	int64_t growth(int to) const { return int64_t(words[to]) - int64_t(words[bits]); }
};
struct Sizes { // words of a page of one layer, by bits
	uint32_t k[9] = {}, v[9] = {}, page = 0;
};
Sizes sizes_of(const KvShape& shape, const std::string& options) {
	Sizes s;
	for (const int b : kChoiceBits) {
		const KvPlan plan = make_plan(parse_policy(fmt::format("turbo4{},bits@0={}", options, b)), shape);
		const PageFormat& f = plan.page_format(0, Tier::Regular);
		s.k[b] = f.v_codes_at - f.k_codes_at + f.v_params_at - f.k_params_at;
		s.v[b] = f.k_params_at - f.v_codes_at + f.words - f.v_params_at;
		s.page = plan.page[int(Tier::Regular)];
	}
	return s;
}

// Keys of all layers, then values of all layers.
using Sides = std::vector<Side>;

uint64_t words_of(const Sides& sides) {
	uint64_t sum = 0;
	for (const Side& s : sides) sum += s.words[s.bits];
	return sum;
}
double cost_of(const Sides& sides) {
	double sum = 0;
	for (const Side& s : sides) sum += s.cost[s.bits];
	return sum;
}

// The step up that wins most per word among those of at most `room` words; false: there is none.
bool raise(Sides& sides, int64_t room) {
	double best = 0;
	Side* which = nullptr;
	int to = 0;
	for (Side& s : sides)
		for (const int b : kChoiceBits)
			if (b > s.bits && s.growth(b) <= room)
				if (const double gain = s.gain(b) / double(std::max<int64_t>(s.growth(b), 1)); gain > best)
					best = gain, which = &s, to = b;
	if (which) which->bits = uint8_t(to);
	return which != nullptr;
}

// The best exchange: one side gets more bits for those that another gives up; false: none wins anything.
bool exchange(Sides& sides, int64_t room) {
	constexpr double kLeast = 1e-12; // rounding is no gain
	double best = kLeast;
	Side *up = nullptr, *down = nullptr;
	int to = 0, from = 0;
	for (Side& a : sides)
		for (const int more : kChoiceBits) {
			if (more <= a.bits || a.gain(more) <= best) continue;
			for (Side& b : sides)
				for (const int less : kChoiceBits) {
					if (&a == &b || less >= b.bits || less < b.least) continue;
					const double gain = a.gain(more) + b.gain(less);
					if (gain > best && a.growth(more) + b.growth(less) <= room)
						best = gain, up = &a, to = more, down = &b, from = less;
				}
		}
	if (!up) return false;
	up->bits = uint8_t(to), down->bits = uint8_t(from);
	return true;
}

// What costs least in `room` words for a page of every layer; keys have `least_k` bits or more.
Sides assign(const Tuning& t, const Sizes& sizes, uint64_t room, uint8_t least_k) {
	Sides sides;
	for (const LayerCost& c : t.layers) sides.push_back({c.k, sizes.k, least_k, least_k});
	for (const LayerCost& c : t.layers) sides.push_back({c.v, sizes.v, 1, 1});
	const auto left = [&] { return int64_t(room) - int64_t(words_of(sides)); };
	do {
		while (raise(sides, left())) {}
	} while (exchange(sides, left()));
	return sides;
}
uint64_t words_for(const Tuning& t, const Sizes& sizes, int k, int v) {
	return t.layers.size() * (uint64_t(sizes.k[k]) + sizes.v[v]);
}

// The same for a budget of packed_bits().
Sides assign_bits_of(const Tuning& t, const KvShape& shape, double bits, const std::string& options) {
	KV_ASSERT(t.layers.size() == shape.n_layers && shape.n_layers > 0);
	const Sizes sizes = sizes_of(shape, options);
	const double elements = 2. * shape.n_layers * shape.n_kv_heads * shape.head_dim * sizes.page;
	const uint64_t room = uint64_t((bits + 1e-9) * elements / 32), least = words_for(t, sizes, 1, 1);
	if (room < least)
		fail(Code::Invalid, "tuned:{:.2f}: at least {:.2f} bits, of which parameters take {:.2f}, are possible here",
		     bits, double(least) * 32 / elements, double(least) * 32 / elements - 1);
	return assign(t, sizes, room, room >= words_for(t, sizes, 2, 1) ? 2 : 1);
}

// "k.bits@2-3=4,..." for layers that differ from `common`.
std::string exceptions(std::span<const Side> sides, uint8_t common, const char* key) {
	std::string out;
	for (size_t first = 0, last; first < sides.size(); first = last + 1) {
		last = first;
		while (last + 1 < sides.size() && sides[last + 1].bits == sides[first].bits) ++last;
		if (sides[first].bits != common) out += fmt::format(",{}@{}-{}={}", key, first, last, sides[first].bits);
	}
	return out;
}
// The most frequent number of bits, at most `most`.
uint8_t most_common(std::span<const Side> sides, uint8_t most) {
	uint8_t best = most;
	for (const Side& s : sides)
		if (s.bits <= most &&
		    std::ranges::count(sides, s.bits, &Side::bits) > std::ranges::count(sides, best, &Side::bits))
			best = s.bits;
	return best;
}
std::string text_of(const Sides& sides, const std::string& options) {
	const std::span<const Side> keys = std::span(sides).first(sides.size() / 2),
	                            values = std::span(sides).subspan(sides.size() / 2);
	// Options may be of codebooks, which have 4 bits at most: then the entry has one, whatever layers have.
	const uint8_t most = options.empty() ? 8 : 4, k = most_common(keys, most), v = most_common(values, most);
	return fmt::format("turbo{}/{}", k, v) + exceptions(keys, k, "k.bits") + exceptions(values, v, "v.bits") + options;
}

std::string mebibytes(size_t bytes) { return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20)); }
std::string expected(double kld) { return kld < 0 ? "" : fmt::format(", expected KL divergence {:.5f}", kld); }

struct Fit { // one candidate of `auto`
	std::string text;
	double kld = -1; // as Choice::kld
	KvPlan plan;
	size_t bytes = 0; // at the window's fullest
	bool fits = false;
};

class Auto {
 public:
	Auto(const KvPolicy& asked, const KvShape& shape, const Tuning& t, bool measured, uint64_t n_tokens, size_t budget)
	    : options_(options_of(asked)), shape_(shape), tuning_(t), sizes_(sizes_of(shape, options_)),
	      measured_(measured), n_tokens_(n_tokens), budget_(budget) {}

	Choice choose(const std::string& asked) const {
		const Fit f16 = look("fp16", measured_ ? 0 : -1);
		if (f16.fits) return choice(f16, nullptr);
		uint64_t room = words_for(tuning_, sizes_, 2, 1), over = words_for(tuning_, sizes_, 8, 8);
		Fit best = with_room(room), better = with_room(over);
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

 private:
	Fit look(const std::string& text, double kld) const {
		Fit f{.text = text, .kld = kld, .plan = make_plan(parse_policy(text), shape_)};
		f.bytes = most_bytes(f.plan, n_tokens_);
		f.fits = f.bytes <= budget_;
		return f;
	}
	Fit with_room(uint64_t words) const {
		const Sides sides = assign(tuning_, sizes_, words, 2);
		return look(text_of(sides, options_), measured_ ? cost_of(sides) : -1);
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

bool is_choice(const KvPolicy& p) { return p.name == kAuto || p.name == kTuned; }

std::optional<KvPolicy> parse_choice(std::string_view text) {
	const std::string_view name = text.substr(0, text.find(','));
	KvPolicy p{.name = kAuto, .text = std::string(text)};
	if (name.starts_with(kTuned) && name.substr(5).starts_with(":")) {
		p.name = kTuned;
		number("tuned", name.substr(6), 1, kMostBits);
	} else if (name != kAuto) {
		return {};
	}
	const std::string options = options_of(p);
	const KvPolicy chosen = parse_policy("turbo2/1" + options); // options are those of what is chosen
	if (chosen.regular.k.bits != 2 || chosen.regular.v.bits != 1 || !chosen.layers.empty())
		fail(Code::Invalid, "{}: bits and layers are what {} chooses; name a policy to give them, as turbo3/2", p.text,
		     p.name);
	return p;
}

Tuning guessed_tuning(uint32_t n_layers) {
	// Of the codebooks, for Gaussian values; at 8 bits of uniform codes for 6 standard deviations.
	constexpr double kError[9] = {1, 0.3634, 0.1175, 0.0346, 0.0097, 0, 0, 0, 0.00005};
	LayerCost c;
	for (const int b : kChoiceBits) c.k[b] = 10 * kError[b], c.v[b] = kError[b];
	return {std::vector<LayerCost>(n_layers, c)};
}

double packed_bits(const KvPlan& plan) {
	const int t = int(Tier::Regular);
	if (plan.fill[t] == Fill::None) return plan.keeps_all ? 16 : 0;
	double words = 0;
	for (const LayerPlan& L : plan.layers) words += plan.formats[L.tier[t].page_format].words;
	return words * 32 / (2. * plan.shape.n_layers * plan.shape.n_kv_heads * plan.shape.head_dim * plan.page[t]);
}

std::string assign_bits(const Tuning& t, const KvShape& shape, double bits, const std::string& options) {
	return text_of(assign_bits_of(t, shape, bits, options), options);
}

Choice choose_policy(const KvPolicy& asked, const KvShape& shape, const Tuning* tuning, uint64_t n_tokens,
                     size_t budget_bytes) {
	if (!is_choice(asked)) return {asked, {}};
	const Tuning t = tuning ? *tuning : guessed_tuning(shape.n_layers);
	if (asked.name == kAuto) return Auto(asked, shape, t, tuning != nullptr, n_tokens, budget_bytes).choose(asked.text);
	const std::string_view name = std::string_view(asked.text).substr(0, asked.text.find(','));
	const std::string options = options_of(asked);
	const Sides sides = assign_bits_of(t, shape, number("tuned", name.substr(6), 1, kMostBits), options);
	const KvPlan plan = make_plan(parse_policy(text_of(sides, options)), shape);
	const double kld = tuning ? cost_of(sides) : -1;
	return {
	    plan.policy,
	    fmt::format("{}: {:.2f} bits per element of full pages{}", plan.policy.text, packed_bits(plan), expected(kld)),
	    kld};
}

} // namespace kvrun
