// index_score against sums in double; index_pick, index_live against plain loops, bit for bit.
#include "shared/work.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <doctest/doctest.h>
#include <numeric>

using namespace kvrun;

namespace {

template <class T> Words words_of(const std::vector<T>& items) {
	Words words(items.size() * sizeof(T) / 4);
	std::memcpy(words.data(), items.data(), words.size() * 4);
	return words;
}

void check_words(const TestRow& row, const Words& got, const Words& want) {
	REQUIRE(got.size() == want.size());
	const size_t first = size_t(std::ranges::mismatch(got, want).in1 - got.begin());
	if (first < got.size())
		FAIL_CHECK(row_text(row) << "\n"
		                         << fmt::format("[{}] {:08x}, expected {:08x}", first, got[first], want[first]));
	else
		CHECK(first == got.size()); // counts the comparison
}

} // namespace

// ---- index_score

namespace {

struct ScoreItem {
	uint32_t row, n_rows, key, n;
};
struct ScoreRow {
	uint32_t T, n_heads, dim;
	bool weighed;
	std::vector<ScoreItem> items; // no two score a row for the same block; n: blocks
	uint32_t pool = 0;
	std::string text() const {
		return fmt::format("index_score: T {}, {} heads of {}{}, {} items{}", T, n_heads, dim,
		                   weighed ? ", weighed" : "", items.size(), pool ? fmt::format(", pools of {}", pool) : "");
	}
};

constexpr uint32_t kScoreColumns = 200;

std::vector<ScoreRow> score_rows() {
	const std::vector<ScoreItem> decode = {{0, 1, 3, 64}, {0, 1, 67, 1}, {1, 1, 0, 40}, {2, 1, 100, 64}};
	const std::vector<ScoreItem> prompt = {{0, 40, 0, 64}, {0, 40, 64, 64}, {7, 33, 128, 17}, {39, 1, 190, 10}};
	const std::vector<ScoreItem> some = {{0, 5, 8, 64}, {5, 2, 0, 31}, {9, 7, 130, 16}, {16, 17, 60, 33}};
	std::vector<ScoreRow> rows;
	for (const uint32_t n_heads : {1u, 2u, 3u, 4u, 5u})
		for (const uint32_t dim : {8u, 64u, 128u, 256u})
			for (const bool weighed : {true, false}) {
				rows.push_back({3, n_heads, dim, weighed, decode});
				rows.push_back({40, n_heads, dim, weighed, prompt});
				rows.push_back({33, n_heads, dim, weighed, some});
			}
	for (const uint32_t n_heads : {16u, 64u, 100u}) {
		rows.push_back({3, n_heads, 72, true, decode});
		rows.push_back({40, n_heads, 136, true, prompt});
		rows.push_back({33, n_heads, 24, true, some});
	}
	rows.push_back(
	    {300, 2, 16, true, {{0, 300, 0, 150}, {1, 260, 150, 9}}}); // more keys than a workgroup takes at once
	for (const uint32_t pool : {2u, 4u, 16u, 32u, 64u, 128u, 256u})
		for (const uint32_t dim : {8u, 128u, 256u}) {
			rows.push_back({3, 1, dim, false, {{0, 1, 3, 1}, {0, 1, 4, 3}, {1, 2, 0, 5}}, pool});
			rows.push_back({70, 1, dim, false, {{0, 70, 0, 2}, {5, 65, 190, 3}, {69, 1, 7, 9}}, pool});
			rows.push_back({300, 1, dim, false, {{0, 290, 0, 1}, {290, 10, 2, 70 / pool + 1}}, pool});
		}
	return rows;
}

} // namespace

TEST_CASE("ops: index_score") {
	each_row(score_rows(), [](Backend& backend, const ScoreRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.dim),
		             weights = random.normals(size_t(r.T) * r.n_heads);
		std::vector<IndexWork> work;
		Words keys;
		Floats want(size_t(r.T) * kScoreColumns, -7.f); // what no item scores stays
		const View score = rig.f32(want, r.T, kScoreColumns);
		for (const ScoreItem& i : r.items) {
			keys.resize(keys.size() + 4 * (1 + random.below(5)), 0x7e007e00u); // NaN
			const uint32_t n_keys = i.n * std::max(r.pool, 1u);
			work.push_back({i.row, i.n_rows, i.key, n_keys, uint32_t(keys.size()), {1, 2, 3}});
			const Floats all = random.normals(size_t(n_keys) * r.dim);
			for (size_t j = 0; j < all.size(); j += 2)
				keys.push_back(f32_to_f16(all[j]) | uint32_t(f32_to_f16(all[j + 1])) << 16);
			for (uint32_t t = i.row; t < i.row + i.n_rows; ++t)
				for (uint32_t b = 0; b < n_keys; ++b) {
					double sum = 0;
					for (uint32_t h = 0; h < r.n_heads; ++h) {
						const size_t head = size_t(t) * r.n_heads + h;
						double s = 0;
						for (uint32_t c = 0; c < r.dim; ++c)
							s += double(q[head * r.dim + c]) *
							     double(f16_of(keys, size_t(work.back().words) * 2 + size_t(b) * r.dim + c));
						sum += r.pool ? s : std::max(s, 0.) * (r.weighed ? double(weights[head]) : 1.);
					}
					float& to = want[size_t(t) * kScoreColumns + i.key + b / std::max(r.pool, 1u)];
					to = r.pool && b % r.pool ? std::max(to, float(sum)) : float(sum);
				}
		}
		keys.resize(keys.size() + 3, 0x7e007e00u);
		const View vq = rig.f32(q, r.T, r.n_heads, r.dim), vk = rig.u32(keys, uint32_t(keys.size()));
		const View vw = r.weighed ? rig.f32(weights, r.T, r.n_heads) : View();
		const View v_work = rig.u32(words_of(work), uint32_t(work.size()), INDEX_WORDS);
		backend.index_score(score, vq, vw, vk, v_work, r.pool);
		check_close(row, rig.get(score), want, "index_score", 0.2);
	});
}

// What a row is scored with does not depend on how many rows an item has, so that a token is chosen alike in a prompt,
// in a piece of it and in a decode step.
TEST_CASE("ops: index_score of a row has the same bits in every item") {
	struct SameRow {
		uint32_t n_heads, dim, pool = 0;
		std::string text() const { return fmt::format("index_score: {} heads of {}, {}", n_heads, dim, pool); }
	};
	const std::vector<SameRow> rows = {{1, 64},  {3, 64},  {4, 128},     {7, 72},   {32, 128},
	                                   {64, 64}, {5, 256}, {1, 128, 64}, {1, 64, 8}};
	each_row(rows, [](Backend& backend, const SameRow& r, const TestRow& row) {
		constexpr uint32_t kRows = 70, kKeys = 64;
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const View q = rig.f32(random.normals(size_t(kRows) * r.n_heads * r.dim), kRows, r.n_heads, r.dim);
		const Floats of_heads = random.normals(size_t(kRows) * r.n_heads);
		const View weights = r.pool ? View() : rig.f32(of_heads, kRows, r.n_heads);
		const View halves = rig.f16(random.normals(size_t(kKeys) * r.dim), kKeys, r.dim);
		const View keys = view(*halves.buf, halves.at, DType::U32, kKeys * r.dim / 2);
		Floats whole;
		for (const uint32_t most : {kRows, 1u, 2u, 9u, 31u}) { // rows of an item
			std::vector<IndexWork> work;
			for (uint32_t t = 0; t < kRows; t += most) work.push_back({t, std::min(most, kRows - t), 0, kKeys, 0, {}});
			const View score = rig.out(kRows, kKeys / std::max(r.pool, 1u));
			backend.index_score(score, q, weights, keys, rig.u32(words_of(work), uint32_t(work.size()), INDEX_WORDS),
			                    r.pool);
			const Floats got = rig.get(score);
			if (whole.empty()) whole = got;
			check_same_bits(row, got, whole);
		}
	});
}

// ---- index_pick

namespace {

enum class Scores { Different, Few, Equal, Signed }; // Few, Equal: many or all are equal; Signed: some are, near 0

struct PickRow {
	uint32_t block, most, spare; // words of a row behind the last token
	std::vector<uint32_t> seen;
	Scores scores = Scores::Different;
	uint32_t local = 0;
	std::string text() const {
		return fmt::format("index_pick: blocks of {}, at most {}, scores {}, {} rows, {} local", block, most,
		                   int(scores), seen.size(), local);
	}
	uint32_t blocks(uint32_t n_seen) const { // it chooses from
		const uint32_t begun = (n_seen + block - 1) / block;
		return local ? begun - std::min(begun, local) : n_seen / block;
	}
};

std::vector<PickRow> pick_rows() {
	std::vector<PickRow> rows;
	for (const uint32_t block : {1u, 2u, 4u, 8u, 16u, 32u}) {
		const std::vector<uint32_t> seen = {block * 9, block * 9 + block - 1, 0, 1, block, 31, 32, 33, 1000, 1024, 777};
		for (const Scores scores : {Scores::Different, Scores::Few, Scores::Equal, Scores::Signed})
			rows.push_back({block, 7, uint32_t(scores), seen, scores});
		rows.push_back({block, 1, 40, seen, Scores::Few});
		rows.push_back({block, 100000, 1, seen});
		rows.push_back({block, 64, 0, {block * 64, block * 65, block * 65 + block / 2, block * 4099}, Scores::Few});
	}
	rows.push_back({4, 2048, 3, {4 * 20000 + 3, 4 * 2049, 4 * 2048 + 1}});
	rows.push_back({4, 2048, 3, {4 * 20000 + 3, 4 * 2049, 4 * 2048 + 1}, Scores::Few});
	rows.push_back({1, 512, 0, {40001, 5000, 511, 513}, Scores::Signed});
	rows.push_back({32, 9, 70, {0, 0}}); // no token is seen
	for (const uint32_t block : {2u, 8u, 32u, 64u, 128u, 256u})
		for (const uint32_t local : {0u, 1u, 2u, 7u}) {
			const std::vector<uint32_t> seen = {block * 9, block * 9 + 1, block * 10 - 1,         0,          1,
			                                    block,     block + 1,     block * 40 + block / 2, block * 700};
			for (const Scores scores : {Scores::Different, Scores::Few, Scores::Equal, Scores::Signed})
				rows.push_back({block, 5, uint32_t(scores) * 3, seen, scores, local});
			rows.push_back({block, 1, 9, seen, Scores::Few, local});
		}
	return rows;
}

float score_of(Scores how, Random& random) {
	const float tiny[] = {0.f, -0.f, 1e-40f, -1e-40f, 1e-3f, -1e-3f};
	switch (how) {
	case Scores::Different: return random.normal();
	case Scores::Few: return float(random.below(5)) - 2;
	case Scores::Equal: return -3;
	case Scores::Signed: return random.below(3) ? tiny[random.below(2) + random.below(2) * 4] : -random.normal();
	}
	return 0;
}

} // namespace

TEST_CASE("ops: index_pick") {
	each_row(pick_rows(), [](Backend& backend, const PickRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t T = uint32_t(r.seen.size()), most_seen = *std::ranges::max_element(r.seen);
		const uint32_t n_words = std::max(1u, (most_seen + 31) / 32 + r.spare), capacity = most_seen / r.block + 3;
		Floats score(size_t(T) * capacity);
		for (float& x : score) x = score_of(r.scores, random);
		Words want(size_t(T) * n_words);
		for (uint32_t t = 0; t < T; ++t) {
			const uint32_t n = r.blocks(r.seen[t]);
			float* own = &score[size_t(t) * capacity];
			for (uint32_t b = n; b < capacity; ++b) own[b] = 1e9f; // of blocks that the row does not see
			std::vector<uint32_t> order(n);
			std::iota(order.begin(), order.end(), 0u);
			std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return own[a] > own[b]; });
			order.resize(std::min(n, r.most));
			std::vector<bool> chosen(n);
			for (const uint32_t b : order) chosen[b] = true;
			for (uint32_t i = 0; i < r.seen[t]; ++i)
				if (i / r.block >= n || chosen[i / r.block]) want[size_t(t) * n_words + i / 32] |= 1u << i % 32;
		}
		const View bits = rig.u32(Words(want.size(), 0xffffffffu), T, n_words);
		backend.index_pick(bits, rig.f32(score, T, capacity), rig.u32(r.seen, T), r.block, r.most, r.local);
		check_words(row, rig.get_words(bits), want);
	});
}

// ---- index_live

namespace {

struct LiveItem {
	uint32_t row, n_pages, page;
	bool in_order;
	uint32_t first = 0; // in order
};
struct LiveRow {
	uint32_t T, n_words;
	std::vector<LiveItem> items;
	std::string text() const {
		return fmt::format("index_live: T {}, {} words, {} items, pages of {}{}", T, n_words, items.size(),
		                   items[0].page, items[0].in_order ? ", in order" : "");
	}
};

std::vector<LiveRow> live_rows() {
	std::vector<LiveRow> rows;
	for (const uint32_t page : {32u, 64u, 128u})
		for (const bool in_order : {true, false}) {
			rows.push_back({1, 5, {{0, 1, page, in_order}}});
			rows.push_back({2, 1, {{1, 9, page, in_order, 32}, {0, 3, page, !in_order}}}); // bits end before the pages
			rows.push_back({4,
			                300,
			                {{2, 70, page, in_order, 64},
			                 {0, 2, page, in_order, 9600 - page}, // half of the pages are behind the bits
			                 {3, 5, 128, !in_order, 96},
			                 {2, 11, 32, in_order}}});
		}
	rows.push_back({3, 7, {{1, 600, 32, true, 0}, {2, 600, 64, false}}}); // more words than the lanes of an item
	return rows;
}

} // namespace

TEST_CASE("ops: index_live") {
	each_row(live_rows(), [](Backend& backend, const LiveRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const auto word = [&] { return random.below(0x10000u) << 16 | random.below(0x10000u); };
		Words bits(size_t(r.T) * r.n_words), tables;
		for (uint32_t& w : bits) w = word();
		std::vector<LiveWork> work;
		for (const LiveItem& i : r.items) {
			LiveWork w{};
			w.row = i.row, w.n_pages = i.n_pages, w.page = i.page, w.first = i.first;
			const auto space = [&](uint32_t n) {
				tables.resize(tables.size() + 1 + random.below(3), 0x77777777u);
				tables.resize(tables.size() + n, 0xffffffffu); // a page's words behind its tokens may be anything
				return uint32_t(tables.size()) - n;
			};
			w.live = space(i.n_pages * 4);
			for (uint32_t p = 0; p < i.n_pages; ++p)
				for (uint32_t j = 0; j < i.page / 32; ++j)
					tables[w.live + p * 4 + j] = random.below(4) ? word() : random.below(2) ? 0 : 0xffffffffu;
			w.to = space(i.n_pages * 4);
			w.position = i.in_order ? LIVE_IN_ORDER : space(i.n_pages * LIVE_POSITIONS);
			for (uint32_t slot = 0; !i.in_order && slot < i.n_pages * LIVE_POSITIONS; ++slot) {
				const uint32_t t = slot % LIVE_POSITIONS;
				const bool live = tables[w.live + slot / LIVE_POSITIONS * 4 + t / 32] >> t % 32 & 1;
				if (t < i.page && (live || random.below(3))) tables[w.position + slot] = random.below(r.n_words * 40);
			}
			work.push_back(w);
		}
		Words want = tables;
		for (const LiveWork& w : work)
			for (uint32_t slot = 0; slot < w.n_pages * 128; ++slot) {
				const uint32_t p = slot / 128, t = slot % 128;
				const bool in_order = w.position == LIVE_IN_ORDER;
				const uint32_t at = in_order ? w.first + p * w.page + t : tables[w.position + slot];
				const bool kept = t < w.page && (tables[w.live + p * 4 + t / 32] >> t % 32 & 1) &&
				                  at < r.n_words * 32 && (bits[size_t(w.row) * r.n_words + at / 32] >> at % 32 & 1);
				uint32_t& to = want[w.to + p * 4 + t / 32];
				to = (to & ~(1u << t % 32)) | uint32_t(kept) << t % 32;
			}
		const View v_tables = rig.u32(tables, uint32_t(tables.size())), v_bits = rig.u32(bits, r.T, r.n_words);
		backend.index_live(v_tables, v_bits, rig.u32(words_of(work), uint32_t(work.size()), LIVE_WORDS));
		check_words(row, rig.get_words(v_tables), want);
	});
}
