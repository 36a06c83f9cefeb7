// embed, norms, activate, matmul and copy on every device, over tables of shapes, against sums in double computed here.
#include "shared/candidates.h"
#include "tests/support/compare.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/ranges.h>

using namespace kvrun;

namespace {

struct EmbedRow {
	DType type;
	uint32_t T, dim, vocab;
	std::string text() const {
		return fmt::format("embed: T {} dim {} vocab {} {}", T, dim, vocab, dtype_info(type).name);
	}
};

struct NormRow {
	uint32_t T, dim, groups = 1; // rows of weights
	std::string text() const { return fmt::format("rmsnorm: T {} dim {} groups {}", T, dim, groups); }
};

struct MatmulRow {
	DType type;
	uint32_t T, n;           // rows of x, columns of every weight
	std::vector<uint32_t> d; // rows of each weight
	Epilogue epilogue = Epilogue::None;
	bool decode = false, bias = false;
	uint32_t first = 0; // the weights are rows [first, first + d) of larger ones
	std::string text() const {
		constexpr const char* names[] = {"", " add", " swiglu"};
		return fmt::format("{}: T {} n {} d {} {}{}{}{}", decode ? "matvec" : "matmul", T, n, fmt::join(d, "+"),
		                   dtype_info(type).name, names[int(epilogue)], bias ? " bias" : "",
		                   first ? fmt::format(" from row {}", first) : "");
	}
};

std::vector<MatmulRow> matmul_rows() {
	std::vector<MatmulRow> rows;
	constexpr uint32_t Ts[] = {1, 2, 7, 8, 9, 31, 32, 33}, ds[] = {64, 5, 33, 1, 130};
	constexpr uint32_t plain_n[] = {64, 172, 8, 288}, blocks_n[] = {2, 1, 3, 9}; // columns, or blocks of columns
	size_t i = 0;
	const auto cols = [&](DType t) {
		const uint32_t block = dtype_info(t).block;
		return block == 1 ? plain_n[i % 4] : block * std::min(blocks_n[i % 4], block == 256 ? 3u : 9u);
	};
	for (DType t : kTensorTypes) {
		++i; // each type has a third of the numbers of tokens, the next type another third
		for (uint32_t T : Ts)
			for (bool decode : {true, false}) {
				if (decode && T > 8) continue;
				if (++i % 3 == 0) rows.push_back({t, T, cols(t), {ds[i / 3 % 5]}, Epilogue::None, decode, false, 0});
			}
	}
	for (DType t : kTensorTypes)
		for (bool decode : {true, false})
			for (uint32_t T : {1u, decode ? 8u : 33u}) {
				++i;
				rows.push_back({t, T, cols(t), {ds[i % 5]}, Epilogue::Add, decode, i % 3 == 0, 0});
				rows.push_back({t, T, cols(t), {ds[i % 5], ds[i % 5]}, Epilogue::SwiGLU, decode, i % 3 == 1, 3});
				rows.push_back({t, T, cols(t), {64, 16, 16}, Epilogue::None, decode, i % 2 == 0, 7}); // q, k, v
			}
	rows.push_back({DType::Q8_0, 1, 32, {66000}, Epilogue::None, true, false, 0}); // more rows than a grid has in x
	rows.push_back({DType::Q8_0, 2, 32, {66000}, Epilogue::None, false, false, 0});
	rows.push_back({DType::Q4_K, 1, 4096, {48}, Epilogue::None, true, false, 0});
	rows.push_back({DType::Q6_K, 3, 2304, {40}, Epilogue::Add, true, false, 0});
	rows.push_back({DType::F16, 130, 576, {192}, Epilogue::None, false, false, 0});
	rows.push_back({DType::Q8_0, 65, 1536, {96, 96}, Epilogue::SwiGLU, false, false, 0});
	return rows;
}

// x (T, n) . w (rows of n from `first`)^T + bias, in double.
std::vector<double> matmul_reference(const MatmulRow& m, uint32_t d, const Floats& x, const Floats& w,
                                     const Floats& bias) {
	std::vector<double> y(size_t(m.T) * d);
	for (uint32_t t = 0; t < m.T; ++t)
		for (uint32_t r = 0; r < d; ++r) {
			double sum = bias.empty() ? 0 : double(bias[r]);
			for (uint32_t c = 0; c < m.n; ++c)
				sum += double(x[size_t(t) * m.n + c]) * double(w[size_t(m.first + r) * m.n + c]);
			y[size_t(t) * d + r] = sum;
		}
	return y;
}

void run_matmul(Backend& backend, const MatmulRow& m, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const Floats x = random.normals(size_t(m.T) * m.n, 1 / std::sqrt(float(m.n)));
	const View vx = rig.f32(x, m.T, m.n);
	std::vector<Proj> projs;
	std::vector<std::vector<double>> refs;
	for (uint32_t d : m.d) {
		const uint32_t all = m.first ? m.first + d + 2 : d; // rows of the weight that the view is a part of
		const RandomWeight w = random_weight(m.type, all, m.n, random);
		const Floats bias = m.bias ? random.normals(d) : Floats();
		Proj p{rig.out(m.T, d), rig.weight(m.type, w, all, m.n, m.first, m.first ? d : 0),
		       m.bias ? rig.f32(bias, d) : View()};
		refs.push_back(matmul_reference(m, d, rounded_x(backend, m.decode, m.type, x),
		                                factors(backend, m.decode, w.values), bias));
		if (m.epilogue == Epilogue::Add) {
			const Floats before = random.normals(size_t(m.T) * d);
			p.out = rig.f32(before, m.T, d);
			for (size_t i = 0; i < before.size(); ++i) refs.back()[i] += double(before[i]);
		}
		projs.push_back(p);
	}
	if (m.epilogue == Epilogue::SwiGLU) {
		for (size_t i = 0; i < refs[0].size(); ++i) refs[0][i] = refs[0][i] / (1 + std::exp(-refs[0][i])) * refs[1][i];
		projs[1].out = View();
	}
	backend.matmul(projs, vx, m.epilogue, m.decode);
	for (size_t i = 0; i < projs.size(); ++i) {
		if (!projs[i].out) continue;
		check_matmul(row, backend, m.decode, m.type, m.epilogue == Epilogue::SwiGLU, rig.get(projs[i].out),
		             Floats(refs[i].begin(), refs[i].end()));
	}
	check_same_bits(row, rig.get(vx), x);
}

} // namespace

TEST_CASE("ops: embed") {
	std::vector<EmbedRow> rows;
	for (DType t : kTensorTypes)
		for (uint32_t T : {1u, 3u, 33u})
			rows.push_back(
			    {t, T, dtype_info(t).block == 256 ? 512u : whole_blocks(t, T == 3 ? 96 : 64), T == 3 ? 1000u : 40u});
	each_row(rows, [](Backend& backend, const EmbedRow& e, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const RandomWeight w = random_weight(e.type, e.vocab, e.dim, random);
		Words tokens(e.T);
		for (uint32_t& t : tokens) t = random.below(e.vocab);
		tokens[0] = e.vocab - 1;
		if (e.T > 2) tokens[1] = 0, tokens[2] = tokens[0];
		Floats want;
		for (uint32_t t : tokens)
			want.insert(want.end(), &w.values[size_t(t) * e.dim], &w.values[size_t(t) * e.dim] + e.dim);
		const View out = rig.out(e.T, e.dim);
		backend.embed(out, rig.weight(e.type, w, e.vocab, e.dim), rig.u32(tokens, e.T));
		check_close(row, rig.get(out), want, "embed");
	});
}

TEST_CASE("ops: rmsnorm") {
	std::vector<NormRow> rows;
	for (uint32_t T : {1u, 2u, 8u, 33u})
		for (uint32_t dim : {8u, 64u, 172u, 576u, 1031u, 4096u}) rows.push_back({T, dim});
	for (uint32_t groups : {2u, 3u, 8u}) rows.push_back({24, 40, groups}), rows.push_back({24, 33, groups});
	each_row(rows, [](Backend& backend, const NormRow& n, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		// Rows of very different size, to detect another row's mean square.
		Floats x = random.normals(size_t(n.T) * n.dim), want(x.size());
		const Floats w = random.normals(size_t(n.groups) * n.dim);
		const float eps = 1e-5f;
		for (uint32_t t = 0; t < n.T; ++t) {
			double sum = 0;
			for (uint32_t c = 0; c < n.dim; ++c) {
				float& v = x[size_t(t) * n.dim + c];
				v *= std::pow(3.f, float(t % 5) - 2);
				sum += double(v) * double(v);
			}
			for (uint32_t c = 0; c < n.dim; ++c) {
				const size_t i = size_t(t) * n.dim + c;
				want[i] =
				    float(double(x[i]) / std::sqrt(sum / n.dim + double(eps)) * double(w[t % n.groups * n.dim + c]));
			}
		}
		const View out = rig.out(n.T, n.dim), vx = rig.f32(x, n.T, n.dim);
		backend.rmsnorm(out, vx, n.groups > 1 ? rig.f32(w, n.groups, n.dim) : rig.f32(w, n.dim), eps);
		check_close(row, rig.get(out), want, "rmsnorm");
		check_same_bits(row, rig.get(vx), x);
	});
}

TEST_CASE("ops: rmsnorm of zeros is zero") {
	struct Zero {
		std::string text() const { return "rmsnorm: T 2 dim 64 of zeros"; }
	};
	each_row(std::vector<Zero>(1), [](Backend& backend, const Zero&, const TestRow& row) {
		Rig rig(backend);
		const View out = rig.out(2, 64);
		backend.rmsnorm(out, rig.f32(Floats(128), 2, 64), rig.f32(Floats(64, 2.f), 64), 1e-6f);
		check_same_bits(row, rig.get(out), Floats(128));
	});
}

TEST_CASE("ops: layer_norm") {
	struct LayerNormRow {
		uint32_t T, dim;
		bool bias;
		uint32_t groups = 1;
		std::string text() const {
			return fmt::format("layer_norm: T {} dim {} groups {}{}", T, dim, groups, bias ? " bias" : "");
		}
	};
	std::vector<LayerNormRow> rows;
	for (uint32_t T : {1u, 3u, 33u})
		for (uint32_t dim : {8u, 172u, 1031u, 4096u}) rows.push_back({T, dim, T != 3});
	for (const bool bias : {false, true}) rows.push_back({35, 40, bias, 5});
	each_row(rows, [](Backend& backend, const LayerNormRow& n, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		Floats x = random.normals(size_t(n.T) * n.dim), want(x.size());
		const Floats w = random.normals(size_t(n.groups) * n.dim), b = random.normals(size_t(n.groups) * n.dim);
		const float eps = 1e-2f; // large compared with the smallest rows, so that it has an effect
		for (uint32_t t = 0; t < n.T; ++t) {
			const float* own = w.data() + size_t(t % n.groups) * n.dim;
			double sum = 0, squares = 0;
			for (uint32_t c = 0; c < n.dim; ++c) {
				float& v = x[size_t(t) * n.dim + c];
				v = (v + 0.5f) * std::pow(3.f, float(t % 5) - 2);
				sum += double(v);
			}
			const double mean = sum / n.dim;
			for (uint32_t c = 0; c < n.dim; ++c) squares += std::pow(double(x[size_t(t) * n.dim + c]) - mean, 2);
			for (uint32_t c = 0; c < n.dim; ++c) {
				const size_t i = size_t(t) * n.dim + c;
				want[i] = float((double(x[i]) - mean) / std::sqrt(squares / n.dim + double(eps)) * double(own[c]) +
				                (n.bias ? double(b[t % n.groups * n.dim + c]) : 0));
			}
		}
		const View out = rig.out(n.T, n.dim), vx = rig.f32(x, n.T, n.dim);
		backend.layer_norm(out, vx, rig.f32(w, n.groups, n.dim), n.bias ? rig.f32(b, n.groups, n.dim) : View(), eps);
		check_close(row, rig.get(out), want, "rmsnorm");
		check_same_bits(row, rig.get(vx), x);
		backend.layer_norm(vx, vx, rig.f32(w, n.groups, n.dim), n.bias ? rig.f32(b, n.groups, n.dim) : View(),
		                   eps); // in place
		check_close(row, rig.get(vx), want, "rmsnorm");
	});
}

TEST_CASE("ops: activate") {
	struct ActivateRow {
		uint32_t T, dim;
		Elementwise e;
		bool y, in_place;
		std::string text() const {
			return fmt::format("activate: T {} dim {} function {} scale {} cap {} each {}{}{}{}", T, dim,
			                   int(e.function), e.scale, e.cap, e.each, e.add ? " add" : "", y ? " times" : "",
			                   in_place ? " in place" : "");
		}
	};
	std::vector<ActivateRow> rows;
	for (const Activation f : {Activation::None, Activation::Silu, Activation::GeluTanh, Activation::Relu2,
	                           Activation::Sigmoid, Activation::Xielu, Activation::GeluQuick, Activation::Clamp,
	                           Activation::Softplus, Activation::Relu, Activation::Gelu})
		for (const bool y : {false, true}) {
			const Xielu published{0.8f, 0.9f, 0.5f, -1e-6f}, other{0.2f, 1.7f, 0.3f, -0.4f};
			const Range range{-0.6f, 0.9f}, half{-INFINITY, 0.3f};
			rows.push_back({3, 173, {.function = f, .xielu = other, .range = range}, y, true});
			rows.push_back(
			    {2, 4096, {.function = f, .scale = 0.25f, .add = true, .xielu = published, .range = half}, y, false});
			rows.push_back(
			    {1, 7, {.function = f, .scale = -3, .cap = 1.5f, .xielu = published, .range = range}, y, false});
		}
	rows.push_back({40, 1000, {.scale = 0.5f, .cap = 30}, false, true});
	for (const uint32_t each : {2u, 24u, 128u}) { // gates of heads
		rows.push_back({5, 3 * each, {.function = Activation::Softplus, .each = each}, true, false});
		rows.push_back({33, 6 * each, {.function = Activation::Sigmoid, .scale = 0.5f, .each = each}, true, false});
	}
	each_row(rows, [](Backend& backend, const ActivateRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const size_t n = size_t(r.T) * r.dim;
		Floats x = random.normals(n), y = random.normals(n), before = random.normals(n), want(n);
		const float extremes[] = {0, -0.f, 1e-6f, 30, -30, 100, -100}; // exp() of some is not finite
		for (size_t i = 0; i < 7 && i < n; ++i) x[i] = extremes[i];
		for (size_t i = 0; i < n; ++i) {
			const double a = double(x[i / r.e.each]);
			double v = a;
			if (r.e.function == Activation::Silu) v = a / (1 + std::exp(-a));
			if (r.e.function == Activation::GeluTanh)
				v = a / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (a + 0.044715 * a * a * a)));
			if (r.e.function == Activation::Relu2) v = std::pow(std::max(a, 0.), 2);
			if (r.e.function == Activation::Sigmoid) v = 1 / (1 + std::exp(-a));
			if (r.e.function == Activation::GeluQuick) v = a / (1 + std::exp(-1.702 * a));
			if (r.e.function == Activation::Clamp) v = std::clamp(a, double(r.e.range.low), double(r.e.range.high));
			if (r.e.function == Activation::Softplus) v = a > 30 ? a : std::log1p(std::exp(a));
			if (r.e.function == Activation::Relu) v = a > 0 ? a : 0;
			if (r.e.function == Activation::Gelu) v = a * std::erfc(-a / std::sqrt(2)) / 2;
			if (r.e.function == Activation::Xielu) {
				const Xielu& f = r.e.xielu;
				const double below = std::expm1(std::min(a, double(f.limit))) - a;
				v = double(f.linear) * a + (a > 0 ? double(f.positive) * a * a : double(f.negative) * below);
			}
			v *= double(r.e.scale) * (r.y ? double(y[i]) : 1);
			if (r.e.cap > 0) v = double(r.e.cap) * std::tanh(v / double(r.e.cap));
			want[i] = float(v + (r.e.add ? double(r.in_place ? x[i] : before[i]) : 0));
		}
		x.resize(n / r.e.each);
		const View vx = rig.f32(x, r.T, r.dim / r.e.each), out = r.in_place ? vx : rig.f32(before, r.T, r.dim);
		backend.activate(out, vx, r.y ? rig.f32(y, r.T, r.dim) : View(), r.e);
		check_close(row, rig.get(out), want, "activate");
		if (!r.in_place) check_same_bits(row, rig.get(vx), x);
	});
}

TEST_CASE("ops: matmul") { each_row(matmul_rows(), run_matmul); }

TEST_CASE("ops: a row of matmul has the same bits whatever rows come with it") {
	std::vector<MatmulRow> rows;
	for (DType t : kTensorTypes) {
		rows.push_back(
		    {t, 8, dtype_info(t).block == 256 ? 512u : whole_blocks(t, 320), {37}, Epilogue::None, true, false, 0});
		rows.push_back(
		    {t, 67, dtype_info(t).block == 256 ? 512u : whole_blocks(t, 320), {37}, Epilogue::None, false, false, 0});
		if (tensor_type_info(t).int8)
			rows.push_back({t,
			                19,
			                dtype_info(t).block == 256 ? 2304u : whole_blocks(t, 2144),
			                {37},
			                Epilogue::None,
			                true,
			                false,
			                0});
	}
	for (DType t : {DType::F16, DType::Q8_0, DType::Q4_K, DType::Q6_K}) // threads that take several parts of a row
		rows.push_back({t, 2, t == DType::F16 ? 4368u : 4352u, {37}, Epilogue::None, true, false, 0});
	each_row(rows, [](Backend& backend, const MatmulRow& m, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats x = random.normals(size_t(m.T) * m.n);
		const View vx = rig.f32(x, m.T, m.n),
		           w = rig.weight(m.type, random_weight(m.type, m.d[0], m.n, random), m.d[0], m.n);
		const View norm = rig.f32(random.normals(m.n), m.n), h = rig.out(m.T, m.n);
		for (const bool normed : {false, true}) {
			if (normed && !m.decode) continue;
			const auto multiply = [&](View out, View part) {
				const Proj p{out, w, {}};
				if (normed)
					backend.norm_matmul({&p, 1}, kvrun::rows(h, 0, part.shape[0]), part, norm, 1e-5f, m.epilogue,
					                    m.decode);
				else
					backend.matmul({&p, 1}, part, m.epilogue, m.decode);
			};
			const View once = rig.out(m.T, m.d[0]);
			multiply(once, vx);
			const Floats want = rig.get(once);
			for (uint32_t piece : {1u, 3u, 7u, 32u}) {
				if (piece >= m.T) continue;
				const View out = rig.out(m.T, m.d[0]);
				for (uint32_t t = 0; t < m.T; t += piece) {
					const uint32_t n = std::min(piece, m.T - t);
					multiply(kvrun::rows(out, t, n), kvrun::rows(vx, t, n));
				}
				check_same_bits({row.device, row.number,
				                 fmt::format("{}, {} rows at a time{}", row.text, piece, normed ? ", norm" : "")},
				                rig.get(out), want);
			}
		}
	});
}

TEST_CASE("ops: a NaN or an infinity in x shows in every output of its row, and in no other row") {
	std::vector<MatmulRow> rows;
	for (DType t : kTensorTypes)
		rows.push_back(
		    {t, 3, dtype_info(t).block == 256 ? 512u : whole_blocks(t, 320), {37}, Epilogue::None, true, false, 0});
	each_row(rows, [](Backend& backend, const MatmulRow& m, const TestRow& row) {
		for (const float wrong : {NAN, INFINITY}) {
			Random random(uint32_t(row.number) + 1);
			Rig rig(backend);
			Floats x = random.normals(size_t(m.T) * m.n);
			x[m.n + 77] = wrong;
			const Proj p{
			    rig.out(m.T, m.d[0]), rig.weight(m.type, random_weight(m.type, m.d[0], m.n, random), m.d[0], m.n), {}};
			backend.matmul({&p, 1}, rig.f32(x, m.T, m.n), m.epilogue, m.decode);
			const Floats got = rig.get(p.out);
			for (size_t i = 0; i < got.size(); ++i)
				CHECK_MESSAGE(std::isfinite(got[i]) == (i / m.d[0] != 1), row_text(row)
				                                                              << "\nelement " << i << ": " << got[i]);
		}
	});
}

TEST_CASE("ops: the largest elements of rows") {
	constexpr float inf = INFINITY, nan = NAN;
	struct Row {
		uint32_t rows, n, k;
		const char* kind;
		std::string text() const { return fmt::format("the {} largest of {} rows of {}, {}", k, rows, n, kind); }
	};
	const std::vector<Row> cases = {
	    {1, 1, 1, "normal"},        {2, 128, 1, "normal"},      {3, 129, 2, "normal"},  {1, 129, 3, "normal"},
	    {2, 32003, 41, "normal"},   {8, 128256, 41, "normal"},  {2, 6000, 1, "equal"},  {1, 400, 2, "equal"},
	    {2, 32000, 3, "rising"},    {1, 262144, 100, "normal"}, {1, 32000, 41, "nan"},  {1, 32000, 1, "-nan"},
	    {1, 32000, 41, "infinite"}, {1, 32000, 41, "few"},      {1, 32000, 1, "few"},   {1, 32000, 1, "none"},
	    {1, 700, 2, "zeros"},       {1, 65536, 128, "coarse"},  {1, 65536, 41, "dense"}};
	each_row(cases, [&](Backend& backend, const Row& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const std::string_view kind = r.kind;
		Floats x = random.normals(size_t(r.rows) * r.n);
		for (size_t i = 0; i < x.size(); ++i) {
			if (kind == "equal") x[i] = -2.5f;
			if (kind == "rising") x[i] = float(i % r.n);
			if (kind == "none" || (kind == "few" && i % 7000 != 3)) x[i] = -inf;
			if (kind == "zeros") x[i] = i % 3 == 0 ? -0.f : i % 3 == 1 ? 0.f : -1.f;
			if (kind == "coarse") x[i] = std::round(x[i] * 8) / 8;              // ties
			if (kind == "dense") x[i] += i >= 30000 && i < 30600 ? 100.f : 0.f; // more than a list holds
		}
		if (kind == "nan") x[r.n / 2] = nan;
		if (kind == "-nan") x[r.n - 1] = -nan;
		if (kind == "infinite") x[0] = inf;
		const uint32_t blocks = (r.n + KV_LOGIT_BLOCK - 1) / KV_LOGIT_BLOCK;
		const View list = rig.u32(Words(size_t(r.rows) * KV_CANDIDATE_WORDS, 7), r.rows, KV_CANDIDATE_WORDS);
		backend.candidates(list, rig.u32(Words(size_t(r.rows) * blocks), r.rows, blocks), rig.f32(x, r.rows, r.n), r.k);
		const Words got = rig.get_words(list);
		for (uint32_t i = 0; i < r.rows; ++i) {
			const Floats values(x.begin() + ptrdiff_t(i) * r.n, x.begin() + ptrdiff_t(i + 1) * r.n);
			Floats maxima;
			bool number = true;
			for (uint32_t t = 0; t < r.n; ++t) {
				if (t % KV_LOGIT_BLOCK == 0) maxima.push_back(values[t]);
				maxima.back() = std::max(maxima.back(), values[t]);
				number &= !std::isnan(values[t]) && values[t] != inf;
			}
			Words want;
			if (number && r.k <= blocks) {
				std::sort(maxima.begin(), maxima.end(), std::greater<>());
				for (uint32_t t = 0; t < r.n && maxima[r.k - 1] > -inf; ++t)
					if (values[t] >= maxima[r.k - 1])
						want.push_back(t), want.push_back(std::bit_cast<uint32_t>(values[t]));
			}
			const bool fits = !want.empty() && want.size() <= 2 * KV_CANDIDATES;
			CHECK(fits == (kind == "normal" || kind == "rising" || kind == "zeros" || kind == "coarse" ||
			               (kind == "equal" && r.n < 512) || (kind == "few" && r.k == 1)) *
			                  (r.k <= blocks));
			const uint32_t* from = &got[size_t(i) * KV_CANDIDATE_WORDS];
			REQUIRE(from[0] == (fits ? want.size() / 2 : KV_CANDIDATES + 1));
			if (fits) CHECK(std::equal(want.begin(), want.end(), from + 1));
		}
	});
}

TEST_CASE("ops: copy") {
	std::vector<NormRow> rows = {{1, 1}, {1, 7}, {3, 64}, {33, 100}, {5, 4097}};
	each_row(rows, [](Backend& backend, const NormRow& n, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats x = random.normals(size_t(n.T) * n.dim);
		const View out = rig.out(n.T, n.dim), src = rig.f32(x, n.T, n.dim);
		backend.copy(out, src);
		check_same_bits(row, rig.get(out), x);
		if (n.T < 2) return;
		const View part = rig.out(n.T - 1, n.dim); // rows [1, T)
		backend.copy(part, kvrun::rows(src, 1, n.T - 1));
		check_same_bits(row, rig.get(part), Floats(x.begin() + n.dim, x.end()));
	});
}

TEST_CASE("ops: writes and reads keep their order with ops") {
	struct Order {
		std::string text() const { return "write, copy, write, read"; }
	};
	each_row(std::vector<Order>(1), [](Backend& backend, const Order&, const TestRow& row) {
		Rig rig(backend);
		const Floats a(64, 1.f), b(64, 2.f);
		const View x = rig.f32(a, 64), y = rig.out(64), z = rig.out(64);
		Floats first(64), second(64), third(64);
		backend.copy(y, x);
		backend.read(*y.buf, y.at, std::as_writable_bytes(std::span(first)));
		backend.write(*x.buf, x.at, std::as_bytes(std::span(b)));
		backend.copy(z, x);
		backend.read(*z.buf, z.at, std::as_writable_bytes(std::span(second)));
		backend.submit();
		backend.copy(x, y);
		backend.read(*x.buf, x.at, std::as_writable_bytes(std::span(third)));
		backend.submit();
		backend.wait();
		check_same_bits(row, first, a);
		check_same_bits(row, second, b);
		check_same_bits(row, third, a);
	});
}

TEST_CASE("ops: new memory is zero, used before or not") {
	if (const char* poison = std::getenv("KVRUN_POISON"); poison && *poison == '1') return; // then the memory is NaN
	struct Zero {
		std::string text() const { return "alloc, write, free, alloc"; }
	};
	each_row(std::vector<Zero>(1), [](Backend& backend, const Zero&, const TestRow& row) {
		for (int round = 0; round < 3; ++round)
			for (Mem mem : {Mem::Device, Mem::Upload, Mem::Readback}) {
				const Floats ones(5000, 1.f);
				Floats back(5000, 3.f);
				const Buffer b = backend.alloc(20000, mem, "zero");
				backend.read(b, 0, std::as_writable_bytes(std::span(back)));
				backend.submit();
				backend.wait();
				check_same_bits(row, back, Floats(5000));
				if (mem != Mem::Readback) backend.write(b, 0, std::as_bytes(std::span(ones)));
				backend.submit();
				backend.wait();
			}
	});
}
