// attend over packed pages of every format on every device, alone and together with f16 pages, against
// dequantise-then-attend in double (packed_cache.h). Codes and parameters are random, so this tests only reading them;
// test_pack.cpp tests how they are made.
#include "tests/device/packed_cache.h"

using namespace kvrun;

TEST_CASE("attend: every width of keys and values, per channel and per token") {
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (uint8_t kb : {1, 2, 4, 8, 16})
		for (uint8_t vb : {1, 2, 4, 8, 16})
			for (bool per_channel : {true, false}) {
				if (kb == 16 && (vb == 16 || !per_channel)) continue;
				const uint32_t D = i % 3 == 1 ? 128 : 64;
				const auto& h = kHeads[i % 4];
				const Quant k = kb == 16 ? kF16 : per_channel ? channel(kb) : token(kb, i % 4 == 0 ? D : 32);
				const Quant v = vb == 16 ? kF16 : token(vb, i % 5 < 2 ? 32 : i % 5 == 2 ? D : D * h[1]);
				rows.push_back(
				    {{1, h[0], h[1], D, uint32_t(1 + i % 3), i % 4 == 1}, {{{k, v}, kPages[i % 3], kTokens[i % 7]}}});
				++i;
			}
	each_row(rows, run_packed);
}

TEST_CASE("attend: packed pages of every head size") {
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (uint32_t D : {8u, 16u, 64u, 80u, 96u, 128u, 256u})
		for (uint8_t bits : {1, 2, 4, 8}) {
			const auto& h = kHeads[i % 4];
			rows.push_back({{1, h[0], h[1], D, 1 + uint32_t(i % 2)},
			                {{{channel(bits), token(bits, D)}, kPages[i % 3], 32 + kTokens[i % 7]}}});
			rows.push_back(
			    {{1, h[0], h[1], D, 1},
			     {{{token(bits, D * h[1]), token(bits, D % 32 ? D : 32)}, kPages[(i + 1) % 3], kTokens[i % 7]}}});
			++i;
		}
	rows.push_back({{1, 8, 1, 512, 2}, {{{channel(2), token(2, 32)}, 32, 70}}});
	rows.push_back({{1, 4, 2, 512, 1}, {{{token(4, 1024), token(4, 512)}, 64, 40}, {{}, 32, 33}}});
	rows.push_back({{2, 6, 2, 320, 2, true}, {{{channel(4), token(8, 32)}, 128, 150}}});
	each_row(rows, run_packed);
}

TEST_CASE("attend: parameter blocks, channel factors, balanced keys") {
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (uint32_t D : {64u, 80u, 128u})
		for (uint8_t bits : {2, 4}) {
			const auto& h = kHeads[i % 4];
			const uint32_t all = D * h[1], n = 70 + 20 * uint32_t(i);
			rows.push_back(
			    {{1, h[0], h[1], D, 2}, {{{channel(bits), token(bits, all, Prescale::SqrtMax)}, 32, n, true}}});
			rows.push_back(
			    {{1, h[0], h[1], D, 1},
			     {{{channel(bits), token(bits, D % 32 ? D : 32, Prescale::SqrtMax)}, kPages[i % 3], n, true}}});
			rows.push_back(
			    {{2, h[0], h[1], D, 2, true},
			     {{{token(bits, D % 64 ? D : D / 2, Prescale::Balance), token(bits, D)}, kPages[i % 3], n}}});
			++i;
		}
	each_row(rows, run_packed);
}

TEST_CASE("attend: pages of which few tokens are live") {
	const Quant factors = token(2, 64, Prescale::SqrtMax), balanced = token(4, 32, Prescale::Balance);
	struct Way {
		Format format;
		uint32_t page, n, D, spread;
		bool block = false;
	};
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (const Way& w : std::initializer_list<Way>{
	         {{}, 128, 40, 64, 40}, // more than two windows of lib/live_quads.glsl
	         {{}, 32, 33, 128, 3},
	         {{}, 64, 1, 256, 30},
	         {{}, 128, 300, 256, 2},
	         {{channel(2), token(2, 64)}, 32, 40, 64, 9},
	         {{channel(4), token(4, 32)}, 128, 20, 128, 5},
	         {{token(8, 32), token(8, 32)}, 128, 60, 128, 17},
	         {{token(2, 64), token(2, 128)}, 64, 90, 128, 4},
	         {{token(1, 32), bytes(token(2, 64))}, 32, 50, 64, 20},
	         {{balanced, token(4, 128)}, 128, 70, 128, 7},
	         {{channel(2), factors}, 32, 100, 64, 5, true},
	         {{kF16, factors}, 64, 50, 128, 11},
	     }) {
		const auto& h = kHeads[i % 4];
		rows.push_back({{.T = 1 + uint32_t(i % 2),
		                 .n_heads = h[0],
		                 .n_kv_heads = h[1],
		                 .D = w.D,
		                 .splits = 1 + uint32_t(i % 3),
		                 .per_head = i % 4 == 1,
		                 .own_caches = i % 2 == 1,
		                 .spread = w.spread},
		                {{w.format, w.page, w.n, w.block}}});
		if (i % 4 == 0) rows.back().tiers.push_back({{}, 32, 9});
		++i;
	}
	each_row(rows, run_packed);
}

TEST_CASE("attend: parameters in bytes") {
	std::vector<PackedRow> rows;
	size_t i = 0;
	for (uint32_t D : {16u, 64u, 80u, 128u})
		for (uint8_t bits : {1, 2, 4}) {
			const auto& h = kHeads[i % 4];
			const Quant k = channel(bits), v = token(bits, D % 32 || i % 2 ? D : 32);
			rows.push_back(
			    {{1, h[0], h[1], D, 2, i % 4 == 1}, {{{bytes(k), bytes(v)}, kPages[i % 3], 32 + kTokens[i % 7]}}});
			rows.push_back({{2, h[0], h[1], D, 1},
			                {{{i % 2 ? bytes(k) : k, i % 2 ? v : bytes(v)}, kPages[i % 3], kTokens[i % 7]}}});
			++i;
		}
	each_row(rows, run_packed);
}

// Otherwise the rows of this file would only test f32 again, and pass.
TEST_CASE("attend: devices that are told to take integer dot products do") {
	const char* caps = std::getenv("KVRUN_TEST_CAPS");
	if (!caps || !std::string_view(caps).ends_with("int_dot=2")) return;
	for (const TestDevice& d : test_devices()) {
		INFO(d.name);
		CHECK((!d.backend || d.backend->info().int8_attend));
	}
}

TEST_CASE("attend: rows of a prompt over packed pages") {
	std::vector<PackedRow> rows;
	const Format formats[] = {{},
	                          {channel(4), token(4, 32)},
	                          {channel(2), token(2, 64)},
	                          {channel(1), token(1, 64)},
	                          {token(8, 32), token(8, 64)},
	                          {channel(2), token(2, 128, Prescale::SqrtMax)},
	                          {bytes(channel(2)), bytes(token(2, 32))},
	                          {bytes(channel(4)), token(4, 64)},
	                          {token(2, 32, Prescale::Balance), token(2, 32)}};
	size_t i = 0;
	for (const Format& f : formats)
		for (uint32_t T : {2u, 5u, 19u}) {
			const auto& h = kHeads[i % 4];
			const Shape shape{T, h[0], h[1], i % 2 ? 64u : 128u, uint32_t(1 + i % 3), i % 4 == 1, false, T, true};
			Format fit = f;
			if (f.v.prescale == Prescale::SqrtMax) fit.v.group = uint16_t(shape.D * shape.n_kv_heads);
			rows.push_back({shape, {{fit, kPages[i % 3], 40 + kTokens[i % 7], fit.v.prescale == Prescale::SqrtMax}}});
			// The reference divides a row's queries by the balance for all its pages.
			if (T == 5 && f.k.prescale != Prescale::Balance)
				rows.push_back({shape, {{{}, 32, 33}, {fit, 32, 70, fit.v.prescale == Prescale::SqrtMax}}});
			++i;
		}
	rows.push_back({{6, 24, 2, 64, 2, false, false, 6, true},
	                {{formats[2], 32, 96}}}); // more heads in a group than a workgroup takes
	rows.push_back({{6, 8, 2, 64, 2, false, false, 4}, {{formats[2], 32, 96}}}); // decode rows that share a cache
	each_row(rows, run_packed);
}

TEST_CASE("attend: rows of a prompt over packed pages, wide heads") {
	std::vector<PackedRow> rows{{{5, 8, 1, 512, 1, false, false, 5, true}, {{{channel(4), token(4, 512)}, 32, 60}}}};
	for (const Format& f : {Format{channel(2), token(2, 512)}, {token(4, 32), token(8, 32)}, {bytes(channel(4)), {}}})
		rows.push_back({{19, 8, 2, 512, 2, true, false, 19, true}, {{f, 64, 150}}});
	each_row(rows, run_packed);
}

TEST_CASE("attend: f16, better and worse pages as one softmax, several rows and caches") {
	std::vector<PackedRow> rows;
	const Format f16{}, kivi2{channel(2), token(2, 32)}, four{channel(4), token(4, 64)},
	    two{token(2, 32), token(2, 64)};
	for (uint32_t splits : {1u, 3u}) {
		rows.push_back({{1, 8, 2, 64, splits}, {{f16, 32, 100}, {kivi2, 32, 320}}});
		rows.push_back({{3, 4, 4, 64, splits}, {{f16, 128, 33}, {four, 64, 65}, {two, 128, 200}}});
		rows.push_back({{4, 8, 1, 64, splits, true, true}, {{f16, 64, 31}, {four, 32, 40}, {kivi2, 32, 90}}});
		rows.push_back({{1, 4, 2, 128, splits}, {{f16, 32, 1}, {kivi2, 64, 0}, {two, 32, 63}}}); // an empty tier
	}
	rows.push_back({{1, 4, 2, 64, 1}, {{kivi2, 32, 0}}});   // nothing to attend to: zero
	rows.push_back({{1, 24, 2, 64, 2}, {{kivi2, 32, 96}}}); // more heads in a group than a workgroup takes
	each_row(rows, run_packed);
}

TEST_CASE("attend: a few and many partial states of a row") {
	std::vector<PackedRow> rows;
	const Format f16{}, kivi2{channel(2), token(2, 64)};
	for (uint32_t splits : {4u, 7u, 8u, 9u, 31u, 290u})
		for (uint32_t D : {64u, 80u, 128u, 256u})
			rows.push_back(
			    {{1 + D % 3, 6, 2, D, splits}, {{{channel(2), token(2, D)}, 32, 32 * splits - 20}, {f16, 32, 31}}});
	rows.push_back({{5, 24, 3, 64, 3, false, true}, {{kivi2, 32, 96}, {f16, 64, 64}}}); // heads of a kv head in blocks
	each_row(rows, run_packed);
}
