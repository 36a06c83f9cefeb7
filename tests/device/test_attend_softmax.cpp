// Softcaps and attention sinks in every kernel that computes scores, against the same in double (packed_cache.h).
#include "tests/device/packed_cache.h"
#include <tuple>

using namespace kvrun;

TEST_CASE("attend: softcaps and sinks, one part or many, merged or not") {
	std::vector<PackedRow> rows;
	const Format f16{}, kivi2{channel(2), token(2, 64)};
	struct Way {
		Format format;
		uint32_t D, splits;
		float softcap;
		bool sinks;
	};
	size_t i = 0;
	for (const Way& w : {Way{f16, 64, 1, 0, true}, {kivi2, 64, 12, 1.5f, false}, {kivi2, 128, 2, 3, true}}) {
		const auto& h = kHeads[1 + i++];
		const Shape shape{.T = 3,
		                  .n_heads = h[0],
		                  .n_kv_heads = h[1],
		                  .D = w.D,
		                  .splits = w.splits,
		                  .softcap = w.softcap,
		                  .sinks = w.sinks};
		rows.push_back({shape, {{w.format, 32, 70 + 30 * w.splits}, {f16, 32, 33}}});
		Shape prompt = shape;
		prompt.item_rows = prompt.T, prompt.prompt = true;
		rows.push_back({prompt, {{w.format, 32, 70}}});
	}
	// Only a sink: zero, and the sink's own logit.
	rows.push_back({{.T = 1, .n_heads = 4, .n_kv_heads = 2, .D = 64, .splits = 1, .sinks = true}, {{kivi2, 32, 0}}});
	each_row(rows, run_packed);
}

TEST_CASE("attend: a prompt alone, with softcaps, sinks and windows") {
	std::vector<PackedRow> rows;
	for (const auto& [D, softcap, sinks] : {std::tuple{64u, 0.f, true}, {64u, 1.5f, false}, {256u, 2.f, true}})
		rows.push_back({{.T = D == 64 ? 70u : 33u,
		                 .n_heads = D == 256 ? 4u : 8u,
		                 .n_kv_heads = 2,
		                 .D = D,
		                 .splits = 1,
		                 .prompt = true,
		                 .softcap = softcap,
		                 .sinks = sinks},
		                {}});
	each_row(rows, [](Backend& backend, const PackedRow& r, const TestRow& row) {
		const Shape& s = r.s;
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats q = random.normals(size_t(s.T) * s.n_heads * s.D);
		PackedCache c;
		c.tokens.assign(1, std::vector<std::vector<Token>>(s.n_kv_heads));
		KvRows own = make_own(c, rig, r, random);
		own.softmax.softcap = s.softcap;
		if (s.sinks) c.sinks = random.normals(s.n_heads, 2.f), own.softmax.sinks = rig.f32(c.sinks, s.n_heads);
		const View vq = rig.f32(q, s.T, s.n_heads, s.D);
		for (const uint32_t window : {0u, 9u}) {
			own.window = {window};
			Floats want(q.size()), want_lse;
			if (!window) {
				reference(r, c, q, want, want_lse);
			} else { // single rows see only the latest tokens
				for (uint32_t t = 0; t < s.T; ++t) {
					PackedRow one = r;
					one.s.T = 1, one.s.prompt = false;
					PackedCache seen = c;
					for (uint32_t h = 0; h < s.n_kv_heads; ++h)
						seen.tokens[0][h].assign(c.own[h].begin() + (t + 1 > window ? t + 1 - window : 0),
						                         c.own[h].begin() + t + 1);
					const size_t n = size_t(s.n_heads) * s.D;
					Floats y(n);
					reference(one, seen, Floats(q.begin() + ptrdiff_t(t * n), q.begin() + ptrdiff_t((t + 1) * n)), y,
					          want_lse);
					std::ranges::copy(y, want.begin() + ptrdiff_t(t * n));
				}
			}
			const View out = rig.out(s.T, s.n_heads, s.D), lse = window ? View() : rig.out(s.T, s.n_heads);
			backend.attend_prompt(out, lse, vq, own, nullptr);
			check_close(row, rig.get(out), want, prompt_tolerance(backend));
			if (lse) check_close(row, rig.get(lse), want_lse, prompt_tolerance(backend));
		}
	});
}

TEST_CASE("attend: what a row gives packed tokens, with softcaps") {
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (const Format& f : {Format{channel(2), token(2, 64)}, Format{}})
		rows.push_back({{.T = 2,
		                 .n_heads = kHeads[i][0],
		                 .n_kv_heads = kHeads[i][1],
		                 .D = i == 1 ? 128u : 64u,
		                 .splits = 1,
		                 .softcap = 1.5f,
		                 .sinks = i++ == 0},
		                {{f, 64, 90}}});
	each_row(rows, [](Backend& backend, const PackedRow& r, const TestRow& row) {
		const Shape& s = r.s;
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats q = random.normals(size_t(s.T) * s.n_heads * s.D);
		PackedCache c;
		Builder(r, random).build(c, rig);
		if (s.sinks) c.sinks.assign(s.n_heads, 1.f);
		Floats unused(q.size()), lse;
		reference(r, c, q, unused, lse);
		const AttendGroup& g = c.groups[0];
		AttendWork of;
		std::memcpy(&of, rig.get_words(c.kv.work).data(), sizeof of);
		const uint32_t stride = of.n_pages * g.page, share = s.n_heads / s.n_kv_heads;
		const WeighWork work{.row = 1,
		                     .n_pages = of.n_pages,
		                     .pages = of.pages,
		                     .live = of.live,
		                     .live_stride = of.live_stride,
		                     .weight = 0,
		                     .weight_stride = stride,
		                     .balance = 0};
		const WeighGroup group{.k = g.format.k,
		                       .page = g.page,
		                       .k_codes = g.k_codes,
		                       .k_params = g.k_params,
		                       .first_work = 0,
		                       .n_work = 1};
		const View weight = rig.out(s.n_kv_heads * stride);
		backend.weigh(rig.f32(q, s.T, s.n_heads, s.D), rig.f32(lse, s.T, s.n_heads),
		              {.groups = {&group, 1},
		               .weight = weight,
		               .work = upload_work(rig, std::vector{work}),
		               .tables = c.kv.tables,
		               .balance = {},
		               .n_kv_heads = s.n_kv_heads,
		               .softcap = s.softcap});
		const Floats got = rig.get(weight);
		for (uint32_t h = 0; h < s.n_kv_heads; ++h) { // tokens and slots in the order of their weights
			Floats slots(got.begin() + ptrdiff_t(h * stride), got.begin() + ptrdiff_t((h + 1) * stride)), want;
			std::erase(slots, -1.f);
			for (const Token& t : c.tokens[0][h]) {
				double sum = 0;
				for (uint32_t j = 0; j < share; ++j) {
					const size_t head = s.n_heads + h * share + j;
					double dot = 0;
					for (uint32_t i = 0; i < s.D; ++i) dot += double(q[head * s.D + i]) * t.k[i];
					sum += std::exp(softcapped(s, dot) - double(lse[head]));
				}
				want.push_back(float(sum / share));
			}
			std::ranges::sort(slots), std::ranges::sort(want);
			check_close(row, slots, want, attend_tolerance(backend.info(), false, g.format.k.bits < 16, "attend"));
		}
	});
}
