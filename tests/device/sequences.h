// Shared by tests of whole models: engines on a test device, logits of prompts and greedy continuations.
#pragma once
#include "engine/run/session.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <cmath>

namespace kvrun {

using Tokens = std::vector<uint32_t>;

inline const std::string kGolden = test_root() + "/tests/golden/";

struct Case {
	std::string name;
	std::string text() const { return name; }
};

// f32: for comparison with the cpu backend, nothing is rounded to f16 or int8 (DeviceInfo::half_matmul, ...).
inline std::unique_ptr<Engine> open_engine(const std::string& device, const std::string& model, uint32_t ubatch = 512,
                                           bool f32 = false) {
	EngineOptions opt;
	opt.model = model;
	opt.backend = select_test_device(device);
	opt.backend.f32_matmul |= f32;
	opt.ubatch = ubatch;
	return Engine::open(opt);
}
inline SessionOptions with(const std::string& kv, uint32_t ctx = 0) { return {.kv = parse_policy(kv), .ctx = ctx}; }

inline uint32_t best(std::span<const float> logits) {
	return uint32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}
inline Floats keep(std::span<const float> x) { return {x.begin(), x.end()}; }

// Logits of every prompt row, (T, vocab).
inline Floats prompt_logits(Session& s, std::span<const uint32_t> tokens) {
	Floats all(tokens.size() * s.engine().config().vocab);
	PrefillHooks hooks;
	const size_t vocab = s.engine().config().vocab;
	hooks.all_logits = [&](uint32_t first, uint32_t n, std::span<const float> logits) {
		REQUIRE(logits.size() == n * vocab);
		REQUIRE((first + n) * vocab <= all.size());
		std::copy(logits.begin(), logits.end(), all.begin() + std::ptrdiff_t(first * vocab));
	};
	const Floats last = keep(s.prefill(tokens, hooks));
	CHECK(std::equal(last.begin(), last.end(), all.end() - std::ptrdiff_t(vocab), all.end()));
	return all;
}

// Appends the logits after the token that the last row of `rows` (any, vocab) finds best.
inline void add_greedy_step(Session& s, Floats& rows, size_t vocab) {
	const std::span<const float> step = s.decode(best(std::span(rows).last(vocab)));
	rows.insert(rows.end(), step.begin(), step.end());
}

// Logits after the prompt and after each of n greedy steps, (n + 1, vocab).
inline Floats greedy_logits(Session& s, std::span<const uint32_t> prompt, uint32_t n) {
	Floats all = keep(s.prefill(prompt));
	const size_t vocab = all.size();
	for (uint32_t i = 0; i < n; ++i) add_greedy_step(s, all, vocab);
	return all;
}

// Logits (steps, vocab) after each of some tokens.
inline Floats fed(Session& s, std::span<const uint32_t> tokens) {
	Floats all;
	for (const uint32_t t : tokens) {
		const std::span<const float> step = s.decode(t);
		all.insert(all.end(), step.begin(), step.end());
	}
	return all;
}

// The same for several sessions, (steps, vocab) each: a step takes one token of every session.
inline std::vector<Floats> fed_together(std::span<const std::unique_ptr<Session>> sessions,
                                        std::span<const Tokens> tokens) {
	std::vector<Floats> all(sessions.size());
	for (size_t step = 0; step < tokens[0].size(); ++step) {
		std::vector<SessionRow> rows;
		for (size_t i = 0; i < sessions.size(); ++i) rows.push_back({sessions[i].get(), tokens[i][step]});
		const std::span<const float> logits = decode(rows);
		const size_t vocab = logits.size() / sessions.size();
		for (size_t i = 0; i < sessions.size(); ++i) {
			const std::span<const float> row = logits.subspan(i * vocab, vocab);
			all[i].insert(all[i].end(), row.begin(), row.end());
		}
	}
	return all;
}

// Largest difference as a share of the largest absolute expectation; NaN counts as infinite.
inline double relative_error(std::span<const float> x, std::span<const float> ref) {
	double error = 0, largest = 0;
	for (size_t i = 0; i < ref.size(); ++i) {
		const double e = std::abs(double(x[i]) - double(ref[i]));
		error = std::max(error, std::isnan(e) ? INFINITY : e), largest = std::max(largest, std::abs(double(ref[i])));
	}
	return error / largest;
}

inline Tokens random_tokens(uint32_t n, uint32_t vocab, uint32_t seed) {
	Tokens r(n);
	for (uint32_t& t : r) t = 3 + (seed = seed * 1664525u + 1013904223u, seed >> 8) % (vocab - 3);
	return r;
}

// A small model with grouped heads that is always available.
inline const std::string kSmallModel = kGolden + "tiny/llama.gguf";

// Its heads can be divided into the groups of every policy.
inline const std::string kPolicyModel = "llama_q8_0";

// Policies with windows so short that tokens are packed, and evicted, in a hundred of them.
inline const std::vector<std::string> kShort = {"fp16",
                                                "rtn8",
                                                "rtn4",
                                                "rtn2",
                                                "kivi4,recent_keep=8,flush=32",
                                                "kivi2,recent_keep=8,flush=32",
                                                "kivi2,param_bits=8,v.group=head,recent_keep=8,flush=32",
                                                "kivi1,recent_keep=8,flush=32",
                                                "logquant,W=10,k.group=32",
                                                "xquant,vm=0,recent_keep=0,flush=32,k.group=32",
                                                "asymkv,recent_keep=8,flush=32",
                                                "mixed,k.group=32,recent_keep=8,flush=32",
                                                "turbo,group=32,recent_keep=8,flush=32",
                                                "streaming,sinks=4,recent=33",
                                                "zipcache,flush=25",
                                                "mikv,recent_keep=8,flush=16",
                                                "h2o,recent_keep=8,flush=16,budget=24"};

// Policies that fetch, in the same form; test_fetch.cpp tests them.
inline const std::vector<std::string> kFetching = {"specache2,recent_keep=8,fetch=24",
                                                   "specache2,param_bits=8,v.group=head,recent_keep=8,fetch=24",
                                                   "specache1,recent_keep=8,fetch=24"};

// A prompt in two turns and decode steps under KVRUN_CHECK: every op is compared with the cpu's.
inline void check_sequence(const TestRow& row, const std::string& model, const std::string& kv,
                           uint32_t n_decode = 15) {
	setenv("KVRUN_CHECK", "1", 1);
	const auto engine = open_engine(row.device, kGolden + "tiny/" + model + ".gguf", 64);
	unsetenv("KVRUN_CHECK");
	Session s(*engine, with(kv, 400));
	const Tokens prompt = random_tokens(200, engine->config().vocab, 9);
	REQUIRE_NOTHROW(s.prefill(std::span(prompt).first(150)));
	REQUIRE_NOTHROW(s.prefill(std::span(prompt).subspan(150)));
	for (uint32_t i = 0; i < n_decode; ++i) REQUIRE_NOTHROW(s.decode(i % 256));
}

} // namespace kvrun
