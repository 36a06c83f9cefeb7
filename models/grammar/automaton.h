// A grammar's rules as states over bytes: each rule is a machine of its own, which calls others.
#pragma once
#include "models/grammar/rules.h"
#include <span>

namespace kvrun::grammar {

// A control token among the bytes of a text: begins with one that UTF-8 never has, and ends with another.
constexpr uint8_t kControlBegin = 0xff, kControlEnd = 0xfe;
std::string control_bytes(std::string_view token_text);

using StateId = uint32_t;

struct Edge {
	enum class Kind : uint8_t { Byte, Empty, Call };
	Kind kind;
	uint8_t low = 0, high = 0; // bytes that it reads
	RuleId rule = 0;           // that it calls
	StateId to = 0;            // behind it
};

class Automaton {
 public:
	static constexpr size_t kMostStates = 1 << 18, kMostEdges = 1 << 20;
	static constexpr uint32_t kDeepest = 512; // calls inside each other

	// Throws Error{Format} where a rule has no body, calls itself before it has read anything, or never ends, and
	// Error{Unsupported} where the states are too many or the rules too deep.
	explicit Automaton(const Rules&);

	StateId start() const { return starts_[root_]; }
	StateId start(RuleId r) const { return starts_[r]; }
	std::span<const Edge> edges(StateId s) const {
		return std::span(edges_).subspan(first_edge_[s], first_edge_[s + 1] - first_edge_[s]);
	}
	bool is_final(StateId s) const { return final_[s]; }
	// The rule ends here whatever follows: a call that returns to this state need not be remembered.
	bool only_ends(StateId s) const { return only_ends_[s]; }
	bool reads(StateId s) const { return reads_[s]; } // has an edge that reads a byte
	// Calls inside each other that it takes at least to come from here to the end of the rule.
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
