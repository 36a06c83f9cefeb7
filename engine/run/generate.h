// Prompt -> answer: the loop over tokens, stop rules and timing.
#pragma once
#include "engine/run/engine.h"
#include "engine/run/sampler.h"
#include <atomic>

namespace kvrun {

enum class StopReason : uint8_t {
	Length,    // as many tokens as asked for
	Context,   // the context, or the cache's budget, is full
	End,       // the model ended its answer
	Stop,      // a stop string appeared
	Cancelled, // the caller asked to stop
};
const char* stop_reason_name(StopReason); // "length", "context", "end", "stop", "cancelled"

struct GenerateOptions {
	uint32_t n = UINT32_MAX; // most tokens of the answer
	SamplerOptions sampling;
	std::vector<std::string> stops;            // end the answer, and are not part of it
	bool ignore_end = false;                   // go on after end-of-text tokens
	bool special = false;                      // control tokens appear in the text
	const std::atomic<bool>* cancel = nullptr; // checked between tokens and between layers of the prompt
};
struct GenerateHooks {
	std::function<bool(uint32_t done, uint32_t total)> prefill; // layers of the prompt; false cancels
	std::function<bool(std::string_view text)> text;            // whole characters of the answer; false cancels
};
struct GenerateResult {
	StopReason reason = StopReason::Length;
	std::vector<uint32_t> tokens; // of the answer, an end-of-text token that ended it excluded
	uint32_t prompt_tokens = 0;
	double prefill_s = 0, decode_s = 0; // seconds; the first token comes out of the prefill
	uint32_t decode_steps = 0;          // tokens decoded in decode_s
	KvBytes kv;                         // cache at the end
};

GenerateResult generate(Session&, std::span<const uint32_t> prompt, const GenerateOptions&, const GenerateHooks& = {});

} // namespace kvrun
