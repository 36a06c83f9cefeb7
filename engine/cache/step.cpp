// The cache side of decode steps: destinations of new tokens, work lists of attention.
#include "engine/cache/step.h"
#include <algorithm>

namespace kvrun {

namespace {
// Pages of a piece: `least` tokens or more, and not more than about `most` pieces.
uint32_t split_pages(const KvState& s, uint32_t l, uint32_t least, uint32_t most) {
	uint32_t n_pages = 0, smallest = UINT32_MAX;
	for (const PageRun& run : s.runs(l)) {
		n_pages += run.n;
		smallest = std::min(smallest, s.plan().page[int(run.tier)]);
	}
	return std::max({1u, least / smallest, (n_pages + most - 1) / most});
}
} // namespace

// A device of few cores gains nothing from many short pieces.
uint32_t decode_split(const DeviceInfo& dev, const KvState& s, uint32_t l) {
	return split_pages(s, l, dev.is_cpu ? 1024 : 128, 64);
}

// Long prompts have rows enough to fill a device, the short ones of a chat over a long cache do not.
uint32_t prompt_split(const DeviceInfo& dev, const KvState& s, uint32_t l) {
	return split_pages(s, l, 1024, dev.is_cpu ? 1 : 8);
}

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
	if (gather.bytes() < n_rows * row * 2)
		gather = be.alloc((size_t(n_rows) + 32) * row * 2, Mem::Device, "leaving tokens");
	const uint32_t cap = uint32_t(gather.bytes() / row / 2);
	return {view(gather, 0, DType::F16, shape.n_kv_heads, cap, shape.head_dim),
	        view(gather, cap * row, DType::F16, shape.n_kv_heads, cap, shape.head_dim), 0};
}

PromptKv KvScratch::single_row(Backend& be, const KvShape& shape) {
	const size_t row = size_t(shape.n_kv_heads) * shape.head_dim * 2, at = (row + 255) & ~size_t(255);
	if (single.bytes() < at + row) single = be.alloc(at + row, Mem::Device, "new token");
	return {view(single, 0, DType::F16, shape.n_kv_heads, 1, shape.head_dim),
	        view(single, at, DType::F16, shape.n_kv_heads, 1, shape.head_dim), 0};
}

// ---- ReadPlan

// A group without work items yet, for pages like those of r.
void ReadPlan::add_group(const KvState& s, uint32_t l, const PageRun& r, uint32_t first_work) {
	const TierPlan& tier = s.plan().layers[l].tier[int(r.tier)];
	AttendGroup& g = groups_.emplace_back();
	g.format = tier.fmt;
	g.page = s.plan().page[int(r.tier)];
	g.k_codes = s.pool().chunk(r.chunk[0]);
	g.v_codes = s.pool().chunk(r.chunk[1]);
	if (tier.fmt.k.bits < 16) g.k_params = s.pool().chunk(r.chunk[2]);
	if (tier.fmt.v.bits < 16) g.v_params = s.pool().chunk(r.chunk[3]);
	if (tier.fmt.v.bits < 16 && tier.fmt.v.norm == Norm::SqrtMax) g.v_factors = s.pool().chunk(r.chunk[4]);
	g.first_work = first_work;
}

void ReadPlan::build(const KvState& state, uint32_t l, uint32_t n_rows, uint32_t split, uint32_t extra, Which which,
                     StepTable& table) {
	const std::span<const PageRun> runs = state.runs(l);
	n_rows_ = n_rows;
	groups_.clear();
	n_work_ = 0;                      // also parts of a row that have work items
	std::vector<const PageRun*> read; // runs that share format and chunks side by side: they are one group
	for (const PageRun& r : runs) {
		if (which == Which::F16 && r.tier != Tier::Recent) continue;
		n_work_ += (r.n + split - 1) / split;
		const auto like = [&](const PageRun* o) { return o->tier == r.tier && o->chunk == r.chunk; };
		const auto same = std::find_if(read.rbegin(), read.rend(), like);
		read.insert(same == read.rend() ? read.end() : same.base(), &r);
	}
	row_step_ = n_work_ + extra;
	n_parts_ = row_step_ * n_rows;
	work_at_ = table.take(size_t(n_work_) * 4);
	row_parts_at_ = table.take(size_t(n_rows) * 2);
	const std::span<uint32_t> work = table.at(work_at_, size_t(n_work_) * 4);
	uint32_t w = 0; // also the part of row 0
	const PageRun* last = nullptr;
	for (const PageRun* r : read) {
		if (!last || last->tier != r->tier || last->chunk != r->chunk) add_group(state, l, *r, w);
		last = r;
		for (uint32_t at = 0; at < r->n; at += split, ++w) {
			const uint32_t item[] = {0, r->first + at, std::min(split, r->n - at), w};
			std::copy(std::begin(item), std::end(item), work.begin() + size_t(w) * 4);
		}
		groups_.back().n_pages += r->n;
		groups_.back().n_work = w - groups_.back().first_work;
	}
	const std::span<uint32_t> row_parts = table.at(row_parts_at_, size_t(n_rows) * 2);
	for (uint32_t row = 0; row < n_rows; ++row) {
		row_parts[row * 2] = row * row_step_;
		row_parts[row * 2 + 1] = row_step_;
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
	        state.factors(l),
	        state.balance(l),
	        /*lse=*/{},
	        n_rows_,
	        row_step_};
}

// ---- KvStep

KvStep::KvStep(Backend& be, KvScratch& scratch, std::span<KvState* const> states, uint32_t n_heads)
    : be_(be), scratch_(scratch), states_(states.begin(), states.end()), n_heads_(n_heads) {
	const KvShape shape = states[0]->plan().shape;
	for (KvState* s : states_) {
		const bool judged = s->cache().wants_scores();
		s->cache().begin_token(judged ? s->read_sums(0, shape.n_layers) : std::vector<float>());
		if (judged) s->clear_sums();
		s->fit_sums();
		s->sync();
	}
	scratch_.table.clear();
	row_zero_ = scratch_.table.take(1);
	steps_.resize(size_t(shape.n_layers) * states_.size());
	for (uint32_t l = 0; l < shape.n_layers; ++l) {
		dst_at_.push_back(scratch_.table.take(states_.size() * shape.n_kv_heads * 2));
		for (uint32_t r = 0; r < states_.size(); ++r) place(l, r);
	}
	scratch_.table.upload(be_, scratch_.step);
	uint32_t n_parts = 1, n_gather = 0;
	for (const RowStep& s : steps_) {
		n_parts = std::max(n_parts, s.read.n_parts());
		n_gather = std::max(n_gather, s.moves.rows());
	}
	// Everything is as large as the step needs before anything is enqueued.
	parts_ = scratch_.parts_view(be_, n_parts, n_heads, shape.head_dim);
	if (n_gather) scratch_.gather_rows(be_, shape, n_gather);
	if (scratch_.score.bytes() < n_heads * 4) scratch_.score = be.alloc(n_heads * 4, Mem::Device, "row normalisers");
}

// Decides for one row of one layer: what leaves, where the new token goes, what is read.
void KvStep::place(uint32_t l, uint32_t row) {
	KvState& s = *states_[row];
	RowStep& step = steps_[size_t(l) * states_.size() + row];
	const uint32_t n_kv = s.plan().shape.n_kv_heads, page = s.plan().page[int(Tier::Recent)];
	StepTable& table = scratch_.table;
	step.moves.build(s, l, s.cache().token_moves(l), /*tail=*/0, table);

	std::vector<SlotCell> cells;
	for (uint32_t h = 0; h < n_kv; ++h) {
		const uint32_t slot = s.cache().token_slot(l, h);
		cells.push_back({0, h, s.f16_slot(h, s.cache().pages(l, Tier::Recent)[slot / page], slot % page)});
	}
	step.chunk = cells[0].slot.chunk;
	for (const SlotCell& c : cells)
		if (c.slot.chunk != step.chunk) step.chunk = kNone;
	if (step.chunk == kNone) step.scatter = lay_rows(s.pool(), cells, n_kv, table);
	for (uint32_t h = 0; h < n_kv; ++h) {
		const std::span<uint32_t> dst = table.at(dst_at_[l] + (size_t(row) * n_kv + h) * 2, 2);
		const uint32_t in_single = h * s.plan().shape.head_dim / 2;
		dst[0] = step.chunk == kNone ? in_single : cells[h].slot.k;
		dst[1] = step.chunk == kNone ? in_single : cells[h].slot.v;
	}

	const uint32_t split = decode_split(be_.info(), s, l);
	step.read.build(s, l, 1, split, 0, ReadPlan::Which::All, table);
	if (s.cache().token_scores()) step.f16.build(s, l, 1, split, 0, ReadPlan::Which::F16, table);
}

void KvStep::before_layer(uint32_t l) {
	for (uint32_t r = 0; r < states_.size(); ++r)
		if (const MovePlan& m = at(l, r).moves; !m.empty())
			m.enqueue(be_, scratch_.step, scratch_.gather_rows(be_, states_[r]->plan().shape, m.rows()));
}

KvDst KvStep::destination(uint32_t l, uint32_t first, uint32_t& n) const {
	const KvState& s = *states_[first];
	const KvShape shape = s.plan().shape;
	const uint32_t n_kv = shape.n_kv_heads, chunk = at(l, first).chunk;
	const auto dst_at = [&](uint32_t rows) {
		return view(scratch_.step, (dst_at_[l] + size_t(first) * n_kv * 2) * 4, DType::U32, rows, n_kv, 2);
	};
	n = 1;
	if (chunk == kNone) {
		const PromptKv one = scratch_.single_row(be_, shape);
		return {as_words(one.k), as_words(one.v), dst_at(1), 1};
	}
	while (first + n < states_.size() && at(l, first + n).chunk == chunk && &states_[first + n]->pool() == &s.pool())
		++n;
	const View pool = s.pool().chunk(chunk);
	return {pool, pool, dst_at(n), s.plan().page[int(Tier::Recent)]};
}

void KvStep::stored(uint32_t l, uint32_t row) {
	const KvState& s = *states_[row];
	const uint32_t n_kv = s.plan().shape.n_kv_heads;
	for (const ChunkRows& r : at(l, row).scatter)
		be_.kv_store(
		    scratch_.single_row(be_, s.plan().shape), 1,
		    {r.pool, r.pool, view(scratch_.step, r.at * 4, DType::U32, 1, n_kv, 2), s.plan().page[int(Tier::Recent)]});
}

void KvStep::attend(uint32_t l, const View& out, const View& q) {
	for (uint32_t r = 0; r < states_.size(); ++r) {
		KvState& s = *states_[r];
		const RowStep& step = at(l, r);
		KvRead read = step.read.read(s, l, scratch_.step, parts_);
		const bool scores = s.cache().token_scores();
		if (scores) read.lse = view(scratch_.score, 0, DType::F32, 1, n_heads_);
		be_.attend(rows(out, r, 1), rows(q, r, 1), read);
		if (scores && !step.f16.empty())
			be_.score_slots(s.slot_sums(l), rows(q, r, 1), view(scratch_.step, row_zero_ * 4, DType::U32, 1), read.lse,
			                step.f16.read(s, l, scratch_.step, parts_));
	}
}

} // namespace kvrun
