// Positions of an answer in a grammar: sets of states with their stacks of calls, and transitions between sets by
// bytes. Sets are computed once and kept.
#pragma once
#include "models/grammar/automaton.h"
#include <memory>
#include <unordered_map>

namespace kvrun::grammar {

using StackId = uint32_t;  // a stack of calls that have not returned
using ConfigId = uint32_t; // a set of places
constexpr ConfigId kDead = UINT32_MAX;

// A state and the stack of calls to return to.
struct Place {
	StateId state;
	StackId stack;
	auto operator<=>(const Place&) const = default;
};

class Configs {
 public:
	// Stacks without a call: the end of the answer, and an unknown stack, for results that hold for any stack.
	static constexpr StackId kEnd = 0, kUnknown = 1;
	static constexpr size_t kMostPlaces = 16384; // in a set; a grammar that needs more is too ambiguous
	static constexpr size_t kMostConfigs = 8192, kMostStacks = 1 << 18, kMostKept = 1 << 20; // places of all sets
	static constexpr size_t kMostWork = 20'000'000; // places visited for one token: seconds

	explicit Configs(const Automaton&);

	ConfigId start();
	// The set after a byte; kDead: the byte is not allowed. Throws Error{Unsupported} if the set is too large.
	ConfigId next(ConfigId c, uint8_t byte) {
		const ConfigId to = configs_[c]->next[byte];
		return to == kUnseen ? find_next(c, byte) : to;
	}
	bool may_end(ConfigId c) const { return configs_[c]->may_end; } // the answer may end; for kUnknown, the rule
	bool only_ends(ConfigId c) const { return configs_[c]->places.empty(); }
	const std::vector<Place>& places(ConfigId c) const { return configs_[c]->places; }
	ConfigId config(std::vector<Place> reached); // the set of these places and those reachable without a byte
	// The set after the latest call of a stack has returned; kDead for kEnd and kUnknown.
	ConfigId returned(StackId);
	uint32_t depth(StackId s) const { return stacks_[s].depth; }

	// Whether the caches should be emptied by forget(). It drops all sets except `used`, and updates the numbers there.
	bool is_full() const { return configs_.size() > kMostConfigs || stacks_.size() > kMostStacks || kept_ > kMostKept; }
	void begin_step() { work_ = 0; } // call before each token
	void forget(std::span<ConfigId* const> used);

 private:
	static constexpr ConfigId kUnseen = UINT32_MAX - 1;
	struct Stack {
		StateId state; // where the call returns to
		StackId below;
		uint32_t depth;
	};
	struct Config {
		std::vector<Place> places; // those that read a byte; ascending
		bool may_end = false;
		ConfigId next[256];
	};
	struct Hash {
		size_t operator()(uint64_t x) const { return size_t((x ^ x >> 31) * 0x9e3779b97f4a7c15u >> 7); }
	};
	ConfigId find_next(ConfigId, uint8_t byte);
	StackId push(StateId, StackId below);
	bool fits(StateId s, StackId k) const {
		return automaton_.height(s) + uint64_t(stacks_[k].depth) <= Automaton::kDeepest;
	}
	ConfigId intern(std::vector<Place> places, bool may_end);

	const Automaton& automaton_;
	std::vector<Stack> stacks_;
	std::unordered_map<uint64_t, StackId, Hash> stack_of_;
	std::vector<std::unique_ptr<Config>> configs_;
	std::unordered_map<uint64_t, std::vector<ConfigId>, Hash> config_of_; // key: hash of the set
	std::unordered_map<uint64_t, ConfigId, Hash> returned_;
	size_t kept_ = 0, work_ = 0;
};

} // namespace kvrun::grammar
