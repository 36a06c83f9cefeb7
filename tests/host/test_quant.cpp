// The scalar quantiser, bit by bit: against the golden vectors, against numpy if installed, and by its definition.
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "engine/core/npy.h"
#include "engine/kv_host/quant.h"
#include "shaders/shared/kv_page.h"
#include "tests/support/assets.h"
#include <bit>
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <unistd.h>

using namespace kvrun;

namespace {

struct Case { // a golden case: (n_layers, T, n_kv_heads, D)
	std::string name;
	std::vector<float> q, k, v, k_hat, v_hat;
	std::vector<uint8_t> tier; // (n_layers, T, n_kv_heads)
	size_t L, T, H, D, n_heads;
	size_t at(size_t l, size_t t, size_t h, size_t c) const { return ((l * T + t) * H + h) * D + c; }
};

std::vector<float> floats(const std::string& path) {
	const NpyArray a = npy_read(path);
	const auto s = a.as<float>();
	return {s.begin(), s.end()};
}
Case load(const std::string& dir, const std::string& name) {
	Case c;
	const std::string at = dir + "/" + name + "/";
	const NpyArray k = npy_read(at + "k.npy"), q = npy_read(at + "q.npy"), tier = npy_read(at + "tier.npy");
	REQUIRE(k.shape.size() == 4);
	c.name = name;
	c.L = k.shape[0], c.T = k.shape[1], c.H = k.shape[2], c.D = k.shape[3], c.n_heads = q.shape[2];
	c.k = floats(at + "k.npy"), c.v = floats(at + "v.npy"), c.q = floats(at + "q.npy");
	c.k_hat = floats(at + "k_hat.npy"), c.v_hat = floats(at + "v_hat.npy");
	const auto t = tier.as<uint8_t>();
	c.tier.assign(t.begin(), t.end());
	return c;
}

struct Quantised {
	std::vector<float> x;
	std::vector<uint8_t> codes;
	Params params;
};
Quantised round_trip(const std::vector<float>& x, uint32_t bits, double eta) {
	Quantised r{std::vector<float>(x.size()), std::vector<uint8_t>(x.size()), {}};
	r.params = quantise(x, bits, Eta(eta), r.codes);
	for (size_t i = 0; i < x.size(); ++i) r.x[i] = dequantise(r.codes[i], r.params);
	return r;
}

size_t n_compared = 0; // elements of all checks, to detect empty checks
void check_group(const Case& c, const std::vector<float>& expected, const std::vector<size_t>& where,
                 const std::vector<float>& got) {
	for (size_t i = 0; i < where.size(); ++i) {
		REQUIRE_MESSAGE(std::bit_cast<uint32_t>(expected[where[i]]) == std::bit_cast<uint32_t>(got[i]),
		                c.name << " element " << where[i] << ": " << expected[where[i]] << " not " << got[i]);
		++n_compared;
	}
}

// Every group of `where`, quantised alone, gives the expected values. Groups are indices into x.
void check_groups(const Case& c, const std::vector<float>& x, const std::vector<float>& expected,
                  const std::vector<size_t>& where, uint32_t bits, double eta,
                  const std::function<float(size_t)>& factor = nullptr) {
	std::vector<float> g;
	for (size_t i : where) g.push_back(factor ? x[i] / factor(i) : x[i]);
	std::vector<float> got = round_trip(g, bits, eta).x;
	for (size_t i = 0; i < where.size() && factor; ++i) got[i] *= factor(where[i]);
	check_group(c, expected, where, got);
}

std::vector<size_t> channel_run(const Case& c, size_t l, const std::vector<size_t>& tokens, size_t h, size_t ch) {
	std::vector<size_t> w;
	for (size_t t : tokens) w.push_back(c.at(l, t, h, ch));
	return w;
}
std::vector<size_t> token_run(const Case& c, size_t l, size_t t, size_t first,
                              size_t n) { // channels of all heads of a token
	std::vector<size_t> w;
	for (size_t i = 0; i < n; ++i) w.push_back(c.at(l, t, 0, 0) + first + i);
	return w;
}
std::vector<size_t> tokens_of(const Case& c, uint8_t tier, size_t l = 0) {
	std::vector<size_t> out;
	for (size_t t = 0; t < c.T; ++t)
		if (c.tier[(l * c.T + t) * c.H] == tier) out.push_back(t);
	return out;
}

void check_kivi(const Case& c, uint32_t bits, double eta) {
	const std::vector<size_t> packed = tokens_of(c, 2);
	REQUIRE(packed.size() % 32 == 0);
	for (size_t g = 0; g < packed.size(); g += 32) {
		const std::vector<size_t> tokens(packed.begin() + g, packed.begin() + g + 32);
		for (size_t h = 0; h < c.H; ++h)
			for (size_t ch = 0; ch < c.D; ++ch)
				check_groups(c, c.k, c.k_hat, channel_run(c, 0, tokens, h, ch), bits, eta);
	}
	for (size_t t : packed)
		for (size_t i = 0; i < c.H * c.D; i += 32) check_groups(c, c.v, c.v_hat, token_run(c, 0, t, i, 32), bits, eta);
	for (size_t t : tokens_of(c, 0))
		for (size_t i : token_run(c, 0, t, 0, c.H * c.D)) REQUIRE(round_f16(c.k[i]) == c.k_hat[i]);
}

// Layer 1 stores no codes: it uses those of layer 0, with its own parameters.
void check_shared(const Case& c, uint32_t bits, double eta) {
	const std::vector<size_t> packed = tokens_of(c, 2);
	auto both = [&](const std::vector<float>& x, const std::vector<float>& expected, const std::vector<size_t>& in_0,
	                const std::vector<size_t>& in_1) {
		std::vector<float> x0, x1;
		for (size_t i : in_0) x0.push_back(x[i]);
		for (size_t i : in_1) x1.push_back(x[i]);
		const Quantised a = round_trip(x0, bits, eta), b = round_trip(x1, bits, eta);
		std::vector<float> shared;
		for (uint8_t code : a.codes) shared.push_back(dequantise(code, b.params));
		check_group(c, expected, in_0, a.x);
		check_group(c, expected, in_1, shared);
	};
	for (size_t g = 0; g < packed.size(); g += 32) {
		const std::vector<size_t> tokens(packed.begin() + g, packed.begin() + g + 32);
		for (size_t h = 0; h < c.H; ++h)
			for (size_t ch = 0; ch < c.D; ++ch)
				both(c.k, c.k_hat, channel_run(c, 0, tokens, h, ch), channel_run(c, 1, tokens, h, ch));
	}
	for (size_t t : packed)
		for (size_t i = 0; i < c.H * c.D; i += 32)
			both(c.v, c.v_hat, token_run(c, 0, t, i, 32), token_run(c, 1, t, i, 32));
}

void check_zipcache(const Case& c) {
	for (auto [tier, bits] : {std::pair{1, 4u}, {2, 2u}}) {
		const std::vector<size_t> tokens = tokens_of(c, uint8_t(tier));
		std::vector<float> factor(c.H * c.D);
		for (size_t h = 0; h < c.H; ++h)
			for (size_t ch = 0; ch < c.D; ++ch) {
				const std::vector<size_t> run = channel_run(c, 0, tokens, h, ch);
				check_groups(c, c.k, c.k_hat, run, bits, 0);
				std::vector<float> v;
				for (size_t i : run) v.push_back(c.v[i]);
				factor[h * c.D + ch] = f16_to_f32(channel_factor(v));
			}
		for (size_t t : tokens)
			check_groups(c, c.v, c.v_hat, token_run(c, 0, t, 0, c.H * c.D), bits, 0,
			             [&](size_t i) { return factor[i % (c.H * c.D)]; });
	}
}

void check_mikv(const Case& c) {
	std::vector<float> b(c.H * c.D);
	for (size_t h = 0; h < c.H; ++h)
		for (size_t ch = 0; ch < c.D; ++ch) {
			float max_q = 0, max_k = 0;
			const size_t per = c.n_heads / c.H;
			for (size_t t = 0; t < c.T; ++t) {
				max_k = std::max(max_k, std::fabs(c.k[c.at(0, t, h, ch)]));
				for (size_t i = 0; i < per; ++i)
					max_q = std::max(max_q, std::fabs(c.q[(t * c.n_heads + h * per + i) * c.D + ch]));
			}
			b[h * c.D + ch] = f16_to_f32(balance_factor(max_q, max_k));
		}
	for (size_t t : tokens_of(c, 2))
		for (size_t i = 0; i < c.H * c.D; i += c.D / 2) {
			const std::vector<size_t> run = token_run(c, 0, t, i, c.D / 2);
			std::vector<float> balanced, got;
			for (size_t j = 0; j < run.size(); ++j) balanced.push_back(c.k[run[j]] * b[i + j]);
			got = round_trip(balanced, 2, 0).x;
			for (size_t j = 0; j < run.size(); ++j) got[j] /= b[i + j];
			check_group(c, c.k_hat, run, got);
			check_groups(c, c.v, c.v_hat, run, 2, 0);
		}
}

} // namespace

TEST_CASE("quant: the golden cases of the reference, to the bit") {
	const std::string dir = shared_file("reference/golden");
	if (dir.empty()) return;
	n_compared = 0;
	check_kivi(load(dir, "kivi1"), 1, 0);
	check_kivi(load(dir, "kivi2"), 2, 0);
	check_kivi(load(dir, "kivi4"), 4, 0);
	check_kivi(load(dir, "specache1_codes"), 1, 0.25);
	check_kivi(load(dir, "xquant_calibrated2"), 2, 0.045);
	check_shared(load(dir, "xquant_shared1"), 1, 1.0 / 6);
	check_zipcache(load(dir, "zipcache42"));
	check_mikv(load(dir, "mikv_f16_2"));
	CHECK(n_compared > 250000);
}

// Groups of every kind: wide, narrow, constant, subnormal, large, many equal values, exact ties between codes.
static std::vector<std::vector<float>> odd_groups() {
	std::mt19937 rng(11);
	std::normal_distribution<float> normal;
	std::vector<std::vector<float>> out;
	for (size_t n : {1u, 2u, 8u, 32u, 64u, 128u, 1000u})
		for (float size : {1.f, 1e-3f, 1e-7f, 1e-9f, 300.f, 5000.f})
			for (float offset : {0.f, 3.f, -100.f}) {
				std::vector<float> x(n);
				for (float& v : x) v = normal(rng) * size + offset;
				out.push_back(x);
				for (float& v : x) v = std::round(v); // ties
				out.push_back(x);
				out.push_back(std::vector<float>(n, size + offset)); // constant
			}
	out.push_back({-0.f, 0.f, -0.f});
	out.push_back({0, 1, 2, 3, 0.5f, 1.5f, 2.5f});
	return out;
}

TEST_CASE("quant: odd groups against kvref.quant_group in numpy, to the bit") {
	const std::string ref = shared_file("reference");
	if (ref.empty()) return;
	if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0 &&
	    std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
		return skip("python3-numpy is not there; the comparison with kvref.quant_group is left out");
	const char* python = std::system("python3 -c 'import numpy' 2>/dev/null") == 0 ? "python3" : "/usr/bin/python3";
	const std::filesystem::path dir = std::filesystem::temp_directory_path() / fmt::format("kvrun-quant-{}", getpid());
	std::filesystem::create_directories(dir);
	const std::vector<std::vector<float>> groups = odd_groups();
	const double etas[] = {0, 0.045, 0.09, 1.0 / 6, 0.25, 1.0 / 3, 0.16666667};
	std::vector<float> flat;
	std::vector<int32_t> sizes;
	for (const auto& g : groups) flat.insert(flat.end(), g.begin(), g.end()), sizes.push_back(int32_t(g.size()));
	npy_write<float>(dir / "x.npy", {flat.size()}, flat);
	npy_write<int32_t>(dir / "n.npy", {sizes.size()}, sizes);
	{
		std::ofstream py(dir / "ref.py");
		py << "import sys, numpy as np\nsys.dont_write_bytecode = True\nsys.path.insert(0, sys.argv[1])\nimport "
		      "kvref\nd = sys.argv[2]\n"
		      "np.seterr(all='ignore')\nx = np.load(d + '/x.npy'); n = np.load(d + '/n.npy'); a = []; b = []; p = []\n"
		      "for bits in (1, 2, 4, 8):\n for eta in (0, 0.045, 0.09, 1/6, 0.25, 1/3, 0.16666667):\n  at = 0\n"
		      "  for m in n:\n   h, c, s, z = kvref.quant_group(x[at:at+m], bits, eta); at += m\n"
		      "   a.append(h); b.append(c); p += [s.astype(np.float32).ravel(), z.astype(np.float32).ravel()]\n"
		      "np.save(d + '/hat.npy', np.concatenate(a)); np.save(d + '/codes.npy', np.concatenate(b)); np.save(d + "
		      "'/params.npy', np.concatenate(p))\n";
	}
	REQUIRE(std::system(fmt::format("{} {}/ref.py {} {}", python, dir.string(), ref, dir.string()).c_str()) == 0);
	const NpyArray hat = npy_read(dir / "hat.npy"), codes = npy_read(dir / "codes.npy"),
	               params = npy_read(dir / "params.npy");
	const auto h = hat.as<float>(), p = params.as<float>();
	const auto c = codes.as<uint8_t>();
	REQUIRE(h.size() == flat.size() * 4 * 7);
	size_t at = 0, group = 0;
	for (uint32_t bits : {1u, 2u, 4u, 8u})
		for (double eta : etas)
			for (const auto& g : groups) {
				const Quantised r = round_trip(g, bits, eta);
				CAPTURE(bits);
				CAPTURE(eta);
				CAPTURE(g.size());
				REQUIRE(f16_to_f32(r.params.scale) == p[group * 2]);
				REQUIRE(f16_to_f32(r.params.zero) == p[group * 2 + 1]);
				for (size_t i = 0; i < g.size(); ++i, ++at) {
					REQUIRE(r.codes[i] == c[at]);
					REQUIRE((std::bit_cast<uint32_t>(r.x[i]) == std::bit_cast<uint32_t>(h[at]) || r.x[i] == h[at]));
				}
				++group;
			}
	std::filesystem::remove_all(dir);
}

TEST_CASE("quant: a constant group comes back as its f16 value, with scale 0") {
	for (uint32_t bits : {1u, 2u, 4u, 8u})
		for (float x : {0.f, 1.f, -3.14159f, 1000.f}) {
			const Quantised r = round_trip(std::vector<float>(32, x), bits, 0.25);
			CHECK(r.params.scale == 0);
			for (float y : r.x) CHECK(y == round_f16(x));
		}
}

TEST_CASE("quant: the error is at most half a step, and codes are the nearest") {
	std::mt19937 rng(2);
	std::normal_distribution<float> normal;
	for (uint32_t bits : {1u, 2u, 4u, 8u})
		for (int round = 0; round < 100; ++round) {
			std::vector<float> x(64);
			for (float& v : x) v = normal(rng);
			const Quantised r = round_trip(x, bits, 0);
			const float scale = f16_to_f32(r.params.scale);
			for (size_t i = 0; i < x.size(); ++i) {
				CHECK(std::fabs(r.x[i] - x[i]) <=
				      scale * 0.5f + 0.01f); // f16 end points may be off by their own rounding
				for (uint32_t other = 0; other < (1u << bits); ++other)
					CHECK(std::fabs(r.x[i] - x[i]) <= std::fabs(dequantise(other, r.params) - x[i]) + 1e-6f);
			}
		}
}

TEST_CASE("quant: packed codes come back, neighbours untouched") {
	std::mt19937 rng(4);
	for (uint32_t bits : {1u, 2u, 4u, 8u, 16u}) {
		const size_t n = 256;
		std::vector<uint32_t> words(n * bits / 32, 0xdeadbeef), codes(n);
		for (size_t i = 0; i < n; ++i) codes[i] = rng() & ((1u << bits) - 1), pack(words, bits, i, codes[i]);
		for (size_t i = 0; i < n; ++i) CHECK(unpack(words, bits, i) == codes[i]);
		pack(words, bits, 7, 0);
		for (size_t i = 0; i < n; ++i) CHECK(unpack(words, bits, i) == (i == 7 ? 0 : codes[i]));
	}
	std::vector<uint32_t> w(1, 0);
	pack(w, 2, 0, 3), pack(w, 2, 1, 1);
	CHECK(w[0] == 7); // the first code is in the lowest bits
	CHECK(params_of_word(Params{0x1234, 0xabcd}.word()) == Params{0x1234, 0xabcd});
	CHECK((Params{0x1234, 0xabcd}.word()) == 0xabcd1234);
}

TEST_CASE("quant: factors are finite and never zero") {
	CHECK(channel_factor(std::vector<float>{0, 0}) == 0x3c00);
	CHECK(channel_factor(std::vector<float>{4, -9}) == f32_to_f16(3));
	CHECK(channel_factor(std::vector<float>{1e-20f}) == 0x3c00);
	CHECK(balance_factor(4, 1) == f32_to_f16(2));
	CHECK(balance_factor(0, 1) == 0x3c00);
	CHECK(balance_factor(1, 0) == 0x3c00);
	CHECK(f16_to_f32(balance_factor(3e4f, 1e-11f)) == 65504.f);
}

TEST_CASE("quant: a rotation keeps lengths and products, spreads a channel evenly, and is undone") {
	for (const uint32_t D : {8u, 64u, 80u, 96u, 256u}) {
		CAPTURE(D);
		std::vector<float> x(D), y(D), one(D, 0.f);
		for (uint32_t c = 0; c < D; ++c) x[c] = float(int(c * 7 % 11) - 5), y[c] = float(int(c * 5 % 13) - 6);
		const auto dot = [&](const std::vector<float>& a, const std::vector<float>& b) {
			double sum = 0;
			for (uint32_t c = 0; c < D; ++c) sum += double(a[c]) * double(b[c]);
			return sum;
		};
		const double before = dot(x, y);
		std::vector<float> rx = x, ry = y;
		rotate(rx), rotate(ry);
		CHECK(rx != x);
		CHECK(dot(rx, ry) == doctest::Approx(before).epsilon(1e-5));
		rotate_back(rx);
		for (uint32_t c = 0; c < D; ++c) CHECK(rx[c] == doctest::Approx(x[c]).epsilon(1e-4));
		one[3] = 1;
		rotate(one);
		const uint32_t block = D & (~D + 1);
		for (uint32_t c = 0; c < block; ++c) CHECK(std::fabs(one[c]) == doctest::Approx(1 / std::sqrt(double(block))));
	}
	uint32_t negative = 0;
	for (uint32_t c = 0; c < 256; ++c) negative += kv_sign(c);
	CHECK(negative > 96);
	CHECK(negative < 160);
}

TEST_CASE("quant: codes of a codebook are the nearest, and the decoded vector is as long as the vector") {
	for (uint32_t bits = 1; bits <= 4; ++bits) {
		for (float x = -3; x <= 3; x += 0.01f) {
			const uint32_t code = codebook_code(x, bits);
			for (uint32_t other = 0; other < 1u << bits; ++other)
				CHECK(std::fabs(codebook_value(code, bits) - x) <= std::fabs(codebook_value(other, bits) - x) + 1e-6f);
		}
		std::vector<float> x(64);
		for (uint32_t c = 0; c < 64; ++c) x[c] = std::sin(float(c) * 1.7f) * 3;
		std::vector<uint8_t> codes(64);
		const float norm = quantise_norm(x, bits, codes);
		double length = 0, decoded = 0;
		for (uint32_t c = 0; c < 64; ++c) {
			length += double(x[c]) * double(x[c]);
			decoded += std::pow(double(norm * codebook_value(codes[c], bits)), 2);
		}
		CHECK(decoded == doctest::Approx(length).epsilon(1e-4));
		CHECK(quantise_norm(std::vector<float>(64, 0.f), bits, codes) == 0);
	}
}

TEST_CASE("quant: codes of a codebook have the direction nearest to the head's, of eight scales") {
	std::mt19937 rng(5);
	std::normal_distribution<float> normal;
	// The error of Gaussian heads over that with their root mean square as the only scale, as numpy computes it
	constexpr double kGain[] = {0, 1, 0.983, 0.905, 0.793};
	for (uint32_t bits = 1; bits <= 4; ++bits) {
		double one = 0, searched = 0; // sums of squared sines of the angle
		for (int n = 0; n < 400; ++n) {
			std::vector<float> x(64);
			for (float& v : x) v = normal(rng) * 0.01f;
			const auto sine = [&](auto&& code) {
				double xx = 0, vv = 0, xv = 0;
				for (size_t i = 0; i < x.size(); ++i) {
					const double v = double(codebook_value(code(i), bits));
					xx += double(x[i]) * double(x[i]), vv += v * v, xv += double(x[i]) * v;
				}
				return 1 - xv * xv / xx / vv;
			};
			std::vector<uint8_t> codes(64);
			quantise_norm(x, bits, codes);
			float squares = 0;
			for (const float v : x) squares += v * v;
			const float rms = std::sqrt(squares / 64);
			const double own = sine([&](size_t i) { return codes[i]; });
			for (int i = 13; i <= 20; ++i) // sixteenths
				CHECK(own <= 1e-6 + sine([&](size_t c) { return codebook_code(x[c] / rms * float(i) / 16, bits); }));
			one += sine([&](size_t c) { return codebook_code(x[c] / rms, bits); }), searched += own;
		}
		CHECK(searched / one == doctest::Approx(kGain[bits]).epsilon(0.015));
	}
}

TEST_CASE("quant: codes of 3 bits come back from their two planes") {
	for (const uint32_t D : {8u, 40u, 64u, 80u}) {
		std::vector<uint32_t> words(kv_token_words(D, 3), 0xffffffffu);
		for (uint32_t c = 0; c < D; ++c) set_token_code(words, D, 3, c, c * 5 % 8);
		for (uint32_t c = 0; c < D; ++c) CHECK(token_code(words.data(), 1, D, 3, c) == c * 5 % 8);
	}
}

TEST_CASE("quant: norms of 8 bits are 255ths of the largest") {
	const std::vector<float> norms = {0, 1, 2, 510, 3, 7.1f};
	std::vector<uint8_t> bytes(norms.size());
	CHECK(f16_to_f32(quantise_norms(norms, bytes)) == 510);
	CHECK(bytes == std::vector<uint8_t>{0, 0, 1, 255, 2, 4});
	CHECK(quantise_norms(std::vector<float>(6, 0.f), bytes) == 0);
	CHECK(bytes == std::vector<uint8_t>(6, 0));
}
