// Prompt attention whose rows see only some of their tokens (KvRows::seen), and the scores from it, against the same in
// double.
#include "tests/device/packed_cache.h"
#include <functional>

using namespace kvrun;

namespace {

enum class Mask : uint8_t {
	Random,    // each token or not
	Sparse,    // few tokens: most tiles are unseen
	Blocks,    // runs of 16 tokens
	Latest,    // the last 9 tokens up to a row's own: first tiles are unseen
	First,     // token 0 alone: last tiles are unseen
	None,      // none of its tokens
	Different, // each row another one of these
	Full,
};
constexpr const char* kMaskNames[] = {"random", "sparse", "blocks", "latest", "first", "none", "different", "full"};

struct SeenRow {
	uint32_t T, n_heads, n_kv_heads, D, first, at;
	Mask mask;
	uint32_t older = 0; // tokens
	Format format = {}; // of these
	float softcap = 0;
	bool sinks = false;
	uint32_t rope_dim = 0; // of latent attention: keys are values too, and have a rotated part of so many channels
	bool by_head = false;  // each KV head sees tokens of its own
	uint32_t sets() const { return by_head ? n_kv_heads : 1; }
	uint32_t v_dim() const { return rope_dim ? rope_dim : D; }
	std::string text() const {
		return fmt::format("attend_prompt, score_prompt: T {} after {} heads {}:{} head_dim {}, seen {} at {}, {} "
		                   "older tokens of {} bits{}{}{}{}",
		                   T, first, n_heads, n_kv_heads, D, kMaskNames[size_t(mask)], at, older, format.v.bits,
		                   softcap > 0 ? fmt::format(", softcap {}", softcap) : "", sinks ? ", sinks" : "",
		                   rope_dim ? fmt::format(", latents and {} rotated channels", rope_dim) : "",
		                   by_head ? ", by head" : "");
	}
};

bool sees(Mask mask, uint32_t row, uint32_t own, uint32_t t, Random& random) { // own: the row's token
	switch (mask) {
	case Mask::Random: return random.below(2);
	case Mask::Sparse: return random.below(40) == 0;
	case Mask::Blocks: return (t / 16 * 2654435761u + row * 40503u) >> 13 & 1;
	case Mask::Latest: return t + 9 > own;
	case Mask::First: return t == 0;
	case Mask::None: return false;
	case Mask::Different: return sees(Mask(row % uint32_t(Mask::Different)), row, own, t, random);
	case Mask::Full: return true;
	}
	return false;
}

struct Rows { // a prompt's own keys and values, and which of them its rows see
	Floats q, k, v, q_rope;
	std::vector<std::vector<bool>> seen; // [row * sets + set][token up to the row's own]
	Words bits;                          // (T * sets, words)
	uint32_t words;
};
Rows make_rows(const SeenRow& r, Random& random) {
	const uint32_t n = r.first + r.T, capacity = n + 3;
	Rows x{random.normals(size_t(r.T) * r.n_heads * r.D),
	       random.normals(size_t(r.n_kv_heads) * capacity * r.D),
	       random.normals(size_t(r.n_kv_heads) * capacity * r.v_dim()),
	       random.normals(size_t(r.T) * r.n_heads * r.rope_dim),
	       {},
	       {},
	       (r.at + n + 31) / 32};
	const auto round = [&](Floats& all, uint32_t dim) {
		for (size_t i = 0; i < all.size(); ++i)
			all[i] = i / dim % capacity < n ? round_f16(all[i]) : NAN; // no token of the prompt
	};
	round(x.k, r.D), round(x.v, r.v_dim());
	for (uint32_t i = 0; i < r.T * r.sets() * x.words; ++i) // bits of other tokens may be anything
		x.bits.push_back(random.below(65536) << 16 | random.below(65536));
	for (uint32_t set = 0; set < r.T * r.sets(); ++set) {
		const uint32_t t = set / r.sets();
		x.seen.emplace_back();
		for (uint32_t i = 0; i <= r.first + t; ++i) {
			const bool here = sees(r.mask, r.by_head ? set : t, r.first + t, i, random);
			uint32_t& word = x.bits[size_t(set) * x.words + (r.at + i) / 32];
			word = (word & ~(1u << (r.at + i) % 32)) | uint32_t(here) << (r.at + i) % 32;
			x.seen.back().push_back(here);
		}
	}
	return x;
}

// q . k of a row's query head and a token, with the rotated part.
double product(const SeenRow& r, const Rows& x, uint32_t t, uint32_t head, uint32_t token) {
	const uint32_t capacity = r.first + r.T + 3, share = r.n_heads / r.n_kv_heads;
	double dot = 0;
	for (uint32_t c = 0; c < r.D; ++c)
		dot += double(x.q[(size_t(t) * r.n_heads + head) * r.D + c]) *
		       double(x.k[(size_t(head / share) * capacity + token) * r.D + c]);
	for (uint32_t c = 0; c < r.rope_dim; ++c)
		dot += double(x.q_rope[(size_t(t) * r.n_heads + head) * r.rope_dim + c]) *
		       double(x.v[size_t(token) * r.rope_dim + c]);
	return dot;
}

// Attention of each row over the latents that it sees.
void expect_latents(const SeenRow& r, const Shape& s, const Rows& x, Floats& out, Floats& lse) {
	for (uint32_t t = 0; t < r.T; ++t)
		for (uint32_t head = 0; head < r.n_heads; ++head) {
			double total = 0;
			std::vector<double> y(r.D);
			for (uint32_t i = 0; i <= r.first + t; ++i) {
				if (!x.seen[t][i]) continue;
				const double w = std::exp(softcapped(s, product(r, x, t, head, i)));
				total += w;
				for (uint32_t c = 0; c < r.D; ++c) y[c] += w * double(x.k[size_t(i) * r.D + c]);
			}
			for (const double v : y) out.push_back(total > 0 ? float(v / total) : 0.f);
			lse.push_back(float(std::log(total)));
		}
}

// Attention of each row over the older tokens, in c, and those that it sees.
void expect(const SeenRow& r, const Shape& s, const PackedCache& c, const Rows& x, Floats& out, Floats& lse) {
	const uint32_t capacity = r.first + r.T + 3, per_row = r.n_heads * r.D;
	PackedRow one{s, {}};
	one.s.T = 1, one.s.prompt = false;
	for (uint32_t t = 0; t < r.T; ++t) {
		PackedCache all = c;
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t i = 0; i <= r.first + t; ++i) {
				if (!x.seen[t * r.sets() + h % r.sets()][i]) continue;
				const ptrdiff_t at = ptrdiff_t(size_t(h * capacity + i) * r.D);
				all.tokens[0][h].push_back(
				    {{x.k.begin() + at, x.k.begin() + at + r.D}, {x.v.begin() + at, x.v.begin() + at + r.D}});
			}
		Floats y(per_row);
		const auto q = x.q.begin() + ptrdiff_t(t * per_row);
		reference(one, all, {q, q + per_row}, y, lse);
		out.insert(out.end(), y.begin(), y.end());
	}
}

// score += what the listed rows give to the tokens that they see.
void expect_scores(const SeenRow& r, const Shape& s, const Rows& x, const Words& rows, const Floats& lse,
                   Floats& score) {
	const uint32_t capacity = r.first + r.T + 3, share = r.n_heads / r.n_kv_heads;
	for (const uint32_t t : rows)
		for (uint32_t head = 0; head < r.n_heads; ++head)
			for (uint32_t i = 0; i <= r.first + t; ++i) {
				if (!x.seen[t * r.sets() + head / share % r.sets()][i]) continue;
				const double score_of = softcapped(s, product(r, x, t, head, i));
				score[size_t(head / share) * capacity + i] +=
				    float(std::exp(score_of - double(lse[size_t(t) * r.n_heads + head])) / share);
			}
}

// A row that sees no token has the logarithm of 0, which no tolerance allows for.
void check_lse(const TestRow& row, Floats got, Floats want, std::string_view allowed) {
	for (size_t i = 0; i < want.size(); ++i) {
		if (!std::isinf(want[i])) continue;
		CHECK_MESSAGE(got[i] == want[i], row_text(row) << "\nlse [" << i << "]");
		got[i] = want[i] = 0;
	}
	check_close(row, got, want, allowed);
}

void run_seen(Backend& backend, const SeenRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const uint32_t capacity = r.first + r.T + 3;
	const Shape s{.T = r.T,
	              .n_heads = r.n_heads,
	              .n_kv_heads = r.n_kv_heads,
	              .D = r.D,
	              .splits = 1,
	              .item_rows = r.T,
	              .prompt = true,
	              .softcap = r.softcap,
	              .sinks = r.sinks};
	const PackedRow packed{s, {{r.format, 32, r.older}}};
	PackedCache c;
	c.tokens.assign(1, std::vector<std::vector<Token>>(r.n_kv_heads));
	if (r.older) Builder(packed, random).build(c, rig);
	Softmax softmax{.softcap = r.softcap};
	if (r.sinks) c.sinks = random.normals(r.n_heads, 2.f), softmax.sinks = rig.f32(c.sinks, r.n_heads);
	const Rows x = make_rows(r, random);
	KvRows own{rig.f16(x.k, r.n_kv_heads, capacity, r.D), rig.f16(x.v, r.n_kv_heads, capacity, r.v_dim()), r.first};
	if (r.rope_dim) softmax.q_rope = rig.f32(x.q_rope, r.T, r.n_heads, r.rope_dim);
	c.kv.softmax = own.softmax = softmax;
	const KvRows unmasked = own;
	own.seen = rig.u32(x.bits, r.T * r.sets(), x.words), own.seen_at = r.at;
	const View q = rig.f32(x.q, r.T, r.n_heads, r.D);
	Words listed;
	for (uint32_t t = 0; t < r.T; ++t)
		if (t % 3 != 1 || t + 1 == r.T) listed.push_back(t);
	const View rows = rig.u32(listed, uint32_t(listed.size()));
	const Floats before = random.normals(size_t(r.n_kv_heads) * capacity, 0.01f);
	struct Results {
		Floats out, lse, score;
	};
	const auto run = [&](const KvRows& kv) {
		const View out = rig.out(r.T, r.n_heads, r.D), lse = rig.out(r.T, r.n_heads),
		           score = rig.f32(before, r.n_kv_heads, capacity);
		backend.attend_prompt(out, lse, q, kv, r.older ? &c.kv : nullptr);
		backend.score_prompt(score, q, lse, rows, kv, {});
		return Results{rig.get(out), rig.get(lse), rig.get(score)};
	};
	const Results got = run(own);
	Floats want, want_lse, want_score = before;
	if (r.rope_dim)
		expect_latents(r, s, x, want, want_lse);
	else
		expect(r, s, c, x, want, want_lse);
	// The device may round queries and weights over packed tokens; its scores are relative to the lse that it has.
	expect_scores(r, s, x, listed, r.older ? got.lse : want_lse, want_score);
	const std::string_view allowed = r.older ? attend_tolerance(backend.info(), /*prompt=*/true,
	                                                            /*packed=*/r.format.v.bits < 16, "attend packed")
	                                         : prompt_tolerance(backend);
	check_close(row, got.out, want, allowed);
	for (size_t i = 0; i < want.size(); ++i)
		if (std::isinf(want_lse[i / r.D])) CHECK_MESSAGE(got.out[i] == 0, row_text(row));
	check_lse(row, got.lse, want_lse, allowed);
	check_close(row, got.score, want_score, prompt_tolerance(backend, "attend"));
	if (r.mask == Mask::Full) {
		const Results plain = run(unmasked);
		check_same_bits(row, got.out, plain.out);
		check_same_bits(row, got.lse, plain.lse);
		check_same_bits(row, got.score, plain.score);
	}
	if (r.older || r.T == 1) return;
	// The last row alone has the bits that it has among the others.
	const size_t per_row = size_t(r.n_heads) * r.D, at = (r.T - 1) * per_row;
	KvRows last = own;
	last.first += r.T - 1;
	last.seen = rig.u32({x.bits.end() - r.sets() * x.words, x.bits.end()}, r.sets(), x.words);
	if (r.rope_dim)
		last.softmax.q_rope =
		    rig.f32({x.q_rope.end() - ptrdiff_t(r.n_heads * r.rope_dim), x.q_rope.end()}, 1, r.n_heads, r.rope_dim);
	const View out = rig.out(1, r.n_heads, r.D), lse = rig.out(1, r.n_heads);
	backend.attend_prompt(out, lse, rig.f32({x.q.begin() + ptrdiff_t(at), x.q.end()}, 1, r.n_heads, r.D), last,
	                      nullptr);
	check_same_bits(row, rig.get(out), std::span(got.out).subspan(at));
	check_same_bits(row, rig.get(lse), std::span(got.lse).subspan(size_t(r.T - 1) * r.n_heads));
}

} // namespace

TEST_CASE("attend: rows that see some of a prompt's tokens") {
	const Format kivi2{channel(2), token(2, 64)};
	const std::vector<SeenRow> rows = {
	    {33, 4, 2, 64, 300, 45, Mask::Different},
	    {33, 4, 2, 64, 300, 0, Mask::Full},
	    {5, 4, 1, 128, 40, 32, Mask::Random, 20},
	    {5, 2, 2, 256, 270, 4096, Mask::Sparse},
	    {33, 4, 1, 128, 150, 45, Mask::Different, 40, kivi2},
	    {33, 2, 2, 72, 0, 45, Mask::Random},
	    {1, 4, 4, 64, 600, 32, Mask::Latest},
	    {1, 4, 2, 128, 0, 0, Mask::None},
	    {5, 4, 1, 64, 0, 45, Mask::None, 33},
	    {33, 2, 1, 128, 31, 4096, Mask::Blocks},
	    {33, 4, 2, 256, 5, 45, Mask::Different},
	    {33, 4, 2, 128, 200, 45, Mask::Full, 20, kivi2},
	    {33, 2, 1, 72, 100, 0, Mask::Different, 7},
	    {5, 4, 4, 256, 130, 32, Mask::First, 40},
	    {33, 4, 4, 128, 60, 4096, Mask::Latest},
	    {33, 8, 2, 64, 40, 45, Mask::Different, 0, {}, 1.5f},
	    {33, 8, 2, 64, 40, 45, Mask::Different, 0, {}, 0, true},
	    {33, 8, 2, 64, 40, 45, Mask::Different, 33, {}, 2, true},
	    {33, 4, 2, 256, 40, 0, Mask::Full},
	    {70, 4, 1, 64, 10, 45, Mask::Different},
	    {33, 4, 1, 64, 100, 45, Mask::Different, 0, {}, 0, false, 16},
	    {33, 4, 1, 64, 100, 45, Mask::Full, 0, {}, 0, false, 16},
	    {70, 3, 1, 512, 30, 32, Mask::Sparse, 0, {}, 0, false, 64},
	    {5, 16, 1, 512, 0, 4096, Mask::Different, 0, {}, 1.5f, false, 64},
	    {33, 8, 4, 64, 300, 45, Mask::Different, 0, {}, 0, false, 0, true},
	    {33, 4, 2, 128, 40, 0, Mask::Blocks, 33, {}, 0, false, 0, true},
	    {5, 8, 2, 256, 70, 4096, Mask::Random, 0, {}, 0, true, 0, true},
	    {1, 16, 4, 128, 200, 32, Mask::Different, 40, kivi2, 0, false, 0, true},
	};
	each_row(rows, run_seen);
}
