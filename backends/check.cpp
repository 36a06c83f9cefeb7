// Tolerances of every op, and CheckedBackend: lock-step comparison, NaN scan, dumps.
#include "backends/check.h"
#include "engine/core/env.h"
#include "engine/core/f16.h"
#include "engine/core/npy.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/ranges.h>

namespace kvrun {

// ---- comparison

Tolerance tolerance(std::string_view what) {
	struct Row {
		std::string_view what;
		Tolerance t;
	};
	// Sums in another order cost about 1e-6 of rms; exp() on a device may be off by a few units in the last place per
	// unit of its argument; a half is 2^-11 of its value from what it stands for, and may round to either side.
	constexpr Row table[] = {
	    {"embed", {1e-6, 1e-6}},
	    {"rmsnorm", {1e-5, 1e-6}},
	    {"matvec", {1e-5, 5e-5}},
	    {"matmul", {1e-5, 5e-5}},
	    {"swiglu", {1e-4, 1e-4}},
	    {"rope", {1e-5, 1e-5}},
	    {"kv", {1e-3, 1e-5}},
	    {"attend", {1e-4, 1e-4}},
	    {"attend_prompt", {1e-4, 1e-4}},
	    {"attend packed", {2e-4, 2e-4}},
	    {"copy", {0, 0}},
	};
	for (const Row& r : table)
		if (r.what == what) return r.t;
	fail(Code::NotFound, "no tolerance for '{}'; add a row to tolerance() in backends/check.cpp", what);
}

Difference compare(std::span<const float> x, std::span<const float> ref, Tolerance t) {
	KV_ASSERT(x.size() == ref.size());
	Difference d;
	d.n = x.size();
	double squares = 0;
	size_t finite = 0;
	for (float r : ref)
		if (std::isfinite(r)) squares += double(r) * double(r), ++finite;
	const double rms = finite ? std::sqrt(squares / double(finite)) : 0;
	double worst = -1; // largest error / tolerance so far
	for (size_t i = 0; i < x.size(); ++i) {
		const double error = std::abs(double(x[i]) - double(ref[i])),
		             allowed = t.rel * std::abs(double(ref[i])) + t.slack * rms;
		const bool finite_x = std::isfinite(x[i]), bad = !finite_x || !(error <= allowed);
		d.n_nonfinite += !finite_x;
		if (std::isfinite(error)) d.max_error = std::max(d.max_error, error);
		const double ratio = !std::isfinite(error) ? INFINITY : allowed > 0 ? error / allowed : error > 0 ? 1e30 : 0;
		if (ratio > worst) worst = ratio, d.worst = i, d.allowed = allowed;
		if (!bad) continue;
		if (d.n_bad++ < 5) d.bad.push_back(i);
	}
	return d;
}

// ---- CheckedBackend: memory

struct CheckedBackend::ReadViews {
	KvRead kv;
	std::vector<AttendGroup> groups;
	ReadViews(const KvRead& from, auto&& map) : kv(from), groups(from.groups.begin(), from.groups.end()) {
		for (AttendGroup& g : groups)
			for (View* v : {&g.k_codes, &g.v_codes, &g.k_params, &g.v_params, &g.v_factors})
				if (*v) *v = map(*v);
		for (View* v : {&kv.work, &kv.pages, &kv.live, &kv.row_parts, &kv.parts, &kv.factors, &kv.balance, &kv.lse})
			*v = map(*v);
		kv.groups = groups;
	}
	ReadViews(const ReadViews&) = delete; // kv points into groups
};

CheckedBackend::CheckedBackend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference)
    : inner_(std::move(inner)), reference_(std::move(reference)) {
	const std::string text = env_text(Env::Dump);
	const size_t a = text.find(':'), b = a == std::string::npos ? a : text.find(':', a + 1);
	dump_dir_ = text.substr(0, a);
	if (a != std::string::npos) dump_op_ = text.substr(a + 1, b == std::string::npos ? b : b - a - 1);
	if (b != std::string::npos) dump_layer_ = text.substr(b + 1);
	if (!dump_dir_.empty()) {
		std::error_code error;
		std::filesystem::create_directories(dump_dir_, error);
		if (error) fail(Code::Io, "KVRUN_DUMP: folder {} cannot be made: {}", dump_dir_, error.message());
	}
}

Buffer CheckedBackend::alloc(size_t bytes, Mem mem, const char* label) {
	Mirror m{inner_->alloc(bytes, mem, label), reference_ ? reference_->alloc(bytes, mem, label) : Buffer()};
	if (free_ids_.empty()) {
		free_ids_.reserve(mirrors_.size() + 1); // so that free() cannot throw
		mirrors_.push_back(std::move(m));
		return Buffer(*this, uint32_t(mirrors_.size()), bytes);
	}
	const uint32_t id = free_ids_.back();
	free_ids_.pop_back();
	mirrors_[id - 1] = std::move(m);
	return Buffer(*this, id, bytes);
}

void CheckedBackend::free(uint32_t id) noexcept {
	mirrors_[id - 1] = Mirror();
	weights_.erase(weights_.lower_bound({id, 0}), weights_.upper_bound({id, SIZE_MAX}));
	free_ids_.push_back(id);
}

View CheckedBackend::inner(const View& v) const {
	View r = v;
	if (v.buf) r.buf = &mirrors_.at(v.buf->id() - 1).inner;
	return r;
}

View CheckedBackend::reference(const View& v) const {
	View r = v;
	if (v.buf) r.buf = &mirrors_.at(v.buf->id() - 1).reference;
	return r;
}

View CheckedBackend::reference_weight(const View& w) const {
	KV_ASSERT(w.buf);
	auto it = weights_.upper_bound({w.buf->id(), w.at});
	if (it != weights_.begin()) {
		const auto& [key, weight] = *--it;
		const size_t row_bytes = inner_->weight_row_bytes(w.type, w.shape[1]);
		const size_t from = w.at - key.second; // wraps for another buffer, which the id check refuses
		if (key.first == w.buf->id() && w.at < weight.end && weight.type == w.type && weight.cols == w.shape[1] &&
		    from % row_bytes == 0 && w.at + w.shape[0] * row_bytes <= weight.end) {
			View r = w;
			r.buf = &weight.reference;
			r.at = from / row_bytes * reference_->weight_row_bytes(w.type, w.shape[1]);
			return r;
		}
	}
	KV_ASSERT(w.type == DType::F32); // anything else reaches a device by write_weight()
	return reference(w);
}

void CheckedBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	const Mirror& m = mirrors_.at(dst.id() - 1);
	inner_->write(m.inner, at, src);
	if (reference_) reference_->write(m.reference, at, src);
}

void CheckedBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) {
	inner_->read(mirrors_.at(src.id() - 1).inner, at, dst);
}

void CheckedBackend::write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src) {
	inner_->write_weight(inner(w), row, n, src);
	if (!reference_) return;
	const uint32_t id = w.buf->id();
	const size_t end = w.at + w.shape[0] * inner_->weight_row_bytes(w.type, w.shape[1]);
	auto it = weights_.find({id, w.at});
	if (it == weights_.end() || it->second.end != end || it->second.type != w.type || it->second.cols != w.shape[1]) {
		// Memory that is given to another tensor forgets the old one.
		for (auto old = weights_.lower_bound({id, 0}); old != weights_.end() && old->first.first == id;)
			old = old->first.second < end && w.at < old->second.end ? weights_.erase(old) : std::next(old);
		Weight fresh{end, w.type, w.shape[1], {}};
		const size_t row_bytes = reference_->weight_row_bytes(w.type, w.shape[1]);
		fresh.reference = reference_->alloc(w.shape[0] * row_bytes, Mem::Device, "weights, checked");
		it = weights_.emplace(std::pair(id, w.at), std::move(fresh)).first;
	}
	View r = w;
	r.buf = &it->second.reference;
	r.at = 0;
	reference_->write_weight(r, row, n, src);
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

// ---- CheckedBackend: one op on both

namespace {

std::string shape_text(const View& v) {
	int dims = 4;
	while (dims > 1 && v.shape[dims - 1] == 1) --dims;
	return fmt::format("({})", fmt::join(v.shape, v.shape + dims, ", "));
}

std::string index_text(const View& v, size_t i) {
	const size_t c = v.shape[2] * size_t(v.shape[3]), b = v.shape[1] * c;
	return fmt::format("({}, {}, {})", i / b, i % b / c, i % c);
}

// Packed codes, lowest bits first.
std::vector<float> as_codes(std::span<const std::byte> bytes, uint32_t bits) {
	std::vector<float> r;
	for (const std::byte b : bytes) // little-endian words: code i of a byte is code i of the word, for 8 bits and less
		for (uint32_t at = 0; at < 8; at += bits) r.push_back(float(uint32_t(b) >> at & ((1u << bits) - 1)));
	return r;
}

// A value between two codes may take either; more than one in 200 of them is no rounding.
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

} // namespace

bool CheckedBackend::dumps(const char* op) const {
	if (dump_dir_.empty() || (!dump_op_.empty() && dump_op_ != op)) return false;
	return dump_layer_.empty() || (in_layer_ && dump_layer_ == fmt::format("{}", layer_));
}

void CheckedBackend::dump(const char* op, const char* name, const View& v) {
	if (!v || is_quantised(v.type) || v.elements() == 0) return;
	const NpyType type = v.type == DType::F32    ? NpyType::F32
	                     : v.type == DType::F16  ? NpyType::F16
	                     : v.type == DType::BF16 ? NpyType::U16
	                                             : NpyType::U32;
	size_t dims = 4;
	while (dims > 1 && v.shape[dims - 1] == 1) --dims;
	const std::vector<uint64_t> shape(v.shape, v.shape + dims);
	const std::string layer = in_layer_ ? fmt::format("L{}_", layer_) : "";
	npy_write(std::filesystem::path(dump_dir_) / fmt::format("{:06}_{}{}_{}.npy", n_ops_, layer, op, name), type, shape,
	          fetch(*inner_, inner(v)));
}

template <class F>
void CheckedBackend::run(const char* op, std::string shape, std::vector<Named> in, std::vector<Output> out, F f) {
	const bool dumped = dumps(op);
	if (dumped)
		for (const Named& n : in) dump(op, n.name, n.view);
	f(*inner_, false);
	if (reference_) f(*reference_, true);
	if (dumped)
		for (const Output& o : out) dump(op, o.name, o.view);
	for (const Output& o : out) compare_output(op, shape, o);
	++n_ops_;
}

void CheckedBackend::compare_output(const char* op, const std::string& shape, const Output& o) {
	const std::vector<std::byte> bytes = fetch(*inner_, inner(o.view));
	const auto values = [&](std::span<const std::byte> b) {
		return o.bits ? as_codes(b, o.bits) : as_floats(o.view, b);
	};
	std::vector<float> x = values(bytes), ref = x;
	if (reference_) ref = values(fetch(*reference_, reference(o.view)));
	if (o.cache) // equal slots, written or not, need no look; what was written must be a number
		for (size_t i = 0; i < x.size(); ++i)
			if (std::memcmp(&x[i], &ref[i], 4) == 0 || (std::isnan(x[i]) && std::isnan(ref[i]))) x[i] = ref[i] = 0;
	const Difference d = o.bits ? compare_codes(x, ref) : compare(x, ref, o.tolerance);
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
	if (reference_) {
		const View r = reference(o.view);
		reference_->write(*r.buf, r.at, bytes);
	}
}

Proj CheckedBackend::translate(const Proj& p, bool to_reference) const {
	if (to_reference) return {reference(p.out), reference_weight(p.w), reference(p.bias)};
	return {inner(p.out), inner(p.w), inner(p.bias)};
}

KvDst CheckedBackend::translate(const KvDst& d, bool to_reference) const {
	if (to_reference) return {reference(d.k), reference(d.v), reference(d.at), d.k_word_stride};
	return {inner(d.k), inner(d.v), inner(d.at), d.k_word_stride};
}

std::vector<uint32_t> CheckedBackend::fetch_words(const View& v) {
	const std::vector<std::byte> bytes = fetch(*inner_, inner(v));
	std::vector<uint32_t> r(bytes.size() / 4);
	std::memcpy(r.data(), bytes.data(), bytes.size());
	return r;
}

void CheckedBackend::add_span(std::vector<Output>& out, const char* name, const View& pool,
                              std::span<const uint32_t> work, size_t stride, size_t field, uint32_t n, uint32_t bits) {
	size_t first = SIZE_MAX, end = 0;
	for (size_t i = field; i < work.size(); i += stride)
		if (work[i] != kSkip) first = std::min(first, size_t(work[i])), end = std::max(end, size_t(work[i]) + n);
	if (end == 0) return;
	KV_ASSERT(pool && end <= pool.elements());
	out.push_back(
	    {name, view(*pool.buf, pool.at + first * 4, DType::U32, uint32_t(end - first)), tolerance("kv"), true, bits});
}

// The words of k and v from the first to the last that the op writes, as `at` has them now.
std::vector<CheckedBackend::Output> CheckedBackend::cache_outputs(const KvDst& d, uint32_t n_kv_heads,
                                                                  uint32_t head_dim) {
	const std::vector<uint32_t> at = fetch_words(d.at);
	KV_ASSERT(at.size() >= size_t(n_kv_heads) * 2);
	const View* views[2] = {&d.k, &d.v};
	std::vector<Output> r;
	for (size_t i = 0; i < 2; ++i) {
		size_t first = SIZE_MAX, end = 0;
		const size_t last_word = size_t(head_dim / 2 - 1) * (i == 0 ? d.k_word_stride : 1);
		for (size_t j = i; j < at.size(); j += 2) {
			if (at[j] == kSkip) continue;
			first = std::min(first, size_t(at[j]));
			end = std::max(end, at[j] + last_word + 1);
		}
		if (end == 0) continue;                 // nothing is stored
		KV_ASSERT(end <= views[i]->elements()); // `at` points outside the view
		r.push_back({i == 0 ? "dst.k" : "dst.v",
		             view(*views[i]->buf, views[i]->at + first * 4, DType::U32, uint32_t(end - first)), tolerance("kv"),
		             true});
	}
	return r;
}

// ---- CheckedBackend: the ops

void CheckedBackend::embed(View out, View table, View tokens) {
	check_embed(out, table, tokens);
	run("embed", fmt::format("{} of {} {}", shape_text(out), dtype_info(table.type).name, shape_text(table)),
	    {{"tokens", tokens}}, {{"out", out, tolerance("embed"), false}}, [&](Backend& b, bool to_reference) {
		    if (to_reference)
			    b.embed(reference(out), reference_weight(table), reference(tokens));
		    else
			    b.embed(inner(out), inner(table), inner(tokens));
	    });
}

void CheckedBackend::rmsnorm(View out, View x, View w, float eps) {
	check_rmsnorm(out, x, w);
	run("rmsnorm", shape_text(x), {{"x", x}, {"w", w}}, {{"out", out, tolerance("rmsnorm"), false}},
	    [&](Backend& b, bool to_reference) {
		    if (to_reference)
			    b.rmsnorm(reference(out), reference(x), reference_weight(w), eps);
		    else
			    b.rmsnorm(inner(out), inner(x), inner(w), eps);
	    });
}

void CheckedBackend::matmul(std::span<const Proj> projs, View x, Epilogue epilogue, bool decode) {
	check_matmul(projs, x, epilogue, decode);
	const char* op = decode ? "matvec" : "matmul";
	std::vector<Named> in = {{"x", x}};
	std::vector<Output> out;
	std::string shape = fmt::format("x {}", shape_text(x));
	for (const Proj& p : projs) {
		shape += fmt::format(" w {} {}", dtype_info(p.w.type).name, shape_text(p.w));
		if (p.bias) in.push_back({"bias", p.bias});
		if (epilogue == Epilogue::Add) in.push_back({"out_before", p.out});
		if (epilogue == Epilogue::SwiGLU && &p != &projs[0]) continue;
		out.push_back({"out", p.out, tolerance(epilogue == Epilogue::SwiGLU ? "swiglu" : op), false});
	}
	run(op, shape, std::move(in), std::move(out), [&](Backend& b, bool to_reference) {
		std::vector<Proj> p;
		for (const Proj& from : projs) p.push_back(translate(from, to_reference));
		b.matmul(p, to_reference ? reference(x) : inner(x), epilogue, decode);
	});
}

void CheckedBackend::rope_store(View q, View k, View v, const RopeArgs& rope, const HeadNorm& norm, const KvDst& dst) {
	check_rope_store(q, k, v, rope, norm, dst);
	std::vector<Output> out = cache_outputs(dst, k.shape[1], k.shape[2]);
	out.insert(out.begin(), {"q", q, tolerance("rope"), false});
	const std::string shape =
	    fmt::format("q {} k {} rotary {}{}", shape_text(q), shape_text(k), rope.rotary_dim, rope.neox ? " neox" : "");
	run("rope_store", shape, {{"q_before", q}, {"k", k}, {"v", v}, {"table", rope.table}, {"at", dst.at}},
	    std::move(out), [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.rope_store(map(q), map(k), map(v), {map(rope.table), rope.rotary_dim, rope.neox},
		                 {map(norm.q), map(norm.k), norm.eps}, translate(dst, to_reference));
	    });
}

void CheckedBackend::kv_store(const PromptKv& src, uint32_t n, const KvDst& dst) {
	check_kv_store(src, n, dst);
	run("kv_store", fmt::format("{} of {}", n, shape_text(src.k)), {{"at", dst.at}},
	    cache_outputs(dst, src.k.shape[0], src.k.shape[2]), [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.kv_store({map(src.k), map(src.v), src.first}, n, translate(dst, to_reference));
	    });
}

void CheckedBackend::kv_load(const PromptKv& dst, uint32_t n, const KvDst& src) {
	check_kv_store(dst, n, src);
	std::vector<Output> out = {{"dst.k", dst.k, tolerance("copy"), true}, {"dst.v", dst.v, tolerance("copy"), true}};
	run("kv_load", fmt::format("{} of {}", n, shape_text(dst.k)), {{"at", src.at}}, std::move(out),
	    [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.kv_load({map(dst.k), map(dst.v), dst.first}, n, translate(src, to_reference));
	    });
}

void CheckedBackend::attend(View out, View q, const KvRead& kv) {
	check_attend(out, q, kv);
	const std::string shape = fmt::format("q {} kv heads {} work {} pages {}", shape_text(q), kv.n_kv_heads,
	                                      kv.work.shape[0], kv.pages.shape[0]);
	std::vector<Output> outs = {{"out", out, tolerance("attend"), false}};
	if (kv.lse) outs.push_back({"lse", kv.lse, tolerance("attend"), true}); // -inf for a row that sees nothing
	run("attend", shape,
	    {{"q", q}, {"work", kv.work}, {"pages", kv.pages}, {"live", kv.live}, {"row_parts", kv.row_parts}},
	    std::move(outs), [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.attend(map(out), map(q), ReadViews(kv, map).kv);
	    });
}

void CheckedBackend::attend_prompt(View out, View q, const PromptKv& own, const KvRead* older) {
	check_attend_prompt(out, q, own, older);
	const std::string shape = fmt::format("q {} after {} of {}{}", shape_text(q), own.first, shape_text(own.k),
	                                      older ? fmt::format(" and {} pages", older->pages.shape[0]) : "");
	std::vector<Output> outs = {{"out", out, tolerance("attend_prompt"), false}};
	if (own.lse) outs.push_back({"lse", own.lse, tolerance("attend_prompt"), false});
	run("attend_prompt", shape, {{"q", q}}, std::move(outs), [&](Backend& b, bool to_reference) {
		const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		const PromptKv kv{map(own.k), map(own.v), own.first, map(own.lse)};
		if (!older) return b.attend_prompt(map(out), map(q), kv, nullptr);
		const ReadViews read(*older, map);
		b.attend_prompt(map(out), map(q), kv, &read.kv);
	});
}

void CheckedBackend::copy(View dst, View src) {
	check_copy(dst, src);
	std::vector<Output> out;
	if (dst.type == DType::F32) out.push_back({"dst", dst, tolerance("copy"), false});
	run("copy", shape_text(dst), {{"src", src}}, std::move(out), [&](Backend& b, bool to_reference) {
		if (to_reference)
			b.copy(reference(dst), reference(src));
		else
			b.copy(inner(dst), inner(src));
	});
}

void CheckedBackend::kv_pack(const PromptKv& src, const PackArgs& a) {
	check_kv_pack(src, a);
	const std::vector<uint32_t> work = fetch_words(a.work);
	const uint32_t n_kv = src.k.shape[0], D = src.k.shape[2];
	const Quant &k = a.format.k, &v = a.format.v;
	const bool per_channel = k.scale == Scale::PerChannel;
	std::vector<Output> out; // parameters first: codes follow from them
	if (k.bits && !a.k_block)
		add_span(out, "k_params", a.k_params, work, 8, 6,
		         per_channel ? kv_channel_param_words(n_kv, D) : kv_token_param_words(n_kv, D, k.group, a.page), 0);
	if (v.bits) add_span(out, "v_params", a.v_params, work, 8, 7, kv_token_param_words(n_kv, D, v.group, a.page), 0);
	if (k.bits) add_span(out, "k_codes", a.k_codes, work, 8, 4, kv_code_words(n_kv, D, k.bits, a.page), k.bits);
	if (v.bits) add_span(out, "v_codes", a.v_codes, work, 8, 5, kv_code_words(n_kv, D, v.bits, a.page), v.bits);
	const std::string shape =
	    fmt::format("{} items of {} K {} bits V {} bits", a.work.shape[0], shape_text(src.k), k.bits, v.bits);
	run("kv_pack", shape, {{"sources", a.sources}, {"work", a.work}}, std::move(out),
	    [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    PackArgs m = a;
		    for (View* view : {&m.sources, &m.work, &m.k_codes, &m.v_codes, &m.k_params, &m.v_params, &m.factors,
		                       &m.v_factors, &m.balance})
			    *view = map(*view);
		    b.kv_pack({map(src.k), map(src.v), src.first}, m);
	    });
}

void CheckedBackend::kv_block(const PromptKv& src, const BlockArgs& a) {
	check_kv_block(src, a);
	const std::vector<uint32_t> work = fetch_words(a.work);
	const uint32_t n_kv = src.k.shape[0], D = src.k.shape[2];
	std::vector<Output> out;
	add_span(out, "k_params", a.words, work, 4, 2, kv_channel_param_words(n_kv, D), 0);
	add_span(out, "v_factors", a.words, work, 4, 3, kv_factor_words(n_kv, D), 0);
	run("kv_block", fmt::format("{} items of {}", a.work.shape[0], shape_text(src.k)),
	    {{"sources", a.sources}, {"work", a.work}}, std::move(out), [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    BlockArgs m = a;
		    for (View* view : {&m.sources, &m.work, &m.words, &m.balance}) *view = map(*view);
		    b.kv_block({map(src.k), map(src.v), src.first}, m);
	    });
}

void CheckedBackend::score_prompt(View score, View q, View rows, const PromptKv& kv) {
	check_score_prompt(score, q, rows, kv);
	run("score_prompt", fmt::format("q {} rows {} after {}", shape_text(q), rows.elements(), kv.first),
	    {{"q", q}, {"rows", rows}, {"lse", kv.lse}}, {{"score", score, tolerance("attend"), false}},
	    [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.score_prompt(map(score), map(q), map(rows), {map(kv.k), map(kv.v), kv.first, map(kv.lse)});
	    });
}

void CheckedBackend::score_slots(View score, View q, View rows, View lse, const KvRead& f16) {
	check_score_slots(score, q, rows, lse, f16);
	run("score_slots", fmt::format("q {} rows {} pages {}", shape_text(q), rows.elements(), f16.pages.shape[0]),
	    {{"q", q}, {"rows", rows}, {"lse", lse}}, {{"score", score, tolerance("attend"), false}},
	    [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.score_slots(map(score), map(q), map(rows), map(lse), ReadViews(f16, map).kv);
	    });
}

void CheckedBackend::channel_max(View out, View x) {
	check_channel_max(out, x);
	run("channel_max", shape_text(x), {{"x", x}}, {{"out", out, tolerance("copy"), false}},
	    [&](Backend& b, bool to_reference) {
		    if (to_reference)
			    b.channel_max(reference(out), reference(x));
		    else
			    b.channel_max(inner(out), inner(x));
	    });
}

void CheckedBackend::kv_balance(View out, View q_max, const PromptKv& k, uint32_t n) {
	check_kv_balance(out, q_max, k, n);
	run("kv_balance", fmt::format("{} of {}", n, shape_text(k.k)), {{"q_max", q_max}},
	    {{"out", out, tolerance("kv"), false}}, [&](Backend& b, bool to_reference) {
		    const auto map = [&](const View& view) { return to_reference ? reference(view) : inner(view); };
		    b.kv_balance(map(out), map(q_max), {map(k.k), map(k.v), k.first}, n);
	    });
}

std::unique_ptr<Backend> make_checked_backend(std::unique_ptr<Backend> inner, std::unique_ptr<Backend> reference) {
	return std::make_unique<CheckedBackend>(std::move(inner), std::move(reference));
}

} // namespace kvrun
