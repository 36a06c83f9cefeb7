// Products of LoRA adapters, beside those of the weights that they change.
#include "engine/run/lora_products.h"
#include <algorithm>
#include <array>
#include <functional>

namespace kvrun {
namespace {

constexpr size_t kTogether = 4; // projections of one x whose low rows are computed together

} // namespace

LoraProducts::LoraProducts(Backend& be, const Weights& w, const Loras* loras, uint32_t most_rows)
    : be_(be), loras_(loras && *loras ? loras : nullptr), most_rows_(most_rows) {
	if (!loras_) return;
	for (size_t l = 0; l < loras_->layers.size(); ++l) {
		const LayerViews views = views_of(w.layers[l]);
		for (const Loras::Entry& e : loras_->layers[l])
			places_.push_back({views[e.view].buf, views[e.view].at, &e.weights});
	}
	if (loras_->output.a) places_.push_back({w.lm_head.buf, w.lm_head.at, &loras_->output});
	std::ranges::sort(places_, before);
	low_ = be.alloc(bytes(loras_->rank, most_rows), Mem::Device, "rows of adapters");
}

uint64_t LoraProducts::bytes(uint32_t rank, uint32_t rows) { return kTogether * rows * 4ull * rank; }

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
		const View low = view(low_, m * bytes(loras_->rank, most_rows_) / kTogether, DType::F32, n, rank);
		in[m] = {low, w->a, {}}, out[m] = {p.out, w->b, {}};
		if (++m == kTogether) run();
	}
	run();
}

} // namespace kvrun
