// Scores of tokens by the attention they receive, channel maxima and the balancer, on every device.
#include "shared/kv_page.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {
struct ScoreRow {
	uint32_t T, n_heads, n_kv_heads, D, first; // rows of q; tokens of the prompt before row 0
	Saliency by = {};
	float softcap = 0; // as in Softmax
	uint32_t R = 0;    // of latent attention: channels of the rotated key beside a latent
	std::string text() const {
		return fmt::format("scores: T {} heads {}:{} head_dim {} after {}{}{}{}{}", T, n_heads, n_kv_heads, D, first,
		                   by.attention ? "" : ", without attention",
		                   by.key_length == KeyLength::Large   ? ", times lengths"
		                   : by.key_length == KeyLength::Small ? ", over lengths"
		                                                       : "",
		                   softcap > 0 ? fmt::format(", softcap {}", softcap) : "",
		                   R ? fmt::format(", rotated keys of {}", R) : "");
	}
	double score(double dot) const {
		const double s = dot / std::sqrt(double(D));
		return softcap > 0 ? double(softcap) * std::tanh(s / double(softcap)) : s;
	}
};

// What a row gives a token with this key and attention.
double given(const Saliency& by, double attention, const float* key, uint32_t D) {
	double squares = 0;
	for (uint32_t c = 0; c < D; ++c) squares += double(key[c]) * key[c];
	const double x = by.attention ? attention : 1, length = std::sqrt(squares);
	return by.key_length == KeyLength::Ignored ? x : by.key_length == KeyLength::Large ? x * length : x / length;
}
} // namespace

TEST_CASE("pack: scores of prompt tokens, channel maxima and the balancer they make") {
	std::vector<ScoreRow> rows = {{1, 4, 2, 64, 0},
	                              {33, 8, 2, 64, 0},
	                              {40, 3, 1, 96, 7},
	                              {64, 4, 4, 8, 100},
	                              {5, 8, 1, 128, 60},
	                              {150, 4, 1, 128, 170}, // many tokens and queries of matrix kernels' workgroups
	                              {130, 6, 2, 80, 3, {true, KeyLength::Small}},
	                              {33, 8, 2, 64, 0, {true, KeyLength::Large}},
	                              {6, 8, 1, 128, 60, {false, KeyLength::Large}},
	                              {40, 3, 1, 96, 7, {false, KeyLength::Small}},
	                              {40, 8, 2, 64, 7, {}, 1.5f},
	                              {33, 6, 2, 80, 3, {true, KeyLength::Small}, 1.5f},
	                              {20, 8, 1, 512, 9},
	                              {33, 6, 1, 32, 20, {}, 0, 8},
	                              {40, 5, 1, 512, 3, {}, 0, 64},
	                              {9, 4, 1, 96, 7, {}, 1.5f, 16}};
	each_row(rows, [](Backend& backend, const ScoreRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t n = r.first + r.T, T_cap = n + 5, share = r.n_heads / r.n_kv_heads;
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D);
		const uint32_t v_dim = r.R ? r.R : r.D;
		Floats k = random.normals(size_t(r.n_kv_heads) * T_cap * r.D),
		       v = random.normals(size_t(r.n_kv_heads) * T_cap * v_dim);
		const Floats q_rope = random.normals(size_t(r.T) * r.n_heads * r.R);
		for (Floats* all : {&k, &v})
			for (float& x : *all) x = round_f16(x);
		Words probes;
		for (uint32_t t = 0; t < r.T; ++t)
			if (t % 3 == 0 || t + 1 == r.T) probes.push_back(t);
		const View vq = rig.f32(q, r.T, r.n_heads, r.D);
		const View v_rope = r.R ? rig.f32(q_rope, r.T, r.n_heads, r.R) : View();
		const KvRows kv{rig.f16(k, r.n_kv_heads, T_cap, r.D),
		                rig.f16(v, r.n_kv_heads, T_cap, v_dim),
		                r.first,
		                {},
		                {r.softcap, {}, v_rope}};
		const View lse = rig.out(r.T, r.n_heads);
		backend.attend_prompt(rig.out(r.T, r.n_heads, r.D), lse, vq, kv, nullptr);
		const Floats before = random.normals(size_t(r.n_kv_heads) * T_cap, 0.01f); // the op adds to what is there
		const View score = rig.f32(before, r.n_kv_heads, T_cap);
		backend.score_prompt(score, vq, lse, rig.u32(probes, uint32_t(probes.size())), kv, r.by);
		Floats want = before, want_lse(size_t(r.T) * r.n_heads);
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t head = 0; head < r.n_heads; ++head) {
				const uint32_t h = head / share;
				std::vector<double> s(r.first + t + 1);
				double sum = 0;
				for (uint32_t i = 0; i < s.size(); ++i) {
					for (uint32_t c = 0; c < r.D; ++c)
						s[i] += double(q[(size_t(t) * r.n_heads + head) * r.D + c]) *
						        double(k[(size_t(h) * T_cap + i) * r.D + c]);
					for (uint32_t c = 0; c < r.R; ++c)
						s[i] += double(q_rope[(size_t(t) * r.n_heads + head) * r.R + c]) *
						        double(v[(size_t(h) * T_cap + i) * r.R + c]);
					s[i] = r.score(s[i]);
					sum += std::exp(s[i]);
				}
				want_lse[size_t(t) * r.n_heads + head] = float(std::log(sum));
				if (std::find(probes.begin(), probes.end(), t) == probes.end()) continue;
				for (uint32_t i = 0; i < s.size(); ++i)
					want[size_t(h) * T_cap + i] +=
					    float(given(r.by, std::exp(s[i]) / sum, &k[(size_t(h) * T_cap + i) * r.D], r.D) / share);
			}
		check_close(row, rig.get(lse), want_lse, prompt_tolerance(backend));
		check_close(row, rig.get(score), want, prompt_tolerance(backend, "attend"));

		const Floats some = random.normals(size_t(r.n_kv_heads) * r.D); // negative ones are replaced, larger ones stay
		const View max = rig.f32(some, r.n_kv_heads, r.D);
		backend.channel_max(max, vq);
		Floats want_max = some;
		for (size_t i = 0; i < q.size(); ++i) {
			float& m = want_max[(i / r.D % r.n_heads / share) * r.D + i % r.D];
			m = std::max(m, std::fabs(q[i]));
		}
		check_same_bits(row, rig.get(max), want_max);

		for (uint32_t t = 0; t < n; ++t) k[size_t(t) * r.D + 3] = 0; // a channel without keys has factor 1
		const View keys = rig.f16(k, r.n_kv_heads, T_cap, r.D),
		           balance = rig.f16(Floats(some.size(), 9.f), r.n_kv_heads, r.D);
		backend.kv_balance(balance, max, {keys, keys, 0}, n);
		Floats got, want_b;
		const Words words = rig.get_words(balance);
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t c = 0; c < r.D; ++c) {
				float m = 0;
				for (uint32_t t = 0; t < n; ++t) m = std::max(m, std::fabs(k[(size_t(h) * T_cap + t) * r.D + c]));
				got.push_back(f16_of(words, size_t(h) * r.D + c));
				want_b.push_back(m > 0 ? std::sqrt(want_max[size_t(h) * r.D + c] / m) : 1.f);
			}
		check_close(row, got, want_b, "kv");
	});
}

TEST_CASE("pack: scores of tokens in f16 pages") {
	std::vector<ScoreRow> rows = {{3, 4, 2, 64, 45},
	                              {1, 8, 1, 128, 33},
	                              {2, 3, 3, 8, 64},
	                              {3, 4, 2, 64, 45, {true, KeyLength::Small}},
	                              {1, 8, 1, 128, 33, {false, KeyLength::Large}},
	                              {2, 6, 2, 64, 45, {}, 1.5f},
	                              {3, 11, 1, 64, 45, {}, 0, 16},
	                              {2, 3, 1, 512, 50, {}, 1.5f, 64}};
	each_row(rows, [](Backend& backend, const ScoreRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t page = 32, n_pages = 3, slots = n_pages * page, share = r.n_heads / r.n_kv_heads;
		const uint32_t words = kv_code_words(r.n_kv_heads, r.D, 16, page);
		const uint32_t v_words = r.R ? kv_code_words(r.n_kv_heads, r.R, 16, page) : 0; // of a page, behind all keys
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D), lse = random.normals(size_t(r.T) * r.n_heads);
		const Floats q_rope = random.normals(size_t(r.T) * r.n_heads * r.R);
		Floats v(size_t(r.n_kv_heads) * slots * r.R);
		const Floats before = random.normals(size_t(r.n_kv_heads) * slots, 0.01f);
		Floats k(size_t(r.n_kv_heads) * slots * r.D), want = before;
		Words pool(size_t(n_pages) * (words + v_words), 0x7e007e00u), pages(n_pages * 4), live(n_pages * 4, 0),
		    probes = {0};
		if (r.T > 1) probes.push_back(r.T - 1);
		for (uint32_t p = 0; p < n_pages; ++p) {
			pages[p * 4] = (n_pages - 1 - p) * words;
			pages[p * 4 + 1] = n_pages * words + p * v_words;
		}
		for (uint32_t i = 0; i < r.first; ++i) { // live slots, spread
			const uint32_t s = i * 37 % slots;
			live[s / page * 4] |= 1u << s % page;
			for (uint32_t h = 0; h < r.n_kv_heads; ++h)
				for (uint32_t w = 0; w < r.D / 2; ++w) {
					float* x = &k[(size_t(h) * slots + s) * r.D + 2 * w];
					x[0] = round_f16(random.normal()), x[1] = round_f16(random.normal());
					pool[pages[s / page * 4] + kv_k_word(h, w, s % page, r.D, 16, page)] =
					    f32_to_f16(x[0]) | uint32_t(f32_to_f16(x[1])) << 16;
				}
			for (uint32_t w = 0; w < r.R / 2; ++w) {
				float* x = &v[size_t(s) * r.R + 2 * w];
				x[0] = round_f16(random.normal()), x[1] = round_f16(random.normal());
				pool[pages[s / page * 4 + 1] + kv_v_word(0, s % page, w, r.R, 16, page)] =
				    f32_to_f16(x[0]) | uint32_t(f32_to_f16(x[1])) << 16;
			}
		}
		// Two sequences with the same pages: the first row feeds the scores of one, every probe those of the other.
		const KvTables tables(rig, pages, live);
		std::vector<ScoreWork> work;
		for (uint32_t s = 0; s < 2; ++s)
			for (const auto& [p, n] : {std::pair{0u, 2u}, {2u, 1u}}) {
				const AttendWork at = tables.item(0, 0, p, n);
				work.push_back({.first = s,
				                .n = s ? uint32_t(probes.size()) : 1,
				                .n_pages = n,
				                .pages = at.pages,
				                .live = at.live,
				                .live_stride = 0,
				                .score = s * r.n_kv_heads * slots + p * page,
				                .score_stride = slots});
			}
		const View codes = rig.u32(pool, uint32_t(pool.size()));
		const ScoreGroup g{page, codes, 0, 4, 2 * n_pages, r.by, r.R ? codes : View()};
		Words rows = {0};
		rows.insert(rows.end(), probes.begin(), probes.end());
		Floats twice = before;
		twice.insert(twice.end(), before.begin(), before.end());
		const View score = rig.f32(twice, 2 * r.n_kv_heads * slots);
		backend.score_slots(rig.f32(q, r.T, r.n_heads, r.D), rig.f32(lse, r.T, r.n_heads),
		                    {{&g, 1},
		                     upload_work(rig, work),
		                     rig.u32(rows, uint32_t(rows.size())),
		                     tables.view,
		                     score,
		                     r.n_kv_heads,
		                     r.softcap,
		                     r.R ? rig.f32(q_rope, r.T, r.n_heads, r.R) : View()});
		Floats want_first = before;
		for (uint32_t t : probes)
			for (uint32_t head = 0; head < r.n_heads; ++head)
				for (uint32_t s = 0; s < slots; ++s) {
					if (!(live[s / page * 4] >> s % page & 1)) continue;
					double dot = 0;
					for (uint32_t c = 0; c < r.D; ++c)
						dot += double(q[(size_t(t) * r.n_heads + head) * r.D + c]) *
						       double(k[(size_t(head / share) * slots + s) * r.D + c]);
					for (uint32_t c = 0; c < r.R; ++c)
						dot +=
						    double(q_rope[(size_t(t) * r.n_heads + head) * r.R + c]) * double(v[size_t(s) * r.R + c]);
					const double attention = std::exp(r.score(dot) - double(lse[size_t(t) * r.n_heads + head]));
					const float more =
					    float(given(r.by, attention, &k[(size_t(head / share) * slots + s) * r.D], r.D) / share);
					want[size_t(head / share) * slots + s] += more;
					if (t == 0) want_first[size_t(head / share) * slots + s] += more;
				}
		want_first.insert(want_first.end(), want.begin(), want.end());
		check_close(row, rig.get(score), want_first, "attend");
		if (r.by != Saliency{}) return;
		// weigh gives what the first row adds, and -1 for slots without a token.
		std::vector<WeighWork> weighed;
		for (const auto& [p, n] : {std::pair{0u, 1u}, {1u, 2u}}) {
			const AttendWork at = tables.item(0, 0, p, n);
			weighed.push_back({.row = 0,
			                   .n_pages = n,
			                   .pages = at.pages,
			                   .live = at.live,
			                   .live_stride = 0,
			                   .weight = p * page,
			                   .weight_stride = slots,
			                   .balance = 0});
		}
		const WeighGroup of{.k = {},
		                    .page = page,
		                    .k_codes = codes,
		                    .k_params = {},
		                    .first_work = 0,
		                    .n_work = 2,
		                    .n_pages = n_pages,
		                    .v = {},
		                    .v_codes = r.R ? codes : View()};
		const View weight = rig.out(r.n_kv_heads * slots);
		backend.weigh(rig.f32(q, r.T, r.n_heads, r.D), rig.f32(lse, r.T, r.n_heads),
		              {.groups = {&of, 1},
		               .weight = weight,
		               .work = upload_work(rig, weighed),
		               .tables = tables.view,
		               .balance = {},
		               .n_kv_heads = r.n_kv_heads,
		               .softcap = r.softcap,
		               .q_rope = r.R ? rig.f32(q_rope, r.T, r.n_heads, r.R) : View()});
		Floats given_first(want_first.begin(), want_first.begin() + ptrdiff_t(before.size()));
		for (size_t i = 0; i < given_first.size(); ++i) {
			const uint32_t s = uint32_t(i % slots);
			given_first[i] = live[s / page * 4] >> s % page & 1 ? given_first[i] - before[i] : -1.f;
		}
		check_close(row, rig.get(weight), given_first, "attend");
	});
}
