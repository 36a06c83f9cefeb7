// States of recurrent layers: of one sequence, and on their way through a step or a piece of a prompt. A layer's state
// is a page of the pool: what a short convolution has seen last, then what the delta rule holds.
#pragma once
#include "engine/kv_device/pool.h"
#include <functional>
#include <memory>

namespace kvrun {

struct StateShape {
	uint32_t n_layers = 0;   // 0: the model has no recurrent layers
	uint32_t first = 0;      // layer of the pool where the first of them has its pages
	uint32_t conv_words = 0; // of a layer
	uint32_t rule_words = 0;
	uint32_t words() const { return conv_words + rule_words; }
	size_t bytes() const { return size_t(n_layers) * words() * 4; } // of one sequence
};

class StateSequence {
 public:
	// The pool must outlive the sequence. It takes memory with its first tokens.
	StateSequence(Backend&, KvPool&, const StateShape&);
	~StateSequence() { reset(); }
	StateSequence(const StateSequence&) = delete;
	// The same states, for a sequence of its own: they are shared until either goes on.
	std::unique_ptr<StateSequence> fork() const;
	void reset();

	uint32_t n_tokens() const { return n_tokens_; }
	size_t bytes() const { return pages_.empty() ? 0 : shape_.bytes(); }
	const StateShape& shape() const { return shape_; }
	// A state has forgotten how it came about.
	uint32_t exact_position(uint32_t n) const { return n >= n_tokens_ ? n_tokens_ : 0; }

	// ---- in a file: states by layer. Both submit and wait.
	void save_device(const std::function<void(std::span<const std::byte>)>& sink) const;
	void restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source);
	// n tokens more, whose state is `words` values in each layer: for measuring.
	void fill(uint32_t n, std::span<const float> words);

 private:
	friend class StateStep;
	View page(uint32_t l) const;
	void take_pages(std::vector<uint32_t>& out) const; // one for each layer; throws Error{OutOfMemory}

	Backend& be_;
	KvPool& pool_;
	StateShape shape_;
	std::vector<uint32_t> pages_; // by layer; empty: states are zero
	uint32_t n_tokens_ = 0;
};

struct StateGroup { // rows whose states lie in the same memory
	StateRows conv, rule;
};

// Rows on their way through all recurrent layers. Unless it ends, sequences are as they were; those whose state had
// been replaced in its place are empty.
class StateStep {
 public:
	// in_place: a state that no other sequence shares is replaced where it lies. `table` is room for what kernels read.
	// Throws RowError{OutOfMemory} with the number of the sequence.
	StateStep(Backend&, Buffer& table, std::span<StateSequence* const>, bool in_place);
	~StateStep();
	StateStep(const StateStep&) = delete;
	// Row i of a step belongs to sequence i: for all layers.
	void one_row_each();
	// Of one sequence: rows [0, n) of a piece; `first`: of the step's first piece.
	void piece(uint32_t l, bool first, uint32_t n);
	std::span<const StateGroup> groups(uint32_t l);
	void end(uint32_t n_tokens); // more, of each sequence

 private:
	struct Row {
		StateSequence* seq;
		std::vector<uint32_t> to; // pages by layer
		bool in_place = true;     // `to` are the sequence's own
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
