// attend and attend_prompt over f16 pages on every device, over tables of shapes, against a definition in double
// written here. Packed formats: test_attend.cpp.
#include "shared/kv_page.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/shuffled.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

struct AttendRow {
	uint32_t T, n_heads, n_kv_heads, D;
	uint32_t n_old;         // tokens in pages
	uint32_t page, splits;  // tokens per page, work items per row
	bool per_head = false;  // a live mask per kv head
	uint32_t prompt = 0;    // attend_prompt: tokens of the prompt before row 0, plus 1; 0: attend
	uint32_t item_rows = 1; // rows of a work item
	uint32_t window = 0;    // attend_prompt: latest tokens that a row sees
	bool chunked = false;   // or those since the last multiple of window
	uint32_t ahead = 0;     // attend_prompt: rows behind its own that a row sees
	bool slopes = false;    // scores fall with the distance of row and token
	std::string text() const {
		return fmt::format("{}: T {} heads {}:{} head_dim {} {} tokens in pages of {}, {} splits{}{}{}{}{}{}",
		                   prompt ? "attend_prompt" : "attend", T, n_heads, n_kv_heads, D, n_old, page, splits,
		                   per_head ? ", live per head" : "", prompt ? fmt::format(", prompt from {}", prompt - 1) : "",
		                   item_rows > 1 ? fmt::format(", {} rows together", item_rows) : "",
		                   window ? fmt::format(", {} {}", chunked ? "chunks of" : "window", window) : "",
		                   ahead == kAllRows ? ", together"
		                   : ahead           ? fmt::format(", {} ahead", ahead)
		                                     : "",
		                   slopes ? ", slopes" : "");
	}
};

struct Cache { // tokens in pages, for a device and for the reference
	KvRead kv;
	AttendGroup group;
	std::vector<AttendWork> work;
	Floats k, v;            // (n_kv_heads, slots, D), slots = n_pages * page, as halves
	std::vector<bool> live; // (n_kv_heads, slots)
	uint32_t slots;
};

// Scatters n_old tokens over pages in random order in a larger pool; every page may be partly dead.
void make_cache(Cache& c, Rig& rig, const AttendRow& r, Random& random) {
	const uint32_t used = r.n_old ? (r.n_old + r.page - 1) / r.page + (r.n_old > 1) : 0,
	               pool = used + 2; // pages; some room for dead slots
	const uint32_t page_words = kv_code_words(r.n_kv_heads, r.D, 16, r.page);
	c.slots = used * r.page;
	c.k.assign(size_t(r.n_kv_heads) * c.slots * r.D, 0), c.v = c.k;
	c.live.assign(size_t(r.n_kv_heads) * c.slots, false);
	const Words place = shuffled(pool, random);
	Words k_pool(size_t(pool) * page_words, 0x7e007e00u), v_pool = k_pool; // NaN wherever no live token is
	Words pages(used * 4, 0), live((r.per_head ? r.n_kv_heads : 1) * used * 4, 0);
	for (uint32_t p = 0; p < used; ++p)
		pages[p * 4] = place[p] * page_words, pages[p * 4 + 1] = place[pool - 1 - p] * page_words;
	for (uint32_t h = 0; h < r.n_kv_heads; ++h) {
		static thread_local Words slots;
		if (h == 0 || r.per_head) slots = shuffled(c.slots, random);
		for (uint32_t i = 0; i < r.n_old; ++i) {
			const uint32_t slot = slots[i], p = slot / r.page, t = slot % r.page;
			c.live[size_t(h) * c.slots + slot] = true;
			live[((r.per_head ? h : 0) * used + p) * 4 + t / 32] |= 1u << t % 32;
			for (uint32_t w = 0; w < r.D / 2; ++w) {
				const float k0 = round_f16(random.normal()), k1 = round_f16(random.normal()),
				            v0 = round_f16(random.normal()), v1 = round_f16(random.normal());
				const size_t at = (size_t(h) * c.slots + slot) * r.D + 2 * w;
				c.k[at] = k0, c.k[at + 1] = k1, c.v[at] = v0, c.v[at + 1] = v1;
				k_pool[pages[p * 4] + kv_k_word(h, w, t, r.D, 16, r.page)] = f32_to_f16(k0) | uint32_t(f32_to_f16(k1))
				                                                                                  << 16;
				v_pool[pages[p * 4 + 1] + kv_v_word(h, t, w, r.D, 16, r.page)] =
				    f32_to_f16(v0) | uint32_t(f32_to_f16(v1)) << 16;
			}
		}
	}
	std::vector<AttendWork> work;
	Words row_parts;
	const KvTables tables(rig, pages, live);
	const uint32_t n = std::min(r.splits, used), row_step = n + (r.prompt ? 1 : 0), n_parts = r.T * row_step;
	for (uint32_t t = 0; t < r.T; ++t) {
		row_parts.insert(row_parts.end(), {t * row_step, row_step});
		for (uint32_t s = 0; s < n && t % r.item_rows == 0; ++s) {
			const uint32_t first = used * s / n, end = used * (s + 1) / n;
			work.push_back(tables.item(t, t * row_step + s, first, end - first));
		}
	}
	const uint32_t n_work = uint32_t(work.size());
	c.group = {};
	c.group.page = r.page;
	c.group.k_codes = rig.u32(k_pool, uint32_t(k_pool.size())),
	c.group.v_codes = rig.u32(v_pool, uint32_t(v_pool.size()));
	c.group.first_work = 0, c.group.n_work = n_work;
	c.kv = {};
	c.kv.groups = {&c.group, n_work ? size_t(1) : 0};
	c.kv.work = upload_work(rig, work), c.kv.tables = tables.view, c.work = work;
	c.kv.row_parts = rig.u32(row_parts, r.T, 2), c.kv.parts = rig.out(n_parts, r.n_heads, r.D + 2),
	c.kv.n_kv_heads = r.n_kv_heads, c.kv.item_rows = r.item_rows, c.kv.part_step = row_step;
}

// Attention of one query head over the live old tokens and tokens [lost, seen) of the prompt's k, v of its kv head.
// With a slope, scores of the prompt's tokens fall with their distance from token `own`.
void attend_reference(const Cache& c, uint32_t h, const float* q, uint32_t D, const float* k, const float* v,
                      uint32_t lost, uint32_t seen, float* out, double slope = 0, uint32_t own = 0) {
	std::vector<double> score, y(D);
	std::vector<const float*> values;
	const auto add = [&](const float* key, const float* value, double bias = 0) {
		double s = 0;
		for (uint32_t i = 0; i < D; ++i) s += double(q[i]) * double(key[i]);
		score.push_back(s / std::sqrt(double(D)) + bias), values.push_back(value);
	};
	for (uint32_t s = 0; s < c.slots; ++s)
		if (const size_t i = size_t(h) * c.slots + s; c.live[i]) add(&c.k[i * D], &c.v[i * D]);
	for (uint32_t t = lost; t < seen; ++t)
		add(k + size_t(t) * D, v + size_t(t) * D, -slope * std::abs(double(t) - double(own)));
	const double max = score.empty() ? 0 : *std::max_element(score.begin(), score.end());
	double sum = 0;
	for (size_t i = 0; i < score.size(); ++i) {
		const double p = std::exp(score[i] - max);
		sum += p;
		for (uint32_t j = 0; j < D; ++j) y[j] += p * double(values[i][j]);
	}
	for (uint32_t j = 0; j < D; ++j) out[j] = score.empty() ? 0 : float(y[j] / sum);
}

uint32_t first_seen(const AttendRow& r, uint32_t token) {
	if (!r.window) return 0;
	return r.chunked ? token - token % r.window : token + 1 > r.window ? token + 1 - r.window : 0;
}

void run_attend(Backend& backend, const AttendRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const uint32_t first = r.prompt ? r.prompt - 1 : 0, n = r.prompt ? first + r.T : 0, T_cap = n + 3;
	const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D, 2.f);
	const Floats k = rounded(random.normals(size_t(r.n_kv_heads) * T_cap * r.D)), v = rounded(random.normals(k.size()));
	Cache c;
	make_cache(c, rig, r, random);
	Floats want(q.size()), slopes(r.slopes ? r.n_heads : 0);
	for (float& s : slopes) s = random.uniform(0.003f, 0.5f);
	for (uint32_t t = 0; t < r.T; ++t)
		for (uint32_t head = 0; head < r.n_heads; ++head) {
			const size_t at = (size_t(t) * r.n_heads + head) * r.D;
			const uint32_t h = head / (r.n_heads / r.n_kv_heads);
			const uint32_t lost = first_seen(r, first + t);
			attend_reference(c, h, &q[at], r.D, &k[size_t(h) * T_cap * r.D], &v[size_t(h) * T_cap * r.D],
			                 r.ahead == kAllRows ? std::min(lost, first) : lost,
			                 r.prompt ? std::min<uint64_t>(n, first + t + 1 + uint64_t(r.ahead)) : 0, &want[at],
			                 r.slopes ? double(slopes[head]) : 0, first + t);
		}
	const View out = rig.out(r.T, r.n_heads, r.D), vq = rig.f32(q, r.T, r.n_heads, r.D);
	if (r.prompt) {
		const KvRows own{rig.f16(k, r.n_kv_heads, T_cap, r.D),
		                 rig.f16(v, r.n_kv_heads, T_cap, r.D),
		                 first,
		                 Window{r.window, r.chunked},
		                 {},
		                 r.ahead,
		                 {},
		                 0,
		                 r.slopes ? rig.f32(slopes, r.n_heads) : View()};
		backend.attend_prompt(out, {}, vq, own, r.n_old ? &c.kv : nullptr);
	} else {
		backend.attend(out, {}, vq, c.kv);
	}
	check_close(row, rig.get(out), want, r.prompt ? prompt_tolerance(backend) : "attend");
	check_same_bits(row, rig.get(vq), q);
}

} // namespace

TEST_CASE("ops: attend over f16 pages") {
	std::vector<AttendRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {8, 1}, {3, 1}}, pages[] = {32, 64, 128};
	size_t i = 0;
	for (uint32_t D : {8u, 64u, 80u, 96u, 128u})
		for (uint32_t n : {1u, 31u, 32u, 33u, 200u}) {
			const auto& h = heads[i % 4];
			rows.push_back({i % 3 == 2 ? 3u : 1u, h[0], h[1], D, n, pages[i % 3], uint32_t(1 + i % 3), i % 4 == 3});
			++i;
		}
	rows.push_back({1, 4, 2, 64, 0, 32, 1}); // nothing to attend to: zero
	rows.push_back({8, 8, 2, 64, 100, 32, 2});
	rows.push_back({8, 8, 2, 64, 100, 32, 2, false, 0, 3});
	rows.push_back({5, 4, 4, 128, 65, 64, 3, true, 0, 8}); // more than there are tokens
	rows.push_back({1, 16, 8, 128, 700, 32, 7});
	rows.push_back({1, 4, 2, 64, 32 * 40, 32, 40}); // more parts than attend.comp merges itself
	each_row(rows, run_attend);
}

TEST_CASE("ops: attend_prompt, alone and after older tokens in pages") {
	std::vector<AttendRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {8, 1}, {3, 1}}, pages[] = {32, 64, 128};
	size_t i = 0;
	for (uint32_t D : {8u, 64u, 80u, 96u, 128u})
		for (uint32_t T : {1u, 8u, 31u, 33u}) {
			const auto& h = heads[i % 4];
			rows.push_back(
			    {T, h[0], h[1], D, i % 3 == 0 ? 45u : 0u, pages[i % 3], 2, i % 2 == 0, i % 5 == 1 ? 20u : 1u});
			++i;
		}
	rows.push_back({100, 4, 2, 64, 0, 32, 1, false, 30});
	rows.push_back({70, 4, 1, 64, 70, 32, 3, true, 1});
	i = 0;
	for (uint32_t T : {1u, 3u, 9u, 40u}) // every block size of rows of a workgroup, with remainders
		for (const auto& h : heads) {
			const uint32_t D = i % 3 == 0 ? 128 : i % 3 == 1 ? 64 : 96;
			rows.push_back(
			    {T, h[0], h[1], D, 45 + T, pages[i % 3], uint32_t(1 + i % 2), i % 2 == 0, 1, i % 4 == 3 ? 4 : T});
			++i;
		}
	rows.push_back({40, 4, 4, 192, 0, 32, 1, false, 9}); // wide heads, which matrices take in parts
	rows.push_back({17, 8, 2, 256, 130, 64, 2, true, 20});
	rows.push_back({6, 24, 2, 64, 50, 32, 1, false, 1, 6}); // more heads in a group than a workgroup takes
	each_row(rows, run_attend);
}

// attend.lavapipe26.wide runs these with the shared memory of a GPU, which matrices need for them.
TEST_CASE("ops: attend_prompt, wide heads") {
	each_row<AttendRow>({{9, 8, 1, 512, 45, 32, 1, true, 20},
	                     {33, 4, 2, 320, 0, 32, 1, false, 7},
	                     {40, 8, 1, 512, 0, 32, 1, false, 30},
	                     {33, 6, 2, 512, 130, 64, 2, true, 20, 33},
	                     {20, 4, 2, 384, 70, 32, 1, false, 3, 20}},
	                    run_attend);
}

TEST_CASE("ops: attend_prompt over a sliding window, and over chunks") {
	std::vector<AttendRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {3, 1}};
	size_t i = 0;
	for (const uint32_t D : {8u, 64u, 128u})
		for (const uint32_t window : {1u, 2u, 31u, 32u, 33u, 100u, 1000u}) { // the prompt begins in it, or far before
			const auto& h = heads[i % 3];
			AttendRow r{i % 2 ? 40u : 9u, h[0], h[1], D, 0, 32, 1, false, i % 3 == 0 ? 1u : i % 3 == 1 ? 30u : 300u};
			r.window = window;
			rows.push_back(r), ++i;
		}
	rows.push_back({150, 4, 2, 64, 0, 32, 1, false, 1, 1, 17}); // windows lie between blocks of rows
	rows.push_back({1, 4, 2, 64, 0, 32, 1, false, 500, 1, 64});
	for (const AttendRow r : std::vector(rows)) rows.push_back(r), rows.back().chunked = true;
	each_row(rows, run_attend);
}

TEST_CASE("ops: attend_prompt with rows that see each other") {
	std::vector<AttendRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {3, 1}};
	size_t i = 0;
	for (const uint32_t D : {64u, 72u, 88u, 128u, 8u})
		for (const uint32_t window : {0u, 5u, 33u, 1000u}) {
			const auto& h = heads[i % 3];
			AttendRow r{i % 2 ? 70u : 9u, h[0], h[1], D, 0, 32, 1, false, i % 3 == 0 ? 1u : 100u};
			r.window = window;
			rows.push_back(r), ++i;
		}
	rows.push_back({1, 4, 2, 64, 0, 32, 1, false, 5});
	rows.push_back({40, 4, 2, 64, 90, 32, 2, false, 8, 40});
	rows.push_back({150, 2, 2, 64, 0, 32, 1, false, 1});
	for (AttendRow& r : rows) r.ahead = kAllRows;
	each_row(rows, run_attend);
}

TEST_CASE("ops: attend_prompt with windows on both sides of a row") {
	std::vector<AttendRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {3, 1}};
	size_t i = 0;
	for (const uint32_t D : {64u, 32u, 256u})
		for (const uint32_t ahead : {1u, 16u, 32u, 64u, 200u}) {
			const auto& h = heads[i % 3];
			AttendRow r{i % 2 ? 150u : 70u, h[0], h[1], D, 0, 32, 1, false, 1};
			r.window = ahead + 1, r.ahead = ahead;
			rows.push_back(r), ++i;
		}
	rows.push_back({150, 4, 2, 64, 0, 32, 1, false, 1, 1, 9, false, 40}); // more ahead than behind
	rows.push_back({150, 4, 2, 64, 0, 32, 1, false, 1, 1, 40, false, 9});
	rows.push_back({1, 4, 2, 64, 0, 32, 1, false, 1, 1, 9, false, 8});
	each_row(rows, run_attend);
}

TEST_CASE("ops: attend_prompt with scores that fall with distance") {
	std::vector<AttendRow> rows;
	for (const uint32_t D : {64u, 32u, 16u, 256u})
		for (const uint32_t T : {1u, 70u, 150u, 300u})
			for (const uint32_t ahead : {0u, kAllRows})
				rows.push_back(
				    {T, D == 64 ? 12u : 3u, D == 64 ? 12u : 1u, D, 0, 32, 1, false, 1, 1, 0, false, ahead, true});
	rows.push_back({40, 4, 2, 64, 0, 32, 1, false, 100, 1, 0, false, 0, true});        // behind tokens of its prompt
	rows.push_back({150, 4, 2, 64, 0, 32, 1, false, 1, 1, 17, false, 16, true});       // windows on both sides
	rows.push_back({1200, 2, 2, 64, 0, 32, 1, false, 1, 1, 0, false, kAllRows, true}); // weights of 0
	each_row(rows, run_attend);
}

TEST_CASE("ops: a row of attend_prompt has the same bits however the prompt is cut") {
	std::vector<AttendRow> rows = {{70, 8, 2, 64, 0, 32, 1, false, 1},
	                               {50, 4, 4, 80, 40, 32, 2, false, 1},
	                               {50, 4, 2, 64, 90, 32, 2, false, 1, 50},
	                               {40, 8, 1, 512, 90, 32, 2, false, 1, 40}};
	each_row(rows, [](Backend& backend, const AttendRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D),
		             k = random.normals(size_t(r.n_kv_heads) * r.T * r.D), v = random.normals(k.size());
		Cache c;
		make_cache(c, rig, r, random);
		const View vq = rig.f32(q, r.T, r.n_heads, r.D), vk = rig.f16(k, r.n_kv_heads, r.T, r.D),
		           vv = rig.f16(v, r.n_kv_heads, r.T, r.D);
		const View once = rig.out(r.T, r.n_heads, r.D);
		backend.attend_prompt(once, {}, vq, {vk, vv, 0}, r.n_old ? &c.kv : nullptr);
		const Floats want = rig.get(once);
		const Words row_parts = rig.get_words(c.kv.row_parts);
		for (uint32_t piece : {1u, 7u, 32u}) {
			const View out = rig.out(r.T, r.n_heads, r.D);
			for (uint32_t t = 0; t < r.T; t += piece) {
				const uint32_t n = std::min(piece, r.T - t);
				std::vector<AttendWork> part_work; // for rows [t, t + n), counted from t
				KvRead kv = c.kv;
				for (AttendWork w : c.work) {
					if (r.item_rows > 1) // for all rows; here those of the piece
						w.part += t * kv.part_step;
					else if (w.row < t || w.row >= t + n)
						continue;
					else
						w.row -= t;
					part_work.push_back(w);
				}
				AttendGroup group = c.group;
				group.n_work = uint32_t(part_work.size());
				kv.groups = {&group, group.n_work ? size_t(1) : 0};
				kv.work = upload_work(rig, part_work);
				kv.row_parts = rig.u32(Words(row_parts.begin() + t * 2, row_parts.begin() + (t + n) * 2), n, 2);
				backend.attend_prompt(kvrun::rows(out, t, n), {}, kvrun::rows(vq, t, n), {vk, vv, t},
				                      r.n_old ? &kv : nullptr);
			}
			check_same_bits({row.device, row.number, fmt::format("{}, {} rows at a time", row.text, piece)},
			                rig.get(out), want);
		}
	});
}
