// Comparison of device results with expectations: the tolerance of each op, the first 5 mismatches and the maximum,
// and the command that runs the failing row alone.
#pragma once
#include "backends/tolerance.h"
#include "tests/support/devices.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace kvrun {

// A row of a test's table. Rows count from 0 in each test case; KVRUN_TEST_ROW=n runs only the n-th of each.
struct TestRow {
	std::string device; // as in KVRUN_TEST_DEVICES
	size_t number;
	std::string text; // op, shapes, types
};
inline uint64_t divisor_in(const char* variable) {
	const char* text = std::getenv(variable);
	return text && *text ? std::max(std::strtoull(text, nullptr, 10), 1ull) : 1;
}
// KVRUN_TEST_EVERY=n runs rows 0, n, 2n, ... of each test case: for slow runs, as under the validation layer.
inline uint64_t test_every() { return divisor_in("KVRUN_TEST_EVERY"); }
// KVRUN_TEST_ONE_IN=n runs one row in n over all test cases: the first one depends on the test case's name, and a test
// case with few rows may run none. A run with a multiple of n runs a part of the same rows.
inline bool row_wanted(size_t number) {
	if (const char* only = std::getenv("KVRUN_TEST_ROW"); only && *only)
		return std::strtoull(only, nullptr, 10) == number;
	uint32_t first = 2166136261u; // FNV-1a: the same on every machine, unlike std::hash
	for (const char* c = doctest::getContextOptions()->currentTest->m_name; *c; ++c)
		first = (first ^ uint8_t(*c)) * 16777619u;
	return number % test_every() == 0 && (number + first) % divisor_in("KVRUN_TEST_ONE_IN") == 0;
}
inline std::string row_text(const TestRow& r) {
	const char* test = doctest::getContextOptions()->currentTest->m_name;
	return fmt::format(
	    "{} on {}\nreproduce: KVRUN_TEST_DEVICES={} KVRUN_TEST_ROW={} {}kvrun_device_tests '--test-case={}'", r.text,
	    r.device, r.device, r.number, starter_of(r.device), test);
}

// Runs f(backend, row of the table, TestRow) for every device and every wanted row; a row has a text().
template <class T, class F> void each_row(const std::vector<T>& table, F f) {
	for (TestDevice& d : test_devices())
		for (size_t i = 0; i < table.size(); ++i) {
			if (!d.backend || !row_wanted(i)) continue;
			const TestRow row{d.name, i, table[i].text()};
			INFO(row_text(row));
			f(*d.backend, table[i], row);
		}
}

// x against ref within tolerance(what); tolerances are in backends/tolerance.cpp, for tests and KVRUN_CHECK alike.
inline void check_close(const TestRow& row, std::span<const float> x, std::span<const float> ref, std::string_view what,
                        double factor = 1) { // of the tolerance
	if (x.size() != ref.size()) {
		FAIL_CHECK(row_text(row) << "\n" << x.size() << " elements, expected " << ref.size());
		return;
	}
	Tolerance allowed = tolerance(what);
	allowed.rel *= factor, allowed.slack *= factor;
	const Difference d = compare(x, ref, allowed);
	if (d.n_bad == 0) {
		CHECK(d.n_bad == 0); // counts the comparison
		return;
	}
	std::string text = fmt::format("{} of {} elements outside the tolerance of {}, {} not finite, max error {:.3g}",
	                               d.n_bad, d.n, what, d.n_nonfinite, d.max_error);
	for (size_t i : d.bad)
		text += fmt::format("\n  [{}] {:.9g}, expected {:.9g}, off by {:.3g}", i, x[i], ref[i],
		                    double(x[i]) - double(ref[i]));
	FAIL_CHECK(row_text(row) << "\n" << text);
}

// Compares sums of matmul with those of rounded_x() and factors(). If x is rounded to int8, an element between two
// bytes may become either; nothing else may differ.
inline void check_matmul(const TestRow& row, const Backend& backend, bool decode, DType weight, bool swiglu,
                         std::span<const float> x, std::span<const float> ref) {
	const std::string_view allowed = matmul_tolerance(backend.info(), weight, swiglu, decode);
	check_close(row, x, ref, allowed);
	if (!allowed.ends_with("int8")) return;
	double wrong = 0, all = 0;
	for (size_t i = 0; i < x.size(); ++i) {
		wrong += (double(x[i]) - double(ref[i])) * (double(x[i]) - double(ref[i]));
		all += double(ref[i]) * double(ref[i]);
	}
	if (std::sqrt(wrong) > 1e-3 * std::sqrt(all))
		FAIL_CHECK(row_text(row) << "\nerror " << std::sqrt(wrong / all) << " (rms), expected at most 0.001");
}

// The largest |x - ref| over the largest |ref|: what whole models and encoders are compared by. All x are finite.
inline double relative_difference(std::span<const float> x, std::span<const float> ref) {
	REQUIRE(x.size() == ref.size());
	double worst = 0, largest = 0;
	for (size_t i = 0; i < x.size(); ++i) {
		worst = std::max(worst, std::abs(double(x[i]) - double(ref[i])));
		largest = std::max(largest, std::abs(double(ref[i])));
		REQUIRE(std::isfinite(x[i]));
	}
	return worst / largest;
}

// Compares bits, for determinism and independence of chunking. The message tells rounding from wrong results.
inline void check_same_bits(const TestRow& row, std::span<const float> x, std::span<const float> ref) {
	size_t bad = 0, first = 0;
	double off = 0, largest = 0;
	if (x.size() == ref.size())
		for (size_t i = x.size(); i-- > 0;) {
			largest = std::max(largest, std::abs(double(ref[i])));
			if (std::bit_cast<uint32_t>(x[i]) == std::bit_cast<uint32_t>(ref[i])) continue;
			++bad, first = i;
			off = std::max(off, std::abs(double(x[i]) - double(ref[i])));
		}
	if (x.size() != ref.size())
		FAIL_CHECK(row_text(row) << "\n" << x.size() << " elements, expected " << ref.size());
	else if (bad)
		FAIL_CHECK(row_text(row) << "\n"
		                         << fmt::format("{} of {} elements have other bits, off by up to {:.3g}, the largest "
		                                        "expected one is {:.3g}; first [{}] {:.9g}, expected {:.9g}",
		                                        bad, x.size(), off, largest, first, x[first], ref[first]));
	else
		CHECK(bad == 0);
}

} // namespace kvrun
