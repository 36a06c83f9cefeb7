// rope_store, kv_store, kv_load and join_heads on every device, over tables of shapes, against definitions in double
// written here.
#include "shared/kv_page.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/shuffled.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

Floats halves(const Words& words) {
	Floats r;
	for (uint32_t w : words) r.push_back(f16_to_f32(uint16_t(w))), r.push_back(f16_to_f32(uint16_t(w >> 16)));
	return r;
}

// ---- rope_store

struct RopeRow {
	uint32_t T, n_heads, n_kv_heads, D, rotary_dim;
	bool neox, norm;
	uint32_t page;     // 0: prompt scratch, heads contiguous
	bool skip = false; // some heads are not stored
	bool last = false; // weights of the norm are applied after the rotation
	uint32_t first = 0;
	bool back = false;
	std::string text() const {
		return fmt::format("rope_store: T {} heads {}:{} head_dim {} rotary {}{}{} {}{}", T, n_heads, n_kv_heads, D,
		                   rotary_dim, neox ? " neox" : "",
		                   last   ? " norm last"
		                   : norm ? " norm"
		                          : "",
		                   page ? fmt::format("pages of {}", page) : "scratch", skip ? " skips" : "") +
		       (first ? fmt::format(" from {}", first) : "") + (back ? " back" : "");
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
	rows.push_back({3, 4, 1, 512, 64, false, true, 32, false, false, 448}); // deepseek4
	rows.push_back({5, 2, 1, 96, 32, true, true, 0, true, true, 40});
	rows.push_back({9, 4, 2, 64, 16, false, false, 64, false, false, 48, true});
	rows.push_back({2, 1, 1, 128, 128, true, false, 32, false, false, 0, true});
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
		double& a = y[r.first + (r.neox ? p : p * 2)];
		double& b = y[r.first + (r.neox ? p + r.rotary_dim / 2 : p * 2 + 1)];
		const double a0 = a, b0 = b, sin = double(cs[p * 2 + 1]) * (r.back ? -1 : 1);
		a = a0 * double(cs[p * 2]) - b0 * sin;
		b = b0 * double(cs[p * 2]) + a0 * sin;
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
	backend.rope_store(vq, vk, vv,
	                   {rig.f32(table, r.T, r.rotary_dim / 2, 2), r.rotary_dim, r.neox, false, r.first, r.back}, norm,
	                   dst);

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

// ---- kv_load of more words of a head than one dispatch of 65535 workgroups copies

struct LoadRow {
	uint32_t n, k_words; // V is left out
	std::string text() const { return fmt::format("kv_load: tokens {} words of K {}", n, k_words); }
};

void run_long_load(Backend& backend, const LoadRow& r, const TestRow&) {
	Rig rig(backend);
	Words pool(r.k_words + 5), at, want;
	for (uint32_t i = 0; i < pool.size(); ++i) pool[i] = i * 2654435761u;
	for (uint32_t t = 0; t < r.n; ++t) {
		const uint32_t from = t % 7 == 6 ? kSkip : t % 5;
		at.push_back(from), at.push_back(kSkip);
		for (uint32_t w = 0; w < r.k_words; ++w) want.push_back(from == kSkip ? kUnwritten : pool[from + w]);
	}
	const auto unwritten = [&](uint32_t words) { // (1, n, words) of a head's rows
		View v = rig.u32(Words(size_t(r.n) * words, kUnwritten), 1, r.n, words);
		v.type = DType::F16, v.shape[2] *= 2;
		return v;
	};
	const View k = unwritten(r.k_words), v = unwritten(2), from = rig.u32(pool, uint32_t(pool.size()));
	backend.kv_load({k, v, 0}, r.n, {from, from, rig.u32(at, r.n, 1, 2), 1});
	CHECK(rig.get_words(k) == want);
	CHECK(rig.get_words(v) == Words(size_t(r.n) * 2, kUnwritten));
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

TEST_CASE("ops: kv_load of rows for more than one dispatch") {
	each_row(std::vector<LoadRow>{{33000, 256}}, run_long_load);
}

TEST_CASE("ops: join_heads") {
	std::vector<JoinRow> rows = {{1, 1, 2, 0, 2, 0},          {3, 4, 16, 8, 24, 0b000},
	                             {33, 2, 64, 64, 128, 0b001}, {7, 5, 128, 64, 192, 5, true},
	                             {40, 3, 32, 0, 48, 0b001},   {9, 1, 512, 0, 512, 0b010},
	                             {5, 6, 192, 0, 128, 0b000},  {12, 2, 10, 6, 14, 0b111, true}};
	each_row(rows, run_join);
}
