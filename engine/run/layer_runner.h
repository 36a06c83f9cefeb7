// Runs layers from their descriptions (Layer), for all backends and for prompts and decode steps alike.
#pragma once
#include "backends/backend.h"
#include "engine/kv_device/states.h"
#include "engine/run/block_memory.h"
#include "engine/run/index_memory.h"
#include "engine/run/latent_memory.h"
#include "engine/run/logits.h"
#include "engine/run/lora_products.h"
#include "engine/run/mlp_memory.h"
#include "engine/run/recurrent_memory.h"
#include "engine/run/stream_memory.h"
#include "models/config.h"
#include "models/weights.h"
#include <array>
#include <functional>
#include <optional>

namespace kvrun {

constexpr size_t kMostRopes = 2;
// Position tables of rows: one for each of Config::ropes, (n, rotary_dim / 2, 2) f32; then, if there is a
// Config::temperature, the amount it adds to q as a share of q, (n, 1) f32; then, if Config::indexer has blocks of
// several tokens, as the first of ropes, the position of the first token of the block that would end with the row; then
// the same for Layer::blocks of another size.
constexpr size_t kTemperature = kMostRopes, kBlockStart = kMostRopes + 1, kLongStart = kMostRopes + 2,
                 kPositionTables = kMostRopes + 3;
using RopeViews = std::array<View, kPositionTables>;
// Of a model's blocks, those of an indexer and Layer::blocks: their sizes, by table from kBlockStart on; 0: none.
inline std::array<uint32_t, kMostBlockSizes> started_blocks(const Config& c) {
	std::array<uint32_t, kMostBlockSizes> n = {c.indexer.block > 1 ? c.indexer.block : 0, 0};
	for (const uint32_t tokens : block_sizes(c))
		if (tokens != n[0]) n[1] = tokens;
	return n;
}
inline std::vector<size_t> block_start_tables(const Config& c) {
	std::vector<size_t> tables;
	for (size_t i = 0; i < kMostBlockSizes; ++i)
		if (started_blocks(c)[i]) tables.push_back(kBlockStart + i);
	return tables;
}

struct TokenViews {   // of rows
	View ids = {};    // (n) u32
	View inputs = {}; // (n) u32, ids * layers: rows of Weights::input_table; empty without Config::layer_input_dim
	View places = {}; // (n) u32, positions: rows of TextWeights::positions; empty without TextInput::positions
	TokenViews part(uint32_t first, uint32_t n) const {
		const auto of = [&](const View& v) { return v ? rows(v, first, n) : View(); };
		return {of(ids), of(inputs), of(places)};
	}
};

struct LayerRows { // rows of one pass through a layer
	uint32_t n;
	View x, h;     // (n, dim) f32: residual stream, room for its norm
	View q, att;   // (n, n_heads, head_dim) f32
	View k, v;     // (n, n_kv_heads, channels) f32
	View gate, up; // (n, channels of the widest dense MLP) f32
	RopeViews rope;
	View out_gate = {};                      // (n, n_heads * channels) f32, or (n, n_heads), of Layer::output_gate
	std::span<const StateGroup> states = {}; // of a recurrent layer
	View first_values = {};                  // (n, dim) f32, of Config::first_values
	View values = {};      // (n, values) f32: output of a recurrent layer, or of heads that attend to latents
	View q_rope = {};      // (n, n_heads, rope_dim) f32, of Layer::latent
	View q_nope = {};      // (n, n_heads, nope_dim) f32, of Layer::latent
	bool expanded = false; // Layer::latent in its expanded form: q is not computed, and attention's result is `values`
	TokenViews tokens = {};
	// Config::layer_input_dim: writes over embeddings (n, dim) f32 of rows that are no tokens; null: all are tokens.
	const std::function<void(const View&)>* replace = nullptr;
	// (n, dim) f32: output of attention or MLP, if it is changed before it is added to x; weighed input of experts
	View branch = {};
	// Of Config::streams: all of them; x is then the active one inside the layer, or what a mixer made of all.
	StreamRows streams = {};
	View sum = {};    // (n, dim) f32, of StreamKind::Attended: the stream that outputs are added to; else they are to x
	View inject = {}; // (n, streams) f32, of hyper-connections: factors of what is added to each
	std::span<const float> ngrams = {}; // (n, NGrams::width()), in the layer of Config::ngrams
	View laurel = {};                   // (n, dim) f32, of Layer::laurel_rank
	// (n, heads * channels), (n, channels), (n, heads) f32, of layers with an indexer.
	View index_q = {}, index_k = {}, index_weights = {};
	View index_gates = {}; // as index_k, of Indexer::gated
};

struct BlockRows {        // of rows of a layer with Layer::blocks
	View att;             // (n, n_heads, head_dim) f32: attention to entries
	View lse, lse_blocks; // (n, n_heads) f32: normalisers of attention to the window, and to entries
};

class LayerRunner {
 public:
	// most_rows: limit of one pass. Backend, config, weights and adapters must outlive the runner.
	LayerRunner(Backend&, const Config&, const Weights&, uint32_t most_rows, const Loras* = nullptr);

	// While set, layer l is computed with these weights: the same ones at another place. Null: those of the
	// constructor.
	void use(uint32_t l, const LayerWeights* w) { copied_layer_ = l, copied_ = w, loras_.use(l, w); }

	// Rows first .. first + n - 1 of x, tokens and rope, and activations of a pass through layer l, whose memory the
	// next pass reuses.
	LayerRows rows_of(uint32_t l, const View& x, const TokenViews&, const RopeViews& rope, uint32_t first,
	                  uint32_t n) const;
	static LayerRows last_row(const LayerRows&);

	// positions: of the tokens; may be empty where TokenViews::places are.
	void write_tokens(const TokenViews& to, std::span<const uint32_t> tokens, std::span<const uint32_t> positions = {});
	// decode: as in Backend::matmul().
	// Embeds tokens into rows from `first` on of x, the residual stream, or all streams. replace: as in LayerRows; may
	// be empty.
	void embed(const View& x, uint32_t first, const TokenViews& tokens, bool decode,
	           const std::function<void(const View&)>& replace = {});
	// Before recur() and project_in(): what a layer reads of several residual streams. gram_states: of the convolution
	// of n-grams, in the layer of Config::ngrams.
	void enter(uint32_t l, const LayerRows&, std::span<const StateGroup> gram_states, bool decode);
	void project_in(uint32_t l, const LayerRows&, bool decode); // norm, q, k, v
	// k and v of rows that ask nothing, from what the projections read: x (n, dim).
	void project_kv(uint32_t l, const LayerRows&, const View& x, bool decode);
	// q, k, v of a layer with Layer::reads_pair, from what it reads: pairs (n, 2 * dim).
	void project_pairs(uint32_t l, const LayerRows&, const View& pairs, bool decode);
	// Rows [first, first + n): RoPE, store. The destination is empty for a layer without keys and values of its own.
	void rotate(uint32_t l, const LayerRows&, uint32_t first, uint32_t n, const KvDst&);
	// Replaces these calls for a recurrent layer: norm, projections, update of states.
	void recur(uint32_t l, const LayerRows&, bool decode);
	// Of layers with an indexer, after project_in(): queries (n, heads, channels), normed and rotated; means of the
	// latest keys, which take all rows through `states`; the keys of blocks that end with rows first .. first + n - 1,
	// of these means.
	View index_queries(uint32_t l, const LayerRows&);
	void mean_index_keys(uint32_t l, const LayerRows&, std::span<const StateGroup> states);
	void store_index_keys(uint32_t l, const LayerRows&, uint32_t first, uint32_t n, const KvDst&);
	Softmax softmax(uint32_t l, const LayerRows&) const; // of attention, between rotate() and project_out()
	// Of layers with Layer::blocks, after project_in(): entries of blocks that would end with each row, which take all
	// rows through `states`; those of rows first .. first + n - 1 to where they are stored. Both kinds of attention,
	// with the softmax that each has, go where block_rows() says, but the window's to LayerRows::att; then
	// join_blocks().
	void make_entries(uint32_t l, const LayerRows&, std::span<const StateGroup> states, bool decode);
	void store_entries(uint32_t l, const LayerRows&, uint32_t first, uint32_t n, const KvDst&);
	BlockRows block_rows(uint32_t l, uint32_t n) const;
	Softmax block_softmax(uint32_t l, const LayerRows&) const;
	void join_blocks(uint32_t l, const LayerRows&);
	void project_out(uint32_t l, const LayerRows&, bool decode); // attention output, MLP
	// The expanded form of latent attention (LayerRows::expanded), for rows of a prompt. n latents and rotated keys of
	// `from`, from row from.first on, become keys and values of heads in rows first .. first + n - 1 of `to`.
	// attend_expanded() does that for its own rows, and takes the place of attention: rows of r are tokens first .. of
	// `to`.
	bool expands() const { return bool(latent_.units); }
	void expand(uint32_t l, const ExpandedMemory& to, uint32_t first, const KvRows& from, uint32_t n);
	// lse: as in op::AttendPrompt; may be empty.
	void attend_expanded(uint32_t l, const LayerRows& r, const ExpandedMemory& to, uint32_t first, const KvRows& own,
	                     const View& lse);
	// After attend_expanded(), replaces q and q_rope by the absorbed form's, which scores read.
	void absorb_queries(uint32_t l, const LayerRows& r);
	// After the last layer, once: the model's output (n, dim) of rows first .. first + n - 1 of x. With several streams
	// it is written over these rows.
	View merge_streams(const View& x, uint32_t first, uint32_t n, bool decode);
	void read_rows(const View& x, std::vector<float>& out); // x (n, dim) into `out` at the next wait()
	// The model's last hidden state of rows x (n, dim), n <= kLogitRows, after the final norm: the input of the logits.
	// Reads it into out (n, dim) at the next wait().
	void read_states(const View& x, std::vector<float>& out);
	void norm(const View& out, const View& x, const NormWeights& w) { norm(out, x, w, cfg_.norm_eps); } // of x (n, dim)
	void norm_states(const View& out, const View& x) { norm(out, x, w_.final_norm); } // the final norm
	// Logits of rows x (n, dim), n <= kLogitRows; they stay on the device until the next call.
	void logits(const View& x, bool decode);
	// Reads rows [first, first + n) of these logits into out (n, vocab) at the next wait().
	void read_logits(uint32_t first, uint32_t n, std::span<float> out);
	// Adds w . x to rows from `first` on of these logits; x (n, columns of w).
	void add_to_logits(uint32_t first, const View& w, const View& x, bool decode);
	// Reads the k largest logits, and a few more, of rows [first, first + n) into `out` at the next wait().
	void read_candidates(uint32_t first, uint32_t n, uint32_t k, CandidateLists& out);

	static constexpr uint32_t kLogitRows = 32;
	static bool has_branch_rows(const Config&); // whether LayerRows::branch is needed
	Backend& backend() const { return be_; }
	const Config& config() const { return cfg_; }
	uint32_t most_rows() const { return most_rows_; }
	size_t bytes() const { return memory_.bytes() + loras_.bytes(); } // of activations

 private:
	const LayerWeights& weights_of(uint32_t l) const { return copied_ && copied_layer_ == l ? *copied_ : w_.layers[l]; }
	void norm(const View& out, const View& x, const NormWeights&, float eps);
	bool has_final_norm() const { return w_.final_norm.w || (is_bare(cfg_.norm) && !cfg_.final_norm.empty()); }
	void limit(const Layer&, std::initializer_list<View>); // Layer::qkv_limit
	// What attention or the state of a layer reads: the norm of x, in h, or x.
	const View& input(uint32_t l, const LayerRows&);
	float out_norm_eps() const { return cfg_.out_norm_eps ? cfg_.out_norm_eps : cfg_.norm_eps; }
	void norm_values(const Layer&, const LayerRows&); // Layer::v_norm
	// Layer::narrow_v: where v is made, as rows of its channels alone, and what puts it in its place; else v itself.
	View made_values(const Layer&, const LayerRows&);
	void place_values(const Layer&, const LayerRows&);
	// Backend::matmul() with what adapters and limits of weights change.
	void multiply(std::span<const Proj>, const View& x, Epilogue, bool decode);
	void multiply_within_limits(std::span<const Proj>, const View& x, bool decode);
	// h: memory for the norm of x.
	void norm_matmul(std::span<const Proj>, const View& h, const View& x, const NormWeights&, Epilogue, bool decode);
	// x += proj(from), followed by a norm and a factor if the layer has them.
	void add(const Layer&, const LayerRows&, const Proj&, const View& from, const NormWeights* out_norm, bool decode);
	// Adds rows of branch, what attention or the MLP has made, to the residual stream.
	void add_branch(const Layer&, const LayerRows&);
	// gate_up of x, or of its norm, which is stored in h; then the function between them and the projection out.
	View run_mlp(const Layer&, const std::array<Proj, 2>& gate_up, const View& x, const NormWeights*, const View& h,
	             bool decode);
	// Latent attention, layer_latent.cpp.
	void project_in_latent(uint32_t l, const LayerRows&, bool decode);
	void project_index(uint32_t l, const LayerRows&, const View& latents, bool decode); // of Indexer::of_latent
	uint32_t first_turned() const;
	HeadNorm index_norms(uint32_t l) const;                                         // of queries and keys, before RoPE
	void project_heads(const View& out, const View& w, const View& x, bool decode); // a matrix for each head
	void write_latent_tables();
	// Latent::out_groups and Layer::blocks, layer_blocks.cpp.
	void turn(const View& x, const View& table, const Rope&, const View& norm, bool back = false);
	void project_in_shared(uint32_t l, const LayerRows&, bool decode);
	const View& starts_of(const Blocks&, const LayerRows&) const;
	void store_latents(const View& q_rope, const View& k, const View& v, const View& table, const KvDst&);
	void make_key_rows(uint32_t l);
	void run_mlp_part(uint32_t l, const LayerRows&, bool decode);
	void run_dense(const Layer&, const LayerWeights&, const LayerRows&, bool decode);
	View mix_mlp_input(const LayerWeights&, const LayerRows&); // of Layer::mlp_shift
	void add_layer_input(uint32_t l, const LayerRows&, bool decode);
	// Several residual streams, layer_streams.cpp.
	View all_streams(const View& x) const;
	StreamRows streams_of(const View& x, uint32_t first, uint32_t n) const;
	View stream(const StreamRows&, uint32_t i, uint32_t n) const; // (n, dim)
	void spread(const View& x, uint32_t first, uint32_t n, bool decode);
	View modes(const StreamWeights&, const LayerRows&, const View& x, bool decode);
	void predict_streams(uint32_t l, const LayerRows&, bool decode);
	void correct_streams(uint32_t l, const LayerRows&, bool decode);
	void add_to_others(const LayerRows&, const View& from);
	void project_laurel(uint32_t l, const LayerRows&, bool decode);
	void add_laurel(const LayerRows&);
	void attend_streams(const View& out, StreamRows, uint32_t n, const MixerWeights&); // to the first n
	// Hyper-connections, layer_hyper.cpp.
	void connect(const LayerRows&, const MixerWeights&, bool decode); // what attention or the MLP reads of the streams
	void sum_streams(const View& out, const View& inject, const StreamRows&, const MixerWeights&, bool decode);
	void mix_streams(const View& out, const View& inject, const View& x, const MixerWeights&, bool decode);
	void add_ngrams(uint32_t l, const LayerRows&, std::span<const StateGroup>, bool decode);
	View mix_output(const View& x, bool decode);
	View all_rows(const StreamRows&, uint32_t n) const;
	View part(const View& w, uint32_t first, uint32_t n) const;                            // rows of weights
	void convolve(uint32_t l, const LayerRows&, std::span<const StateGroup>, bool decode); // layer_recurrent.cpp
	void recur_by_channel(uint32_t l, const LayerRows&, std::span<const StateGroup>, bool decode);
	void recur_with_removal(uint32_t l, const LayerRows&, bool decode);
	void mix_first_values(const Recurrent&, const View& v, const LayerRows&);
	void scan(uint32_t l, const LayerRows&, std::span<const StateGroup>, bool decode);
	void scan_by_channel(uint32_t l, const LayerRows&, std::span<const StateGroup>, bool decode);
	// A mixture of experts, layer_experts.cpp.
	void mix(const Layer&, const LayerWeights&, const LayerRows&, bool decode);
	// Of Experts::at_input: the experts, before attention is added; their sum, behind the MLP.
	void run_experts_at_input(const Layer&, const ExpertWeights&, const LayerRows&, bool decode);
	void add_experts_at_input(const Layer&, const LayerRows&);
	void mix_beside_mlp(const Layer&, const LayerWeights&, const LayerRows&, bool decode);
	static float expert_scale(const Layer&); // of their outputs
	void choose(const Experts&, const ExpertWeights&, const View& h, float logit_scale, float scale, const TokenViews&,
	            bool decode);
	ExpertRows sorted(const Experts&, const View& ids, bool decode); // slots of a step, by their experts
	void mix_value_experts(const Layer&, const ExpertWeights&, const View& h, const LayerRows&, bool decode);
	void run_experts(const Layer&, const ExpertWeights&, const View& h, const View& ids, bool decode);
	void mix_latent(const Layer&, const ExpertWeights&, const View& h, const View& sum, Epilogue, bool decode);
	void add_shared(const Layer&, const ExpertWeights&, const LayerRows&, const View& h, const View& sum, float scale,
	                bool decode);

	Backend& be_;
	const Config& cfg_;
	const Weights& w_;
	const LayerWeights* copied_ = nullptr; // of use()
	uint32_t copied_layer_ = 0;
	uint32_t most_rows_;
	LoraProducts loras_;
	Buffer memory_;
	View h_, q_, k_, v_, att_;            // (most_rows, elements of the widest layer) f32
	MlpMemory mlp_;                       // of most_rows
	RecurrentMemory recurrent_;           // of most_rows
	LatentMemory latent_;                 // of most_rows
	std::optional<uint32_t> key_rows_of_; // layer whose weights LatentMemory::key_rows has
	StreamMemory streams_;                // of most_rows
	IndexMemory index_;                   // of most_rows
	BlockMemory blocks_;                  // of most_rows
	View branch_;                         // (most_rows, dim) f32, or empty
	View narrow_;                         // (most_rows, n_heads * narrow_v) f32, or empty
	View within_;                         // (most_rows, elements of the widest input) f32, or empty
	View ones_;                           // (channels of the widest norm without weights) f32, or empty
	View gains_, zeros_;                  // (most_rows, n_heads) f32, (most_rows) u32, of QkNorm::HeadGain
	View nowhere_;                // (most_rows, KV heads, 2) u32, kSkip; empty where all layers store keys and values
	View logits_, final_;         // (kLogitRows, vocab), (kLogitRows, dim) f32
	View block_max_, candidates_; // (kLogitRows, blocks of logits), (kLogitRows, KV_CANDIDATE_WORDS) u32
};

// gate = min(silu(gate), limit) * clamp(up, -limit, limit), or of Layer::limits_gate silu(min(gate, limit)) * the same;
// changes up.
void limited_swiglu(Backend&, const View& gate, const View& up, float limit, bool limits_gate);
// That of Layer::gate_cap in gate; changes up.
void capped_swiglu(Backend&, const View& gate, const View& up, const Layer&);
// The clamped SwiGLU of shaders/shared/experts.h in gate; changes up.
void clamped_swiglu(Backend&, const View& gate, const View& up);

} // namespace kvrun
