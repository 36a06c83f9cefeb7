// Which tokens may come next in an answer that follows a grammar.
#pragma once
#include "models/grammar/configs.h"
#include "models/grammar/token_trie.h"

namespace kvrun::grammar {

// Where in an answer the grammar begins.
struct Begin {
	std::vector<std::string> markers = {}; // texts, with control tokens as control_bytes(); empty: at the start
	bool with_marker = false;              // the grammar includes the marker; else it begins after the marker
	bool may_end = true;                   // an answer may end without a marker
};

// A grammar over a vocabulary, with caches. Used by one thread at a time.
class Grammar {
 public:
	Grammar(const Rules&, std::shared_ptr<const TokenTrie>, Begin = {});

	const TokenTrie& trie() const { return *trie_; }

 private:
	friend class Matcher;
	using Bits = std::vector<uint64_t>; // a bit per token
	// Tokens allowed at places of one rule, for any stack.
	struct ByItself {
		std::vector<uint32_t> tokens; // tokens that stay inside the rule, or end exactly at its end
		Bits bits;                    // replaces `tokens` if they are many; else empty
		std::vector<uint32_t> exits;  // trie nodes at which the rule may end
		size_t bytes() const { return (tokens.size() + exits.size()) * 4 + bits.size() * 8; }
	};
	static constexpr size_t kMostMasks = 128, kMostByItself = 64 << 20; // number of masks; bytes of all ByItself
	static constexpr uint32_t kManyTokens = 2048;

	const Bits& mask(ConfigId);
	const ByItself& by_itself(ConfigId);
	template <class F> void walk(ConfigId, uint32_t node, uint32_t end, F accept);
	void add_token(Bits&, uint32_t node) const;
	void make_room(); // empties caches that are full

	const Automaton automaton_;
	const std::shared_ptr<const TokenTrie> trie_;
	const Begin begin_;
	Configs configs_;
	std::unordered_map<ConfigId, ByItself> by_itself_;
	size_t by_itself_bytes_ = 0;
	std::unordered_map<ConfigId, Bits> masks_;
	std::vector<ConfigId> path_; // of walk(): the set at each depth
	std::vector<class Matcher*> matchers_;
	std::vector<uint32_t> may_complete_; // tokens that may complete a marker
};

// State of one answer in the grammar.
class Matcher {
 public:
	explicit Matcher(std::shared_ptr<Grammar>);
	~Matcher();
	Matcher(const Matcher&) = delete;

	bool allows(uint32_t token);                 // tokens that end an answer are allowed if it is complete
	std::span<const uint64_t> allowed();         // a bit per token of the vocabulary; valid until the next call
	bool accept(uint32_t token);                 // false: it is not allowed, and the state is unchanged
	bool may_end() const;                        // the answer is complete
	bool is_finished() const;                    // the answer is complete and nothing can follow
	bool is_waiting() const { return waiting_; } // no marker so far: everything is allowed

 private:
	friend class Grammar;
	bool pass(std::string_view bytes, ConfigId& c);
	// State after `bytes`, while waiting for a marker; false: the marker occurs and the grammar forbids what follows.
	bool wait(std::string_view bytes, std::string& tail, bool& waiting, ConfigId& c);

	const std::shared_ptr<Grammar> grammar_;
	ConfigId at_;
	bool waiting_;
	std::string tail_; // while waiting: last bytes, which may begin a marker
	std::vector<uint64_t> bits_;
};

} // namespace kvrun::grammar
