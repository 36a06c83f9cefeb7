// KvPolicy + model shape -> KvPlan: formats per layer, page layout and sizes; and the moves that a cache needs from a
// device.
#pragma once
#include "engine/kv_host/page_pool.h"
#include "engine/kv_host/policy.h"
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvrun {

struct KvShape {
	uint32_t n_layers, n_kv_heads, head_dim; // 0 layers: no layer of the model attends; every policy is f16
	// Latent attention: K is the latent, which is also what is read as values, and V a rotated key of so many channels
	// per kv head. 0: V is values, as wide as keys.
	uint32_t rope_dim = 0;
	uint32_t v_dim() const { return rope_dim ? rope_dim : head_dim; }
	uint64_t token_channels() const { return uint64_t(n_kv_heads) * (head_dim + v_dim()); } // of a layer, K and V
	KvShape of_v() const { return {n_layers, n_kv_heads, v_dim()}; }                        // as if keys were like V
};

constexpr uint32_t kAllHeads = UINT32_MAX; // a move of all kv heads of a layer at once

// The contents of one page (or one parameter block), in 32-bit words. The sections follow each other in this order,
// each starting at a multiple of 4 words. Page layout: shaders/shared/kv_page.h.
struct PageFormat {
	Format fmt;                          // groups resolved
	uint32_t page = 0;                   // tokens; 0: a parameter block
	uint32_t k_codes = 0, v_codes = 0;   // words; 0: not stored here
	uint32_t k_params = 0, v_params = 0; // words; in a block: K parameters, V channel factors
	uint32_t k_codes_at = 0, v_codes_at = 0, k_params_at = 0, v_params_at = 0; // word offsets
	uint32_t words = 0;                                                        // of the whole page
	size_t bytes() const { return size_t(words) * 4; }
	bool operator==(const PageFormat&) const = default;
};

// How tokens enter the pages of a packed tier. The same in every layer, because the token structure is shared.
enum class Fill : uint8_t {
	None,   // nothing is stored: the tier is unused, or means eviction
	Append, // parameters per token: the last page fills up token by token
	Group,  // K per channel in runs of one page: pages are written whole, tokens wait in f16 until there are enough
	Block,  // parameters over all tokens compressed together: new pages each time, the last one partly live
};

struct TierPlan {
	Format fmt;                     // groups resolved
	uint16_t page_format = 0xffff;  // index into KvPlan::formats; 0xffff: nothing stored
	uint16_t block_format = 0xffff; // index into KvPlan::formats; 0xffff: parameters are in the pages
};
struct LayerPlan {
	TierPlan tier[kTiers];
	uint16_t k_codes_of, v_codes_of; // layer that owns the Regular codes; itself unless shared
	bool balanced = false;           // a channel balancer is stored for this layer
};
struct KvPlan {
	KvShape shape;
	uint32_t first_layer = 0; // in the pool: place of layer 0
	KvPolicy policy;
	std::vector<PageFormat> formats;
	std::vector<LayerPlan> layers;
	uint32_t page[kTiers]; // tokens per page of each tier
	Fill fill[kTiers];     // F16: Append
	bool keeps_all;        // no token ever leaves the f16 tier
	bool salient_stays;    // Salient is 16 bits: its tokens keep their f16 slot, and can still be demoted
	bool empties_f16;      // a flush may leave no token in f16; then its pages are freed
	uint32_t block = 1;    // tokens of the model that become one of this cache (Layer::blocks)
	uint32_t window = 0;   // tokens that a row sees, its own and the latest before it; 0: all that are cached
	// Most tokens of the cache that a row attends to, which an indexer chooses; 0: all. The device then has positions
	// of tokens in slots, unless slots are in the order of positions (keeps_all); keys of the indexer take so many
	// bytes per token.
	uint32_t chosen = 0;
	uint32_t choices = 1;     // of a row: 1, or one for each KV head
	uint32_t chosen_from = 0; // so many first layers attend to all tokens
	size_t index_token_bytes = 0;
	uint32_t n_groups; // token structures: 1, or n_layers if each layer judges separately
	uint32_t n_heads;  // token sets per structure: 1, or n_kv_heads
	const PageFormat& page_format(uint32_t l, Tier t) const { return formats[layers[l].tier[int(t)].page_format]; }
	const PageFormat& block_format(uint32_t l, Tier t) const { return formats[layers[l].tier[int(t)].block_format]; }
	bool fetches() const { return policy.fetch > 0; }
	bool speculates() const { return fetches() && !policy.fetch_sync; }
	bool ranked() const { return ranks_by_score(policy.select.rank); }
	// Bytes beside one page of layer l: page table (4 words), live bits (4 words per token set); and where layers do
	// not share them, or of the first layer that does, positions and a row's choice (a word and a bit per token and
	// set).
	size_t table_bytes(uint32_t l) const {
		const bool places = has_positions() && (n_groups > 1 || l == 0);
		return 16 + 16 * n_heads + (places ? 4 * 128 * n_heads + 16 * std::max(n_heads, choices) : 0);
	}
	bool has_positions() const { return chosen > 0 && !keeps_all; }
	// Pages of a layer for fetched tokens, with this many packed pages.
	uint32_t fetch_pages(const uint32_t (&pages)[kTiers]) const;
	uint32_t fetch_slots(const uint32_t (&pages)[kTiers]) const; // most tokens that can be fetched then
	size_t balancer_bytes() const;                               // of one layer: (n_kv_heads, head_dim) f16
	size_t f16_bytes(uint64_t n_tokens) const {                  // what plain f16 takes, without any page
		return size_t(2) * shape.n_layers * shape.token_channels() * (n_tokens / block);
	}
};

// Pure; throws Error{Invalid} for a policy that cannot be stored with this shape.
KvPlan make_plan(const KvPolicy&, const KvShape&);
// The same for a cache on a device, which must pack both sides of a token or neither; otherwise Error{Unsupported}.
KvPlan make_device_plan(const KvPolicy&, const KvShape&);

// Bytes of a cache by content. Everything that a device allocates for a sequence is in exactly one of these.
struct KvBytes {
	size_t f16 = 0;                    // live tokens of the f16 tier
	size_t codes = 0;                  // packed codes of live tokens
	size_t k_params = 0, v_params = 0; // (scale, zero) of live tokens and blocks, V channel factors, balancers
	size_t slack = 0;                  // slots of allocated pages that hold no live token, padding
	size_t tables = 0;                 // page tables
	size_t live = 0;                   // live masks
	size_t fetch = 0;                  // for fetching: f16 pages, memory for arrivals, masks and tables
	size_t states = 0;                 // of recurrent layers
	size_t index = 0;                  // keys of an indexer
	size_t total() const { return f16 + codes + k_params + v_params + slack + tables + live + fetch + states + index; }
	KvBytes& operator+=(const KvBytes& b) {
		f16 += b.f16, codes += b.codes, k_params += b.k_params, v_params += b.v_params;
		slack += b.slack, tables += b.tables, live += b.live, fetch += b.fetch;
		states += b.states, index += b.index;
		return *this;
	}
};
// The cache after a prompt of n_tokens, with nothing generated yet (scores do not change how many tokens are in each
// tier).
KvBytes bytes_at(const KvPlan&, uint64_t n_tokens);
// Bits of codes per element outside the f16 window: the number that papers quote.
double code_bits(const KvPlan&);
// Bits per element with everything counted.
double stored_bits(const KvPlan&, uint64_t n_tokens);
// Largest number of tokens whose cache takes at most budget_bytes; at most `limit`.
uint64_t tokens_that_fit(const KvPlan&, size_t budget_bytes, uint64_t limit);
// The policy of the table with the most bits whose cache of n_tokens fits the budget; empty if there is none.
std::string policy_that_fits(const KvShape&, uint64_t n_tokens, size_t budget_bytes);

// ---- what a device does for a cache, in this order: blocks, packs, stores

// Sources of moves: an f16 slot of the layer (logical page * page + index in it) or, with this bit, a token of the
// prompt's scratch.
constexpr uint32_t kFromScratch = 0x80000000u;

struct KvBlockMove { // compute a parameter block over tokens that are compressed together
	Tier tier;
	uint32_t head;   // kv head whose part of the block is computed, or kAllHeads
	uint32_t src, n; // KvMoves::sources[src .. src + n)
	uint32_t block;  // id in the pool
};
struct KvMove {                // a run of tokens into consecutive slots of one page
	Tier tier;                 // F16: unchanged; else quantised with the layer's format of this tier
	uint32_t head;             // kv head, or kAllHeads
	uint32_t src, n;           // KvMoves::sources[src .. src + n)
	uint32_t page;             // id in the pool
	uint32_t slot;             // first slot in the page; 0 and n == page where K has parameters per channel in the page
	uint32_t block;            // id in the pool of the parameter block the codes refer to, or kNone
	uint32_t k_owner, v_owner; // id of the page that holds the codes; equal to `page` unless codes are shared
};
struct KvMoves {
	std::vector<uint32_t> sources;
	std::vector<uint32_t> positions; // of the sources in the sequence; only for plans that fetch
	std::vector<KvBlockMove> blocks;
	std::vector<KvMove> packs;  // these read f16 slots that stores and later tokens overwrite
	std::vector<KvMove> stores; // scratch -> f16 slots
	bool empty() const { return packs.empty() && stores.empty(); }
	void clear() { sources.clear(), positions.clear(), blocks.clear(), packs.clear(), stores.clear(); }
};

} // namespace kvrun
