// rope_store, kv_store, kv_load, attend and attend_prompt over f16 pages on every device, over tables of shapes,
// against definitions in double written here. Packed formats: test_attend.cpp.
#include "shared/kv_page.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <utility>

using namespace kvrun;

namespace {

Floats halves(const Words& words) {
	Floats r;
	for (uint32_t w : words) r.push_back(f16_to_f32(uint16_t(w))), r.push_back(f16_to_f32(uint16_t(w >> 16)));
	return r;
}
Floats rounded(Floats x) {
	for (float& v : x) v = round_f16(v);
	return x;
}
Words shuffled(uint32_t n, Random& random) {
	Words r(n);
	std::iota(r.begin(), r.end(), 0u);
	for (uint32_t i = n; i > 1; --i) std::swap(r[i - 1], r[random.below(i)]);
	return r;
}

// ---- rope_store

struct RopeRow {
	uint32_t T, n_heads, n_kv_heads, D, rotary_dim;
	bool neox, norm;
	uint32_t page;     // 0: prompt scratch, heads contiguous
	bool skip = false; // some heads are not stored
	bool last = false; // weights of the norm are applied after the rotation
	std::string text() const {
		return fmt::format("rope_store: T {} heads {}:{} head_dim {} rotary {}{}{} {}{}", T, n_heads, n_kv_heads, D,
		                   rotary_dim, neox ? " neox" : "",
		                   last   ? " norm last"
		                   : norm ? " norm"
		                          : "",
		                   page ? fmt::format("pages of {}", page) : "scratch", skip ? " skips" : "");
	}
};

std::vector<RopeRow> rope_rows() {
	std::vector<RopeRow> rows;
	const uint32_t heads[][2] = {{4, 4}, {8, 2}, {8, 1}, {3, 1}}, pages[] = {32, 0, 64, 128};
	size_t i = 0;
	for (uint32_t D : {8u, 64u, 80u, 96u, 128u})
		for (uint32_t T : {1u, 2u, 8u, 33u})
			for (bool neox : {false, true}) {
				const auto& h = heads[i % 4];
				rows.push_back({T, h[0], h[1], D, i % 3 == 1 ? D / 2 : D, neox, i % 5 < 2, pages[i % 4], i % 7 == 3});
				++i;
			}
	for (const uint32_t D : {16u, 64u, 128u})
		for (const bool neox : {false, true}) {
			rows.push_back({9, 4, 2, D, D, neox, true, 32, false, true});
			rows.push_back({3, 8, 1, D, D / 2 + 2, neox, true, 0, neox, true}); // a channel at a time
		}
	rows.push_back({5, 4, 1, 512, 512, true, true, 32});
	rows.push_back({3, 2, 1, 512, 128, true, true, 0});
	rows.push_back({2, 3, 1, 320, 320, false, false, 64});
	return rows;
}

// The head of x after the optional norm and the rotation, in double.
void rope_reference(const RopeRow& r, const float* x, const Floats& norm, const float* cs, float eps, double* y) {
	double scale = 1;
	if (!norm.empty()) {
		double sum = 0;
		for (uint32_t c = 0; c < r.D; ++c) sum += double(x[c]) * double(x[c]);
		scale = 1 / std::sqrt(sum / r.D + double(eps));
	}
	const auto weigh = [&](bool now) {
		for (uint32_t c = 0; c < r.D && now && !norm.empty(); ++c) y[c] *= double(norm[c]);
	};
	for (uint32_t c = 0; c < r.D; ++c) y[c] = double(x[c]) * scale;
	weigh(!r.last);
	for (uint32_t p = 0; p < r.rotary_dim / 2; ++p) {
		double& a = y[r.neox ? p : p * 2];
		double& b = y[r.neox ? p + r.rotary_dim / 2 : p * 2 + 1];
		const double a0 = a, b0 = b;
		a = a0 * double(cs[p * 2]) - b0 * double(cs[p * 2 + 1]);
		b = b0 * double(cs[p * 2]) + a0 * double(cs[p * 2 + 1]);
	}
	weigh(r.last);
}

// The destination of every (row, kv head): distinct places in K and V memory of `words` words.
struct Places {
	Words at;       // (T, n_kv_heads, 2)
	uint32_t words; // of K memory and of V memory
	uint32_t k_stride;
};
Places make_places(uint32_t T, uint32_t n_kv_heads, uint32_t D, uint32_t page, bool skip, Random& random) {
	Places p;
	p.k_stride = page ? page : 1;
	const uint32_t per_page = page ? page : T, n_pages = (T + per_page - 1) / per_page + 1; // one more than needed
	p.words = n_pages * n_kv_heads * per_page * D / 2;
	const Words slots = shuffled(n_pages * per_page, random);
	for (uint32_t t = 0; t < T; ++t)
		for (uint32_t h = 0; h < n_kv_heads; ++h) {
			const uint32_t base = slots[t] / per_page * n_kv_heads * per_page * D / 2, token = slots[t] % per_page;
			const bool out = skip && (t + h) % 2 == 0;
			p.at.push_back(out ? kSkip
			                   : base + (page ? kv_k_word(h, 0, token, D, 16, page) : (h * per_page + token) * D / 2));
			p.at.push_back(out ? kSkip : base + kv_v_word(h, token, 0, D, 16, per_page));
		}
	return p;
}

constexpr uint32_t kUnwritten = 0xA5A5A5A5u; // in K and V memory before the op

void run_rope_store(Backend& backend, const RopeRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D),
	             k = random.normals(size_t(r.T) * r.n_kv_heads * r.D);
	const Floats v = random.normals(k.size()), q_norm = r.norm ? random.normals(r.D) : Floats(),
	             k_norm = r.norm ? random.normals(r.D) : Floats();
	Floats table;
	for (uint32_t i = 0; i < r.T * r.rotary_dim / 2; ++i) {
		const float angle = random.uniform(-3.f, 3.f);
		table.push_back(1.1f * std::cos(angle)), table.push_back(1.1f * std::sin(angle)); // with an attention scale
	}
	const float eps = 1e-6f;
	const Places places = make_places(r.T, r.n_kv_heads, r.D, r.page, r.skip, random);

	Floats want_q(q.size()), want_k, want_v; // K and V of stored rows, row by row
	std::vector<double> head(r.D);
	for (size_t i = 0; i < size_t(r.T) * r.n_heads; ++i) {
		rope_reference(r, &q[i * r.D], q_norm, &table[i / r.n_heads * r.rotary_dim], eps, head.data());
		std::copy(head.begin(), head.end(), &want_q[i * r.D]);
	}
	for (size_t i = 0; i < size_t(r.T) * r.n_kv_heads; ++i) {
		if (places.at[i * 2] == kSkip) continue;
		rope_reference(r, &k[i * r.D], k_norm, &table[i / r.n_kv_heads * r.rotary_dim], eps, head.data());
		want_k.insert(want_k.end(), head.begin(), head.end());
		want_v.insert(want_v.end(), &v[i * r.D], &v[i * r.D] + r.D);
	}

	const View vq = rig.f32(q, r.T, r.n_heads, r.D), vk = rig.f32(k, r.T, r.n_kv_heads, r.D),
	           vv = rig.f32(v, r.T, r.n_kv_heads, r.D);
	const Words empty(places.words, kUnwritten);
	const KvDst dst{rig.u32(empty, places.words), rig.u32(empty, places.words),
	                rig.u32(places.at, r.T, r.n_kv_heads, 2), places.k_stride};
	const HeadNorm norm{r.norm ? rig.f32(q_norm, r.D) : View(), r.norm ? rig.f32(k_norm, r.D) : View(), eps, r.last};
	backend.rope_store(vq, vk, vv, {rig.f32(table, r.T, r.rotary_dim / 2, 2), r.rotary_dim, r.neox}, norm, dst);

	check_close(row, rig.get(vq), want_q, "rope");
	check_same_bits(row, rig.get(vk), k);
	check_same_bits(row, rig.get(vv), v);
	Words k_mem = rig.get_words(dst.k), v_mem = rig.get_words(dst.v), k_words, v_words;
	for (size_t i = 0; i < places.at.size(); i += 2)
		for (uint32_t w = 0; w < r.D / 2 && places.at[i] != kSkip; ++w) {
			k_words.push_back(std::exchange(k_mem[places.at[i] + w * places.k_stride], kUnwritten));
			v_words.push_back(std::exchange(v_mem[places.at[i + 1] + w], kUnwritten));
		}
	check_close(row, halves(k_words), want_k, "kv");
	check_same_bits(row, halves(v_words), rounded(want_v));
	CHECK(k_mem == empty); // no other word was written
	CHECK(v_mem == empty);
}

// ---- kv_store

struct StoreRow {
	uint32_t n, first, T_cap, n_kv_heads, D, page;
	bool skip = false;
	std::string text() const {
		return fmt::format("kv_store: tokens {}..{} of {} kv heads {} head_dim {} pages of {}{}", first, first + n,
		                   T_cap, n_kv_heads, D, page, skip ? " skips" : "");
	}
};

void run_kv_store(Backend& backend, const StoreRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const size_t all = size_t(r.n_kv_heads) * r.T_cap * r.D;
	const Floats k = rounded(random.normals(all)), v = rounded(random.normals(all));
	const Places places = make_places(r.n, r.n_kv_heads, r.D, r.page, r.skip, random);
	const Words empty(places.words, kUnwritten);
	const KvDst dst{rig.u32(empty, places.words), rig.u32(empty, places.words),
	                rig.u32(places.at, r.n, r.n_kv_heads, 2), places.k_stride};
	backend.kv_store({rig.f16(k, r.n_kv_heads, r.T_cap, r.D), rig.f16(v, r.n_kv_heads, r.T_cap, r.D), r.first}, r.n,
	                 dst);
	Words want_k = empty, want_v = empty;
	for (uint32_t t = 0; t < r.n; ++t)
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t w = 0; w < r.D / 2; ++w) {
				const size_t at = (size_t(t) * r.n_kv_heads + h) * 2,
				             from = (size_t(h) * r.T_cap + r.first + t) * r.D + 2 * w;
				if (places.at[at] == kSkip) continue;
				want_k[places.at[at] + w * places.k_stride] = f32_to_f16(k[from]) | uint32_t(f32_to_f16(k[from + 1]))
				                                                                        << 16;
				want_v[places.at[at + 1] + w] = f32_to_f16(v[from]) | uint32_t(f32_to_f16(v[from + 1])) << 16;
			}
	CHECK(rig.get_words(dst.k) == want_k);
	CHECK(rig.get_words(dst.v) == want_v);

	// and back by kv_load(): stored heads return, all other elements are unchanged
	const Floats before(all, 0.5f);
	const View k_back = rig.f16(before, r.n_kv_heads, r.T_cap, r.D),
	           v_back = rig.f16(before, r.n_kv_heads, r.T_cap, r.D);
	backend.kv_load({k_back, v_back, r.first}, r.n, dst);
	Floats want_kb = before, want_vb = before;
	for (uint32_t t = 0; t < r.n; ++t)
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t c = 0; c < r.D; ++c) {
				const size_t i = (size_t(h) * r.T_cap + r.first + t) * r.D + c;
				if (places.at[(size_t(t) * r.n_kv_heads + h) * 2] != kSkip) want_kb[i] = k[i], want_vb[i] = v[i];
			}
	check_same_bits(row, halves(rig.get_words(k_back)), want_kb);
	check_same_bits(row, halves(rig.get_words(v_back)), want_vb);
}

// ---- attention

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

// ---- join_heads

struct JoinRow {
	uint32_t n, n_heads, a, b, out;
	uint32_t halves = 0; // bit 0: out, 1: a, 2: b
	bool shared = false; // b has one head
	std::string text() const {
		return fmt::format("join_heads: n {} heads {} a {} b {} out {} halves {}{}", n, n_heads, a, b, out, halves,
		                   shared ? " shared" : "");
	}
};

void run_join(Backend& backend, const JoinRow& r, const TestRow& row) {
	Rig rig(backend);
	Random random(uint32_t(row.number) + 1);
	const uint32_t cap = r.n + 7, first = 3;
	// A side's numbers by (token, head, channel), and where it lies; f16 between rows that are not named.
	const auto side = [&](uint32_t n_heads, uint32_t channels, bool halves, Floats& x) {
		x = rounded(random.normals(size_t(r.n) * n_heads * channels));
		if (!halves) return HeadRows{rig.f32(x, r.n, n_heads, channels)};
		Floats rows(size_t(n_heads) * cap * channels, 99);
		for (uint32_t t = 0; t < r.n; ++t)
			for (uint32_t h = 0; h < n_heads; ++h)
				for (uint32_t c = 0; c < channels; ++c)
					rows[(size_t(h) * cap + first + t) * channels + c] = x[(size_t(t) * n_heads + h) * channels + c];
		return HeadRows{rig.f16(rows, n_heads, cap, channels), first};
	};
	Floats xa, xb, unused;
	const uint32_t b_heads = r.shared ? 1 : r.n_heads;
	const HeadRows a = side(r.n_heads, r.a, r.halves & 2, xa);
	const HeadRows b = r.b ? side(b_heads, r.b, r.halves & 4, xb) : HeadRows{};
	const HeadRows out = side(r.n_heads, r.out, r.halves & 1, unused);
	backend.join_heads(out, a, b, r.n);
	Floats want, got, all = r.halves & 1 ? halves(rig.get_words(as_words(out.v))) : rig.get(out.v);
	for (uint32_t t = 0; t < r.n; ++t)
		for (uint32_t h = 0; h < r.n_heads; ++h)
			for (uint32_t c = 0; c < r.out; ++c) {
				float x = 0;
				if (c < r.a)
					x = xa[(size_t(t) * r.n_heads + h) * r.a + c];
				else if (c - r.a < r.b)
					x = xb[(size_t(t) * b_heads + (r.shared ? 0 : h)) * r.b + c - r.a];
				want.push_back(x);
				got.push_back(all[out.start() + size_t(t) * out.token_stride() + size_t(h) * out.head_stride() + c]);
			}
	check_same_bits(row, got, want);
	if (!out.first) return;
	CHECK(all[0] == 99); // rows before and after are unchanged
	CHECK(all.back() == 99);
}

} // namespace

TEST_CASE("ops: rope_store") { each_row(rope_rows(), run_rope_store); }

TEST_CASE("ops: kv_store and kv_load") {
	std::vector<StoreRow> rows = {{1, 0, 1, 1, 64, 32},          {33, 0, 33, 2, 64, 32}, {31, 7, 40, 4, 8, 64},
	                              {128, 1, 129, 2, 128, 128},    {5, 3, 9, 3, 80, 32},   {2, 0, 64, 8, 96, 64},
	                              {40, 10, 50, 2, 64, 32, true}, {70, 0, 70, 1, 128, 0}};
	each_row(rows, run_kv_store);
}

TEST_CASE("ops: join_heads") {
	std::vector<JoinRow> rows = {{1, 1, 2, 0, 2, 0},          {3, 4, 16, 8, 24, 0b000},
	                             {33, 2, 64, 64, 128, 0b001}, {7, 5, 128, 64, 192, 5, true},
	                             {40, 3, 32, 0, 48, 0b001},   {9, 1, 512, 0, 512, 0b010},
	                             {5, 6, 192, 0, 128, 0b000},  {12, 2, 10, 6, 14, 0b111, true}};
	each_row(rows, run_join);
}

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
