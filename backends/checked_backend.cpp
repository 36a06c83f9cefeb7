// CheckedBackend: memory mirrored on two backends, ops on both, comparison, dumps.
#include "backends/checked_backend.h"
#include "engine/core/f16.h"
#include "engine/core/npy.h"
#include "engine/core/system/files.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/ranges.h>

namespace kvrun {

CheckedBackend::CheckedBackend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference,
                               const std::string& text, OpObserver observer)
    : inner_(std::move(inner)), reference_(std::move(reference)), info_(inner_->info()),
      observer_(std::move(observer)) {
	const bool drive = text.size() > 2 && text[1] == ':' && (text[2] == '\\' || text[2] == '/'); // C:\folder
	const size_t a = text.find(':', drive ? 2 : 0), b = a == std::string::npos ? a : text.find(':', a + 1);
	dump_dir_ = text.substr(0, a);
	if (a != std::string::npos) dump_op_ = text.substr(a + 1, b == std::string::npos ? b : b - a - 1);
	if (b != std::string::npos) dump_layer_ = text.substr(b + 1);
	if (!dump_dir_.empty()) {
		std::error_code error;
		std::filesystem::create_directories(sys::path_of(dump_dir_), error);
		if (error) fail(Code::Io, "dump folder {}: {}", dump_dir_, error.message());
	}
}

Buffer CheckedBackend::alloc(size_t bytes, Mem mem, const char* label) {
	Mirror m{inner_->alloc(bytes, mem, label), reference_ ? reference_->alloc(bytes, mem, label) : Buffer()};
	return made(mirrors_.add(std::move(m)), bytes, mem);
}

void CheckedBackend::free(uint32_t id) noexcept {
	mirrors_.remove(id);
	weights_.erase(weights_.lower_bound({id, 0}), weights_.upper_bound({id, SIZE_MAX}));
}

View CheckedBackend::inner(const View& v) const {
	View r = v;
	if (v.buf) r.buf = &mirrors_[v.buf->id()].inner;
	return r;
}

View CheckedBackend::reference(const View& v) const {
	View r = v;
	if (v.buf) r.buf = &mirrors_[v.buf->id()].reference;
	return r;
}

View CheckedBackend::reference_weight(const View& w) const {
	KV_ASSERT(w.buf);
	auto it = weights_.upper_bound({w.buf->id(), w.at});
	if (it != weights_.begin()) {
		const auto& [key, weight] = *--it;
		const size_t row_bytes = inner_->weight_row_bytes(w.type, w.shape[1]);
		const size_t from = w.at - key.second; // wraps for another buffer; the id check then fails
		if (key.first == w.buf->id() && w.at < weight.end && weight.type == w.type && weight.cols == w.shape[1] &&
		    from % row_bytes == 0 && w.at + w.shape[0] * row_bytes <= weight.end) {
			View r = w;
			r.buf = weight.reference.get();
			r.at = (weight.first + from / row_bytes) * reference_->weight_row_bytes(w.type, w.shape[1]);
			return r;
		}
	}
	// Not written by write_weight(), but by write() or by an op.
	KV_ASSERT(w.type == DType::F32 || w.type == DType::F16);
	return reference(w);
}

void CheckedBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	const Mirror& m = mirrors_[dst.id()];
	inner_->write(m.inner, at, src);
	if (reference_) reference_->write(m.reference, at, src);
}

void CheckedBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) {
	inner_->read(mirrors_[src.id()].inner, at, dst);
}

void CheckedBackend::write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                                  std::span<const std::byte> arranged) {
	inner_->write_weight(inner(w), row, n, src, arranged);
	if (!reference_) return;
	const uint32_t id = w.buf->id();
	const size_t end = w.at + w.shape[0] * inner_->weight_row_bytes(w.type, w.shape[1]);
	auto it = weights_.find({id, w.at});
	if (it == weights_.end() || it->second.end != end || it->second.type != w.type || it->second.cols != w.shape[1]) {
		erase_weights(id, w.at, end);
		Weight fresh{end, w.type, w.shape[1], {}, 0};
		const size_t row_bytes = reference_->weight_row_bytes(w.type, w.shape[1]);
		fresh.reference =
		    std::make_shared<Buffer>(reference_->alloc(w.shape[0] * row_bytes, Mem::Device, "weights, checked"));
		it = weights_.emplace(std::pair(id, w.at), std::move(fresh)).first;
	}
	View r = w;
	r.buf = it->second.reference.get();
	r.at = 0;
	reference_->write_weight(r, row, n, src, {});
}

// When memory is reused for another tensor, the old entry is removed.
void CheckedBackend::erase_weights(uint32_t id, size_t begin, size_t end) {
	for (auto old = weights_.lower_bound({id, 0}); old != weights_.end() && old->first.first == id;)
		old = old->first.second < end && begin < old->second.end ? weights_.erase(old) : std::next(old);
}

// A transfer of weights: rows of them, whose values the reference has already.
void CheckedBackend::copy_weights(const View& dst, const View& src) {
	const uint32_t from = src.buf->id(), to = dst.buf->id();
	erase_weights(to, dst.at, dst.at + src.bytes());
	std::vector<std::pair<size_t, Weight>> found; // by their first byte
	for (auto w = weights_.lower_bound({from, 0}); w != weights_.end() && w->first.first == from; ++w)
		if (w->first.second < src.at + src.bytes() && src.at < w->second.end)
			found.emplace_back(w->first.second, w->second);
	for (auto& [begin, w] : found) {
		const size_t at = std::max(begin, src.at);
		w.first += uint32_t((at - begin) / inner_->weight_row_bytes(w.type, w.cols));
		w.end = std::min(w.end, src.at + src.bytes()) - src.at + dst.at;
		weights_.insert_or_assign({to, at - src.at + dst.at}, std::move(w));
	}
}

std::vector<std::byte> CheckedBackend::fetch(Backend& b, const View& v) {
	std::vector<std::byte> r(v.elements() * dtype_info(v.type).bytes);
	b.read(*v.buf, v.at, r);
	b.submit();
	b.wait();
	return r;
}

void CheckedBackend::at_layer(uint32_t layer) {
	layer_ = layer;
	in_layer_ = true;
	inner_->at_layer(layer);
}

// ---- comparison and dumps

namespace {

std::string index_text(const View& v, size_t i) {
	const size_t c = v.shape[2] * size_t(v.shape[3]), b = v.shape[1] * c;
	return fmt::format("({}, {}, {})", i / b, i % b / c, i % c);
}

// Packed codes, lowest bits first.
std::vector<float> as_codes(std::span<const std::byte> bytes, uint32_t bits) {
	std::vector<float> r;
	if (bits == 32) {
		for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
			uint32_t word;
			std::memcpy(&word, &bytes[i], 4);
			r.push_back(float(word));
		}
		return r;
	}
	for (const std::byte b : bytes) // little-endian words: code i of a byte is code i of the word, for 8 bits and less
		for (uint32_t at = 0; at < 8; at += bits) r.push_back(float(uint32_t(b) >> at & ((1u << bits) - 1)));
	return r;
}

// A value between two codes may take either. More than one such value in 200 is not a rounding difference.
Difference compare_codes(std::span<const float> x, std::span<const float> ref) {
	Difference d = compare(x, ref, {0, 0});
	size_t far = 0;
	for (size_t i = 0; i < x.size(); ++i) far += std::abs(x[i] - ref[i]) > 1;
	if (far == 0 && d.n_bad <= 2 + d.n / 200) d.n_bad = 0;
	return d;
}

// Elements of f32 memory, of f16 memory, or of f16 pairs in u32 memory.
std::vector<float> as_floats(const View& v, std::span<const std::byte> bytes) {
	std::vector<float> r;
	if (v.type == DType::F32) {
		r.resize(bytes.size() / 4);
		std::memcpy(r.data(), bytes.data(), bytes.size());
		return r;
	}
	r.reserve(bytes.size() / 2);
	for (size_t i = 0; i + 2 <= bytes.size(); i += 2)
		r.push_back(f16_to_f32(uint16_t(uint32_t(bytes[i]) | uint32_t(bytes[i + 1]) << 8)));
	return r;
}

// Root mean square without the zeros of slots that are empty.
double rms_of_stored(std::span<const float> values) {
	double squares = 0;
	size_t n = 0;
	for (const float v : values)
		if (std::isfinite(v) && v != 0) squares += double(v) * double(v), ++n;
	return n ? std::sqrt(squares / double(n)) : 0;
}

} // namespace

bool CheckedBackend::dumps(const char* op) const {
	if (dump_dir_.empty() || (!dump_op_.empty() && dump_op_ != op)) return false;
	return dump_layer_.empty() || (in_layer_ && dump_layer_ == fmt::format("{}", layer_));
}

void CheckedBackend::dump(const char* op, const std::string& name, const View& v) {
	if (!v || is_quantised(v.type) || v.elements() == 0) return;
	const NpyType type = v.type == DType::F32    ? NpyType::F32
	                     : v.type == DType::F16  ? NpyType::F16
	                     : v.type == DType::BF16 ? NpyType::U16
	                                             : NpyType::U32;
	size_t dims = 4;
	while (dims > 1 && v.shape[dims - 1] == 1) --dims;
	const std::vector<uint64_t> shape(v.shape, v.shape + dims);
	const std::string layer = in_layer_ ? fmt::format("L{}_", layer_) : "";
	npy_write(sys::path_of(dump_dir_) / fmt::format("{:06}_{}{}_{}.npy", n_ops_, layer, op, name), type, shape,
	          fetch(*inner_, inner(v)));
}

void CheckedBackend::compare_output(const char* op, const std::string& shape, const Output& o) {
	const std::vector<std::byte> bytes = fetch(*inner_, inner(o.view));
	const auto values = [&](std::span<const std::byte> b) {
		return o.bits ? as_codes(b, o.bits) : as_floats(o.view, b);
	};
	std::vector<float> x = values(bytes), ref = x;
	if (reference_) ref = values(fetch(*reference_, reference(o.view)));
	double rms = -1;
	if (o.cache) {
		// Slots may hold anything equal on both; written ones must be numbers. Equal numbers do not count as
		// differences, but the tolerance is relative to the size of all that is stored.
		rms = rms_of_stored(ref);
		for (size_t i = 0; i < x.size(); ++i)
			if (std::memcmp(&x[i], &ref[i], 4) == 0 || (std::isnan(x[i]) && std::isnan(ref[i]))) x[i] = ref[i] = 0;
	}
	const Difference d = o.bits && o.bits < 32 ? compare_codes(x, ref) : compare(x, ref, o.tolerance, rms);
	if (observer_) {
		observer_({op, o.name, shape, d, x, ref, o.bits != 0});
		return carry_on(o, bytes, d.n_bad != 0);
	}
	const std::string where = in_layer_ ? fmt::format("layer {}: {}", layer_, op) : op;
	if (d.n_nonfinite && !std::isfinite(ref[d.bad.at(0)])) {
		const size_t i = d.bad[0];
		fail(Code::Device,
		     "{} {}: {} element {} of {} is {}{}; an earlier value or a weight is not finite or too large", where,
		     shape, o.name, index_text(o.view, i), shape_text(o.view), x[i],
		     reference_ ? fmt::format(" on {} and {} on {}", inner_->name(), ref[i], reference_->name()) : "");
	}
	if (d.n_bad) {
		const size_t i = d.n_nonfinite ? d.bad[0] : d.worst;
		fail(Code::Device,
		     "{} {}: {} differs at element {} ({} of {}): {:.9g} on {}, {:.9g} on {}; {} of {} elements outside the "
		     "tolerance, max error {:.3g}, allowed there {:.3g}",
		     where, shape, o.name, i, index_text(o.view, i), shape_text(o.view), x[i], inner_->name(), ref[i],
		     reference_ ? reference_->name() : "", d.n_bad, d.n, d.max_error, d.allowed);
	}
	carry_on(o, bytes, /*wrong=*/false);
}

// Both backends continue with the inner one's result, unless it is known to be wrong.
void CheckedBackend::carry_on(const Output& o, std::span<const std::byte> bytes, bool wrong) {
	if (!reference_) return;
	const View r = reference(o.view), own = inner(o.view);
	if (wrong)
		inner_->write(*own.buf, own.at, fetch(*reference_, r));
	else
		reference_->write(*r.buf, r.at, bytes);
}

std::vector<uint32_t> CheckedBackend::fetch_words(const View& v) {
	const std::vector<std::byte> bytes = fetch(*inner_, inner(v));
	std::vector<uint32_t> r(bytes.size() / 4);
	std::memcpy(r.data(), bytes.data(), bytes.size());
	return r;
}

// ---- ops

MappedOp CheckedBackend::for_inner(const Op& op) const {
	return {op, [this](const ViewRow&, const View& v) { return inner(v); }};
}

// Weights have separate buffers in the reference.
MappedOp CheckedBackend::for_reference(const Op& op) const {
	return {op, [this](const ViewRow& row, const View& v) { return row.weight ? reference_weight(v) : reference(v); }};
}

std::vector<CheckedBackend::Output> CheckedBackend::compared(const Op& op) {
	using Compare = ViewRow::Compare;
	std::vector<Output> r;
	double wider = 0; // score_factor() of the op's queries, once they are read
	read_views_of(
	    op,
	    [&](const ViewRow& row, const View& v) {
		    if (!v || row.needed == ViewRow::Needed::No) return;
		    if (row.compare == Compare::No || row.compare == Compare::Adopted) return;
		    Tolerance allowed = tolerance(row.tolerance);
		    if (row.queries && reference_) {
			    if (wider == 0)
				    wider = score_factor(rms_of_stored(as_floats(*row.queries, fetch(*inner_, inner(*row.queries)))));
			    allowed.rel *= wider, allowed.slack *= wider;
		    }
		    r.push_back(
		        {row.name, v, allowed, row.compare == Compare::Slots, row.compare == Compare::Words ? 32u : 0u});
	    },
	    info_);
	for (const WrittenWords& w : op_written(op, [this](const View& v) { return fetch_words(v); }))
		r.push_back({w.name, w.view, tolerance(w.rule), true, w.bits});
	return r;
}

void CheckedBackend::run(const Op& op) {
	check_and_count(op);
	const char* name = op_name(op);
	const std::string shape = op_text(op);
	const std::vector<Output> outputs = compared(op);
	const bool dumped = dumps(name);
	if (dumped)
		read_views_of(op, [&](const ViewRow& row, const View& v) {
			if (!row.reads() || !row.dumped || row.needed == ViewRow::Needed::No) return;
			dump(name, row.writes() ? fmt::format("{}_before", row.name) : row.name, v);
		});
	inner_->run(*for_inner(op));
	if (reference_) reference_->run(*for_reference(op));
	if (dumped)
		for (const Output& o : outputs) dump(name, o.name, o.view);
	for (const Output& o : outputs) compare_output(name, shape, o);
	read_views_of(op, [&](const ViewRow& row, const View& v) {
		if (row.compare != ViewRow::Compare::Adopted) return;
		carry_on({row.name, v, {}, false, 0}, fetch(*inner_, inner(v)), /*wrong=*/false);
	});
	++n_ops_;
}

bool CheckedBackend::norms_in_matmul(const op::NormMatmul& o) const {
	return inner_->norms_in_matmul(std::get<op::NormMatmul>(*for_inner(o)));
}

// The host has written only to the inner backend's memory.
uint64_t CheckedBackend::transfer(View dst, View src) {
	check_and_count(dst, src);
	if (reference_ && src.buf->mem() == Mem::Mapped) {
		copy_weights(dst, src);
	} else if (reference_) {
		const View to = reference(dst);
		reference_->write(*to.buf, to.at, host_bytes(*src.buf).subspan(src.at, src.bytes()));
	}
	return inner_->transfer(inner(dst), inner(src));
}

std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference,
                                              const std::string& dump, OpObserver observer) {
	return std::make_unique<CheckedBackend>(std::move(inner), std::move(reference), dump, std::move(observer));
}

} // namespace kvrun
