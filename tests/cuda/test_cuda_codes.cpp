// The CUDA sources pack the same bits as the cpu backend: codes, parameters, parameter blocks, factors and the
// balancer. Other devices have looser tests; here nothing is rounded in another order.
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

constexpr uint32_t kRows = 150; // of the source

struct Row {
	const char* name;
	Quant k, v;
	uint32_t n_kv_heads, D, page, n; // n: tokens of the one page that is packed
	bool k_block = false;
	uint32_t head = UINT32_MAX; // PackWork::head
};

constexpr Quant channel(uint8_t bits, double eta = 0) { return {bits, Scale::PerChannel, 32, Prescale::None, eta}; }
constexpr Quant token(uint8_t bits, uint16_t group, Prescale prescale = Prescale::None, double eta = 0) {
	return {bits, Scale::PerToken, group, prescale, eta};
}

constexpr Quant norms(uint8_t bits, bool mean, uint8_t param_bits) {
	return {.bits = bits, .scale = Scale::Codebook, .rotate = true, .mean = mean, .param_bits = param_bits};
}

const Row kTable[] = {
    {"kivi2", channel(2), token(2, 32), 2, 64, 32, 32},
    {"kivi1", channel(1), token(1, 64), 2, 128, 64, 64},
    {"kivi4, head 1", channel(4), token(4, 32), 3, 96, 128, 128, false, 1},
    {"rtn8, half a page", token(8, 32), token(8, 32), 2, 80, 64, 33},
    {"one group over all heads", token(4, 192), token(1, 192), 3, 64, 32, 20},
    {"groups smaller than a word", token(2, 8), token(1, 8), 2, 40, 32, 31},
    {"eta", channel(2, 0.045), token(1, 32, Prescale::None, 1. / 6), 2, 64, 32, 32},
    {"block and factors", channel(2), token(2, 128, Prescale::SqrtMax), 2, 64, 32, 32, true},
    {"balanced", token(2, 32, Prescale::Balance), token(4, 32), 2, 64, 64, 50, false, 0},
    {"3 bits", channel(3), token(3, 32), 2, 96, 32, 32},
    {"turbo3/2", norms(3, true, 8), norms(2, false, 8), 2, 64, 128, 128},
    {"turbo1/4, head 1", norms(1, false, 16), norms(4, false, 16), 3, 80, 32, 32, false, 1},
};

// Numbers of all kinds: groups without spread, tiny and large ones, ties between two codes.
Floats numbers(Random& random, uint32_t n, uint32_t D) {
	Floats x = random.normals(size_t(n) * D);
	for (size_t i = 0; i < x.size(); ++i) {
		const uint32_t row = uint32_t(i / D) % 16;
		if (row == 3) x[i] = -1.5f;
		if (row == 5) x[i] *= 1e-6f;
		if (row == 7) x[i] *= 3000.f;
		if (row == 9) x[i] = float(int(i % 7)) / 2 + 1;
	}
	return x;
}

// All that a device wrote, in one list.
Words packed_by(Backend& b, const Row& r, uint32_t seed) {
	Random random(seed);
	Rig rig(b);
	const uint32_t H = r.n_kv_heads, D = r.D;
	const View k = rig.f16(numbers(random, H * kRows, D), H, kRows, D),
	           v = rig.f16(numbers(random, H * kRows, D), H, kRows, D);
	Floats q_max = random.normals(size_t(H) * D);
	for (float& x : q_max) x = std::abs(x);
	q_max[0] = 0;
	const View balance = rig.f16(Floats(size_t(H) * D, 3.f), H, D);
	b.kv_balance(balance, rig.f32(q_max, H, D), {k, v}, kRows);
	Words sources(r.n);
	for (uint32_t i = 0; i < r.n; ++i) sources[i] = (i * 37 + 11) % kRows;
	const View list = rig.u32(sources, r.n);
	const View block = rig.u32(Words(kv_channel_param_words(H, D) + kv_factor_words(H, D), 0x12345678u),
	                           kv_channel_param_words(H, D) + kv_factor_words(H, D));
	const uint32_t factors_at = kv_channel_param_words(H, D), slot = r.k.scale == Scale::PerChannel ? 0 : r.page - r.n;
	if (r.k_block) {
		const Words work = {0, r.n, UINT32_MAX, 0, r.v.prescale == Prescale::SqrtMax ? factors_at : kSkip, 0};
		b.kv_block({k, v}, {{r.k, r.v}, list, rig.u32(work, 1, BLOCK_WORDS), block, as_words(balance)});
	}
	const auto pool = [&](uint32_t words) { return rig.u32(Words(words, 0xdeadbeefu), words); };
	const View k_codes = pool(kv_code_words(H, D, r.k.bits, r.page)),
	           v_codes = pool(kv_code_words(H, D, r.v.bits, r.page));
	const View k_params = r.k_block ? block : pool(page_param_words(r.k, H, D, r.page));
	const View v_params = pool(page_param_words(r.v, H, D, r.page));
	const Words work = {0, r.n, r.head, slot, 0, 0, 0, 0, factors_at, 0};
	const PackArgs a{.format = {r.k, r.v},
	                 .page = r.page,
	                 .k_block = r.k_block,
	                 .sources = list,
	                 .work = rig.u32(work, 1, PACK_WORDS),
	                 .k_codes = k_codes,
	                 .v_codes = v_codes,
	                 .k_params = k_params,
	                 .v_params = v_params,
	                 .v_factors = r.v.prescale == Prescale::SqrtMax ? block : View(),
	                 .balance = r.k.prescale == Prescale::Balance ? as_words(balance) : View()};
	b.kv_pack({k, v}, a);
	Words all;
	for (const View& part : {as_words(balance), block, k_codes, v_codes, k_params, v_params}) {
		const Words words = rig.get_words(part);
		all.insert(all.end(), words.begin(), words.end());
	}
	return all;
}

} // namespace

TEST_CASE("cuda codes: what is packed has the bits of the cpu backend") {
	const auto cpu = open_test_device("cpu"), cuda = open_test_device("cuda-host");
	uint32_t seed = 0;
	for (const Row& r : kTable) {
		CAPTURE(r.name);
		const Words want = packed_by(*cpu, r, ++seed), got = packed_by(*cuda, r, seed);
		REQUIRE(got.size() == want.size());
		size_t other = 0, first = 0;
		for (size_t i = want.size(); i-- > 0;)
			if (got[i] != want[i]) ++other, first = i;
		CHECK_MESSAGE(other == 0, other << " of " << want.size() << " words differ, the first is " << first);
		CHECK(std::count(want.begin(), want.end(), 0xdeadbeefu) < std::ptrdiff_t(want.size())); // some were written
	}
}
