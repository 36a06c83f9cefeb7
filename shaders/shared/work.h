// Work items of ops: elements of u32 arrays in device memory; the fields are words in this order. Read by C++, CUDA and
// GLSL: structs of uint only. GLSL reads fields by name with lib/work.glsl.
#ifndef KVRUN_WORK_H
#define KVRUN_WORK_H
#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = unsigned int;
#endif

struct AttendWork { // what one workgroup (times kv heads) attends to
	uint row;       // first row of q
	uint part;      // partial state that row writes
	uint n_pages;   // consecutive pages
	// word of KvRead::tables: the first page's entry. An entry has 4 words: the word offsets of the page's K codes, V
	// codes, K parameters and V parameters
	uint pages;
	uint live; // word of KvRead::tables: live bits of kv head 0 and the first page, 4 words a page, a bit a token
	uint live_stride; // words from one kv head's live bits to the next head's; 0: all heads share them
	uint factors;     // word of KvRead::tables: the first page's word offset of V's channel factors, 1 word a page
	uint balance;     // word of KvRead::balance: the channel balancer (n_kv_heads, head_dim) f16
};
#define ATTEND_WORDS 8u

struct StateWork { // rows of one sequence, which go through the state of a recurrent layer in order
	uint row;      // first row
	uint n;        // rows
	uint from;     // word of StateRows::from with the state before these rows; STATE_ZERO: the state is zero
	uint to;       // word of StateRows::to for the state after these rows
};
#define STATE_WORDS 4u
#define STATE_ZERO 0xffffffffu

struct ScoreWork { // f16 pages of one sequence whose tokens are scored
	uint first;    // rows: ScoreArgs::rows[first .. first + n)
	uint n;
	uint n_pages; // consecutive pages
	uint pages;   // as in AttendWork
	uint live;
	uint live_stride;
	uint score;        // word of ScoreArgs::score: kv head 0, slot 0 of the first page
	uint score_stride; // words from one kv head's scores to the next head's
};
#define SCORE_WORDS 8u

struct WeighWork { // pages of one sequence whose tokens are weighed by one row
	uint row;      // of q
	uint n_pages;  // consecutive pages
	uint pages;    // as in AttendWork
	uint live;
	uint live_stride;
	uint weight;        // word of WeighArgs::weight: kv head 0, slot 0 of the first page
	uint weight_stride; // words from one kv head's weights to the next head's
	uint balance;       // as in AttendWork
};
#define WEIGH_WORDS 8u

struct TopWork {  // one list of weights
	uint weights; // weight[weights .. weights + n)
	uint n;
	uint picks; // picks[picks .. picks + k)
	uint k;
};
#define TOP_WORDS 4u

struct ShareWork { // one row's partial states
	uint first;    // parts
	uint n;
	uint inside;   // the first of them, whose share is computed
	uint reserved; // 0: a work item is 16 bytes
};
#define SHARE_WORDS 4u

struct IndexWork { // keys of blocks of tokens, which are scored for rows
	uint row;      // first row
	uint n_rows;
	uint key;   // first block: column of IndexScore::score
	uint n;     // keys: one for each block, or IndexScore::pool
	uint words; // word of IndexScore::keys: the first one's key
	uint reserved[3];
};
#define INDEX_WORDS 8u

struct LiveWork {  // pages of one sequence, of which a row attends to some tokens
	uint row;      // of IndexLive::bits
	uint n_pages;  // consecutive pages
	uint page;     // tokens of a page
	uint live;     // word of IndexLive::tables: live bits of the first page, 4 words a page
	uint to;       // word of IndexLive::tables: live bits for the row
	uint position; // word of IndexLive::tables: positions of the first page's tokens, LIVE_POSITIONS words a page;
	               // LIVE_IN_ORDER: token i of the pages is at position first + i
	uint first;    // a multiple of 32
	uint reserved; // 0: a work item is 32 bytes
};
#define LIVE_WORDS 8u
#define LIVE_POSITIONS 128u
#define LIVE_IN_ORDER 0xffffffffu

struct PackWork { // tokens that become consecutive slots of one page
	uint src;     // PackArgs::sources[src .. src + n)
	uint n;
	uint head;    // kv head, or UINT32_MAX: all of them
	uint slot;    // first slot in the page
	uint k_codes; // word offset of the page's codes; kSkip: another layer stores them
	uint v_codes;
	uint k_params; // word offset of the page's parameters; of the block's where K's are in a block
	uint v_params;
	uint v_factors; // word offset of V's channel factors; unused without Prescale::SqrtMax
	uint balance;   // word of PackArgs::balance, as in AttendWork; unused without Prescale::Balance
};
#define PACK_WORDS 10u

struct BlockWork { // tokens that are compressed together
	uint src;      // BlockArgs::sources[src .. src + n)
	uint n;
	uint head;      // kv head whose part of the block is computed, or UINT32_MAX: all
	uint k_params;  // word offset of K's (scale, zero) per channel; kSkip: K's parameters are in the pages
	uint v_factors; // word offset of V's channel factors; kSkip: V has none
	uint balance;   // as in PackWork
};
#define BLOCK_WORDS 6u

#ifdef __cplusplus
static_assert(sizeof(AttendWork) == 4 * ATTEND_WORDS);
static_assert(sizeof(ScoreWork) == 4 * SCORE_WORDS);
static_assert(sizeof(WeighWork) == 4 * WEIGH_WORDS);
static_assert(sizeof(TopWork) == 4 * TOP_WORDS);
static_assert(sizeof(ShareWork) == 4 * SHARE_WORDS);
static_assert(sizeof(IndexWork) == 4 * INDEX_WORDS);
static_assert(sizeof(LiveWork) == 4 * LIVE_WORDS);
static_assert(sizeof(PackWork) == 4 * PACK_WORDS);
static_assert(sizeof(BlockWork) == 4 * BLOCK_WORDS);
} // namespace kvrun
#endif
#endif
