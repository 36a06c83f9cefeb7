// States of recurrent layers: those of a sequence, and their update in a step or a piece of a prompt. A layer's state
// is a page of the pool: the latest inputs of the short convolution, then the state of the delta rule.
#pragma once
#include "engine/kv_device/pool.h"
#include <functional>
#include <memory>

namespace kvrun {

struct StateShape {
	uint32_t n_layers = 0;   // 0: the model has no recurrent layers
	uint32_t first = 0;      // layer of the pool that has the pages of the first of them
	uint32_t conv_words = 0; // of a layer
	uint32_t rule_words = 0;
	uint32_t words() const { return conv_words + rule_words; }
	size_t bytes() const { return size_t(n_layers) * words() * 4; } // per sequence
};

class StateSequence {
 public:
	// The pool must outlive the sequence. Memory is allocated when the first tokens come.
	StateSequence(Backend&, KvPool&, const StateShape&);
	~StateSequence() { reset(); }
	StateSequence(const StateSequence&) = delete;
	// Returns a new sequence with the same states; they are shared until either appends tokens.
	std::unique_ptr<StateSequence> fork() const;
	void reset();

	uint32_t n_tokens() const { return n_tokens_; }
	size_t bytes() const { return pages_.empty() ? 0 : shape_.bytes(); }
	const StateShape& shape() const { return shape_; }
	// A state does not record earlier states, so only its own length and 0 are exact.
	uint32_t exact_position(uint32_t n) const { return n >= n_tokens_ ? n_tokens_ : 0; }

	// ---- saving to a file: states by layer. Both functions submit and wait.
	void save_device(const std::function<void(std::span<const std::byte>)>& sink) const;
	void restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source);
	// Appends n tokens whose state is `words` in each layer; for measurements.
	void fill(uint32_t n, std::span<const float> words);

 private:
	friend class StateStep;
	View page(uint32_t l) const;
	void take_pages(std::vector<uint32_t>& out) const; // one for each layer; throws Error{OutOfMemory}

	Backend& be_;
	KvPool& pool_;
	StateShape shape_;
	std::vector<uint32_t> pages_; // by layer; empty if all states are zero
	uint32_t n_tokens_ = 0;
};

struct StateGroup { // rows whose states lie in the same memory
	StateRows conv, rule;
};

// Takes rows through all recurrent layers. Destroyed without end(), it leaves sequences unchanged, except that those
// whose state was replaced in place are empty.
class StateStep {
 public:
	// in_place: a state that no other sequence shares is overwritten in place. `table`: memory for the kernels' work
	// lists. Throws RowError{OutOfMemory} with the number of the sequence.
	StateStep(Backend&, Buffer& table, std::span<StateSequence* const>, bool in_place);
	~StateStep();
	StateStep(const StateStep&) = delete;
	// Assigns row i of a step to sequence i, for all layers.
	void one_row_each();
	// Assigns rows [0, n) of a piece to the only sequence; `first`: this is the step's first piece.
	void piece(uint32_t l, bool first, uint32_t n);
	std::span<const StateGroup> groups(uint32_t l);
	void end(uint32_t n_tokens); // n_tokens: tokens added to each sequence

 private:
	struct Row {
		StateSequence* seq;
		std::vector<uint32_t> to; // pages by layer
		bool in_place = true;     // `to` are the sequence's own pages
	};
	void add_groups(uint32_t l, bool first, uint32_t n, std::vector<uint32_t>& words);
	void write(size_t at_word, std::span<const uint32_t> words);
	void give_pages() noexcept;

	Backend& be_;
	Buffer& table_;
	std::vector<Row> rows_;
	std::vector<std::vector<StateGroup>> groups_; // by layer
	bool used_ = false, ended_ = false;
};

} // namespace kvrun
