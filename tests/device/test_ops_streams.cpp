// match_rms, gaussian_top_k, stream_sum, stream_mix, stream_gate, stream_coefs, stream_attend against sums in double.
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

struct RowsCase {
	uint32_t T, dim;
	bool in_place;
	std::string text() const { return fmt::format("T {} dim {}{}", T, dim, in_place ? " in place" : ""); }
};

std::vector<RowsCase> cases() {
	std::vector<RowsCase> rows;
	for (const uint32_t T : {1u, 3u, 33u})
		for (const uint32_t dim : {8u, 172u, 1031u, 4096u}) rows.push_back({T, dim, T == 3});
	return rows;
}

double rms(const Floats& x, size_t row, uint32_t dim, double eps) {
	double squares = 0;
	for (uint32_t c = 0; c < dim; ++c) squares += double(x[row * dim + c]) * double(x[row * dim + c]);
	return std::sqrt(squares / dim + eps);
}

} // namespace

TEST_CASE("ops: match_rms") {
	each_row(cases(), [](Backend& backend, const RowsCase& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const float eps = 1e-2f;
		Floats x = random.normals(size_t(r.T) * r.dim), like = random.normals(x.size(), 3.f), want(x.size());
		const Floats w = random.normals(r.dim);
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t c = 0; c < r.dim; ++c) x[size_t(t) * r.dim + c] *= std::pow(3.f, float(t % 5) - 2);
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t c = 0; c < r.dim; ++c) {
				const size_t i = size_t(t) * r.dim + c;
				want[i] = float(double(x[i]) * double(w[c]) * rms(like, t, r.dim, double(eps)) /
				                rms(x, t, r.dim, double(eps)));
			}
		const View vx = rig.f32(x, r.T, r.dim), out = r.in_place ? vx : rig.out(r.T, r.dim);
		const View vw = rig.f32(w, r.dim);
		backend.match_rms(out, vx, vw, rig.f32(like, r.T, r.dim), eps);
		check_close(row, rig.get(out), want, "rmsnorm");
		// Rows like themselves are only weighed; rows of zeros stay zero.
		const View same = rig.f32(x, r.T, r.dim), zero = rig.f32(Floats(x.size()), r.T, r.dim);
		for (size_t i = 0; i < want.size(); ++i) want[i] = x[i] * w[i % r.dim];
		backend.match_rms(same, same, vw, same, 1e-20f);
		check_close(row, rig.get(same), want, "rmsnorm");
		backend.match_rms(zero, zero, vw, zero, 1e-20f);
		check_close(row, rig.get(zero), Floats(x.size()), "rmsnorm"); // not NaN
	});
}

TEST_CASE("ops: gaussian_top_k") {
	each_row(cases(), [](Backend& backend, const RowsCase& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		Floats x = random.normals(size_t(r.T) * r.dim), want(x.size());
		const float cut = row.number % 2 ? 1.6448533f : -0.3f;
		size_t left = 0;
		for (uint32_t t = 0; t < r.T; ++t) {
			double sum = 0, squares = 0;
			for (uint32_t c = 0; c < r.dim; ++c) {
				float& v = x[size_t(t) * r.dim + c];
				v = (v + 0.5f) * std::pow(3.f, float(t % 5) - 2);
				sum += double(v);
			}
			const double mean = sum / r.dim;
			for (uint32_t c = 0; c < r.dim; ++c) squares += std::pow(double(x[size_t(t) * r.dim + c]) - mean, 2);
			const double low = mean + double(cut) * std::sqrt(squares / r.dim);
			for (uint32_t c = 0; c < r.dim; ++c) {
				const size_t i = size_t(t) * r.dim + c;
				want[i] = float(std::max(double(x[i]) - low, 0.));
				left += want[i] > 0;
			}
		}
		if (r.dim >= 1000)
			CHECK(double(left) / double(x.size()) == doctest::Approx(cut > 0 ? 0.05 : 0.62).epsilon(0.2));
		const View vx = rig.f32(x, r.T, r.dim), out = r.in_place ? vx : rig.out(r.T, r.dim);
		backend.gaussian_top_k(out, vx, cut);
		check_close(row, rig.get(out), want, "gaussian_top_k");
	});
}

TEST_CASE("ops: stream_sum") {
	struct SumRow {
		uint32_t T, m, k, dim, x_first, y_first;
		bool x_by_row = false, y_by_row = false, adds = true;
		std::string text() const {
			return fmt::format("stream_sum: T {}, {} of {} streams, dim {}, from {} and {}{}{}{}", T, m, k, dim,
			                   x_first, y_first, x_by_row ? ", x by row" : "", y_by_row ? ", y by row" : "",
			                   adds ? "" : ", x not read");
		}
	};
	std::vector<SumRow> rows; // with as many streams, from the same rows: in place
	for (const uint32_t T : {1u, 5u, 40u})
		for (const uint32_t dim : {8u, 132u, 2048u})
			for (const bool by_row : {false, true})
				for (const bool adds : {true, false}) {
					rows.push_back({T, 4, 4, dim, T / 2, T / 2, by_row, by_row, adds});
					rows.push_back({T, 4, 1, dim, 3, 0, by_row, !by_row, adds});
					rows.push_back({T, 1, 3, dim, 0, 2, !by_row, by_row, adds});
				}
	rows.push_back({5, 3, 2, 132, 1, 2}); // other layouts, of several streams each
	rows.push_back({5, 3, 2, 132, 1, 2, true, true});
	rows.push_back({5, 2, 4, 132, 1, 2, true, false, false});
	rows.push_back({5, 2, 4, 132, 1, 2, false, true});
	rows.push_back({32771, 1, 2, 8, 1, 0, true, true}); // more rows than a dimension of a grid takes
	each_row(rows, [](Backend& backend, const SumRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const bool same = r.m == r.k;
		const uint32_t x_rows = r.x_first + r.T + 2, y_rows = same ? x_rows : r.y_first + r.T + 1;
		const auto at = [&](bool by_row, uint32_t streams, uint32_t capacity, uint32_t i, uint32_t t) {
			return (by_row ? size_t(t) * streams + i : size_t(i) * capacity + t) * r.dim;
		};
		Floats x = random.normals(size_t(r.m) * x_rows * r.dim);
		const Floats w = random.normals(size_t(r.T) * r.m * r.k);
		const Floats y = same ? x : random.normals(size_t(r.k) * y_rows * r.dim);
		Floats want = x;
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t i = 0; i < r.m; ++i)
				for (uint32_t c = 0; c < r.dim; ++c) {
					const size_t to = at(r.x_by_row, r.m, x_rows, i, r.x_first + t) + c;
					double sum = r.adds ? double(x[to]) : 0;
					for (uint32_t j = 0; j < r.k; ++j)
						sum += double(w[(size_t(t) * r.m + i) * r.k + j]) *
						       double(y[at(r.y_by_row, r.k, y_rows, j, r.y_first + t) + c]);
					want[to] = float(sum);
					if (!r.adds && !same) x[to] = NAN;
				}
		const auto shaped = [&](const Floats& all, bool by_row, uint32_t streams, uint32_t capacity) {
			return by_row ? rig.f32(all, capacity, streams, r.dim) : rig.f32(all, streams, capacity, r.dim);
		};
		const View vx = shaped(x, r.x_by_row, r.m, x_rows), vy = same ? vx : shaped(y, r.y_by_row, r.k, y_rows);
		backend.stream_sum({vx, r.x_first, r.x_by_row}, {vy, r.y_first, r.y_by_row}, rig.f32(w, r.T, r.m, r.k), r.adds);
		check_close(row, rig.get(vx), want, "expert_sum");
	});
}

namespace {

struct StreamsCase {
	uint32_t T, m, dim;
	std::string text() const { return fmt::format("T {}, {} streams, dim {}", T, m, dim); }
};

std::vector<StreamsCase> stream_cases() {
	std::vector<StreamsCase> rows;
	for (const uint32_t T : {1u, 5u, 40u})
		for (const uint32_t dim : {8u, 132u, 172u, 2048u})
			for (const uint32_t m : {1u, 3u, 4u}) rows.push_back({T, m, dim});
	return rows;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

} // namespace

TEST_CASE("ops: stream_mix") {
	std::vector<StreamsCase> rows = stream_cases();
	rows.push_back({32771, 2, 8}); // more rows than a dimension of a grid takes
	each_row(rows, [](Backend& backend, const StreamsCase& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats x = random.normals(size_t(r.T) * r.m * r.dim);
		Floats gate = random.normals(x.size(), 3.f), want(size_t(r.T) * r.dim);
		const float extremes[] = {0, 100, -100}; // exp() of some is not finite
		for (size_t i = 0; i < gate.size(); i += 7) gate[i] = extremes[i / 7 % 3];
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t c = 0; c < r.dim; ++c) {
				double sum = 0;
				for (uint32_t i = 0; i < r.m; ++i) {
					const size_t at = (size_t(t) * r.m + i) * r.dim + c;
					sum += sigmoid(double(gate[at])) * double(x[at]);
				}
				want[size_t(t) * r.dim + c] = float(sum);
			}
		const View out = rig.out(r.T, r.dim);
		backend.stream_mix(out, rig.f32(x, r.T, r.m, r.dim), rig.f32(gate, r.T, r.m, r.dim));
		check_close(row, rig.get(out), want, "activate");
	});
}

// Keys whose products with their queries are sums of a wanted size: near 0 rounding decides the sign of a sum, and the
// op's tolerance allows for it; elsewhere a result is far closer.
TEST_CASE("ops: stream_gate") {
	std::vector<StreamsCase> rows = stream_cases();
	rows.push_back({8195, 4, 8}); // more rows than a dimension of a grid takes
	each_row(rows, [](Backend& backend, const StreamsCase& r, const TestRow& row) {
		if (r.T > 1000 && row.device == "cuda-host") return; // a fiber for each thread of so many blocks takes 15 s
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats query = random.normals(size_t(r.T) * r.m * r.dim), value = random.normals(size_t(r.T) * r.dim);
		Floats key = random.normals(query.size()), want(query.size());
		const double root_dim = std::sqrt(double(r.dim)), sums[] = {0.3, 30, -2, 0, 1e-8, -0.3, -40, -1e-9, 7};
		for (size_t i = 0; i < size_t(r.T) * r.m; ++i) {
			float* k = &key[i * r.dim];
			const float* q = &query[i * r.dim];
			const double wanted = sums[(i + row.number) % std::size(sums)];
			double s = 0, length = 0;
			for (uint32_t c = 0; c < r.dim; ++c)
				s += double(k[c]) * double(q[c]), length += double(q[c]) * double(q[c]);
			if (std::abs(wanted) > 0.1) {
				for (uint32_t c = 0; c < r.dim; ++c) k[c] += float((wanted * root_dim - s) / length) * q[c];
			} else { // nothing to round: one product
				std::fill(k, k + r.dim, 0.f);
				k[r.dim - 1] = float(wanted * root_dim / double(q[r.dim - 1]));
			}
			s = 0;
			for (uint32_t c = 0; c < r.dim; ++c) s += double(k[c]) * double(q[c]) / root_dim;
			const double root = s == 0 ? 0 : std::copysign(std::sqrt(std::max(std::abs(s), 1e-6)), s);
			for (uint32_t c = 0; c < r.dim; ++c)
				want[i * r.dim + c] = float(sigmoid(root) * double(value[i / r.m * r.dim + c]));
		}
		const View vk = rig.f32(key, r.T, r.m, r.dim), out = r.T == 5 ? vk : rig.out(r.T, r.m, r.dim);
		backend.stream_gate(out, vk, rig.f32(query, r.T, r.m, r.dim), rig.f32(value, r.T, r.dim));
		check_close(row, rig.get(out), want, "stream_gate", 0.02);
	});
}

namespace {

struct CoefsCase {
	uint32_t T, m, parts;
	uint32_t rounds = 1;
	std::string text() const { return fmt::format("T {}, {} streams, {} parts, {} rounds", T, m, parts, rounds); }
};

// x[i][j], by rows: each is divided by the sum of its row, or of its column, plus eps.
void divide_by_sums(std::vector<double>& x, uint32_t m, bool rows, double eps) {
	for (uint32_t i = 0; i < m; ++i) {
		double sum = eps;
		for (uint32_t j = 0; j < m; ++j) sum += rows ? x[i * m + j] : x[j * m + i];
		for (uint32_t j = 0; j < m; ++j) (rows ? x[i * m + j] : x[j * m + i]) /= sum;
	}
}

} // namespace

TEST_CASE("ops: stream_coefs") {
	std::vector<CoefsCase> rows;
	for (const uint32_t m : {1u, 2u, 3u, 4u})
		for (const uint32_t T : {1u, 7u, 200u})
			for (const uint32_t parts : {1u, 2u}) rows.push_back({T, m, parts});
	for (const uint32_t m : {1u, 2u, 3u, 4u})
		for (const uint32_t rounds : {1u, 2u, 20u}) rows.push_back({m * 33, m, 3, rounds});
	each_row(rows, [](Backend& backend, const CoefsCase& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t m = r.m, n = r.parts < 3 ? r.parts * m : (2 + m) * m;
		const ConnectArgs how{1e-3f, 1.75f, 0.25f, r.rounds};
		Floats x = random.normals(size_t(r.T) * n, 2.f), pre, post, mix;
		const Floats scale = random.normals(r.parts), base = random.normals(n);
		for (size_t i = 0; i < x.size(); i += 13) x[i] = i % 2 ? 60 : -60;
		for (uint32_t t = 0; t < r.T; ++t) {
			const auto at = [&](uint32_t part, uint32_t i) {
				return double(scale[part]) * double(x[size_t(t) * n + i]) + double(base[i]);
			};
			for (uint32_t i = 0; i < m; ++i) pre.push_back(float(sigmoid(at(0, i)) + double(how.eps)));
			for (uint32_t i = 0; r.parts > 1 && i < m; ++i) post.push_back(float(1.75 * sigmoid(at(1, m + i)) + 0.25));
			if (r.parts < 3) continue;
			std::vector<double> c(size_t(m) * m); // by the stream that is read
			for (uint32_t from = 0; from < m; ++from) {
				double sum = 0, most = -INFINITY;
				for (uint32_t to = 0; to < m; ++to) most = std::max(most, at(2, (2 + from) * m + to));
				for (uint32_t to = 0; to < m; ++to)
					sum += c[from * m + to] = std::exp(at(2, (2 + from) * m + to) - most);
				for (uint32_t to = 0; to < m; ++to) c[from * m + to] = c[from * m + to] / sum + double(how.eps);
			}
			for (uint32_t round = 0; round < r.rounds; ++round) {
				if (round) divide_by_sums(c, m, /*rows=*/true, double(how.eps));
				divide_by_sums(c, m, /*rows=*/false, double(how.eps));
			}
			for (uint32_t to = 0; to < m; ++to)
				for (uint32_t from = 0; from < m; ++from) mix.push_back(float(c[from * m + to]));
		}
		const View a = rig.out(r.T, m), b = r.parts > 1 ? rig.out(r.T, m) : View(),
		           c = r.parts > 2 ? rig.out(r.T, m, m) : View();
		backend.stream_coefs(a, b, c, rig.f32(x, r.T, n), rig.f32(scale, r.parts), rig.f32(base, n), how);
		check_close(row, rig.get(a), pre, "stream_coefs");
		if (b) check_close(row, rig.get(b), post, "stream_coefs");
		if (c) check_close(row, rig.get(c), mix, "stream_coefs");
	});
}

namespace {

struct AttendCase {
	uint32_t T, m, dim;
	bool by_row = false;
	float loud = 1;
	uint32_t first() const { return T % 3; }
	std::string text() const {
		return fmt::format("T {}, {} streams, dim {}{}, scores of {}", T, m, dim, by_row ? ", by row" : "", loud);
	}
};

} // namespace

// Rows of zeros, scores that exp() of is not finite, rows around those that are read.
TEST_CASE("ops: stream_attend") {
	std::vector<AttendCase> rows;
	for (const uint32_t m : {1u, 2u, 9u, 64u})
		for (const uint32_t T : {1u, 5u})
			for (const bool by_row : {false, true}) rows.push_back({T, m, m == 9 ? 1540u : 64u, by_row});
	rows.push_back({7, 5, 260, false, 200});
	rows.push_back({32771, 2, 8}); // more rows than a dimension of a grid takes
	each_row(rows, [](Backend& backend, const AttendCase& r, const TestRow& row) {
		if (r.T > 1000 && row.device == "cuda-host") return; // a fiber for each thread of so many blocks takes long
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t all = r.first() + r.T + 2;
		const size_t next = r.by_row ? 1 : all, step = r.by_row ? r.m : 1;
		Floats x = random.normals(size_t(all) * r.m * r.dim), w = random.normals(r.dim), want(size_t(r.T) * r.dim);
		for (float& v : w) v *= 2 * r.loud / std::sqrt(float(r.dim));
		const float eps = 1e-3f;
		for (uint32_t t = 0; t < r.T; ++t) {
			const auto at = [&](uint32_t i) { return &x[(i * next + (r.first() + t) * step) * r.dim]; };
			if (t % 2) std::fill_n(at(r.m / 2), r.dim, 0.f);
			std::vector<double> shares;
			for (uint32_t i = 0; i < r.m; ++i) {
				double squares = 0, score = 0;
				for (uint32_t c = 0; c < r.dim; ++c)
					squares += double(at(i)[c]) * double(at(i)[c]), score += double(at(i)[c]) * double(w[c]);
				shares.push_back(score / std::sqrt(squares / r.dim + double(eps)));
			}
			const double most = std::ranges::max(shares);
			double sum = 0;
			for (double& s : shares) sum += s = std::exp(s - most);
			for (uint32_t c = 0; c < r.dim; ++c) {
				double v = 0;
				for (uint32_t i = 0; i < r.m; ++i) v += shares[i] / sum * double(at(i)[c]);
				want[size_t(t) * r.dim + c] = float(v);
			}
		}
		const View out = rig.out(r.T, r.dim);
		const View v = r.by_row ? rig.f32(x, all, r.m, r.dim) : rig.f32(x, r.m, all, r.dim);
		backend.stream_attend(out, {v, r.first(), r.by_row}, rig.f32(w, r.dim), eps);
		check_close(row, rig.get(out), want, "stream_attend");
	});
}
