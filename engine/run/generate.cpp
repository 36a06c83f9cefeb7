// Prompt -> answer: the loop over tokens, stop rules and timing.
#include "engine/run/generate.h"
#include "engine/run/stop.h"
#include <chrono>

namespace kvrun {
namespace {
double seconds_since(std::chrono::steady_clock::time_point t) {
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}
} // namespace

const char* stop_reason_name(StopReason r) {
	constexpr const char* names[] = {"length", "context", "end", "stop", "cancelled"};
	return names[size_t(r)];
}

GenerateResult generate(Session& s, std::span<const uint32_t> prompt, const GenerateOptions& opt,
                        const GenerateHooks& hooks) {
	const Tokenizer& tok = s.engine().tokenizer();
	const auto cancelled = [&] { return opt.cancel && opt.cancel->load(std::memory_order_relaxed); };
	GenerateResult r;
	r.prompt_tokens = uint32_t(prompt.size());
	Sampler sampler(opt.sampling);
	StopStream text(opt.stops);
	for (const uint32_t t : prompt) sampler.accept(t);

	auto start = std::chrono::steady_clock::now();
	PrefillHooks ph;
	ph.progress = [&](uint32_t done, uint32_t total) {
		return !cancelled() && (!hooks.prefill || hooks.prefill(done, total));
	};
	std::span<const float> logits = s.prefill(prompt, ph);
	r.prefill_s = seconds_since(start);
	if (logits.empty()) r.reason = StopReason::Cancelled;
	start = std::chrono::steady_clock::now();
	uint32_t prev = prompt.back();
	while (!logits.empty()) {
		if (r.tokens.size() >= opt.n) break; // reason is Length
		const uint32_t token = sampler.sample(logits);
		if (!opt.ignore_end && tok.is_end(token)) {
			r.reason = StopReason::End;
			break;
		}
		sampler.accept(token);
		r.tokens.push_back(token);
		const std::string piece = text.feed(tok.decode_one(prev, token, opt.special));
		prev = token;
		if (!piece.empty() && hooks.text && !hooks.text(piece))
			r.reason = StopReason::Cancelled;
		else if (text.stopped())
			r.reason = StopReason::Stop;
		else if (cancelled())
			r.reason = StopReason::Cancelled;
		else if (r.tokens.size() >= opt.n)
			break; // nobody reads the logits after the last token
		else if (s.n_tokens() >= s.ctx())
			r.reason = StopReason::Context;
		if (r.reason != StopReason::Length) break;
		logits = s.decode(token);
		++r.decode_steps;
	}
	r.decode_s = seconds_since(start);
	if (const std::string rest = text.finish(); !rest.empty() && hooks.text) hooks.text(rest);
	r.kv = s.kv_bytes();
	return r;
}

} // namespace kvrun
