// A grammar's rules as states over bytes: each rule is a state machine, which may call others.
#pragma once
#include "models/grammar/rules.h"
#include <span>

namespace kvrun::grammar {

// Around the name of a control token in the bytes of a text; UTF-8 contains neither byte.
constexpr uint8_t kControlBegin = 0xff, kControlEnd = 0xfe;
std::string control_bytes(std::string_view token_text);

using StateId = uint32_t;

struct Edge {
	enum class Kind : uint8_t { Byte, Empty, Call };
	Kind kind;
	uint8_t low = 0, high = 0; // reads a byte in [low, high]
	RuleId rule = 0;           // called rule
	StateId to = 0;            // next state
};

class Automaton {
 public:
	static constexpr size_t kMostStates = 1 << 18, kMostEdges = 1 << 20;
	static constexpr uint32_t kDeepest = 512; // nesting of calls

	// Throws Error{Format} if a rule has no body, calls itself before it has read a byte, or never ends;
	// Error{Unsupported} if there are too many states or rules nest too deeply.
	explicit Automaton(const Rules&);

	StateId start() const { return starts_[root_]; }
	StateId start(RuleId r) const { return starts_[r]; }
	std::span<const Edge> edges(StateId s) const {
		return std::span(edges_).subspan(first_edge_[s], first_edge_[s + 1] - first_edge_[s]);
	}
	bool is_final(StateId s) const { return final_[s]; }
	// In this state the rule can only end: a call that returns to it need not be remembered.
	bool only_ends(StateId s) const { return only_ends_[s]; }
	bool reads(StateId s) const { return reads_[s]; } // has an edge that reads a byte
	// Least nesting of calls on a path from this state to the end of its rule.
	uint32_t height(StateId s) const { return height_[s]; }
	size_t n_states() const { return final_.size(); }

 private:
	struct Builder;
	void check(const Rules&);
	RuleId root_;
	std::vector<StateId> starts_; // (rules)
	std::vector<Edge> edges_;     // of all states
	std::vector<uint32_t> first_edge_, height_;
	std::vector<bool> final_, only_ends_, reads_;
};

} // namespace kvrun::grammar
