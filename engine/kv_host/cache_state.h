// The state of a KvCache; for the files that implement it.
#pragma once
#include "engine/core/error.h"
#include "engine/kv_host/cache.h"
#include "engine/kv_host/token_set.h"
#include <array>

namespace kvrun {

struct LayerIds {                                            // pool ids of one layer, by tier
	std::array<std::vector<uint32_t>, kTiers> pages;         // by logical page
	std::array<std::vector<uint32_t>, kTiers> blocks;        // by logical block
	std::array<std::vector<uint32_t>, kTiers> block_of_page; // block id by logical page
};
using Sets = std::vector<std::vector<TokenSet>>; // (n_groups, n_heads)

struct KvCache::State {
	const KvPlan* plan;
	PagePool* pool;
	uint64_t seed;
	KvCounts counts; // counts in the views
	Sets sets;
	std::vector<LayerIds> ids;  // by layer; reserved ones included
	uint32_t scored_rows = 0;   // rows that fed the score so far
	bool newest_scores = false; // whether the row of the newest step's first token feeds the score
	std::array<uint64_t, kTiers> version{};
	uint64_t pages_version = 0;
	uint32_t exact_from = 0;  // truncation to positions from here on is exact
	uint32_t floor_pages = 0; // f16 pages of a layer at exact_from
	std::vector<PageCopy> copies;

	// ---- between begin_token() and end_token()
	bool in_token = false;
	struct Before { // the state that cancel_token() restores
		KvCounts counts;
		uint32_t scored_rows, exact_from, floor_pages;
		bool newest_scores;
		std::vector<std::vector<TokenSet::Saved>> sets; // (n_groups, n_heads), with a flush; else empty
	} before{};
	std::vector<uint32_t> step_slots; // (tokens of the step, n_groups, n_heads)
	std::vector<uint32_t> step_pages; // (tokens of the step) f16 pages

	// ---- between begin_prompt() and end_prompt()
	bool in_prompt = false;
	uint32_t n_new = 0, next_layer = 0;
	KvCounts next; // counts after the prompt
	Sets next_sets;
	std::vector<uint32_t> rows;        // prompt rows that feed the score
	std::vector<uint32_t> rows_before; // (n_new) scored rows before each new token's own

	std::vector<FlushEvent> events; // of the prompt or of the newest token
	std::vector<SetMoves> moves;    // by group, of the prompt or of the newest token
	KvMoves out;                    // last result of prompt_moves() or token_moves()

	State(const KvPlan& p, PagePool& q, uint64_t s)
	    : plan(&p), pool(&q), seed(s), ids(p.shape.n_layers), moves(p.n_groups) {
		for (uint32_t g = 0; g < p.n_groups; ++g) {
			sets.emplace_back();
			for (uint32_t h = 0; h < p.n_heads; ++h) sets.back().emplace_back(p, p.n_heads == 1 ? kAllHeads : h);
		}
	}
	~State() { trim(KvCounts()); }
	State(const State&) = delete;
	State& operator=(const State&) = delete;

	void trim(const KvCounts& keep) noexcept;
	void reserve(const KvCounts& want, uint32_t n_added);
	void take_pages(const KvCounts& want, uint32_t n_added);
	void unshare(const KvCounts& want, uint32_t n_added);
	uint32_t take_page(uint32_t l, uint16_t format);
	[[noreturn]] void out_of_memory(const KvCounts& want, uint32_t n_added);
	void give_back() noexcept; // returns what a reservation has taken so far
	void replay_prompt(uint32_t group, std::span<const float> new_scores);
	const KvMoves& materialise(uint32_t l, const SetMoves& m);
	void commit(const KvCounts& c);
	KvCounts with_f16_pages(KvCounts next) const; // `next`, with the f16 pages that moves of a flush still read
	void drop_f16_pages() noexcept;               // those emptied by a flush, after its moves are done
	void all_changed() noexcept;                  // pages in the views were replaced or freed
};

} // namespace kvrun
