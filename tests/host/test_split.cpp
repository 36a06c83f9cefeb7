// Division of layers over devices: shares by memory, what devices are together, who holds which bytes.
#include "backends/holders.h"
#include "backends/read_rates.h"
#include "backends/split_backend.h"
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

TEST_CASE("split: layers go to devices in proportion to free memory, at least one each") {
	const auto shares = [](std::vector<size_t> gib, uint32_t n) {
		std::vector<DeviceInfo> devices(gib.size());
		for (size_t d = 0; d < gib.size(); ++d) devices[d].free_bytes = gib[d] << 30;
		return share_layers(devices, n);
	};
	CHECK(shares({8, 8}, 32) == std::vector<uint32_t>{16, 16});
	CHECK(shares({24, 8}, 32) == std::vector<uint32_t>{24, 8});
	CHECK(shares({1, 100, 1}, 4) == std::vector<uint32_t>{1, 2, 1});
	CHECK(shares({0, 0}, 3).size() == 2);
}

TEST_CASE("split: the device that reads fastest gets as many layers as fit it, where all fit somewhere") {
	const auto shares = [](std::vector<size_t> gib, std::vector<double> rates, uint64_t layer_mib) {
		std::vector<DeviceInfo> devices(gib.size());
		std::vector<ReadRates> known(gib.size());
		for (size_t d = 0; d < gib.size(); ++d) devices[d].free_bytes = gib[d] << 30, known[d].device = rates[d];
		return share_layers(devices, 32, known, layer_mib << 20);
	};
	using Layers = std::vector<uint32_t>;
	CHECK(shares({8, 24}, {900, 300}, 256) == Layers{28, 4}); // 7 of 8 GiB for layers
	CHECK(shares({8, 24}, {300, 900}, 256) == Layers{1, 31});
	CHECK(shares({8, 8, 8}, {100, 300, 200}, 512) == Layers{4, 14, 14});
	CHECK(shares({8, 24}, {900, 800}, 256) == Layers{8, 24});  // about the same
	CHECK(shares({8, 24}, {900, 0}, 256) == Layers{8, 24});    // unknown
	CHECK(shares({8, 24}, {900, 300}, 1024) == Layers{8, 24}); // 7 + 21 layers: weights move to host memory
	CHECK(shares({8, 24}, {900, 300}, 0) == Layers{8, 24});
}

TEST_CASE("split: rates that tests give, for all devices and for one") {
	BackendOptions o;
	const DeviceReport r;
	CHECK(known_rates(r, o).device == 0);
	o.test_caps = "heap=5,rate=300000000000,bus=25000000000,rate1=100e9";
	CHECK(known_rates(r, o, 0).device == 300e9);
	CHECK(known_rates(r, o, 0).bus == 25e9);
	CHECK(known_rates(r, o, 1).device == 100e9);
	CHECK(known_rates(r, o, 1).bus == 25e9);
	o.test_caps = "rate=-1,bus=x";
	CHECK(known_rates(r, o).device == 0);
	CHECK(known_rates(r, o).bus == 0);
}

TEST_CASE("split: two devices have the memory at which the first of them is full") {
	std::vector<DeviceInfo> devices(2);
	devices[0].name.assign(1, 'A'), devices[0].free_bytes = 20 << 20, devices[0].peak_bytes_per_s = 100;
	devices[1].name.assign(1, 'B'), devices[1].free_bytes = 40 << 20, devices[1].peak_bytes_per_s = 50;
	devices[0].max_view_bytes = 0, devices[1].max_view_bytes = 7;
	const uint32_t even[] = {2, 2}, fitting[] = {1, 2};
	CHECK(joined(devices, even).free_bytes == 40 << 20);
	CHECK(joined(devices, fitting).free_bytes == 60 << 20);
	const DeviceInfo both = joined(devices, even);
	CHECK(both.name == "A + B");
	CHECK(both.max_view_bytes == 7); // 0: no limit
	CHECK(both.parts == 2);
	CHECK(both.peak_bytes_per_s == doctest::Approx(1 / (0.5 / 100 + 0.5 / 50)));
	devices[1].peak_bytes_per_s = 0;
	CHECK(joined(devices, even).peak_bytes_per_s == 0); // unknown
}

TEST_CASE("split: ranges of a buffer and their holders are those of a plain array") {
	std::mt19937 random(5);
	for (int run = 0; run < 200; ++run) {
		Holders h(7);
		std::vector<Holders::Mask> plain(64, 7);
		for (int step = 0; step < 30; ++step) {
			size_t from = random() % 64, to = random() % 65;
			if (from > to) std::swap(from, to);
			const Holders::Mask m = 1 + random() % 7;
			h.set(from, to, m);
			std::fill(plain.begin() + std::ptrdiff_t(from), plain.begin() + std::ptrdiff_t(to), m);
			std::vector<Holders::Mask> got;
			Holders::Mask before = 0;
			h.each(0, 64, [&](size_t a, size_t b, Holders::Mask mask) {
				CHECK(a == got.size());
				CHECK(mask != before); // neighbours are joined
				before = mask;
				got.insert(got.end(), b - a, mask);
			});
			CHECK(got == plain);
			size_t ranges = 0; // and what lies behind the array
			h.each(0, 65, [&](size_t, size_t, Holders::Mask) { ++ranges; });
			CHECK(h.ranges() == ranges);
			Holders::Mask common = ~Holders::Mask(0);
			for (size_t i = 3; i < 40; ++i) common &= plain[i];
			CHECK(h.common(3, 40) == common);
		}
	}
}
