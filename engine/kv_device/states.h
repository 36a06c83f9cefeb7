// States of recurrent layers: those of a sequence, and their update in a step or a piece of a prompt. A layer's state
// is a page of the pool: the latest inputs of the short convolution, then the state of the delta rule.
#pragma once
#include "engine/kv_device/pool.h"
#include <functional>
#include <memory>
#include <numeric>

namespace kvrun {

struct StateShape {
	uint32_t first = 0;          // layer of the pool that has the pages of the first state
	uint32_t conv_words = 0;     // words of a state before those of the rule; of recurrent layers
	std::vector<uint32_t> words; // of each state; empty: the model has none
	uint32_t n_layers() const { return uint32_t(words.size()); }
	size_t bytes() const { return std::accumulate(words.begin(), words.end(), size_t(0)) * 4; } // per sequence
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
	size_t bytes() const { return pages_.empty() ? 0 : (1 + earlier_.size()) * shape_.bytes(); }
	const StateShape& shape() const { return shape_; }
	// A state does not record earlier states. So only its own length and 0 are exact, and the lengths before each draft
	// of the latest step, whose states are kept until the next step, drop_earlier() or truncate().
	uint32_t exact_position(uint32_t n) const;
	void truncate(uint32_t n); // n: exact and not 0
	void drop_earlier();

	// ---- saving to a file: states by layer. Both functions submit and wait.
	void save_device(const std::function<void(std::span<const std::byte>)>& sink) const;
	void restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source);
	// Appends n tokens whose state is `words` in each layer; for measurements.
	void fill(uint32_t n, std::span<const float> words);

 private:
	friend class StateStep;
	struct Earlier {
		uint32_t n_tokens;
		std::vector<uint32_t> pages; // by layer
	};
	View page(uint32_t l) const;
	void free_pages(std::vector<uint32_t>&);
	void take_pages(std::vector<uint32_t>& out) const; // one for each layer; throws Error{OutOfMemory}

	Backend& be_;
	KvPool& pool_;
	StateShape shape_;
	std::vector<uint32_t> pages_;  // by layer; empty if all states are zero
	std::vector<Earlier> earlier_; // by length
	uint32_t n_tokens_ = 0;
};

struct StateGroup { // rows whose states lie in the same memory
	StateRows conv, rule;
};

struct StateOfRow { // the sequence of a row of a step
	StateSequence* seq;
	uint32_t draft = 0; // as in StepRow: the row comes behind so many others of the sequence
};

// Takes rows through all recurrent layers. Destroyed without end(), it leaves sequences unchanged, except that those
// whose state was replaced in place are empty.
class StateStep {
 public:
	// in_place: a state that no other sequence shares is overwritten in place. `table`: memory for the kernels' work
	// lists. A row that is a draft goes on from the row before it of its sequence, and leaves that one's state as it
	// is. Throws RowError{OutOfMemory} with the number of the row.
	StateStep(Backend&, Buffer& table, std::span<const StateOfRow>, bool in_place);
	~StateStep();
	StateStep(const StateStep&) = delete;
	void one_row_each(); // row i of a step is row i of the constructor, for all layers
	// Assigns rows [0, n) of a piece to the only sequence; `first`: this is the step's first piece.
	void piece(uint32_t l, bool first, uint32_t n);
	std::span<const StateGroup> groups(uint32_t l);
	void end(uint32_t n_tokens); // n_tokens: tokens added to each sequence

 private:
	struct Row {
		StateSequence* seq;
		std::vector<uint32_t> to;       // pages by layer
		bool in_place = true;           // `to` are the sequence's own pages
		uint32_t draft = 0, before = 0; // of a draft: the row that it goes on from
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
