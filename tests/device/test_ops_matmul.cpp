// matmul as called by models: projections whose weights, biases and outs share buffers, on every kernel that a device
// may use, and weights larger than one binding.
#include "tests/support/caps_guard.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <cmath>
#include <fmt/ranges.h>

using namespace kvrun;

namespace {

constexpr float kEps = 1e-5f;

struct LayerRow { // the projections of one layer that share x
	DType type;
	uint32_t T, n;
	std::vector<uint32_t> d; // rows of each weight
	Epilogue epilogue = Epilogue::None;
	bool decode = false;
	DType last = {}; // type of the last weight, when it differs
	bool norm = false;
	std::string text() const {
		return fmt::format("{}{}: T {} n {} d {} {}{}, shared buffers, epilogue {}", norm ? "norm and " : "",
		                   decode ? "matvec" : "matmul", T, n, fmt::join(d, "+"), dtype_info(type).name,
		                   last != DType{} ? fmt::format(", last {}", dtype_info(last).name) : "", int(epilogue));
	}
	DType type_of(size_t i) const { return last != DType{} && i + 1 == d.size() ? last : type; }
};

struct Layer {
	LayerRow row;
	Random random;
	Floats x;
	std::vector<RandomWeight> w;
	std::vector<Floats> bias, before;
	Floats norm; // empty: x without norm

	Layer(const LayerRow& r, uint32_t seed)
	    : row(r), random(seed), x(random.normals(size_t(r.T) * r.n, 1 / std::sqrt(float(r.n)))) {
		for (size_t i = 0; i < r.d.size(); ++i) {
			w.push_back(random_weight(r.type_of(i), r.d[i], r.n, random));
			bias.push_back(random.normals(r.d[i]));
			before.push_back(random.normals(size_t(r.T) * r.d[i]));
		}
		if (!r.norm) return;
		norm = random.normals(r.n, 1 / std::sqrt(float(r.n)));
		for (size_t k = 0; k < x.size(); ++k)
			x[k] *= std::pow(30.f, float(k / r.n % 3)); // another row's norm would have an effect
	}
	std::vector<double> sums(Backend& b, size_t i) const {
		const Floats xs = rounded_x(b, row.decode, row.type_of(i), inputs()), ws = factors(b, row.decode, w[i].values);
		std::vector<double> y(size_t(row.T) * row.d[i]);
		for (uint32_t t = 0; t < row.T; ++t)
			for (uint32_t r = 0; r < row.d[i]; ++r) {
				double sum = double(bias[i][r]);
				for (uint32_t c = 0; c < row.n; ++c)
					sum += double(xs[size_t(t) * row.n + c]) * double(ws[size_t(r) * row.n + c]);
				y[size_t(t) * row.d[i] + r] = sum;
			}
		return y;
	}
	// The expected contents of out i.
	Floats expected(Backend& b, size_t i) const {
		std::vector<double> y = sums(b, i);
		if (row.epilogue == Epilogue::SwiGLU && i == 1) return before[i];
		if (row.epilogue == Epilogue::SwiGLU) {
			const std::vector<double> up = sums(b, 1);
			for (size_t k = 0; k < y.size(); ++k) y[k] = y[k] / (1 + std::exp(-y[k])) * up[k];
		}
		if (row.epilogue == Epilogue::Add)
			for (size_t k = 0; k < y.size(); ++k) y[k] += double(before[i][k]);
		return Floats(y.begin(), y.end());
	}
	// The factor of the weights: x, or its norm.
	Floats inputs() const {
		Floats h = x;
		for (uint32_t t = 0; t < row.T && !norm.empty(); ++t) {
			double sum = 0;
			for (uint32_t c = 0; c < row.n; ++c)
				sum += double(x[size_t(t) * row.n + c]) * double(x[size_t(t) * row.n + c]);
			const double scale = 1 / std::sqrt(sum / row.n + double(kEps));
			for (uint32_t c = 0; c < row.n; ++c)
				h[size_t(t) * row.n + c] = float(double(x[size_t(t) * row.n + c]) * scale * double(norm[c]));
		}
		return h;
	}
};

// Between inputs and outputs: descriptors start at multiples of up to 256 bytes, and synchronisation validation
// compares descriptors.
constexpr size_t kApart = 256;

size_t padded(size_t bytes) { return (bytes + 31) / 32 * 32; }

// Weights and biases in one buffer, x and the outs in another, in an order that is not the order of the projections.
void run_layer(Backend& backend, const Layer& l, const TestRow& row) {
	const size_t n = l.row.d.size();
	std::vector<size_t> w_at(n), bias_at(n), out_at(n);
	size_t weights = 0, acts = 0;
	for (size_t i = n; i-- > 0;) {
		bias_at[i] = weights + 32;
		w_at[i] = padded(bias_at[i] + 4 * size_t(l.row.d[i]));
		weights = w_at[i] + padded(l.row.d[i] * backend.weight_row_bytes(l.row.type_of(i), l.row.n));
		out_at[i] = acts + 36; // words, not pieces
		acts = padded(out_at[i] + 4 * l.before[i].size());
		if (i == n - 1) acts += kApart + padded(4 * l.x.size()) + kApart; // x lies among the outs
	}
	const size_t x_at = padded(out_at[n - 1] + 4 * l.before[n - 1].size()) + kApart;
	const Buffer weight_buffer = backend.alloc(weights, Mem::Device, "weights"),
	             act_buffer = backend.alloc(acts, Mem::Device, "activations");
	const Floats filler(acts / 4, 7.5f);
	backend.write(act_buffer, 0, std::as_bytes(std::span(filler)));
	backend.write(act_buffer, x_at, std::as_bytes(std::span(l.x)));
	std::vector<Proj> projs;
	for (size_t i = 0; i < n; ++i) {
		const uint32_t d = l.row.d[i];
		Proj p{view(act_buffer, out_at[i], DType::F32, l.row.T, d),
		       view(weight_buffer, w_at[i], l.row.type_of(i), d, l.row.n),
		       view(weight_buffer, bias_at[i], DType::F32, d)};
		backend.write_weight(p.w, 0, d, l.w[i].rows(), {});
		backend.write(weight_buffer, bias_at[i], std::as_bytes(std::span(l.bias[i])));
		backend.write(act_buffer, out_at[i], std::as_bytes(std::span(l.before[i])));
		projs.push_back(p);
	}
	const View x = view(act_buffer, x_at, DType::F32, l.row.T, l.row.n);
	Rig rig(backend);
	if (l.row.norm)
		backend.norm_matmul(projs, rig.out(l.row.T, l.row.n), x, rig.f32(l.norm, l.row.n), kEps, l.row.epilogue,
		                    l.row.decode);
	else
		backend.matmul(projs, x, l.row.epilogue, l.row.decode);
	Floats all(acts / 4);
	backend.read(act_buffer, 0, std::as_writable_bytes(std::span(all)));
	backend.submit();
	backend.wait();
	Floats around = all, same = filler;
	std::copy(l.x.begin(), l.x.end(), same.begin() + ptrdiff_t(x_at / 4));
	for (size_t i = 0; i < n; ++i) {
		const auto at = ptrdiff_t(out_at[i] / 4);
		const size_t count = l.before[i].size();
		check_matmul(row, backend, l.row.decode, l.row.type_of(i), l.row.epilogue == Epilogue::SwiGLU,
		             std::span(all).subspan(size_t(at), count), l.expected(backend, i));
		std::fill_n(around.begin() + at, count, 0.f);
		std::fill_n(same.begin() + at, count, 0.f);
	}
	check_same_bits(row, around, same); // nothing else was written
}

std::vector<LayerRow> layer_rows() {
	std::vector<LayerRow> rows;
	for (DType t : kTensorTypes) {
		const uint32_t n = dtype_info(t).block == 256 ? 768 : whole_blocks(t, 352);
		for (uint32_t T : {1u, 3u, 8u, 37u}) { // each type has one epilogue: there are many types
			const bool decode = T <= 8;
			const size_t turn = rows.size() + size_t(T == 37);
			if (turn % 3 == 0) rows.push_back({t, T, n, {72, 40, 41}, Epilogue::None, decode, {}});
			if (turn % 3 == 1) rows.push_back({t, T, n, {77, 77}, Epilogue::SwiGLU, decode, {}});
			if (turn % 3 == 2) rows.push_back({t, T, n, {33, 65}, Epilogue::Add, decode, {}});
		}
	}
	// Several chunks of x in shared memory, the last one incomplete; fewer rows than a pipeline takes.
	for (DType t : {DType::Q8_0, DType::Q4_K, DType::Q6_K}) {
		const uint32_t n = dtype_info(t).block == 256 ? 2304 : 2144;
		rows.push_back({t, 11, n, {40, 33}, Epilogue::None, true, {}});
		rows.push_back({t, 16, n, {24, 24}, Epilogue::SwiGLU, true, {}});
		rows.push_back({t, 5, n, {24, 24}, Epilogue::SwiGLU, true, {}});
	}
	const size_t plain = rows.size();
	for (size_t i = 0; i < plain; ++i)
		if (rows[i].epilogue != Epilogue::Add) rows.push_back(rows[i]), rows.back().norm = true;
	for (bool decode : {true, false}) { // types of one file may differ between projections
		rows.push_back({DType::Q4_K, 4, 512, {48, 40, 40}, Epilogue::None, decode, DType::Q6_K});
		rows.push_back({DType::Q4_K, 4, 512, {48, 48}, Epilogue::SwiGLU, decode, DType::Q6_K});
		rows.push_back(
		    {DType::F16, 2, 64, {16, 16, 16, 16, 16}, Epilogue::None, decode, {}}); // more than a dispatch takes
		rows.push_back({DType::F32, 5, 172, {60, 60}, Epilogue::SwiGLU, decode, {}});
	}
	// Prompts that fill a device use larger tiles; at odd and at even row numbers, see below.
	for (DType t : {DType::F16, DType::Q8_0, DType::Q4_K, DType::Q6_K}) {
		rows.push_back({t, 200, 256, {2048, 50}, Epilogue::None, false, {}});
		rows.push_back({t, 131, 256, {1400, 1400}, Epilogue::SwiGLU, false, {}});
	}
	for (uint32_t d : {3u, 5u}) rows.push_back({DType::Q8_0, 33000, 32, {d}, Epilogue::None, false, {}});
	return rows;
}

} // namespace

TEST_CASE("ops: matmul of projections that share buffers, on every kernel") {
	const std::vector<LayerRow> rows = layer_rows();
	for (TestDevice& d : test_devices()) {
		for (size_t k = 0; k < caps_of(d.name).size(); ++k) {
			const char* caps = kCaps[k];
			if (!d.backend) continue;
			const CapsGuard guard(caps);
			const std::unique_ptr<Backend> own = *caps ? open_test_device(d.name) : nullptr;
			for (size_t i = 0; i < rows.size(); ++i) {
				if (!row_wanted(i) || (k && i % 2 != k % 2)) continue; // every second row on the other kernels
				const TestRow row{d.name, i, rows[i].text() + (*caps ? fmt::format(" with {}", caps) : "")};
				INFO(row_text(row));
				run_layer(own ? *own : *d.backend, Layer(rows[i], uint32_t(i) + 1), row);
			}
		}
	}
}

TEST_CASE("ops: weights larger than a binding go in pieces") {
	for (TestDevice& d : test_devices()) {
		if (!d.backend || has_own_caps()) continue;
		for (const char* caps : {"range=16777216,texel_range=16777216", "range=16777216,texel_range=0"}) {
			const CapsGuard guard(caps);
			const std::unique_ptr<Backend> backend = open_test_device(d.name);
			if (std::string_view(backend->name()) == "vulkan") REQUIRE(backend->info().max_view_bytes <= 16777216);
			// 17.3 MiB each
			const LayerRow rows[] = {{DType::F32, 2, 4096, {1105}, Epilogue::None, true, {}},
			                         {DType::F16, 9, 4096, {2210, 2210}, Epilogue::SwiGLU, false, {}},
			                         {DType::F32, 3, 4096, {1105, 7}, Epilogue::Add, false, {}}};
			for (size_t i = 0; i < std::size(rows); ++i) {
				if (!row_wanted(i)) continue;
				const TestRow row{d.name, i, rows[i].text() + " with " + caps};
				INFO(row_text(row));
				run_layer(*backend, Layer(rows[i], uint32_t(i) + 1), row);
			}
		}
	}
}
