// A model on a device: opened once, used by any number of sessions.
#include "engine/run/engine.h"
#include "engine/core/log.h"
#include <algorithm>

namespace kvrun {

std::unique_ptr<Engine> Engine::open(const EngineOptions& opt, const LoadProgress& progress) {
	Model model = open_model(opt.model);
	const Config& cfg = model.config;
	auto kv = std::make_unique<KvStore>();
	kv->plan = make_plan(opt.kv, KvShape{cfg.n_layers, cfg.n_kv_heads, cfg.head_dim});
	std::unique_ptr<Engine> e(new Engine(std::move(model), open_backend(opt.device)));
	Backend& be = *e->backend_;
	e->kv_ = std::move(kv);
	e->seed_ = opt.seed;
	e->weights_ = load_weights(e->file(), e->config(), be, progress);

	// What the weights left over is for the cache, less a tenth for activations and the driver's own needs.
	const size_t spare = be.info().free_bytes - be.info().free_bytes / 10;
	const size_t budget = opt.kv_budget ? opt.kv_budget : spare;
	const uint32_t trained = std::max(e->config().max_seq, 1u);
	const uint64_t fits = tokens_that_fit(e->plan(), budget, opt.ctx ? opt.ctx : trained);
	if (fits == 0)
		fail(Code::OutOfMemory, "a cache budget of {} bytes holds no token of policy '{}'; raise --kv-budget", budget,
		     opt.kv.text);
	e->ctx_ = opt.ctx ? opt.ctx : uint32_t(fits);
	e->ctx_by_budget_ = !opt.ctx && fits < trained;
	if (opt.ctx && fits < opt.ctx)
		warn_once(fmt::format("the cache of {} tokens with policy '{}' may not fit: {} tokens do", opt.ctx, opt.kv.text,
		                      fits));
	warn_about_context(e->config(), e->ctx_);
	e->kv_->pool = std::make_unique<KvPool>(be, e->plan(), budget);
	e->forward_ = std::make_unique<Forward>(be, e->config(), e->weights_, e->ctx_,
	                                        ForwardOptions{.ubatch = opt.ubatch, .prefill_block = opt.prefill_block});
	return e;
}

std::unique_ptr<KvStore> Engine::make_kv(const KvPolicy& policy) {
	auto kv = std::make_unique<KvStore>();
	kv->plan = make_plan(policy, plan().shape);
	const size_t budget = pool().budget_bytes();
	if (const uint64_t fits = tokens_that_fit(kv->plan, budget, ctx_); fits < ctx_)
		warn_once(
		    fmt::format("the cache of {} tokens with policy '{}' may not fit: {} tokens do", ctx_, policy.text, fits));
	kv->pool = std::make_unique<KvPool>(*backend_, kv->plan, budget);
	return kv;
}

void Engine::set_kv(const KvPolicy& policy) { kv_ = make_kv(policy); }

Session::Session(Engine& e) : engine_(e), kv_(e.backend(), e.plan(), e.pool(), e.ctx(), e.seed()) {}

std::span<const float> Session::prefill(std::span<const uint32_t> tokens, const PrefillHooks& hooks) {
	if (tokens.empty()) fail(Code::Invalid, "no tokens to prefill");
	const uint64_t total = uint64_t(n_tokens()) + tokens.size();
	if (total > ctx() && engine_.ctx_by_budget()) {
		const size_t budget = engine_.pool().budget_bytes();
		const std::string fits = policy_that_fits(engine_.plan().shape, total, budget);
		fail(Code::Context, "{} tokens need {:.1f} MiB of cache under policy '{}', {:.1f} MiB are budgeted: {}", total,
		     double(bytes_at(engine_.plan(), total).total()) / (1 << 20), engine_.plan().policy.text,
		     double(budget) / (1 << 20),
		     fits.empty() ? "no policy fits, shorten the prompt or raise --kv-budget"
		                  : fmt::format("--kv {} would fit, or raise --kv-budget", fits));
	}
	if (total > ctx())
		fail(Code::Context, "the prompt has {} tokens, the context has room for {} of {}; raise -c or shorten it",
		     tokens.size(), ctx() - n_tokens(), ctx());
	for (const uint32_t t : tokens)
		if (t >= engine_.config().vocab)
			fail(Code::Invalid, "token {} is outside the vocabulary of {}", t, engine_.config().vocab);
	try {
		return engine_.forward().prefill(kv_, tokens, hooks);
	} catch (...) { // before the first layer: the prompt has its pages, and nobody who gives them back
		if (kv_.cache().in_prompt()) kv_.cache().cancel_prompt();
		throw;
	}
}

void Session::fill(uint32_t n) {
	if (uint64_t(n_tokens()) + n > ctx())
		fail(Code::Context, "{} tokens of noise, the context has room for {} of {}; raise -c", n, ctx() - n_tokens(),
		     ctx());
	engine_.forward().fill(kv_, n);
}

std::span<const float> Session::decode(uint32_t token) {
	if (n_tokens() >= ctx()) fail(Code::Context, "the context of {} tokens is full; raise -c", ctx());
	if (token >= engine_.config().vocab)
		fail(Code::Invalid, "token {} is outside the vocabulary of {}", token, engine_.config().vocab);
	const Row row{&kv_, token};
	const uint32_t before = n_tokens();
	try {
		return engine_.forward().decode(std::span(&row, 1));
	} catch (...) { // a token that has its slot but was never stored there would be read by the next one
		if (n_tokens() != before) kv_.reset();
		throw;
	}
}

} // namespace kvrun
