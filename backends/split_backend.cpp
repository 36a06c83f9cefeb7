// SplitBackend: memory on several devices, ops where their weights and pages lie, copies between devices.
#include "backends/split_backend.h"
#include <algorithm>
#include <bit>
#include <numeric>

namespace kvrun {
namespace {

// Whether each device arranges the rows of weights as all others do. All backends that arrange rows use
// weight_rows.h, so only their sizes can differ.
bool all_arrange(const std::vector<SplitPart>& parts) {
	constexpr uint32_t kCols = 256;
	const std::vector<std::byte> row(dtype_row_bytes(DType::Q8_0, kCols));
	return std::ranges::all_of(parts, [&](const SplitPart& p) {
		std::vector<std::byte> out(p.backend->weight_row_bytes(DType::Q8_0, kCols));
		return p.backend->arrange_weight(DType::Q8_0, kCols, row, out);
	});
}

} // namespace

SplitBackend::SplitBackend(std::vector<SplitPart> parts) : parts_(std::move(parts)) {
	KV_ASSERT(parts_.size() >= 2 && parts_.size() <= kMostParts);
	for (uint32_t p = 0; p < parts_.size(); ++p) {
		KV_ASSERT(parts_[p].n_layers > 0);
		names_.push_back(parts_[p].backend->info().name);
		part_of_.insert(part_of_.end(), parts_[p].n_layers, p);
	}
	arranges_ = all_arrange(parts_);
}

DeviceInfo SplitBackend::info() const {
	std::vector<DeviceInfo> devices;
	std::vector<uint32_t> layers;
	for (const SplitPart& p : parts_) devices.push_back(p.backend->info()), layers.push_back(p.n_layers);
	return joined(devices, layers);
}

uint32_t SplitBackend::part_of(uint32_t layer) const {
	return layer < part_of_.size() ? part_of_[layer] : part_of_.back();
}

// ---- memory

Buffer SplitBackend::alloc(size_t bytes, Mem mem, const char* label) {
	Place p;
	on_each([&](Backend& b) { p.on.push_back(b.alloc(bytes, mem, label)); });
	p.holders = Holders((1u << parts_.size()) - 1); // new memory is the same everywhere
	return made(places_.add(std::move(p)), bytes, mem);
}

Buffer SplitBackend::alloc_part(uint32_t part, size_t bytes, Mem mem, const char* label) {
	Place p;
	p.part = part;
	p.on.resize(parts_.size());
	p.on[part] = on_device(part, [&](Backend& b) { return b.alloc(bytes, mem, label); });
	return made(places_.add(std::move(p)), bytes, mem);
}

void SplitBackend::free(uint32_t id) noexcept {
	outdate(id, 0, SIZE_MAX);
	places_.remove(id);
	weights_.erase(weights_.lower_bound({id, 0}), weights_.upper_bound({id, SIZE_MAX}));
}

void SplitBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	Place& p = place(dst);
	for (uint32_t d = 0; d < parts_.size(); ++d)
		if (p.on[d]) on_device(d, [&](Backend& b) { b.write(p.on[d], at, src); });
	if (p.part != kAll) return;
	outdate(dst.id(), at, at + src.size());
	p.holders.set(at, at + src.size(), (1u << parts_.size()) - 1);
}

void SplitBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) {
	const Place& p = place(src);
	if (p.part != kAll) return on_device(p.part, [&](Backend& b) { b.read(p.on[p.part], at, dst); });
	p.holders.each(at, at + dst.size(), [&](size_t from, size_t to, Holders::Mask m) {
		const uint32_t d = uint32_t(std::countr_zero(m));
		on_device(d, [&](Backend& b) { b.read(p.on[d], from, dst.subspan(from - at, to - from)); });
	});
}

size_t SplitBackend::weight_row_bytes(DType t, uint32_t cols) const {
	size_t most = 0;
	for (const SplitPart& p : parts_) most = std::max(most, p.backend->weight_row_bytes(t, cols));
	return most;
}

bool SplitBackend::arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const {
	return arranges_ && parts_[0].backend->arrange_weight(t, cols, src, dst);
}

// Replaces the weights that lay there.
void SplitBackend::place_weight(uint32_t id, size_t at, const Weight& w) {
	for (auto old = weights_.lower_bound({id, 0}); old != weights_.end() && old->first.first == id;)
		old = old->first.second < w.end && at < old->second.end ? weights_.erase(old) : std::next(old);
	weights_.emplace(std::pair(id, at), w);
}

void SplitBackend::write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                                std::span<const std::byte> arranged) {
	const uint32_t id = w.buf->id(), part = place(*w.buf).part;
	KV_ASSERT(part != kAll);
	const size_t end = w.at + w.shape[0] * weight_row_bytes(w.type, w.shape[1]);
	const Weight fresh{end, w.type, w.shape[1]};
	if (const auto known = weights_.find({id, w.at}); known == weights_.end() || known->second != fresh)
		place_weight(id, w.at, fresh);
	on_device(part, [&](Backend& b) { b.write_weight(weight_on(part, w), row, n, src, arranged); });
}

// A weight that is copied lies in the slot as it lies in its own memory.
uint64_t SplitBackend::transfer(View dst, View src) {
	check_and_count(dst, src);
	const uint32_t part = place(*src.buf).part;
	KV_ASSERT(part != kAll && place(*dst.buf).part == part);
	const auto weight = weights_.find({src.buf->id(), src.at});
	if (weight != weights_.end()) {
		Weight copy = weight->second;
		copy.end = dst.at + (copy.end - src.at);
		place_weight(dst.buf->id(), dst.at, copy);
	}
	dst.buf = &place(*dst.buf).on[part], src.buf = &place(*src.buf).on[part];
	const uint64_t id = on_device(part, [&](Backend& b) { return b.transfer(dst, src); });
	return id ? id * kMostParts + part : 0;
}
bool SplitBackend::arrive(uint64_t transfer) {
	return on_device(uint32_t(transfer % kMostParts), [&](Backend& b) { return b.arrive(transfer / kMostParts); });
}

// ---- ops

// A weight begins at the same byte on every device; its rows may be shorter there.
View SplitBackend::weight_on(uint32_t part, const View& w) const {
	View r = w;
	r.buf = &place(*w.buf).on[part];
	auto it = weights_.upper_bound({w.buf->id(), w.at});
	if (it == weights_.begin()) return r;
	const auto& [key, weight] = *--it;
	const size_t row = weight_row_bytes(w.type, w.shape[1]),
	             own = parts_[part].backend->weight_row_bytes(w.type, w.shape[1]);
	if (key.first != w.buf->id() || w.at >= weight.end || row == own) return r;
	KV_ASSERT(weight.type == w.type && weight.cols == w.shape[1] && (w.at - key.second) % row == 0);
	r.at = key.second + (w.at - key.second) / row * own;
	return r;
}

View SplitBackend::on(uint32_t part, const ViewRow& row, const View& v) const {
	if (!place(*v.buf).on[part]) return {}; // not used by this op
	if (row.weight) return weight_on(part, v);
	View r = v;
	r.buf = &place(*v.buf).on[part];
	return r;
}

uint32_t SplitBackend::device_of(const Op& o) const {
	uint32_t part = kAll;
	bool everywhere = op_moves_bytes(o);
	const Holders::Mask all = (1u << parts_.size()) - 1;
	read_views_of(o, [&](const ViewRow& row, const View& v) {
		if (!v || row.needed == ViewRow::Needed::No) return;
		const Place& p = place(*v.buf);
		if (p.part == kAll) {
			const bool read = row.reads() || row.use == ViewRow::Use::Memory;
			if (everywhere && read) everywhere = p.holders.common(v.at, v.at + v.bytes()) == all;
			return;
		}
		if (part != kAll && part != p.part)
			fail(Code::Internal, "{} {}: '{}' lies on device {} of the split, the rest on {}", op_name(o), op_text(o),
			     row.name, p.part, part);
		part = p.part;
	});
	return part != kAll || everywhere ? part : layer_part_;
}

// Until the device is waited for, `bytes` must live even if nobody wants them.
void SplitBackend::outdate(uint32_t id, size_t from, size_t to) noexcept {
	for (HandOver& h : coming_) h.stale |= h.id == id && h.at < to && from < h.end();
}

void SplitBackend::hand_over(const View& v, uint32_t part) {
	const Place& p = place(*v.buf);
	if (p.part != kAll) return;
	p.holders.each(v.at, v.at + v.bytes(), [&](size_t from, size_t to, Holders::Mask m) {
		if (m >> part & 1) return;
		const uint32_t d = uint32_t(std::countr_zero(m));
		coming_.push_back({v.buf->id(), from, d, part, 0, std::vector<std::byte>(to - from)});
		HandOver& h = coming_.back();
		h.mark = on_device(d, [&](Backend& b) {
			b.read(p.on[d], from, h.bytes);
			return b.mark();
		});
		const uint64_t taker = on_device(part, [](Backend& b) { return b.mark(); });
		worked_together_ += !parts_[d].backend->done(h.mark) && !parts_[part].backend->done(taker);
	});
}

void SplitBackend::take(uint32_t part, const View& v) {
	for (auto h = coming_.begin(); h != coming_.end();) {
		if (h->stale || h->to != part || h->id != v.buf->id() || h->at >= v.at + v.bytes() || v.at >= h->end()) {
			++h;
			continue;
		}
		on_device(h->from, [&](Backend& b) {
			b.submit(); // the device goes on while the host waits
			b.wait_for(h->mark);
		});
		on_device(part, [&](Backend& b) { b.write(place(*v.buf).on[part], h->at, h->bytes); });
		place(*v.buf).holders.set(h->at, h->end(), 1u << h->from | 1u << part);
		handed_over_ += h->bytes.size();
		h = coming_.erase(h);
	}
}

// Copies what the op reads to its device, where another one has it.
void SplitBackend::bring(uint32_t part, const Op& o) {
	struct Gap {
		Place* place;
		size_t at;
		uint32_t from;
		std::vector<std::byte> bytes;
	};
	std::vector<Gap> gaps;
	read_views_of(o, [&](const ViewRow& row, const View& v) {
		if (!v || row.needed == ViewRow::Needed::No) return;
		if (!row.reads() && row.use != ViewRow::Use::Memory) return;
		Place& p = place(*v.buf);
		if (p.part != kAll) return;
		if (!coming_.empty()) take(part, v);
		p.holders.each(v.at, v.at + v.bytes(), [&](size_t from, size_t to, Holders::Mask m) {
			if (m >> part & 1) return;
			gaps.push_back({&p, from, uint32_t(std::countr_zero(m)), std::vector<std::byte>(to - from)});
		});
	});
	if (gaps.empty()) return;
	for (Gap& g : gaps) on_device(g.from, [&](Backend& b) { b.read(g.place->on[g.from], g.at, g.bytes); });
	Holders::Mask sources = 0;
	for (const Gap& g : gaps) sources |= 1u << g.from;
	for (uint32_t d = 0; d < parts_.size(); ++d)
		if (sources >> d & 1) on_device(d, [](Backend& b) { b.wait_for(b.mark()); });
	for (const Gap& g : gaps) {
		on_device(part, [&](Backend& b) { b.write(g.place->on[part], g.at, g.bytes); });
		const size_t end = g.at + g.bytes.size();
		g.place->holders.set(g.at, end, g.place->holders.common(g.at, end) | 1u << part);
		handed_over_ += g.bytes.size();
	}
}

void SplitBackend::run_on(uint32_t part, const Op& o) {
	const MappedOp mapped(o, [&](const ViewRow& row, const View& v) { return on(part, row, v); });
	on_device(part, [&](Backend& b) { b.run(*mapped); });
}

void SplitBackend::run(const Op& o) {
	check_and_count(o);
	const uint32_t part = device_of(o);
	Holders::Mask now = 0;
	for (uint32_t d = 0; d < parts_.size(); ++d) {
		if (part != kAll && part != d) continue;
		bring(d, o);
		run_on(d, o);
		now |= 1u << d;
	}
	read_views_of(o, [&](const ViewRow& row, const View& v) {
		if (!v || row.needed == ViewRow::Needed::No) return;
		if (!row.writes() && row.use != ViewRow::Use::Scratch && !row.stored) return;
		Place& p = place(*v.buf);
		if (p.part != kAll) return;
		if (!coming_.empty()) outdate(v.buf->id(), v.at, v.at + v.bytes());
		p.holders.set(v.at, v.at + v.bytes(), now);
	});
}

bool SplitBackend::norms_in_matmul(const op::NormMatmul& o) const {
	const uint32_t part = device_of(o);
	const MappedOp mapped(Op(o), [&](const ViewRow& row, const View& v) { return on(part, row, v); });
	return parts_[part].backend->norms_in_matmul(std::get<op::NormMatmul>(*mapped));
}

void SplitBackend::at_layer(uint32_t layer) {
	layer_part_ = part_of(layer);
	for (const SplitPart& p : parts_) p.backend->at_layer(layer);
}

// ---- submission

void SplitBackend::submit() {
	on_each([](Backend& b) { b.submit(); });
}
void SplitBackend::wait() {
	on_each([](Backend& b) { b.wait(); });
	marks_.clear();
	coming_.remove_if([](const HandOver& h) { return h.stale; });
}
uint64_t SplitBackend::mark() {
	std::vector<uint64_t> marks;
	on_each([&](Backend& b) { marks.push_back(b.mark()); });
	marks_.emplace(++last_mark_, std::move(marks));
	return last_mark_;
}
void SplitBackend::wait_for(uint64_t mark) {
	const auto it = marks_.find(mark);
	if (it == marks_.end()) return; // done
	for (uint32_t d = 0; d < parts_.size(); ++d) on_device(d, [&](Backend& b) { b.wait_for(it->second[d]); });
	marks_.erase(marks_.begin(), std::next(it));
}
bool SplitBackend::done(uint64_t mark) {
	const auto it = marks_.find(mark);
	if (it == marks_.end()) return true;
	for (uint32_t d = 0; d < parts_.size(); ++d)
		if (!parts_[d].backend->done(it->second[d])) return false;
	return true;
}

std::vector<OpTime> SplitBackend::op_times(bool reset) {
	std::vector<OpTime> all;
	for (const SplitPart& p : parts_)
		for (OpTime& t : p.backend->op_times(reset)) {
			const auto same = std::ranges::find(all, t.op, &OpTime::op);
			if (same == all.end()) {
				all.push_back(std::move(t));
				continue;
			}
			same->calls += t.calls, same->ms += t.ms, same->bytes += t.bytes;
			for (std::string& k : t.kernels)
				if (std::ranges::find(same->kernels, k) == same->kernels.end()) same->kernels.push_back(std::move(k));
		}
	return all;
}
void SplitBackend::time_ops(bool on) {
	for (const SplitPart& p : parts_) p.backend->time_ops(on);
}

// ---- what the devices are together

// Layers by rate; empty: by memory.
static std::vector<uint32_t> share_by_rate(std::span<const DeviceInfo> devices, uint32_t n_layers,
                                           std::span<const ReadRates> rates, uint64_t layer_bytes) {
	constexpr double kSame = 1.25; // rates closer than this are about the same
	if (rates.size() != devices.size() || !layer_bytes) return {};
	const auto [least, most] = std::ranges::minmax(rates, {}, &ReadRates::device);
	if (!(least.device > 0) || most.device < kSame * least.device) return {};
	std::vector<size_t> order(devices.size());
	std::iota(order.begin(), order.end(), size_t(0));
	std::ranges::stable_sort(order, std::greater(), [&](size_t d) { return rates[d].device; });
	std::vector<uint32_t> layers(devices.size(), 1);
	uint64_t left = n_layers - devices.size();
	for (const size_t d : order) {
		const uint64_t room = devices[d].free_bytes / 8 * 7 / layer_bytes; // the rest: activations and the driver
		if (!room) return {};
		const uint64_t more = std::min(left, room - 1);
		layers[d] += uint32_t(more), left -= more;
	}
	return left ? std::vector<uint32_t>() : layers;
}

std::vector<uint32_t> share_layers(std::span<const DeviceInfo> devices, uint32_t n_layers,
                                   std::span<const ReadRates> rates, uint64_t layer_bytes) {
	KV_ASSERT(n_layers >= devices.size());
	if (std::vector<uint32_t> layers = share_by_rate(devices, n_layers, rates, layer_bytes); !layers.empty())
		return layers;
	std::vector<uint32_t> layers(devices.size(), 1);
	for (uint32_t left = n_layers - uint32_t(devices.size()); left; --left) { // to the one with most memory per layer
		size_t best = 0;
		const auto room = [&](size_t d) { return double(devices[d].free_bytes) / (layers[d] + 1); };
		for (size_t d = 1; d < devices.size(); ++d)
			if (room(d) > room(best)) best = d;
		++layers[best];
	}
	return layers;
}

DeviceInfo joined(std::span<const DeviceInfo> devices, std::span<const uint32_t> layers) {
	DeviceInfo all = devices[0];
	const double n = std::accumulate(layers.begin(), layers.end(), 0.0);
	all.parts = uint32_t(devices.size());
	const auto least = [](size_t a, size_t b) { return a && b ? std::min(a, b) : std::max(a, b); }; // 0: no limit
	// Bytes of all devices when the first one is full, for memory that layers share equally.
	const auto shared = [&](size_t DeviceInfo::*field) {
		double bytes = double(devices[0].*field) * n / layers[0];
		for (size_t d = 1; d < devices.size(); ++d) bytes = std::min(bytes, double(devices[d].*field) * n / layers[d]);
		return size_t(bytes);
	};
	all.memory_bytes = shared(&DeviceInfo::memory_bytes);
	all.free_bytes = shared(&DeviceInfo::free_bytes);
	all.mapped_bytes = shared(&DeviceInfo::mapped_bytes);
	double seconds = 0; // to read a byte in each layer
	for (size_t d = 0; d < devices.size(); ++d) {
		const DeviceInfo& x = devices[d];
		seconds = x.peak_bytes_per_s > 0 && seconds >= 0 ? seconds + layers[d] / n / x.peak_bytes_per_s : -1;
		if (d == 0) continue;
		all.name.append(" + ").append(x.name);
		if (x.driver != all.driver) all.driver.append(" + ").append(x.driver);
		if (x.type != all.type) all.type = "mixed";
		all.is_cpu &= x.is_cpu, all.shares_memory &= x.shares_memory, all.merges_few &= x.merges_few;
		all.half_matmul |= x.half_matmul, all.int8_attend |= x.int8_attend, all.int8_matmul |= x.int8_matmul;
		all.max_buffer_bytes = least(all.max_buffer_bytes, x.max_buffer_bytes);
		all.max_view_bytes = least(all.max_view_bytes, x.max_view_bytes);
	}
	all.peak_bytes_per_s = seconds > 0 ? 1 / seconds : 0;
	all.lists_candidates = devices.back().lists_candidates;
	return all;
}

} // namespace kvrun
