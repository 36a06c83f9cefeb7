// Layers on a device that draft for a model from its hidden states.
#include "engine/run/draft_layers.h"
#include "engine/run/memory_plan.h"
#include <algorithm>

namespace kvrun {

void DraftCache::truncate(uint32_t n) {
	for (KvSequence* s : {all.get(), window.get()})
		if (s && s->n_tokens() > n) s->truncate(n);
}

DraftCache DraftCache::fork() const { return {all->fork(), window ? window->fork() : nullptr}; }

// Tokens behind a window are hidden, and stay: guesses are taken back, and texts are shared from any position on.
static KvPlan draft_plan(const CacheLayers& layers, bool window) {
	KvPlan plan = make_device_plan(parse_policy("fp16"), layers.shape(window));
	if (window || !layers.both_kinds()) plan.window = layers.window().tokens;
	return plan;
}

DraftLayers::DraftLayers(Backend& be, const Gguf& g, Config cfg, const Weights& model,
                         std::vector<uint32_t> state_layers, const LoadProgress& progress)
    : be_(be), cfg_(std::move(cfg)), model_(model), w_(load_weights(g, cfg_, be, progress)), layers_(cfg_),
      rope_(cfg_, cfg_.max_seq), state_layers_(std::move(state_layers)) {
	plans_[0] = draft_plan(layers_, false);
	if (layers_.both_kinds())
		plans_[1] = draft_plan(layers_, true), plans_[1].first_layer = layers_.pool_layer({true, 0});
	if (!fused()) w_.lm_head_b = model.lm_head_b;
	// What the layers do not have of their own is the model's.
	if (!w_.embed) w_.embed = model.embed;
	if (!w_.final_norm.w) w_.final_norm = model.final_norm;
	if (!w_.lm_head) w_.lm_head = model.lm_head;
}

uint64_t DraftLayers::row_bytes(const Config& c) {
	return 4 * (uint64_t(c.dim) + 1 + rope_width(c)) + kvrun::activation_bytes(c, kRows) / kRows;
}

void DraftLayers::prepare(size_t cache_bytes) {
	pool_ = std::make_unique<KvPool>(be_, cfg_.n_layers, cache_bytes);
	runner_ = std::make_unique<LayerRunner>(be_, cfg_, w_, kRows);
	top_.emplace(*runner_);
	allocate(be_, memory_, "rows of drafting layers", [&](Arena& a) {
		x_ = a.take(DType::F32, kRows, cfg_.dim);
		tokens_.ids = a.take(DType::U32, kRows);
		for (size_t i = 0; i < cfg_.ropes.size(); ++i)
			positions_[i] = a.take(DType::F32, kRows, cfg_.ropes[i].dim / 2, 2);
		if (cfg_.temperature.scale != 0) positions_[kTemperature] = a.take(DType::F32, kRows);
		lay(a);
	});
	fill();
	be_.submit();
	be_.wait();
}

DraftCache DraftLayers::cache() {
	const auto empty = [&](const KvPlan& plan) {
		return std::make_unique<KvSequence>(be_, plan, *pool_, std::min(cfg_.max_seq, kFusedRows));
	};
	return {empty(plans_[0]), layers_.both_kinds() ? empty(plans_[1]) : nullptr};
}

size_t DraftLayers::bytes() const {
	return w_.bytes + memory_.bytes() + scratch_[0].bytes() + scratch_[1].bytes() +
	       (runner_ ? runner_->bytes() + pool_->allocated_bytes() : 0);
}

void DraftLayers::place(std::span<const uint32_t> positions, std::span<const uint32_t> tokens) {
	KV_ASSERT(!tokens.empty() && tokens.size() <= kRows && positions.size() == tokens.size());
	runner_->write_tokens(tokens_, tokens);
	for (size_t i = 0; i < positions_.size(); ++i) {
		if (!positions_[i]) continue;
		host_rope_[i].clear();
		for (const uint32_t at : positions)
			if (i == kTemperature)
				rope_.append_temperature(at, 1, host_rope_[i]);
			else
				rope_[i].append(at, host_rope_[i]);
		be_.write(*positions_[i].buf, positions_[i].at, std::as_bytes(std::span(host_rope_[i])));
	}
}

void DraftLayers::store(uint32_t l, const LayerRows& r, KvStep& kv) {
	for (uint32_t i = 0; i < r.n;) {
		uint32_t same = 1;
		const KvDst dst = kv.destination(layers_[l].index, i, same);
		runner_->rotate(l, r, i, same, dst);
		i += same;
	}
	kv.stored(layers_[l].index);
}

} // namespace kvrun
