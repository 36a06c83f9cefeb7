// `auto` and `tuned:BITS`: the policy that loses least in a budget, by what each layer's keys and values cost at each
// number of bits.
#include "engine/kv/choose.h"
#include "engine/core/error.h"
#include "engine/kv/policy_fields.h"
#include <algorithm>

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

struct Bits { // of each layer
	std::vector<uint8_t> k, v;
};

// "k.bits@2-3=4,..." for layers that differ from `common`.
std::string exceptions(const std::vector<uint8_t>& bits, uint8_t common, const char* key) {
	std::string out;
	for (size_t first = 0, last; first < bits.size(); first = last + 1) {
		last = first;
		while (last + 1 < bits.size() && bits[last + 1] == bits[first]) ++last;
		if (bits[first] != common) out += fmt::format(",{}@{}-{}={}", key, first, last, bits[first]);
	}
	return out;
}
uint8_t most_common(const std::vector<uint8_t>& bits) {
	uint8_t best = bits.at(0);
	for (const uint8_t b : bits)
		if (std::ranges::count(bits, b) > std::ranges::count(bits, best)) best = b;
	return best;
}
std::string text_of(const Bits& b) {
	const uint8_t k = most_common(b.k), v = most_common(b.v);
	return fmt::format("turbo{}/{}", k, v) + exceptions(b.k, k, "k.bits") + exceptions(b.v, v, "v.bits");
}

double bits_of(const std::string& policy, const KvShape& shape) {
	return packed_bits(make_plan(parse_policy(policy), shape));
}

// The step up that wins most per bit among those of at most `room` bits; false: there is none.
bool raise(Bits& bits, const Tuning& t, uint32_t room) {
	double best = 0;
	uint8_t *which = nullptr, to = 0;
	const auto look = [&](uint8_t& now, const double* cost) {
		for (uint8_t b = uint8_t(now + 1); b <= 4 && b - now <= int(room); ++b)
			if (const double gain = (cost[now] - cost[b]) / (b - now); gain > best) best = gain, which = &now, to = b;
	};
	for (size_t l = 0; l < t.layers.size(); ++l) look(bits.k[l], t.layers[l].k), look(bits.v[l], t.layers[l].v);
	if (which) *which = to;
	return which != nullptr;
}

uint32_t sum_of(const Bits& b) {
	uint32_t sum = 0;
	for (const std::vector<uint8_t>* side : {&b.k, &b.v})
		for (const uint8_t x : *side) sum += x;
	return sum;
}

std::string mebibytes(size_t bytes) { return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20)); }

// Best first: f16, 8 bits, and assignments of fewer and fewer bits.
std::vector<std::string> candidates(const Tuning& t, const KvShape& shape) {
	std::vector<std::string> out = {"fp16", "rtn8"};
	const double most = bits_of("turbo4/4", shape), least = bits_of("turbo2/1", shape);
	const double step = 0.5 / double(shape.n_layers); // one bit of one side of one layer
	for (double bits = most; bits > least - step / 2; bits -= step) {
		std::string next = assign_bits(t, shape, std::max(bits, least) + 1e-6);
		if (next != out.back()) out.push_back(std::move(next));
	}
	return out;
}

Choice choose_auto(const KvPolicy& asked, const KvShape& shape, const Tuning& t, uint64_t n_tokens, size_t budget) {
	std::string better; // the last one that did not fit
	for (const std::string& text : candidates(t, shape)) {
		const std::string full = text == "fp16" ? text : text + options_of(asked);
		const KvPlan plan = make_plan(parse_policy(full), shape);
		const size_t bytes = bytes_at(plan, n_tokens).total();
		if (tokens_that_fit(plan, budget, n_tokens) < n_tokens) {
			better = fmt::format("; {} would need {}", full, mebibytes(bytes));
			continue;
		}
		return {plan.policy, fmt::format("{}: {} tokens take {} of {}{}", full, n_tokens, mebibytes(bytes),
		                                 mebibytes(budget), better)};
	}
	const size_t least = bytes_at(make_plan(parse_policy("turbo2/1"), shape), n_tokens).total();
	fail(Code::OutOfMemory,
	     "{}: {} tokens take {} with keys at 2 bits and values at 1, and {} are there; raise --kv-budget, lower -c, or "
	     "give --kv tuned:1.3",
	     asked.text, n_tokens, mebibytes(least), mebibytes(budget));
}

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
	parse_policy("turbo2/1" + options_of(p)); // options are those of what is chosen
	return p;
}

Tuning guessed_tuning(uint32_t n_layers) {
	constexpr double kError[5] = {1, 0.3634, 0.1175, 0.0346, 0.0097}; // of the codebooks, for Gaussian values
	LayerCost c;
	for (int b = 1; b <= 4; ++b) c.k[b] = 10 * kError[b], c.v[b] = kError[b];
	return {std::vector<LayerCost>(n_layers, c)};
}

double packed_bits(const KvPlan& plan) {
	const int t = int(Tier::Regular);
	if (plan.fill[t] == Fill::None) return plan.keeps_all ? 16 : 0;
	double words = 0;
	for (const LayerPlan& L : plan.layers) words += plan.formats[L.tier[t].page_format].words;
	return words * 32 / (2. * plan.shape.n_layers * plan.shape.n_kv_heads * plan.shape.head_dim * plan.page[t]);
}

std::string assign_bits(const Tuning& t, const KvShape& shape, double bits) {
	KV_ASSERT(t.layers.size() == shape.n_layers && shape.n_layers > 0);
	const double parameters = bits_of("turbo1/1", shape) - 1;
	const double room = (bits - parameters) * 2 * shape.n_layers + 1e-6; // bits of all sides of all layers
	if (room < 2 * shape.n_layers)
		fail(Code::Invalid, "tuned:{:.2f}: at least {:.2f} bits, of which parameters take {:.2f}, are possible here",
		     bits, parameters + 1, parameters);
	const uint8_t least_k = room >= 3 * shape.n_layers ? 2 : 1;
	Bits b{std::vector<uint8_t>(shape.n_layers, least_k), std::vector<uint8_t>(shape.n_layers, 1)};
	while (sum_of(b) < uint32_t(room) && raise(b, t, uint32_t(room) - sum_of(b))) {}
	return text_of(b);
}

Choice choose_policy(const KvPolicy& asked, const KvShape& shape, const Tuning* tuning, uint64_t n_tokens,
                     size_t budget_bytes) {
	if (!is_choice(asked)) return {asked, {}};
	const Tuning t = tuning ? *tuning : guessed_tuning(shape.n_layers);
	if (asked.name == kAuto) return choose_auto(asked, shape, t, n_tokens, budget_bytes);
	const std::string_view name = std::string_view(asked.text).substr(0, asked.text.find(','));
	const std::string text = assign_bits(t, shape, number("tuned", name.substr(6), 1, kMostBits)) + options_of(asked);
	const KvPlan plan = make_plan(parse_policy(text), shape);
	return {plan.policy, fmt::format("{}: {:.2f} bits per element of full pages", text, packed_bits(plan))};
}

} // namespace kvrun
