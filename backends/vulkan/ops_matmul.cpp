// matmul on Vulkan: which projections are combined in one dispatch, which kernel computes them, and uploads of weights.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "backends/weight_rows.h"
#include "engine/core/iq_grids.h"
#include "shared/push.h"
#include <algorithm>
#include <array>

namespace kvrun::vk {
namespace {

constexpr size_t kMostTogether = 3; // projections of one dispatch

struct Job { // projections that one dispatch computes
	std::span<const Proj> projs;
	const MatmulX& in;
	uint32_t epilogue = MATMUL_STORE;
	bool decode = false;
	uint32_t tokens() const { return in.x.shape[0]; }
	uint32_t cols() const { return uint32_t(in.x.row_elements()); }
	uint32_t rows() const {
		uint32_t n = 0;
		for (const Proj& p : projs) n += p.w.shape[0];
		return n;
	}
};

struct Span { // bytes of one buffer that cover several views
	const Buffer* buf = nullptr;
	size_t begin = SIZE_MAX, end = 0;
	bool add(const View& v, size_t bytes) { // false: v is in another buffer
		if (!v) return true;
		if (buf && buf->id() != v.buf->id()) return false;
		buf = v.buf;
		begin = std::min(begin, v.at);
		end = std::max(end, v.at + bytes);
		return true;
	}
	size_t bytes() const { return buf ? end - begin : 0; }
	Bind bind() const { return buf ? Bind{buf->id(), begin, end - begin} : Bind{}; }
};
struct Spans {
	Span out, w, bias;
};

// Whether all of them can be bound at once; with SwiGLU only the first has an output.
bool cover(const Caps& c, std::span<const Proj> projs, bool swiglu, Spans& s) {
	for (size_t i = 0; i < projs.size(); ++i) {
		const Proj& p = projs[i];
		const bool with_out = !swiglu || i == 0;
		if (p.w.type != projs[0].w.type || !s.w.add(p.w, device_weight_bytes(p.w)) ||
		    !s.bias.add(p.bias, 4 * size_t(p.w.shape[0])) ||
		    !(with_out ? s.out.add(p.out, 4 * p.out.elements()) : true))
			return false;
	}
	constexpr uint64_t slack = 256; // largest loss by offset alignment
	return s.w.bytes() + slack <= weight_range(c) && s.out.bytes() + slack <= c.range &&
	       s.bias.bytes() + slack <= c.range;
}

// The number of leading projections that one dispatch can take.
size_t together(const Caps& c, std::span<const Proj> projs, Spans& s) {
	size_t n = 1;
	s = {};
	cover(c, projs.first(1), false, s);
	for (; n < std::min(projs.size(), kMostTogether); ++n) {
		Spans more;
		if (!cover(c, projs.first(n + 1), false, more)) break;
		s = more;
	}
	return n;
}

void record(Kernels& kernels, Recorder& rec, const Caps& c, const Job& job, const Spans& s, bool continues) {
	const DType type = job.projs[0].w.type;
	const MatmulChoice how =
	    choose_matmul(c, type, job.rows(), job.cols(), job.tokens(), job.epilogue, job.decode, bool(job.in.norm));
	MatmulPush push{};
	push.cols = job.cols();
	push.tokens = job.tokens();
	push.groups = how.groups.x;
	push.eps = job.in.eps;
	for (size_t i = 0; i < job.projs.size(); ++i) {
		const Proj& p = job.projs[i];
		push.rows[i] = p.w.shape[0];
		push.w_at[i] = uint32_t((p.w.at - s.w.begin) / 16);
		push.stride[i] = p.out ? uint32_t(p.out.row_elements()) : 0;
		push.out_at[i] = p.out && p.out.at >= s.out.begin ? uint32_t((p.out.at - s.out.begin) / 4) : 0;
		push.bias_at[i] = p.bias ? uint32_t((p.bias.at - s.bias.begin) / 4) : 0;
		push.bias |= uint32_t(bool(p.bias)) << i;
	}
	const double in = double(job.cols()) * job.tokens(), out = double(job.rows()) * job.tokens();
	Pipeline& p = kernels.get(how.kernel, how.spec);
	const bool rounded = job.decode && projects_in_int8(c, type) && rounds_first(c, job.tokens());
	const RowsOfX taken = rounded ? RowsOfX::Bytes : rows_of_x(how.kernel);
	std::array<Bind, 6> binds{s.out.bind(), s.w.bind(), bind(taken == RowsOfX::Floats ? job.in.x : job.in.rounded),
	                          s.bias.bind(),
	                          bind(taken == RowsOfX::Bytes ? job.in.units : job.in.norm)}; // the norm: matvec kernels
	const size_t n_binds = p.reflection->bindings.size();
	if (uses_grid(type)) binds[n_binds - 1] = bind(job.in.grids);
	rec.dispatch(p, push, std::span(binds).first(n_binds), how.groups,
	             {.label = job.decode ? "matvec" : "matmul",
	              .bytes = double(s.w.bytes()) + 4 * (in + out * (job.epilogue == MATMUL_STORE ? 1 : 2)),
	              .flops = 2.0 * double(job.rows()) * in,
	              .continues = continues});
}

} // namespace

size_t VulkanBackend::weight_row_bytes(DType t, uint32_t cols) const { return device_row_bytes(t, cols); }

bool VulkanBackend::arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const {
	to_device_rows(t, cols, src, dst);
	return true;
}

void VulkanBackend::write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                                 std::span<const std::byte> arranged) {
	write_device_rows(w, row, n, src, arranged,
	                  [&](size_t at, std::span<const std::byte> bytes) { rec_.write(w.buf->id(), at, bytes); });
}

// Kernels read x in quads, so a view that is not aligned to 16 bytes is copied first. Sessions have no such views.
View VulkanBackend::aligned_rows(View x) {
	if (x.at % 16 == 0) return x;
	const size_t bytes = 4 * x.elements();
	if (aligned_.bytes() < bytes) aligned_ = alloc(bytes, Mem::Device, "aligned rows of x");
	const View out = view(aligned_, 0, DType::F32, x.shape[0], uint32_t(x.row_elements()));
	rec_.copy(bind(out), bind(x));
	return out;
}

// The table for types with grids, made when the first such weight is read.
View VulkanBackend::grids() {
	const std::span<const uint32_t> words = iq_grids();
	if (!grids_) {
		grids_ = alloc(words.size_bytes(), Mem::Device, "grids of IQ types");
		rec_.write(grids_.id(), 0, std::as_bytes(words));
	}
	return view(grids_, 0, DType::U32, uint32_t(words.size()));
}

// Computes what kernels of prompts read in place of x; valid until the next call.
void VulkanBackend::prepare_rows(MatmulX& in, std::span<const Proj> projs) {
	if (uses_matrices(caps()))
		halve_rows(in);
	else if (std::ranges::any_of(projs, [&](const Proj& p) { return multiplies_in_int8(caps(), p.w.type); }))
		round_rows(in);
}
void VulkanBackend::halve_rows(MatmulX& in) {
	const uint32_t rows = in.x.shape[0], cols = uint32_t(in.x.row_elements()), across = std::min(rows, kMostRows);
	const uint32_t pieces = ceil_div(cols, KV_HALVE_ELEMENTS) * (KV_HALVE_ELEMENTS / 8);
	const size_t bytes = size_t(rows) * pieces * 16;
	if (rounded_.bytes() < bytes) rounded_ = alloc(bytes, Mem::Device, "rows of x as f16");
	in.rounded = view(rounded_, 0, DType::U32, rows, pieces, 4);
	rec_.dispatch(pipeline(choose_halve_rows()),
	              HalveRowsPush{.cols = cols, .pieces = pieces, .rows = rows, .row_stride = across},
	              {bind(in.rounded), bind(in.x)}, {ceil_div(pieces, kHalvePieces), across, ceil_div(rows, kMostRows)},
	              {.label = "halve_rows", .bytes = 4.0 * double(in.x.elements()) + double(bytes)});
}
void VulkanBackend::round_rows(MatmulX& in) {
	const uint32_t rows = in.x.shape[0], cols = uint32_t(in.x.row_elements()), blocks = cols / 32;
	const uint32_t across = std::min(rows, kMostRows);
	const size_t codes = align_up(size_t(rows) * cols, 256), units = size_t(rows) * blocks * 8;
	if (rounded_.bytes() < codes + units) rounded_ = alloc(codes + units, Mem::Device, "rows of x as int8");
	in.rounded = view(rounded_, 0, DType::U32, blocks, rows, 8);
	in.units = view(rounded_, codes, DType::F32, blocks, rows, 2);
	rec_.dispatch(pipeline(choose_round_rows()), RoundRowsPush{.blocks = blocks, .rows = rows, .row_stride = across},
	              {bind(in.rounded), bind(in.units), bind(in.x)},
	              {ceil_div(blocks, kRoundBlocks), across, ceil_div(rows, kMostRows)},
	              {.label = "round_rows", .bytes = 4.0 * double(in.x.elements()) + double(codes + units)});
}

// The same for matvec_int8.comp.
void VulkanBackend::round_vec(MatmulX& in) {
	const uint32_t n = int8_cols(in.x.shape[0]), blocks = uint32_t(in.x.row_elements()) / 32;
	const size_t tiles = ceil_div(blocks, 32u), codes = tiles * n * 1024, units = tiles * n * 256 + n * 16;
	if (rounded_.bytes() < codes + units) rounded_ = alloc(codes + units, Mem::Device, "rows of x as int8");
	in.rounded = view(rounded_, 0, DType::U32, uint32_t(codes / 4));
	in.units = view(rounded_, codes, DType::U32, uint32_t(units / 4));
	rec_.dispatch(pipeline(choose_round_vec(caps(), bool(in.norm))),
	              RoundVecPush{.blocks = blocks, .rows = in.x.shape[0], .cols = n, .eps = in.eps},
	              {bind(in.rounded), bind(in.units), bind(in.x), bind(in.norm ? in.norm : in.x)}, {1, n, 1},
	              {.label = "round_vec", .bytes = 4.0 * double(in.x.elements()) + double(codes + units)});
}

void VulkanBackend::compute(const op::Matmul& o) {
	const auto& [projs, x, epilogue, decode] = o;
	multiply(projs, {.x = x}, epilogue, decode);
}

bool VulkanBackend::norms_in_matmul(const op::NormMatmul& o) const {
	const auto fits = [&](const Proj& p) { return fuses_norm(caps(), p.w.type); };
	return o.decode && std::ranges::all_of(o.projs, fits) && aligned16({o.x, o.w});
}

void VulkanBackend::compute(const op::NormMatmul& o) {
	if (norms_in_matmul(o)) return multiply(o.projs, {.x = o.x, .norm = o.w, .eps = o.eps}, o.epilogue, o.decode);
	compute(o.norm());
	compute(o.product());
}

void VulkanBackend::multiply(std::span<const Proj> projs, MatmulX in, Epilogue epilogue, bool decode) {
	const Caps& c = caps();
	const View x = in.x;
	uint32_t most = UINT32_MAX;
	if (decode && !reads_texels(c))
		for (const Proj& p : projs) most = std::min(most, matvec_tokens(c, p.w.type));
	if (x.shape[0] > most) { // a row's bits are the same in smaller steps
		for (uint32_t first = 0; first < x.shape[0]; first += most) {
			const uint32_t n = std::min(most, x.shape[0] - first);
			std::vector<Proj> part(projs.begin(), projs.end());
			for (Proj& p : part)
				if (p.out) p.out = rows(p.out, first, n);
			multiply(part, {.x = rows(x, first, n), .norm = in.norm, .eps = in.eps}, epilogue, decode);
		}
		return;
	}
	if (x.row_elements() % 4)
		fail(Code::Unsupported, "matmul: rows of {} elements, Vulkan kernels need a multiple of 4", x.row_elements());
	in.x = aligned_rows(x);
	if (std::ranges::any_of(projs, [](const Proj& p) { return uses_grid(p.w.type); })) in.grids = grids();
	if (!decode) prepare_rows(in, projs);
	if (decode && rounds_first(c, x.shape[0]) &&
	    std::ranges::any_of(projs, [&](const Proj& p) { return projects_in_int8(c, p.w.type); }))
		round_vec(in);
	Spans s;
	if (epilogue == Epilogue::SwiGLU) {
		if (cover(c, projs, true, s)) return record(kernels_, rec_, c, {projs, in, MATMUL_SWIGLU, decode}, s, false);
		const Proj up{projs[0].out, projs[1].w, projs[1].bias}; // separately: first g, then out = silu(out) * u
		project(projs[0], in, MATMUL_STORE, decode);
		project(up, in, MATMUL_GATE, decode);
		return;
	}
	const uint32_t kind = epilogue == Epilogue::Add ? MATMUL_ADD : MATMUL_STORE;
	while (!projs.empty()) {
		const size_t n = together(c, projs, s);
		if (n == 1)
			project(projs[0], in, kind, decode);
		else
			record(kernels_, rec_, c, {projs.first(n), in, kind, decode}, s, false);
		projs = projs.subspan(n);
	}
}

// One projection; a weight larger than a binding is multiplied in pieces of rows.
void VulkanBackend::project(const Proj& whole, const MatmulX& in, uint32_t epilogue, bool decode) {
	const Caps& c = caps();
	const size_t row_bytes = device_row_bytes(whole.w.type, uint32_t(whole.w.row_elements()));
	const uint32_t rows = whole.w.shape[0], most = rows_per_binding(row_bytes, weight_range(c));
	for (uint32_t first = 0; first < rows; first += most) {
		Proj p = whole;
		p.w.at += first * row_bytes;
		p.w.shape[0] = std::min(most, rows - first);
		Spans s;
		s.w.add(p.w, p.w.shape[0] * row_bytes);
		s.bias.add(p.bias, 4 * size_t(rows));
		s.out.add(p.out, 4 * p.out.elements());
		if (p.bias) p.bias.at += 4 * size_t(first);
		p.out.at += 4 * size_t(first);
		record(kernels_, rec_, c, {{&p, 1}, in, epilogue, decode}, s, first > 0);
	}
}

} // namespace kvrun::vk
