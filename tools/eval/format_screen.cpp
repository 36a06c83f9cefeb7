// Loss of each layer's keys and values in each format.
#include "tools/eval/format_screen.h"
#include "engine/core/error.h"
#include "tools/eval/log_softmax.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun {
namespace {

const std::string kBase = "turbo8"; // policy of the other layers, and of the other side
// Index into kSideFormats for end-to-end measurements, far above kBase's error: 2 bits; 4 of rotated keys beside
// latents.
constexpr int kProbe = 1, kRopeProbe = 7;
int probe_of(bool is_k, bool of_latent) { return is_k || !of_latent ? kProbe : kRopeProbe; }
constexpr double kLeastError = 1e-12;

} // namespace

CapturedPrompt::CapturedPrompt(Engine& e, const SessionOptions& session, std::span<const uint32_t> tokens,
                               uint32_t scored, std::function<bool()> goes_on)
    : e_(e), goes_on_(std::move(goes_on)), options_(session), behind_(tokens.end() - scored, tokens.end()) {
	KV_ASSERT(scored >= kQueries && tokens.size() > scored);
	options_.kv = parse_policy("fp16");
	prompt_ = std::make_unique<Session>(e, options_);
	read(*prompt_, tokens.first(tokens.size() - scored));
	all_ = prompt_->fork();
	log_prob_.resize(size_t(scored) * e.config().vocab);
	go_on(
	    *all_,
	    [&](uint32_t row, std::span<const float> x) {
		    std::ranges::copy(x, log_prob_.begin() + ptrdiff_t(row * x.size()));
	    },
	    &queries_);
	exact_ = attend_as(*prompt_, *all_, kQueries, queries_);
}

CapturedPrompt::~CapturedPrompt() = default;

void CapturedPrompt::read(Session& s, std::span<const uint32_t> tokens, PrefillHooks hooks) const {
	bool stopped = false;
	if (goes_on_) hooks.progress = [&](const Prefill&) { return !(stopped = !goes_on_()); };
	s.prefill(tokens, hooks);
	if (stopped) throw Stopped();
}

void CapturedPrompt::go_on(Session& s, const std::function<void(uint32_t, std::span<const float>)>& row,
                           std::vector<LayerQueries>* queries) {
	const size_t vocab = e_.config().vocab;
	std::vector<float> log_prob(vocab);
	if (queries) queries->resize(e_.config().n_layers);
	for (uint32_t at = 0; at < behind_.size(); at += kQueries) {
		PrefillHooks hooks;
		hooks.all_logits = [&](uint32_t first, uint32_t n, std::span<const float> logits) {
			for (uint32_t i = 0; i < n; ++i) {
				log_softmax(logits.subspan(i * vocab, vocab), log_prob, s.policy_text());
				row(at + first + i, log_prob);
			}
		};
		if (queries && at == 0)
			hooks.queries = [&](const QueryRows& r) {
				LayerQueries& to = (*queries)[r.layer];
				if (e_.cache_layers()[r.layer].window) return;
				to.q.insert(to.q.end(), r.q.begin(), r.q.end());
				to.rope.insert(to.rope.end(), r.rope.begin(), r.rope.end());
			};
		read(s, std::span(behind_).subspan(at, std::min<size_t>(kQueries, behind_.size() - at)), hooks);
	}
}

std::unique_ptr<Session> CapturedPrompt::stored(const KvPolicy& p) {
	SessionOptions options = options_;
	options.kv = p;
	auto s = std::make_unique<Session>(e_, options);
	store_as(*s, *prompt_);
	return s;
}

std::vector<double> CapturedPrompt::attention_error(const KvPolicy& p) {
	const std::unique_ptr<Session> s = stored(p);
	const std::vector<std::vector<float>> out = attend_as(*s, *all_, kQueries, queries_);
	std::vector<double> error(e_.kv_shape().n_layers), readers(error.size());
	for (size_t l = 0; l < out.size(); ++l) {
		if (out[l].empty()) continue;
		double wrong = 0, whole = 0;
		for (size_t i = 0; i < out[l].size(); ++i) {
			const double d = double(out[l][i]) - double(exact_[l][i]);
			wrong += d * d, whole += double(exact_[l][i]) * double(exact_[l][i]);
		}
		const uint32_t k = e_.cache_layers()[uint32_t(l)].index;
		if (whole > 0) error[k] += wrong / whole;
		readers[k] += 1;
	}
	for (size_t k = 0; k < error.size(); ++k) error[k] /= std::max(readers[k], 1.);
	return error;
}

double CapturedPrompt::kld(const KvPolicy& p) {
	double sum = 0;
	go_on(*stored(p), [&](uint32_t row, std::span<const float> x) {
		sum += kl_divergence(std::span(log_prob_).subspan(row * x.size(), x.size()), x);
	});
	return sum / double(behind_.size());
}

namespace {

// Sums errors over chunks, and computes costs.
class Screen {
 public:
	explicit Screen(const KvShape& shape)
	    : error_(shape.n_layers), probed_(shape.n_layers), latent_(shape.rope_dim != 0) {}

	uint32_t steps() const { // of add()
		uint32_t n = 2 * uint32_t(error_.size());
		for (const bool is_k : {true, false})
			for (const SideFormat f : kSideFormats) n += has_side_format(f, is_k, latent_);
		return n;
	}

	// Returns false if `step` did.
	bool add(CapturedPrompt& prompt, const std::function<bool()>& step) {
		for (const bool is_k : {true, false})
			for (int i = 0; i < kNSideFormats; ++i) {
				if (!has_side_format(kSideFormats[i], is_k, latent_)) continue;
				const std::vector<double> e = prompt.attention_error(with_side(i, is_k, 0, error_.size() - 1));
				for (size_t l = 0; l < e.size(); ++l) side(error_[l], is_k)[size_t(i)] += e[l];
				if (!step()) return false;
			}
		const double base = prompt.kld(parse_policy(kBase));
		base_ += base;
		for (uint32_t l = 0; l < probed_.size(); ++l)
			for (const bool is_k : {true, false}) {
				const KvPolicy p = with_side(probe_of(is_k, latent_), is_k, l, l);
				(is_k ? probed_[l].k : probed_[l].v) += std::max(prompt.kld(p) - base, 0.);
				if (!step()) return false;
			}
		return true;
	}

	// Costs: attention's error times the KL divergence per error. `n`: chunks. A layer whose measurement does not
	// exceed the base's gets the median sensitivity.
	Tuning tuning(uint32_t n) const {
		const double share = base_ / n / (2. * double(error_.size()));
		std::vector<double> known;
		for (size_t l = 0; l < error_.size(); ++l)
			for (const bool is_k : {true, false})
				if (const double s = sensitivity(l, is_k); s > 0) known.push_back(s);
		if (known.empty())
			fail(Code::Invalid, "nothing of the text was packed, so there is nothing to measure; give a larger -c");
		std::ranges::sort(known);
		const double middle = known[known.size() / 2];
		Tuning t{std::vector<LayerCost>(error_.size())};
		for (size_t l = 0; l < error_.size(); ++l)
			for (const bool is_k : {true, false}) {
				const double s = sensitivity(l, is_k), per_error = (s > 0 ? s : middle) / n;
				const SideCost& error = is_k ? error_[l].k : error_[l].v;
				SideCost& cost = is_k ? t.layers[l].k : t.layers[l].v;
				// Every error includes that of the other side's 8 bits.
				for (int i = 0; i < kNSideFormats; ++i)
					cost[size_t(i)] =
					    !has_side_format(kSideFormats[i], is_k, latent_) ? std::numeric_limits<double>::infinity()
					    : i == kEightBits                                ? share
					                      : share + std::max(error[size_t(i)] - error[kEightBits], 0.) * per_error;
			}
		return t;
	}

 private:
	struct Probe {
		double k = 0, v = 0;
	};
	// kBase with a format of kSideFormats for one side of some layers.
	KvPolicy with_side(int format, bool is_k, size_t first, size_t last) const {
		return parse_policy(kBase + side_options(kSideFormats[format], is_k, first, last, latent_));
	}
	static SideCost& side(LayerCost& c, bool is_k) { return is_k ? c.k : c.v; }
	// KL divergence per error, over all chunks; 0: unknown.
	double sensitivity(size_t l, bool is_k) const {
		const SideCost& e = is_k ? error_[l].k : error_[l].v;
		const double error = e[size_t(probe_of(is_k, latent_))] - e[kEightBits];
		return error > kLeastError ? (is_k ? probed_[l].k : probed_[l].v) / error : 0;
	}

	std::vector<LayerCost> error_; // error of attention, summed over chunks
	std::vector<Probe> probed_;    // KL divergence beyond the base's, with one side of one layer as probe_of()
	bool latent_;                  // the two sides are latents and rotated keys
	double base_ = 0;              // KL divergence of kBase
};

std::vector<Budget> budgets_of(const Tuning& t, const KvShape& shape, std::span<const double> bits) {
	std::vector<Budget> out;
	for (const double b : bits) try {
			const Choice c = choose_policy(parse_policy(fmt::format("tuned:{}", b)), shape, &t, 0, 0);
			out.push_back({b, c.policy.text, {}, c.kld});
		} catch (const Error& e) { // parameters of narrow heads take more bits
			out.push_back({b, {}, e.what()});
		}
	return out;
}

} // namespace

static Screened screen_all(Engine& e, const SessionOptions& session, std::span<const std::vector<uint32_t>> chunks,
                           const ScreenOptions& opt, const EvalHooks& hooks) {
	const KvShape shape = e.kv_shape();
	if (!shape.n_layers) fail(Code::Unsupported, "no layer of this model attends, so it has no cache to tune");
	Screen screen(shape);
	const uint32_t n = uint32_t(chunks.size()), per_chunk = screen.steps();
	const double all = double(n) * (per_chunk + double(opt.budgets.size()));
	double done = 0;
	const std::function<bool()> step = [&] { return !hooks.progress || hooks.progress(++done / all); };
	const std::function<bool()> goes_on = [&] { return !hooks.progress || hooks.progress(done / all); };
	std::vector<std::unique_ptr<CapturedPrompt>> prompts;
	for (const std::vector<uint32_t>& chunk : chunks) {
		prompts.push_back(std::make_unique<CapturedPrompt>(e, session, chunk, opt.scored, goes_on));
		if (!screen.add(*prompts.back(), step)) return {};
	}
	Screened out;
	out.tuning = screen.tuning(n), out.chunks = n, out.scored = opt.scored;
	out.budgets = budgets_of(out.tuning, shape, opt.budgets);
	out.end_to_end = 1 + 2 * shape.n_layers;
	double ratio = 0;
	uint32_t known = 0;
	for (Budget& b : out.budgets) {
		if (b.policy.empty()) continue;
		++out.end_to_end;
		for (const auto& p : prompts) {
			b.measured += p->kld(parse_policy(b.policy)) / n;
			if (!step()) return {};
		}
		if (b.measured > 0 && b.expected > 0) ratio += std::log(b.measured / b.expected), ++known;
	}
	if (!known) return out;
	ratio = std::exp(ratio / known);
	for (LayerCost& c : out.tuning.layers)
		for (SideCost* cost : {&c.k, &c.v})
			for (double& x : *cost) x *= ratio;
	for (Budget& b : out.budgets) b.expected *= ratio;
	return out;
}

Screened screen_formats(Engine& e, const SessionOptions& session, std::span<const std::vector<uint32_t>> chunks,
                        const ScreenOptions& opt, const EvalHooks& hooks) {
	try {
		return screen_all(e, session, chunks, opt, hooks);
	} catch (const CapturedPrompt::Stopped&) { return {}; }
}

} // namespace kvrun
