// Weights in host memory, copied to the device layer by layer while a prompt is read.
#include "engine/run/weight_ring.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include "shared/experts.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kTileRows = 128; // no kernel takes more rows of a prompt for one read of a dense weight
// A dense weight is copied where the kernels would read it twice: read once, it takes the bus as long in place.
constexpr double kDenseReads = 2;
// Which experts the tokens choose is not known before the layer runs, so a copy takes all of a tensor. It pays where
// the slices read most of it: the bus is then busy as long, but during the layer before. A short prompt uses a few
// experts, and the kernels read only those.
constexpr double kExpertReads = 0.9;

bool is_expert(const LayerWeights& w, const View& v) {
	const ExpertWeights& e = w.experts;
	return std::ranges::any_of(std::array{e.w_gate, e.w_up, e.w_down, w.value_experts.w_up},
	                           [&](const View& x) { return x.buf == v.buf && x.at == v.at; });
}

size_t weight_bytes(const Backend& b, const View& v) { return v.shape[0] * b.weight_row_bytes(v.type, v.shape[1]); }

View ring_words(const Buffer& b, size_t at, size_t bytes) { return view(b, at, DType::U32, uint32_t(bytes / 4)); }

} // namespace

BlockReads block_reads(const Experts& e, uint32_t rows, uint32_t ubatch) {
	BlockReads r;
	for (uint32_t at = 0; at < rows; at += ubatch) {
		const uint32_t n = std::min(ubatch, rows - at);
		r.dense += ceil_div(n, kTileRows);
		if (!e.n) continue;
		const double share = double(e.used) / e.n; // of the experts that a token uses
		r.experts += (1 - std::pow(1 - share, n)) * std::max(std::ceil(n * share / KV_EXPERT_TILE), 1.);
	}
	return r;
}

WeightRing::WeightRing(Backend& be, const Config& c, const Weights& w, RingSize size)
    : be_(be), cfg_(c), weights_(w), slots_(w.host_bytes ? size.slots : 0) {
	try {
		for (size_t i = 0; i < slots_.size(); ++i) {
			slots_[i].part = uint32_t(i * be.n_parts() / slots_.size());
			slots_[i].memory =
			    be.alloc_part(slots_[i].part, size.slot_bytes, Mem::Arrival, "weights of a layer, for prompts");
		}
	} catch (const Error& e) {
		if (e.code != Code::OutOfMemory) throw;
		slots_.clear();
		warn_once(
		    fmt::format("no device memory for copies of weights ({}); prompts read them in host memory", e.what()));
	}
}

size_t WeightRing::bytes() const {
	size_t n = 0;
	for (const Slot& s : slots_) n += s.memory.bytes();
	return n;
}

RingPass::RingPass(WeightRing& ring, uint32_t rows, uint32_t ubatch, const std::vector<bool>& whole_layers)
    : ring_(ring), rows_(rows), ubatch_(ubatch), copied_(whole_layers.size()) {
	if (!ring.usable()) return;
	for (uint32_t l = 0; l < copied_.size(); ++l) copied_[l] = whole_layers[l] && !views_to_copy(l).empty();
	if (std::ranges::find(copied_, true) == copied_.end()) return;
	active_ = ring.taken_ = true;
	if (std::ranges::any_of(ring.slots_, &WeightRing::Slot::under_way)) { // copies of a block that was cancelled
		ring.be_.wait_for(ring.be_.mark());
		for (WeightRing::Slot& s : ring.slots_) s.under_way = false;
	}
	for (WeightRing::Slot& s : ring.slots_) s.layer = kNoLayer;
	begin_from(0);
}

// Copies that no op has waited for are waited for by whatever is enqueued next, and by the next block.
RingPass::~RingPass() {
	if (!active_) return;
	for (const WeightRing::Slot& s : ring_.slots_)
		if (s.under_way && s.copy) (void)ring_.be_.arrive(s.copy);
	ring_.taken_ = false;
}

// Indices of the layer's views that are copied: dense weights first, because they are read more often.
std::vector<size_t> RingPass::views_to_copy(uint32_t l) const {
	const LayerWeights& w = ring_.weights_.layers[l];
	const LayerViews views = views_of(w);
	const BlockReads reads = block_reads(ring_.cfg_.layers[l].experts, rows_, ubatch_);
	std::vector<size_t> out;
	size_t end = 0;
	for (const bool experts : {false, true}) {
		if (experts ? reads.experts < kExpertReads : reads.dense < kDenseReads) continue;
		for (size_t i = 0; i < views.size(); ++i) {
			const View& v = views[i];
			if (!v.buf || v.buf->mem() != Mem::Mapped || is_expert(w, v) != experts) continue;
			const size_t bytes = weight_bytes(ring_.be_, v);
			if (end + bytes > ring_.slots_[0].memory.bytes()) continue;
			end = align_up(end + bytes, kRingAlign);
			out.push_back(i);
		}
	}
	return out;
}

WeightRing::Slot* RingPass::slot_of(uint32_t l) const {
	const auto s = std::ranges::find(ring_.slots_, l, &WeightRing::Slot::layer);
	return s == ring_.slots_.end() ? nullptr : &*s;
}

// Begins the copy of the first layer, from l on, that is copied, unless the slot holds a layer that is still needed.
void RingPass::begin_from(uint32_t l) {
	const auto found = std::find(copied_.begin() + l, copied_.end(), true);
	if (found == copied_.end()) return;
	const uint32_t layer = uint32_t(found - copied_.begin());
	if (slot_of(layer)) return;
	const uint32_t parts = ring_.be_.n_parts(), each = uint32_t(ring_.slots_.size()) / parts;
	const uint32_t part = ring_.be_.part_of(layer);
	next_.resize(parts);
	WeightRing::Slot& s = ring_.slots_[part * each + next_[part]];
	if (s.layer != kNoLayer) return;
	next_[part] = (next_[part] + 1) % each;
	try {
		begin(s, layer);
	} catch (const Error& e) { // what is missing may be host memory for the copy's commands
		if (e.code != Code::OutOfMemory) throw;
		s.layer = kNoLayer;
		copied_.assign(copied_.size(), false);
	}
}

void RingPass::begin(WeightRing::Slot& s, uint32_t l) {
	Backend& be = ring_.be_;
	if (s.copy) {
		be.submit(); // the device goes on while the host waits
		be.wait_for(s.readers);
	}
	s.copy = 0, s.under_way = true;
	LayerViews views = views_of(ring_.weights_.layers[l]);
	size_t at = 0;
	for (const size_t i : views_to_copy(l)) {
		View& v = views[i];
		const size_t bytes = weight_bytes(be, v);
		s.copy = be.transfer(ring_words(s.memory, at, bytes), ring_words(*v.buf, v.at, bytes));
		v.buf = &s.memory, v.at = at;
		at = align_up(at + bytes, kRingAlign);
	}
	s.weights = std::bit_cast<LayerWeights>(views);
	s.layer = l;
}

const LayerWeights* RingPass::enter(uint32_t l) {
	if (!active_ || !copied_[l]) return nullptr;
	begin_from(l);
	WeightRing::Slot* s = slot_of(l);
	if (!s) return nullptr;
	if (s->under_way && s->copy && !ring_.be_.arrive(s->copy)) { // the copy failed
		s->layer = kNoLayer, s->under_way = false;
		copied_[l] = false;
		return nullptr;
	}
	s->under_way = false;
	return &s->weights;
}

void RingPass::ahead(uint32_t l) {
	if (active_) begin_from(l + 1);
}

void RingPass::leave(uint32_t l) {
	if (!active_) return;
	if (WeightRing::Slot* s = slot_of(l)) {
		if (s->copy) s->readers = ring_.be_.mark();
		s->layer = kNoLayer;
	}
}

} // namespace kvrun
