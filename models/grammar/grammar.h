// Which tokens may come next in an answer that follows a grammar.
#pragma once
#include "models/grammar/configs.h"
#include "models/grammar/token_trie.h"

namespace kvrun::grammar {

// Where in an answer a grammar begins to hold.
struct Begin {
	std::vector<std::string> markers = {}; // texts; control tokens in them as control_bytes() has them. Empty: at once
	bool with_marker = false;              // the marker is the grammar's first text; else it begins behind the marker
	bool may_end = true;                   // an answer may end without one
};

// A grammar over a vocabulary, with what is known of it so far. Used by one thread at a time.
class Grammar {
 public:
	Grammar(const Rules&, std::shared_ptr<const TokenTrie>, Begin = {});

	const TokenTrie& trie() const { return *trie_; }

 private:
	friend class Matcher;
	using Bits = std::vector<uint64_t>; // by token
	// Of places of one rule, whatever they return to.
	struct ByItself {
		std::vector<uint32_t> tokens; // that stay inside, or end exactly where the rule does
		Bits bits;                    // the same where they are many; else empty
		std::vector<uint32_t> exits;  // nodes at which the rule may end
		size_t bytes() const { return (tokens.size() + exits.size()) * 4 + bits.size() * 8; }
	};
	static constexpr size_t kMostMasks = 128, kMostByItself = 64 << 20; // masks; bytes of what is known of places
	static constexpr uint32_t kManyTokens = 2048;

	const Bits& mask(ConfigId);
	const ByItself& by_itself(ConfigId);
	template <class F> void walk(ConfigId, uint32_t node, uint32_t end, F accept);
	void add_token(Bits&, uint32_t node) const;
	void make_room(); // forgets what is known, if it is much

	const Automaton automaton_;
	const std::shared_ptr<const TokenTrie> trie_;
	const Begin begin_;
	Configs configs_;
	std::unordered_map<ConfigId, ByItself> by_itself_;
	size_t by_itself_bytes_ = 0;
	std::unordered_map<ConfigId, Bits> masks_;
	std::vector<ConfigId> path_; // of walk(), by depth
	std::vector<class Matcher*> matchers_;
	std::vector<uint32_t> may_complete_; // tokens with which a marker may end
};

// An answer as it comes.
class Matcher {
 public:
	explicit Matcher(std::shared_ptr<Grammar>);
	~Matcher();
	Matcher(const Matcher&) = delete;

	bool allows(uint32_t token);                 // tokens that end an answer: where it is complete
	std::span<const uint64_t> allowed();         // a bit for each token of the vocabulary; until the next call
	bool accept(uint32_t token);                 // false: it is not allowed, and nothing has changed
	bool may_end() const;                        // the answer is complete
	bool is_finished() const;                    // and nothing can follow
	bool is_waiting() const { return waiting_; } // for a marker: nothing is ruled out yet

 private:
	friend class Grammar;
	bool pass(std::string_view bytes, ConfigId& c);
	// Where a text that goes on by `bytes` is: false if the marker comes in it and the grammar cannot go on.
	bool wait(std::string_view bytes, std::string& tail, bool& waiting, ConfigId& c);

	const std::shared_ptr<Grammar> grammar_;
	ConfigId at_;
	bool waiting_;
	std::string tail_; // while it waits: bytes that may belong to a marker
	std::vector<uint64_t> bits_;
};

} // namespace kvrun::grammar
