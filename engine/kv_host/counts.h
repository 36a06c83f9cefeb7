// How many tokens of a cache are in each tier, and its flushes: all that does not depend on scores.
#pragma once
#include "engine/kv_host/plan.h"

namespace kvrun {

struct KvCounts {                  // of any token set of a sequence; all sets of a plan have the same
	uint64_t n_tokens = 0;         // in the sequence
	uint64_t judged = 0;           // tokens that have left the window, except sinks
	uint32_t sinks = 0;            // f16
	uint32_t kept = 0;             // f16: log survivors, 16-bit Salient
	uint32_t recent = 0;           // f16: the window
	uint32_t waiting[kTiers] = {}; // f16: judged Salient or Regular, but their group is not full yet
	uint32_t packed[kTiers] = {};  // tokens in pages of Salient and Regular
	uint32_t pages[kTiers] = {};   // pages of each tier, per layer; a flush frees f16 pages that it empties at its end
	uint32_t blocks[kTiers] = {};  // parameter blocks of each tier, per layer
	uint32_t f16() const { return sinks + kept + recent + waiting[1] + waiting[2]; }
};

struct FlushEvent {      // one flush
	uint32_t after;      // new tokens of the call that were in the window before it
	uint32_t leaving;    // oldest tokens of the window
	uint32_t candidates; // leaving, and the kept ones that may be demoted
	uint32_t salient;    // how many of the candidates become Salient
};

// Adds n_new tokens: as one prompt, or as one decoded token after the other. Appends the flushes to `events` if given.
void advance(const KvPlan&, KvCounts&, uint64_t n_new, bool prompt, std::vector<FlushEvent>* events);
// Whether the next decoded token makes the window flush.
bool window_full(const KvPlan&, const KvCounts&);
// What a cache with these counts has allocated.
KvBytes bytes_of(const KvPlan&, const KvCounts&);

// An upper bound of the bytes for n tokens, whether they arrive as one prompt or one by one, with the window full.
size_t most_bytes(const KvPlan&, uint64_t n_tokens);

} // namespace kvrun
