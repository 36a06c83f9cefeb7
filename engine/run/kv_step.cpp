// The cache side of decode steps and prompts: destinations of new tokens, work lists of attention.
#include "engine/run/kv_state.h"
#include <algorithm>

namespace kvrun {

namespace {
constexpr uint32_t kMaxSplits = 64;

// Pages one workgroup takes. A function of the cache's length and the kind of device only, so that the same sequence
// always merges the same parts. A device of few cores gains nothing from many short pieces.
uint32_t split_pages(const DeviceInfo& dev, uint32_t n_pages, uint32_t page) {
	const uint32_t least = std::max(1u, (dev.is_cpu ? 1024u : 128u) / page);
	return std::max(least, (n_pages + kMaxSplits - 1) / kMaxSplits);
}
} // namespace

size_t StepTable::take(size_t n) {
	const size_t at = (words_.size() + 63) / 64 * 64;
	words_.resize(at + n);
	return at;
}

void StepTable::upload(Backend& be, Buffer& b) {
	const size_t bytes = std::max<size_t>(words_.size() * 4, 4);
	if (b.bytes() < bytes) b = be.alloc(std::max(bytes + bytes / 2, size_t(16384)), Mem::Device, "step tables");
	if (!words_.empty()) be.write(b, 0, std::as_bytes(std::span(words_)));
}

View KvScratch::parts_view(Backend& be, uint32_t n_parts, uint32_t n_heads, uint32_t head_dim) {
	n_parts = std::max(n_parts, 1u);
	const size_t bytes = size_t(n_parts) * n_heads * (head_dim + 2) * 4;
	if (parts.bytes() < bytes) parts = be.alloc(bytes + bytes / 2, Mem::Device, "attention parts");
	return view(parts, 0, DType::F32, n_parts, n_heads, head_dim + 2);
}

PromptKv KvScratch::gather_rows(Backend& be, const KvShape& shape, uint32_t n_rows) {
	const size_t row = size_t(shape.n_kv_heads) * shape.head_dim * 2; // bytes of K (or V)
	if (gather.bytes() < n_rows * row * 2) gather = be.alloc((size_t(n_rows) + 32) * row * 2, Mem::Device, "leaving tokens");
	const uint32_t cap = uint32_t(gather.bytes() / row / 2);
	return {view(gather, 0, DType::F16, shape.n_kv_heads, cap, shape.head_dim),
			view(gather, cap * row, DType::F16, shape.n_kv_heads, cap, shape.head_dim), 0};
}

// ---- ReadPlan

void ReadPlan::build(const KvState& state, uint32_t l, uint32_t n_rows, uint32_t split, uint32_t extra, StepTable& table) {
	const KvPlan& plan = state.plan();
	const std::span<const PageRun> runs = state.runs(l);
	n_rows_ = n_rows;
	groups_.clear();
	uint32_t per_row = 0; // parts of a row that have work items
	for (const PageRun& r : runs) per_row += (r.n + split - 1) / split;
	n_work_ = per_row * n_rows;
	n_parts_ = (per_row + extra) * n_rows;
	work_at_ = table.take(size_t(n_work_) * 4);
	row_parts_at_ = table.take(size_t(n_rows) * 2);
	const std::span<uint32_t> work = table.at(work_at_, size_t(n_work_) * 4);
	uint32_t w = 0, part = 0; // part: within a row
	for (const PageRun& r : runs) {
		const TierPlan& tier = plan.layers[l].tier[int(r.tier)];
		AttendGroup g{tier.fmt, plan.page[int(r.tier)], state.pool_.chunk(r.chunk[0]), state.pool_.chunk(r.chunk[1]), {}, {}, w, 0, {}};
		if (tier.fmt.k.bits < 16) g.k_params = state.pool_.chunk(r.chunk[2]);
		if (tier.fmt.v.bits < 16) g.v_params = state.pool_.chunk(r.chunk[3]);
		for (uint32_t at = 0; at < r.n; at += split, ++part)
			for (uint32_t row = 0; row < n_rows; ++row, ++w) {
				const uint32_t item[] = {row, r.first + at, std::min(split, r.n - at), row * (per_row + extra) + part};
				std::copy(std::begin(item), std::end(item), work.begin() + size_t(w) * 4);
			}
		g.n_work = w - g.first_work;
		groups_.push_back(g);
	}
	const std::span<uint32_t> row_parts = table.at(row_parts_at_, size_t(n_rows) * 2);
	for (uint32_t row = 0; row < n_rows; ++row) {
		row_parts[row * 2] = row * (per_row + extra);
		row_parts[row * 2 + 1] = per_row + extra;
	}
}

KvRead ReadPlan::read(const KvState& state, uint32_t l, const Buffer& words, const View& parts) const {
	View p = parts;
	p.shape[0] = std::max(n_parts_, 1u);
	return {groups_,
			view(words, work_at_ * 4, DType::U32, std::max(n_work_, 1u), 4),
			state.page_table(l),
			state.live_bits(l),
			view(words, row_parts_at_ * 4, DType::U32, n_rows_, 2),
			p,
			state.plan().shape.n_kv_heads,
			{},
			{}};
}

// ---- KvStep

KvStep::KvStep(Backend& be, KvScratch& scratch, std::span<KvState* const> states, uint32_t n_heads)
	: be_(be), scratch_(scratch), states_(states.begin(), states.end()), layers_(states[0]->plan().shape.n_layers) {
	const DeviceInfo dev = be.info();
	const KvShape shape = states[0]->plan().shape;
	const uint32_t n_kv = shape.n_kv_heads, n_rows = uint32_t(states.size());
	scratch_.table.clear();
	for (KvState* s : states_) s->cache_.begin_token();
	for (KvState* s : states_) s->sync();
	uint32_t n_parts = 1, gather = 0;
	for (uint32_t l = 0; l < layers_.size(); ++l) {
		LayerStep& L = layers_[l];
		L.dst_at = scratch_.table.take(size_t(n_rows) * n_kv * 2);
		L.read.resize(n_rows);
		for (uint32_t r = 0; r < n_rows; ++r) {
			KvState& s = *states_[r];
			const uint32_t page = s.plan_.page[int(Tier::Recent)];
			for (uint32_t h = 0; h < n_kv; ++h) {
				const uint32_t slot = s.cache_.token_slot(l, h);
				const KvState::F16Slot at = s.f16_slot(h, s.cache_.pages(l, Tier::Recent)[slot / page], slot % page);
				if (h == 0) L.chunk.push_back(at.chunk);
				KV_ASSERT(at.chunk == L.chunk.back());
				const std::span<uint32_t> dst = scratch_.table.at(L.dst_at + (size_t(r) * n_kv + h) * 2, 2);
				dst[0] = at.k, dst[1] = at.v;
			}
			uint32_t pages = 0, smallest = UINT32_MAX;
			for (const PageRun& run : s.runs(l)) {
				pages += run.n;
				smallest = std::min(smallest, s.plan_.page[int(run.tier)]);
			}
			L.moves.emplace_back().build(s, l, s.cache_.token_moves(l), /*tail=*/0, scratch_.table);
			gather = std::max(gather, L.moves.back().rows());
			L.read[r].build(s, l, 1, split_pages(dev, pages, smallest), 0, scratch_.table);
			n_parts = std::max(n_parts, L.read[r].n_parts());
		}
	}
	scratch_.table.upload(be_, scratch_.step);
	parts_ = scratch_.parts_view(be_, n_parts, n_heads, shape.head_dim);
	if (gather) scratch_.gather_rows(be_, shape, gather); // grown now, before anything is enqueued
}

void KvStep::before_layer(uint32_t l) {
	for (const MovePlan& m : layers_[l].moves)
		if (!m.empty()) m.enqueue(be_, scratch_.step, scratch_.gather_rows(be_, states_[0]->plan().shape, m.rows()));
}

KvDst KvStep::destination(uint32_t l, uint32_t first, uint32_t& n) const {
	const LayerStep& L = layers_[l];
	const KvState& s = *states_[first];
	const uint32_t n_kv = s.plan_.shape.n_kv_heads;
	n = 1;
	while (first + n < states_.size() && L.chunk[first + n] == L.chunk[first] && &states_[first + n]->pool_ == &s.pool_) ++n;
	const View pool = s.pool_.chunk(L.chunk[first]);
	const View at = view(scratch_.step, (L.dst_at + size_t(first) * n_kv * 2) * 4, DType::U32, n, n_kv, 2);
	return {pool, pool, at, s.plan_.page[int(Tier::Recent)]};
}

KvRead KvStep::read(uint32_t l, uint32_t row) const {
	return layers_[l].read[row].read(*states_[row], l, scratch_.step, parts_);
}

// ---- KvPrompt

KvPrompt::KvPrompt(Backend& be, KvScratch& scratch, KvState& state, uint32_t n_new, const PromptKv& kv, uint32_t n_heads)
	: be_(be), scratch_(scratch), state_(state), kv_(kv), n_new_(n_new), n_heads_(n_heads) {
	const uint32_t n_kv = state.plan().shape.n_kv_heads, head_words = state.plan().shape.head_dim / 2;
	const uint32_t cap = kv.k.shape[1]; // tokens of the scratch
	state_.cache_.begin_prompt(n_new);
	state_.sync(); // tables of what is older
	StepTable own;
	own.take(size_t(n_new) * n_kv * 2);
	const std::span<uint32_t> dst = own.at(0, size_t(n_new) * n_kv * 2);
	for (uint32_t t = 0; t < n_new; ++t)
		for (uint32_t h = 0; h < n_kv; ++h)
			dst[(size_t(t) * n_kv + h) * 2] = dst[(size_t(t) * n_kv + h) * 2 + 1] = (h * cap + t) * head_words;
	own.upload(be_, scratch_.prompt);
}

// Layers that were done may have packed f16 slots and stored new tokens there: what was older is then gone too.
KvPrompt::~KvPrompt() {
	if (done_) return;
	state_.cache_.cancel_prompt();
	if (!state_.plan().keeps_all) state_.cache_.reset();
}

KvDst KvPrompt::scratch(uint32_t first, uint32_t n) const {
	const uint32_t n_kv = state_.plan().shape.n_kv_heads;
	const auto words = [](const View& v) { return view(*v.buf, v.at, DType::U32, uint32_t(v.elements() / 2)); };
	return {words(kv_.k), words(kv_.v), view(scratch_.prompt, size_t(first) * n_kv * 8, DType::U32, n, n_kv, 2), 1};
}

// A prompt has rows enough to fill a device: no row's pages are split.
const KvRead* KvPrompt::older(uint32_t l, uint32_t n_rows) {
	if (state_.runs(l).empty()) return nullptr;
	if (read_layer_ != l || read_rows_ != n_rows) {
		scratch_.table.clear();
		plan_.build(state_, l, n_rows, UINT32_MAX / 2, /*extra=*/1, scratch_.table);
		scratch_.table.upload(be_, scratch_.step);
		read_layer_ = l, read_rows_ = n_rows;
	}
	const View parts = scratch_.parts_view(be_, plan_.n_parts(), n_heads_, state_.plan().shape.head_dim);
	read_ = plan_.read(state_, l, scratch_.step, parts);
	return &read_;
}

uint32_t KvPrompt::tail_rows(const KvState& s) { return s.plan().keeps_all ? 0 : s.cache().n_f16_slots(); }

void KvPrompt::end_layer(uint32_t l) {
	StepTable table;
	moves_.build(state_, l, state_.cache_.prompt_moves(l), n_new_, table);
	KV_ASSERT(moves_.rows() <= kv_.k.shape[1]);
	table.upload(be_, scratch_.store);
	moves_.enqueue(be_, scratch_.store, kv_);
}

void KvPrompt::end() {
	state_.cache_.end_prompt();
	done_ = true;
}

} // namespace kvrun
