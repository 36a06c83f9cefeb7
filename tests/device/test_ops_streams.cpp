// match_rms, gaussian_top_k, stream_sum against sums in double.
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
		std::string text() const {
			return fmt::format("stream_sum: T {}, {} of {} streams, dim {}, from {} and {}", T, m, k, dim, x_first,
			                   y_first);
		}
	};
	std::vector<SumRow> rows; // with as many streams, from the same rows: in place
	for (const uint32_t T : {1u, 5u, 40u})
		for (const uint32_t dim : {8u, 132u, 2048u}) {
			rows.push_back({T, 4, 4, dim, T / 2, T / 2});
			rows.push_back({T, 4, 1, dim, 3, 0});
			rows.push_back({T, 1, 3, dim, 0, 2});
		}
	each_row(rows, [](Backend& backend, const SumRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const bool same = r.m == r.k;
		const uint32_t x_rows = r.x_first + r.T + 2, y_rows = same ? x_rows : r.y_first + r.T + 1;
		const Floats x = random.normals(size_t(r.m) * x_rows * r.dim), w = random.normals(size_t(r.T) * r.m * r.k);
		const Floats y = same ? x : random.normals(size_t(r.k) * y_rows * r.dim);
		Floats want = x;
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t i = 0; i < r.m; ++i)
				for (uint32_t c = 0; c < r.dim; ++c) {
					const size_t at = (size_t(i) * x_rows + r.x_first + t) * r.dim + c;
					double sum = double(x[at]);
					for (uint32_t j = 0; j < r.k; ++j)
						sum += double(w[(size_t(t) * r.m + i) * r.k + j]) *
						       double(y[(size_t(j) * y_rows + r.y_first + t) * r.dim + c]);
					want[at] = float(sum);
				}
		const View vx = rig.f32(x, r.m, x_rows, r.dim);
		const View vy = same ? vx : rig.f32(y, r.k, y_rows, r.dim);
		backend.stream_sum({vx, r.x_first}, {vy, r.y_first}, rig.f32(w, r.T, r.m, r.k));
		check_close(row, rig.get(vx), want, "expert_sum");
	});
}
