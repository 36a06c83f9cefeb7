// A device made of lists: executes the moves of a KvCache, and compares the cache's views with the lists.
#pragma once
#include "engine/kv_host/cache.h"
#include <map>
#include <memory>
#include <set>

namespace kvrun {

struct SimPage {         // one page or block of the pool
	int owner = kNobody; // sequence that writes to it
	uint32_t layer = 0, words = 0, table_bytes = 0;
	std::vector<std::vector<uint32_t>> pos; // (n_kv_heads, 128) token written into each slot; kNone: never
	std::vector<std::set<uint32_t>> covers; // block: (n_kv_heads) tokens it was computed over
	std::vector<uint32_t> block;            // (n_kv_heads) block its codes refer to
	static constexpr int kNobody = -2, kFree = -1;
};

struct SimMemory : PagePool { // the pool of a device that several sequences share
	SimMemory(const KvPlan& p, size_t budget = SIZE_MAX) : plan(p), inner(budget) {}
	uint32_t alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) override;
	void share(uint32_t id) noexcept override;
	void free(uint32_t id) noexcept override;
	bool shared(uint32_t id) const override { return inner.shared(id); }
	size_t budget_bytes() const override { return inner.budget_bytes(); }
	size_t used_bytes() const override { return inner.used_bytes(); }

	const KvPlan& plan;
	BudgetPool inner;
	std::map<uint32_t, SimPage> page; // by id
	std::string broken;               // error found where nothing may throw
};

struct Sim { // one sequence on that device, with invented attention
	Sim(SimMemory& m, int id, uint64_t seed = 1) : memory(m), plan(m.plan), id(id), cache(m.plan, m, seed) {
		slot_scores_.resize(size_t(plan.shape.n_layers) * plan.shape.n_kv_heads);
	}
	Sim(Sim& other, int id); // a fork
	void prompt(uint32_t n);
	void decode(uint32_t n);
	void cancelled_token(); // begins a token and cancels it, unless a flush that ranks tokens is due
	// The cache's views match the memory; every live token is in exactly one place. Throws on a mismatch.
	void verify();
	// The attention that row `row` gives the token in (layer, kv head).
	static float attention(uint32_t l, uint32_t h, uint32_t row, uint32_t token);

	SimMemory& memory;
	const KvPlan& plan;
	int id;
	KvCache cache;
	std::vector<std::vector<uint32_t>> prompt_rows; // by prompt: positions that fed the score
	std::set<uint32_t> scored;                      // positions whose rows fed the score

 private:
	void copy_pages();
	void run(uint32_t l, const KvMoves& m, uint32_t first, uint32_t n_new);
	uint32_t source(uint32_t l, uint32_t h, uint32_t src, uint32_t first, uint32_t n_new) const;
	void write(uint32_t l, uint32_t h, const KvMove& m, uint32_t i, uint32_t pos);
	float& slot_score(uint32_t l, uint32_t h, uint32_t slot);
	std::vector<std::vector<float>> slot_scores_; // (n_layers * n_kv_heads, slots) summed up by the device
};

// The expected tiers and slots in plain lists, by code that shares nothing with the cache.
struct Reference {
	Reference(const KvPlan& p, uint32_t l, uint32_t h) : plan(p), l(l), h(h) {}
	void prompt(uint32_t n, const std::vector<uint32_t>& rows);
	void decode(bool scores);
	std::vector<uint8_t> tiers() const;

	struct Tok {
		uint32_t pos;
		double score = 0;
		uint32_t seen = 0; // by scored rows
	};
	const KvPlan& plan;
	uint32_t l, h;
	uint32_t n = 0;
	std::vector<Tok> sinks, kept, recent;
	std::vector<uint32_t> gone[kTiers]; // by tier, in the order in which they were judged
	std::vector<size_t> runs[kTiers];   // sizes of groups of tokens compressed together
	uint64_t judged = 0;

 private:
	void add(uint32_t pos);
	void score_row(uint32_t row);
	void judge(size_t leaving);
	bool full() const;
};

} // namespace kvrun
