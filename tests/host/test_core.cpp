// Half conversions over every value, edit distances, and the environment table.
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "tools/env.h"
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("f16: every half survives the way through float") {
	for (uint32_t h = 0; h < 65536; ++h) {
		const float f = f16_to_f32(uint16_t(h));
		const uint16_t back = f32_to_f16(f);
		if (std::isnan(f))
			CHECK(std::isnan(f16_to_f32(back)));
		else
			CHECK(back == h);
	}
}

TEST_CASE("f16: rounding is to nearest, ties to even, against the neighbouring halves") {
	for (uint32_t h = 0; h < 0x7bff; ++h) { // positive finite neighbours h, h + 1
		const float lo = f16_to_f32(uint16_t(h)), hi = f16_to_f32(uint16_t(h + 1)),
		            mid = (lo + hi) / 2; // exact in float
		CHECK(f32_to_f16(mid) == (h % 2 ? h + 1 : h));
		CHECK(f32_to_f16(std::nextafter(mid, 0.f)) == h);
		CHECK(f32_to_f16(std::nextafter(mid, 1e9f)) == h + 1);
	}
	CHECK(f32_to_f16(65519.f) == 0x7bff);
	CHECK(f32_to_f16(65520.f) == 0x7c00);
	CHECK(f32_to_f16(-1e30f) == 0xfc00);
}

TEST_CASE("env: a number that is none names the variable") {
	setenv("KVRUN_LOG", "loud", 1);
	CHECK_THROWS_WITH_AS(env_number(Env::Log, 0), doctest::Contains("KVRUN_LOG is 'loud'"), Error);
	unsetenv("KVRUN_LOG");
	CHECK(env_number(Env::Log, 7) == 7);
}

TEST_CASE("edit_distance: insertions, deletions, substitutions and swaps of neighbours count one each") {
	const auto check = [](std::string_view a, std::string_view b, size_t edits) {
		CAPTURE(a);
		CAPTURE(b);
		CHECK(edit_distance(a, b) == edits);
		CHECK(edit_distance(b, a) == edits);
	};
	check("", "", 0);
	check("", "abc", 3);
	check("run", "run", 0);
	check("rnu", "run", 1);
	check("temprature", "temperature", 1);
	check("kitten", "sitting", 3);
	check("ca", "abc", 3); // a swapped pair is not edited again
	check("abcdef", "badcfe", 3);
}
