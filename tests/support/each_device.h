// Test cases on each device of KVRUN_TEST_DEVICES that can be used.
#pragma once
#include "engine/run/session.h"
#include "tests/support/devices.h"
#include <doctest/doctest.h>

namespace kvrun {

inline void on_every_device(const auto& f) { // f(name)
	for (const TestDevice& d : test_devices()) {
		if (!d.backend) continue;
		INFO("device " << d.name);
		f(d.name);
	}
}

// (tokens, vocab): of each token of the prompt.
inline std::vector<float> logits_of(Session& s, std::span<const uint32_t> tokens) {
	std::vector<float> out;
	PrefillHooks hooks;
	hooks.all_logits = [&](uint32_t, uint32_t, std::span<const float> l) { out.insert(out.end(), l.begin(), l.end()); };
	s.prefill(tokens, hooks);
	return out;
}

} // namespace kvrun
