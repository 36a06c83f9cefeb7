// Entries of blocks against sums in double; the bits do not depend on how a sequence is cut.
#include "shared/work.h"
#include "tests/device/sequences_of_rows.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/ranges.h>

using namespace kvrun;

namespace {

struct PoolRow {
	Sequences rows;
	uint32_t dim, block;
	bool overlaps = false;
	std::string text() const {
		return fmt::format("pool_blocks: T {} channels {} blocks of {}{}", fmt::join(rows, "+"), dim, block,
		                   overlaps ? " overlapping" : "");
	}
};
const std::vector<PoolRow> kPoolRows = {{{1}, 64, 4, true},         {{9}, 33, 4, true}, {{130, 3}, 72, 128},
                                        {{1, 2, 40}, 128, 4, true}, {{7}, 8, 2},        {{300}, 512, 128}};

// out of row t, by the rows of its block and of the one before it.
double pooled(const PoolRow& p, const Floats& x, const Floats& gates, const Floats& places, uint32_t row, uint32_t t,
              uint32_t c) {
	const uint32_t width = (p.overlaps ? 2 : 1) * p.dim, block = t / p.block * p.block;
	double sum = 0, shares = 0;
	const auto add = [&](uint32_t of, uint32_t channel) {
		const size_t at = size_t(row + of) * width + channel;
		const double share = std::exp(double(gates[at]) + double(places[of % p.block * width + channel]) - 100);
		sum += share * double(x[at]), shares += share;
	};
	for (uint32_t of = p.overlaps && block ? block - p.block : block; of <= t; ++of)
		add(of, of < block || !p.overlaps ? c : p.dim + c);
	return sum / shares;
}

} // namespace

TEST_CASE("ops: pool_blocks, also in pieces with the same bits") {
	each_row(kPoolRows, [](Backend& backend, const PoolRow& p, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t T = sum(p.rows), width = (p.overlaps ? 2 : 1) * p.dim, n = uint32_t(p.rows.size()),
		               words = op::PoolBlocks::state_words(p.dim, p.overlaps);
		const Floats x = random.normals(size_t(T) * width), places = random.normals(size_t(p.block) * width);
		Floats gates = random.normals(x.size(), 3.f), want;
		for (size_t i = 0; i < gates.size(); i += 11) gates[i] = i % 2 ? 100 : -100; // exp() of some is not finite
		for (uint32_t i = 0, first = 0; i < n; first += p.rows[i++])
			for (uint32_t t = 0; t < p.rows[i]; ++t)
				for (uint32_t c = 0; c < p.dim; ++c) want.push_back(float(pooled(p, x, gates, places, first, t, c)));
		const View vx = rig.f32(x, T, width), vg = rig.f32(gates, T, width), vp = rig.f32(places, p.block, width);
		std::vector<Floats> results, states;
		for (const uint32_t piece : {T, 1u, 3u}) { // later pieces replace states in their place
			const View out = rig.out(T, p.dim), memory = rig.f32(Floats(size_t(n) * words, 7.f), n * words);
			for (uint32_t at = 0; at < T; at += piece) {
				Words items;
				for (uint32_t i = 0, first = 0; i < n; first += p.rows[i++])
					if (at < p.rows[i])
						items.insert(items.end(), {first + at, std::min(piece, p.rows[i] - at),
						                           at ? i * words : STATE_ZERO, i * words});
				if (items.empty()) continue;
				const View work = rig.u32(items, uint32_t(items.size() / STATE_WORDS), STATE_WORDS);
				backend.pool_blocks(out, vx, vg, vp, {work, memory, memory});
			}
			results.push_back(rig.get(out)), states.push_back(rig.get(memory));
		}
		check_close(row, results[0], want, "pool_blocks");
		for (size_t i = 1; i < results.size(); ++i) {
			check_same_bits(row, results[i], results[0]);
			check_same_bits(row, states[i], states[0]);
		}
	});
}
