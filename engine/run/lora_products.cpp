// Products of LoRA adapters, beside those of the weights that they change.
#include "engine/run/lora_products.h"
#include "engine/core/round.h"
#include <algorithm>
#include <array>
#include <functional>

namespace kvrun {
namespace {

constexpr size_t kTogether = 4; // projections of one x whose low rows are computed together

} // namespace

LoraProducts::LoraProducts(Backend& be, const Config& c, const Weights& w, const Loras* loras, uint32_t most_rows)
    : be_(be), loras_(loras && *loras ? loras : nullptr), most_rows_(most_rows) {
	if (!loras_) return;
	for (size_t l = 0; l < loras_->layers.size(); ++l) {
		const LayerViews views = views_of(w.layers[l]);
		for (const Loras::Entry& e : loras_->layers[l])
			places_.push_back({views[e.view].buf, views[e.view].at, &e.weights});
	}
	if (loras_->output.a) places_.push_back({w.lm_head.buf, w.lm_head.at, &loras_->output});
	std::ranges::sort(places_, before);
	low_bytes_ = most_rows * size_t(4) * loras_->rank;
	size_t used = 0;
	if (loras_->experts) used = lay_slots(c);
	low_ = be.alloc(std::max(kTogether, used) * low_bytes_, Mem::Device, "rows of adapters");
}

// Returns the most experts of a token.
uint32_t LoraProducts::lay_slots(const Config& c) {
	uint32_t used = 0, widest = 0, inside = 0;
	for (const Layer& l : c.layers)
		for (const Experts* e : {&l.experts, &l.value_experts}) {
			if (!e->n) continue;
			used = std::max(used, e->used), widest = std::max(widest, e->used * std::max(e->hidden_dim, c.dim));
			inside = std::max(inside, e->used * e->hidden_dim);
		}
	const size_t change = align_up(size_t(most_rows_) * widest * 4, size_t(kBufferAlign));
	slots_ = be_.alloc(change + size_t(most_rows_) * inside * 4, Mem::Device, "outputs of adapters of experts");
	change_ = view(slots_, 0, DType::F32, most_rows_, widest);
	up_ = view(slots_, change, DType::F32, most_rows_, inside);
	return used;
}

void LoraProducts::use(uint32_t l, const LayerWeights* w) {
	copied_.clear();
	if (!loras_ || !w) return;
	const LayerViews views = views_of(*w);
	for (const Loras::Entry& e : loras_->layers[l % loras_->layers.size()]) // layers that run again have the same
		copied_.push_back({views[e.view].buf, views[e.view].at, &e.weights});
}

const LoraWeights* LoraProducts::of(const View& w) const {
	const auto here = [&](const Place& p) { return p.buf == w.buf && p.at == w.at; };
	const auto copied = std::ranges::find_if(copied_, here);
	if (copied != copied_.end()) return copied->weights;
	const auto p = std::ranges::lower_bound(places_, Place{w.buf, w.at, nullptr}, before);
	return p != places_.end() && here(*p) ? p->weights : nullptr;
}

bool LoraProducts::change(std::span<const Proj> projs) const {
	return loras_ && std::ranges::any_of(projs, [&](const Proj& p) { return of(p.w); });
}

void LoraProducts::add(std::span<const Proj> projs, const View& x, bool decode) const {
	const uint32_t n = x.shape[0];
	KV_ASSERT(n <= most_rows_);
	std::array<Proj, kTogether> in, out;
	size_t m = 0;
	const auto run = [&] {
		if (!m) return;
		be_.matmul(std::span(in).first(m), x, Epilogue::None, decode);
		for (size_t i = 0; i < m; ++i) be_.matmul(std::span(&out[i], 1), in[i].out, Epilogue::Add, decode);
		m = 0;
	};
	for (const Proj& p : projs) {
		const LoraWeights* w = of(p.w);
		if (!w) continue;
		const uint32_t rank = w->a.shape[0];
		const View low = view(low_, m * low_bytes_, DType::F32, n, rank);
		in[m] = {low, w->a, {}}, out[m] = {p.out, w->b, {}};
		if (++m == kTogether) run();
	}
	run();
}

void LoraProducts::add_experts(std::span<const Proj> projs, const View& x, const ExpertRows& slots, bool decode) const {
	const uint32_t n = slots.ids.shape[0], used = slots.ids.shape[1];
	KV_ASSERT(n <= most_rows_);
	for (const Proj& p : projs) {
		const LoraWeights* w = loras_ ? of(p.w) : nullptr;
		if (!w) continue;
		const uint32_t rank = w->b.shape[1];
		View low = view(low_, 0, DType::F32, n, used, rank), change = p.out;
		change.buf = change_.buf, change.at = change_.at;
		const Proj in[] = {{low, w->a, {}}}, out[] = {{change, w->b, {}}};
		be_.expert_matmul(in, x, slots, Epilogue::None, decode);
		low.shape[0] = n * used, low.shape[1] = rank, low.shape[2] = 1;
		be_.expert_matmul(out, low, slots, Epilogue::None, decode);
		be_.activate(p.out, change, {}, {.add = true});
	}
}

} // namespace kvrun
