// Positions of packed tokens: stored values are returned, sealed or not, and a step can be taken back.
#include "engine/kv_host/slot_positions.h"
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

TEST_CASE("slot positions: consecutive, scattered, empty and falling ones come back, page by page") {
	for (const uint32_t page : {32u, 64u, 128u}) {
		SlotPositions s(page);
		std::vector<uint32_t> expected;
		std::mt19937 rng(page);
		uint32_t pos = 0;
		for (uint32_t p = 0; p < 40; ++p) {
			s.append_page();
			const uint32_t kind = p % 4; // consecutive; steps of up to 40; with gaps; in any order
			for (uint32_t i = 0; i < page; ++i, ++pos) {
				if (kind == 1) pos += uint32_t(rng() % 40);
				uint32_t at = kind == 3 ? uint32_t(rng() % 0x7fffffff) : pos;
				if (kind == 2 && (rng() % 3 == 0 || i >= page / 2)) at = kNone;
				if (at != kNone) s.set(p * page + i, at);
				expected.push_back(at);
			}
			if (p % 3 == 2) s.seal(p); // the newest two pages stay open
			CHECK(s.n_slots() == (p + 1) * page);
			CHECK(s.all() == expected);
		}
		for (uint32_t slot = 0; slot < s.n_slots(); slot += 7) CHECK(s.at(slot) == expected[slot]);
	}
}

TEST_CASE("slot positions: what was appended, set and sealed since is taken back") {
	SlotPositions s(32);
	for (uint32_t p = 0; p < 6; ++p) {
		s.append_page();
		for (uint32_t i = 0; i < 32; ++i) s.set(p * 32 + i, p * 1000 + i * (p % 3 + 1));
	}
	s.seal(4);
	const std::vector<uint32_t> before = s.all();
	for (const uint32_t sealed : {4u, 5u, 6u, 8u}) {
		SlotPositions::Saved saved = s.save();
		s.append_page(), s.append_page();
		for (uint32_t i = 0; i < 64; ++i) s.set(6 * 32 + i, 9000 + i * 5);
		s.seal(sealed);
		CHECK(s.all() != before);
		s.restore(std::move(saved));
		CHECK(s.all() == before);
	}
}

TEST_CASE("slot positions: a page of consecutive tokens takes no bytes of its own; others half a byte per slot") {
	// a lower bound for a cache's books; tests/host/test_memory_faults.cpp measures all of them
	SlotPositions s(128);
	for (uint32_t p = 0; p < 64; ++p) {
		s.append_page();
		for (uint32_t i = 0; i < 128; ++i) s.set(p * 128 + i, p < 32 ? p * 128 + i : 5000 + (p * 128 + i) * 3);
	}
	s.seal(64);
	const SlotPositions::Saved saved = s.save();
	CHECK(saved.n_starts == 64);
	CHECK(saved.open.empty());
	CHECK(saved.n_bytes >= 32 * 64);
	CHECK(saved.n_bytes <= 32 * (64 + 4));
}
