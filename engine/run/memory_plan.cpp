// Device memory of a model before it is loaded: how each byte would be used, and how many tokens of a cache fit.
#include "engine/run/memory_plan.h"
#include "engine/core/limits.h"
#include "engine/core/round.h"
#include "engine/kv_host/counts.h"
#include "engine/kv_host/window.h"
#include "engine/run/assistant.h"
#include "engine/run/cache_layers.h"
#include "engine/run/draft_kinds.h"
#include "engine/run/layer_runner.h"
#include "engine/run/prompt_memory.h"
#include "models/draft_file.h"
#include <algorithm>

namespace kvrun {

// Must equal what LayerRunner and Decoder allocate.
uint64_t activation_bytes(const Config& c, uint32_t ubatch) {
	const Widest most = widest(c);
	const uint64_t rope_row = uint64_t(rope_width(c)) * 4;
	const uint64_t logit_row =
	    4 * (uint64_t(c.dim) + c.vocab + ceil_div(c.vocab, uint32_t(KV_LOGIT_BLOCK)) + KV_CANDIDATE_WORDS);
	const uint64_t rows = std::clamp(ubatch, 1u, std::max(c.max_seq, 1u));
	return rows * 4 * (c.dim * (LayerRunner::has_branch_rows(c) ? 2 : 1) + 2 * uint64_t(most.q) + 2 * most.kv) +
	       MlpMemory::bytes(c, uint32_t(rows)) + RecurrentMemory::bytes(c, uint32_t(rows)) +
	       LatentMemory::bytes(c, uint32_t(rows)) + StreamMemory::bytes(c, uint32_t(rows)) +
	       IndexMemory::bytes(c, uint32_t(rows)) + BlockMemory::bytes(c, uint32_t(rows)) +
	       (c.encodes ? 0 : LayerRunner::kLogitRows * logit_row) + uint64_t(c.dim) * rows_per_token(c) * 4 + 8 +
	       rope_row;
}

ModelMemory model_memory(const Config& c, uint64_t weight_bytes, uint32_t ubatch) {
	ModelMemory m;
	m.weight_bytes = weight_bytes;
	m.fixed_bytes = activation_bytes(c, ubatch);
	m.trained_tokens = c.max_seq, m.positions_end = c.text_input.positions != 0;
	const CacheLayers layers(c);
	m.row_bytes = PromptMemory::row_bytes(c, layers);
	if (layers.shares_index())
		m.fixed_bytes +=
		    std::min(uint64_t(PromptMemory::kChoiceBytes), 4 * uint64_t(IndexStep::words(c.max_seq)) * c.max_seq);
	m.state_bytes = 2 * layers.states().bytes();
	if (layers.both_kinds())
		m.window_bytes = window_bytes(make_window_plan(layers.window_shape(), layers.window()), m.trained_tokens);
	if (!layers.blocks().empty()) // longer blocks have few entries: whatever the policy, room for f16 is kept
		m.window_bytes = window_bytes(make_window_plan(layers.main_shape(), layers.window()), m.trained_tokens);
	for (uint32_t i = 1; i < layers.blocks().size(); ++i)
		m.window_bytes += most_bytes(plan_of_blocks(layers, i, parse_policy("fp16")), m.trained_tokens);
	return m;
}

ModelMemory model_memory(const Config& c, const WeightPlan& w, uint32_t ubatch) {
	ModelMemory m = model_memory(c, w.device_bytes(), ubatch);
	m.fixed_bytes += w.ring().bytes();
	return m;
}

ModelMemory with_prediction(ModelMemory m, const Gguf& g, const Config& model, const Config& prediction) {
	m.draft_bytes = kvrun::weight_bytes(g, prediction) + draft_activation_bytes(prediction);
	m.draft_layers = prediction.n_layers;
	m.cached_layers = uint32_t(CacheLayers(model).model_layers(model).size());
	return m;
}

ModelMemory with_draft_file(ModelMemory m, const Gguf& file, const Config& model) {
	const Config assistant = read_draft_file(file, model);
	if (draft_kind(file) != DraftKind::Assistant) return with_prediction(m, file, model, assistant);
	m.draft_bytes = kvrun::weight_bytes(file, assistant) + Assistant::activation_bytes(assistant);
	return m;
}

MemoryAccount memory_account(const ModelMemory& m, uint64_t total_bytes, uint64_t n_tokens) {
	MemoryAccount a;
	a.total = total_bytes;
	uint64_t left = total_bytes;
	const auto take = [&](uint64_t bytes) {
		a.exceeded |= bytes > left;
		left -= std::min(left, bytes);
		return bytes;
	};
	a.weights = take(m.weight_bytes);
	a.loras = take(m.lora_bytes);
	a.vision = take(m.vision_bytes);
	a.image = take(m.image_bytes);
	a.draft = take(m.draft_bytes);
	a.window = take(m.window_bytes);
	a.states = take(m.state_bytes);
	const uint64_t tenth = left / 10; // the engine reserves it for everything below and for the driver
	// a prompt block takes at most an eighth of free memory
	const uint64_t rows =
	    m.row_bytes ? std::clamp<uint64_t>(left / 8 / m.row_bytes, 1, std::max<uint64_t>(n_tokens, 1)) : 0;
	a.activations = take(m.fixed_bytes);
	a.prompt = take(rows * m.row_bytes);
	const uint64_t used = a.activations + a.prompt;
	a.reserve = tenth > used ? std::min(left, tenth - used) : 0;
	if (m.draft_layers) a.draft_cache = (left - a.reserve) / (m.cached_layers + m.draft_layers) * m.draft_layers;
	a.cache = left - a.reserve - a.draft_cache;
	return a;
}

KvPlan plan_of_model(const CacheLayers& layers, const KvPolicy& policy, uint64_t n_tokens) {
	if (!layers.blocks().empty()) return plan_of_blocks(layers, 0, policy);
	const bool window = !layers.both_kinds() && layers.window() && n_tokens > layers.window().tokens;
	return with_index(window ? make_window_plan(layers.main_shape(), layers.window())
	                         : make_device_plan(policy, layers.main_shape()),
	                  layers.index_shape());
}

KvPlan plan_of_blocks(const CacheLayers& layers, uint32_t i, const KvPolicy& policy) {
	const BlockCache& b = layers.blocks()[i];
	KvPlan p = make_device_plan(policy, b.shape);
	if (p.fetches() || p.ranked())
		fail(Code::Unsupported,
		     "policy '{}' {} tokens, which kvrun does not do for entries of blocks of tokens; choose another policy{}",
		     policy.text, p.fetches() ? "fetches" : "ranks", p.fetches() ? ", or give fetch=0" : "");
	p.first_layer = b.first, p.block = b.tokens;
	const IndexShape& index = layers.index_shape();
	if (b.chosen) p.chosen = index.most, p.index_token_bytes = size_t(index.n_layers) * index.dim * 2;
	return p;
}

uint64_t index_bytes(const CacheLayers& layers, uint64_t n_tokens) {
	if (!layers.index_shape().n_layers) return 0;
	if (!layers.blocks().empty())
		return plan_of_blocks(layers, 0, parse_policy("fp16")).index_token_bytes *
		       (n_tokens / layers.blocks()[0].tokens);
	const KvPlan f16 = make_device_plan(parse_policy("fp16"), layers.main_shape());
	return most_bytes(with_index(f16, layers.index_shape()), n_tokens) - most_bytes(f16, n_tokens);
}

bool evicts(const KvPlan& plan) { return !plan.keeps_all && plan.fill[int(Tier::Regular)] == Fill::None; }

uint64_t tokens_kept(const KvPlan& plan, uint64_t n) {
	if (!evicts(plan)) return n;
	KvCounts c;
	advance(plan, c, n / plan.block, /*prompt=*/true, nullptr);
	return std::min<uint64_t>(n, (uint64_t(c.f16()) + c.packed[int(Tier::Salient)]) * plan.block);
}

// The time of tokens_that_fit() is proportional to its limit, so the limit grows by steps: without a known trained
// context it is very large.
static uint64_t most_that_fit(const KvPlan& plan, uint64_t bytes, uint64_t most) {
	for (uint64_t limit = std::min<uint64_t>(most, 1 << 16);; limit = std::min(most, limit * 4)) {
		const uint64_t fit = tokens_that_fit(plan, bytes, limit);
		if (fit < limit || limit == most) return fit;
	}
}

Capacity capacity(const KvPlan& plan, const ModelMemory& m, uint64_t total_bytes) {
	const auto fit = [&](uint64_t prompt, uint64_t most) {
		const MemoryAccount a = memory_account(m, total_bytes, prompt);
		return a.exceeded ? 0 : most_that_fit(plan, a.cache, most);
	};
	Capacity c;
	c.evicts = evicts(plan);
	// A longer prompt leaves less for the cache: what fits beside a prompt of one token is too much, what fits beside a
	// prompt of that length too little. Where a block of a prompt has its largest size, both are the same.
	uint64_t high = fit(1, m.trained_tokens ? m.trained_tokens : kMaxContext), low = fit(high, high);
	while (low < high) {
		const uint64_t mid = high - (high - low) / 2;
		const MemoryAccount a = memory_account(m, total_bytes, mid);
		if (!a.exceeded && most_bytes(plan, mid) <= a.cache)
			low = mid;
		else
			high = mid - 1;
	}
	c.by_memory = low;
	c.kept = tokens_kept(plan, c.by_memory);
	return c;
}

} // namespace kvrun
