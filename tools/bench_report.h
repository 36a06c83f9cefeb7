// Rows of kvrun bench: what a test measured, as text and JSON.
#pragma once
#include "backends/backend.h"
#include "tools/output.h"
#include <algorithm>
#include <string>
#include <vector>

namespace kvrun {

struct BenchTest {
	uint32_t prompt = 0, generate = 0; // tokens of a sequence; exactly one is not 0
	uint32_t depth = 0;                // tokens in the cache before the test
	uint32_t sequences = 1;            // generated at once, each with a cache of its own
	std::string name() const {
		std::string s = prompt ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate);
		if (sequences > 1) s += fmt::format(" x {}", sequences);
		return depth ? fmt::format("{} @ d{}", s, depth) : s;
	}
	uint32_t tokens() const { return (prompt + generate) * sequences; } // of all sequences
};
// What the cache costs, in device time of one run.
enum AttentionPart { kAttend, kScore, kStore, kAttentionParts };
struct BenchPart {
	double ms = 0, bytes = 0;
	double rate() const { return ms > 0 ? bytes / ms * 1e3 : 0; } // bytes per second
};

struct BenchRow {
	std::string policy;
	BenchTest test;
	uint32_t layers = 0;       // of the model
	std::vector<double> tok_s; // (runs) in order, of all sequences together; fewer than requested after Ctrl-C
	double warmup_s = 0;       // seconds of the warm-up run, which is not counted
	double bus_bytes = 0;      // bytes of weights in host memory, read per token
	double plan_bus_bytes = 0; // of a decode step, by the plan of the weights
	int64_t host_share = -1;   // percent of the weights asked to lie in host memory; below 0: not asked
	size_t host_bytes = 0;     // of weights that do
	size_t kv_bytes = 0;       // caches at the end of a run
	size_t device_bytes = 0;   // device memory allocated for caches of that many tokens
	size_t resident = 0;       // resident bytes of this process at that time; 0: unknown
	double peak = 0;           // bytes per second of the device, 0: unknown
	std::vector<OpTime> ops;   // of one run, if requested
	BenchPart part(AttentionPart p) const;
	// Dispatches of an op per layer and decode step; 0 for prompts.
	double per_layer(const OpTime& o) const {
		return test.generate && layers ? double(o.calls) / test.generate / layers : 0;
	}
	double device_ms() const {
		double ms = 0;
		for (const OpTime& o : ops) ms += o.ms;
		return ms;
	}
	double median() const {
		std::vector<double> s(tok_s);
		std::sort(s.begin(), s.end());
		const size_t h = s.size() / 2;
		return s.size() % 2 ? s[h] : (s[h - 1] + s[h]) / 2;
	}
	double min() const { return *std::min_element(tok_s.begin(), tok_s.end()); }
	double max() const { return *std::max_element(tok_s.begin(), tok_s.end()); }
};

Json bench_row_json(const BenchRow&, bool ops);
// ratio: also print each row's speed as a share of that of the first row of its test and host_share.
void print_bench_speeds(const std::vector<BenchRow>&, const std::string& model, const std::string& device, bool ratio);
void print_bench_cache(const std::vector<BenchRow>&); // what the cache costs each policy, in device time of one run
void print_bench_ops(const BenchRow&);

} // namespace kvrun
