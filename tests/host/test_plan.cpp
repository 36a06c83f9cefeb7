// Plans: formats and page layout of every layer, the use of every bit, and what cannot be stored.
#include "engine/core/error.h"
#include "engine/kv_host/cache.h"
#include "engine/kv_host/counts.h"
#include "engine/kv_host/plan.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <set>

using namespace kvrun;

namespace {

constexpr KvShape kMistral = {32, 8, 128};
constexpr int R = int(Tier::Regular), S = int(Tier::Salient), F = int(Tier::F16);

KvPlan plan(const char* text, KvShape s = kMistral) { return make_plan(parse_policy(text), s); }
void check_refused(const char* text, KvShape s, std::initializer_list<const char*> parts) {
	try {
		(void)plan(text, s);
		FAIL_CHECK(text << " was accepted");
	} catch (const Error& e) {
		const std::string what = e.what();
		CHECK(what.find('\n') == std::string::npos);
		for (const char* part : parts)
			CHECK_MESSAGE(what.find(part) != std::string::npos, text << " -> " << what << " lacks " << part);
	}
}
const PageFormat& page_of(const KvPlan& p, uint32_t l, int t) { return p.formats.at(p.layers[l].tier[t].page_format); }

} // namespace

TEST_CASE("plan: layout functions place every code and parameter once, inside its section") {
	for (uint32_t D : {8u, 64u, 80u, 128u})
		for (uint32_t bits : {1u, 2u, 4u, 8u, 16u})
			for (uint32_t page : {32u, 64u, 128u}) {
				const uint32_t H = 3, words = kv_code_words(H, D, bits, page), tw = kv_token_words(D, bits);
				CHECK(tw * 32 >= D * bits);
				std::set<uint32_t> k, v;
				for (uint32_t h = 0; h < H; ++h)
					for (uint32_t w = 0; w < tw; ++w)
						for (uint32_t t = 0; t < page; ++t)
							k.insert(kv_k_word(h, w, t, D, bits, page)), v.insert(kv_v_word(h, t, w, D, bits, page));
				CHECK(k.size() == words);
				CHECK(v.size() == words);
				CHECK(*k.rbegin() == words - 1);
				CHECK(*v.rbegin() == words - 1);
			}
	for (uint32_t group : {32u, 64u, 128u, 256u}) { // 256: two heads share a run
		const uint32_t H = 4, D = 128, page = 32;
		std::set<uint32_t> seen;
		for (uint32_t h = 0; h < H; ++h)
			for (uint32_t c = 0; c < D; ++c)
				for (uint32_t t = 0; t < page; ++t) seen.insert(kv_token_param(h, c, t, D, group, page));
		CHECK(seen.size() == kv_token_param_words(H, D, group, page));
		CHECK(*seen.rbegin() + 1 == seen.size());
		CHECK(kv_token_param(0, 0, 5, D, group, page) == kv_token_param(0, 31, 5, D, group, page));
	}
	CHECK(kv_channel_param(2, 5, 64) == 133);
	CHECK(kv_factor_words(3, 5) == 8);
	CHECK(kv_factor_word(1, 2, 5) == 3);
	CHECK(kv_factor_half(1, 2, 5) == 1);
}

TEST_CASE("plan: sections of a page follow each other, aligned, and hold what the formats say") {
	const KvPlan p = plan("kivi2");
	const PageFormat& f = page_of(p, 0, R);
	CHECK(p.fill[R] == Fill::Group);
	CHECK(p.page[R] == 32);
	CHECK(f.k_codes == 8 * 128 * 2); // 32 tokens x 2 bits = 2 words per channel
	CHECK(f.v_codes == 8 * 128 * 2);
	CHECK(f.k_params == 8 * 128);    // one per channel
	CHECK(f.v_params == 8 * 4 * 32); // four runs per head and token
	CHECK(f.v_codes_at == f.k_codes);
	CHECK(f.k_params_at == f.k_codes + f.v_codes);
	CHECK(f.words == f.v_params_at + f.v_params);
	CHECK(page_of(p, 0, F).words == 8 * 128 * 32); // f16: two channels per word, K and V
	CHECK(p.layers[0].tier[S].page_format == 0xffff);
	CHECK(p.n_groups == 1);
	for (const char* text : {"xquant", "zipcache", "mikv", "rtn4", "asymkv32/0"})
		for (KvShape s : {KvShape{32, 8, 128}, {4, 1, 80}, {3, 3, 10}}) {
			KvPolicy policy = parse_policy(text);
			for (const PageFormat& x : make_plan(policy, s).formats) {
				CHECK(x.k_codes_at + x.k_codes <= x.v_codes_at);
				CHECK(x.v_codes_at + x.v_codes <= x.k_params_at);
				CHECK(x.k_params_at + x.k_params <= x.v_params_at);
				CHECK(x.v_params_at + x.v_params <= x.words);
				for (uint32_t at : {x.v_codes_at, x.k_params_at, x.v_params_at, x.words}) CHECK(at % 4 == 0);
			}
		}
}

TEST_CASE("plan: parameters in bytes take half the words, and one of each kv head") {
	const KvPlan p = plan("kivi2,param_bits=8");
	const PageFormat& f = page_of(p, 0, R);
	CHECK(p.page[R] == 32);
	CHECK(f.k_params == 8 * 128 / 2 + 8);
	CHECK(f.v_params == 8 * 4 * 32 / 2 + 8);
	CHECK(f.words * 32. / (2 * 32 * 8 * 128) == doctest::Approx(2.508).epsilon(0.001)); // kivi2: 3
	const KvPlan turbo = plan("turbo2,v.scale=token,v.group=64,v.param_bits=8");        // a page of codebook keys
	CHECK(page_of(turbo, 0, R).v_params == 8 * 2 * 128 / 2 + 8);
	const KvPlan one = plan("kivi2,v.param_bits@3-3=8");
	CHECK(page_of(one, 2, R).v_params == 8 * 4 * 32);
	CHECK(page_of(one, 3, R).v_params == 8 * 4 * 32 / 2 + 8);
	check_refused("rtn4,v.param_bits=8", kMistral, {"v.param_bits=8", "written whole", "scale=channel"});
	check_refused("kivi2,v.group=all,param_bits=8", kMistral, {"lies in one head of 128", "v.group=head"});
}

TEST_CASE("plan: a group that shares nothing with head_dim is refused with the possible ones; defaults adapt") {
	check_refused("kivi2,group=64", {4, 2, 96}, {"V group 64", "head_dim 96", "32", "96 (one head)"});
	check_refused("kivi2,group=128", {4, 1, 64}, {"V group 128", "1 kv heads", "possible are 32, 64 (one head)"});
	check_refused("mikv,group=32", {4, 2, 80}, {"group 32", "80 (one head), 160"});
	check_refused("rtn4,group=24", {4, 2, 48}, {"group 24"});
	CHECK(plan("kivi2,group=128", {4, 2, 64}).layers[0].tier[R].fmt.v.group == 128); // over two heads
	CHECK(plan("kivi2", {4, 2, 80}).layers[0].tier[R].fmt.v.group == 80);
	CHECK(plan("kivi2", {4, 2, 96}).layers[0].tier[R].fmt.v.group == 32);
	CHECK(plan("logquant", {4, 2, 96}).layers[0].tier[R].fmt.v.group == 96);
	CHECK(plan("kivi2", {5, 4, 8}).layers[0].tier[R].fmt.v.group == 32); // four heads of 8
	CHECK(plan("kivi2", {5, 1, 8}).layers[0].tier[R].fmt.v.group == 8);
	CHECK(plan("mikv", {4, 2, 64}).layers[0].tier[R].fmt.k.group == 32);
	CHECK(plan("mikv", {4, 2, 128}).layers[0].tier[R].fmt.k.group == 64);
	CHECK(plan("mikv", {4, 2, 80}).layers[0].tier[R].fmt.k.group == 80); // 40 channels at 1 bit are not whole words
	CHECK(plan("zipcache", {4, 2, 128}).layers[0].tier[R].fmt.v.group == 256);
	CHECK(plan("logquant,k.group=32", {4, 2, 96}).layers[0].tier[R].fmt.v.group ==
	      96); // tokens were given, not channels
	CHECK(plan("logquant,k.group=32", {4, 2, 96}).layers[0].tier[R].fmt.k.group == 32);
	check_refused("logquant,v.group=64", {4, 2, 96}, {"V group 64"});
	check_refused("rtn4,k.group=64", {4, 2, 96}, {"K group 64"});
	check_refused("kivi2", {4, 2, 65}, {"head_dim is even"});
	check_refused("kivi2", {4097, 2, 64}, {"4097 layers"});
	CHECK(plan("kivi2", {0, 2, 64}).keeps_all);   // no layer attends
	for (const KvPolicy& policy : all_policies()) // every default can be stored with any shape
		for (KvShape s : {KvShape{1, 1, 2},
		                  {2, 8, 64},
		                  {28, 2, 128},
		                  {32, 32, 80},
		                  {32, 32, 96},
		                  {22, 4, 64},
		                  {26, 4, 256},
		                  {5, 4, 8},
		                  {36, 8, 112}})
			CHECK_NOTHROW(make_plan(policy, s));
}

TEST_CASE("plan: layers with different bits, and who owns codes") {
	const KvPlan p = plan("xquant,km=32,vm=16"); // as in the paper
	for (uint32_t l = 0; l < 32; ++l) {
		const LayerPlan& L = p.layers[l];
		CHECK(L.tier[R].fmt.k.bits == (l < 30 ? 2 : 1));
		CHECK(L.tier[R].fmt.v.bits == (l < 2 ? 2 : 1));
		CHECK(L.tier[R].fmt.k.eta == doctest::Approx(l < 30 ? 0.045 : 1.0 / 6));
		CHECK(L.k_codes_of == l);
		CHECK(L.v_codes_of == (l >= 16 && l % 2 ? l - 1 : l));
		CHECK((page_of(p, l, R).v_codes == 0) == (l >= 16 && l % 2 == 1)); // stored only once
		CHECK(page_of(p, l, R).k_codes > 0);
		CHECK(page_of(p, l, R).v_params == page_of(p, 0, R).v_params);
	}
	// 30 layers have K at 2 bits, 2 at 1; 2 layers have V at 2, 14 at 1, and 16 have it in every second layer
	CHECK(code_bits(p) == doctest::Approx((30 * 2 + 2 * 1 + 2 * 2 + 14 * 1 + 8 * 1) / 64.0));
	CHECK(code_bits(p) == doctest::Approx(1.375));
	const KvPlan half = plan("xquant", {16, 8, 128}); // the paper's layer numbers are for 32 layers
	CHECK(half.layers[14].tier[R].fmt.k.bits == 2);
	CHECK(half.layers[15].tier[R].fmt.k.bits == 1);
	CHECK(half.layers[9].v_codes_of == 9); // shared only if requested
	CHECK(plan("xquant,vm=8", {16, 8, 128}).layers[9].v_codes_of == 8);
	CHECK(plan("xquant,vm=8", {16, 8, 128}).layers[7].v_codes_of == 7);
	CHECK(plan("xquant,kq=30", {16, 8, 128}).layers[15].tier[R].fmt.k.bits == 2); // given layer numbers do not scale
	CHECK(plan("xquant,kq=0,vq=0,km=0,vm=0,stride=4").layers[7].k_codes_of == 4);
	const KvPlan a = plan("asymkv12/3");
	CHECK(a.layers[11].tier[R].fmt.k.bits == 2);
	CHECK(a.layers[12].tier[R].fmt.k.bits == 1);
	CHECK(a.layers[3].tier[R].fmt.v.bits == 1);
	CHECK(code_bits(plan("asymkv32/0")) == 1.5);
	const KvPlan mixed = plan("kivi2,regular.k.bits@0-3=4,bits@31=16");
	CHECK(mixed.layers[3].tier[R].fmt.k.bits == 4);
	CHECK(mixed.layers[4].tier[R].fmt.k.bits == 2);
	CHECK(mixed.layers[31].tier[R].fmt.v.bits == 16);
	CHECK(page_of(mixed, 31, R).k_params == 0);
}

TEST_CASE("plan: what cannot be stored is refused in one line") {
	check_refused(
	    "xquant,kq=3,km=0", kMistral,
	    {"shared codes need equal bits", "layer 3 has 1-bit keys, layer 2, whose codes it reads, 2-bit", "kq"});
	check_refused("xquant,vq=5,vm=4", kMistral, {"1-bit values"});
	check_refused("kivi2,bits@40=4", kMistral, {"no layer 40", "layers 0 to 31"});
	check_refused("kivi2,k.bits@0-40=4", kMistral, {"no layer 40", "layers 0 to 31"});
	check_refused("kivi2,group@30-32=32", kMistral, {"no layer 32"});
	CHECK_NOTHROW(plan("kivi2,bits@0-31=4"));
	CHECK_NOTHROW(plan("asymkv40/0")); // a boundary, not a layer
	check_refused("mikv,km=0", kMistral, {"shared codes need the same tokens"});
	check_refused("zipcache,per_head=on", kMistral, {"per_head=off or group=head"});
	check_refused("kivi2,v.prescale=sqrtmax", kMistral, {"k.group=all"});
	check_refused("kivi2,page=64", kMistral, {"a group is a page"});
	check_refused("kivi2,bits@3=0", kMistral, {"evicted in all layers or in none"});
	check_refused("kivi2,k.group@3=64", kMistral, {"by 32 and by 64"});
	check_refused("kivi2,k.group@3=all", kMistral, {"all layers"});
	check_refused("xquant,k.group=all", kMistral, {"k.group=all", "give k.eta=0"});
	check_refused("zipcache,eta=0.1", kMistral, {"give k.eta=0"});
	CHECK_NOTHROW(plan("zipcache,v.eta=0.1"));
	CHECK_NOTHROW(plan("xquant,k.group=all,k.eta=0"));
	CHECK(plan("mixed2,group=all").layers[0].tier[R].fmt.k.eta == 0); // a default, not what was asked for
	CHECK_NOTHROW(plan("zipcache,per_head=on,v.group=head"));
	CHECK_NOTHROW(plan("kivi2,km=0,vm=16"));
}

TEST_CASE("plan: bytes are those of the cache, part by part") {
	for (const KvPolicy& policy : all_policies())
		for (uint32_t n : {1u, 40u, 129u, 1000u, 4096u}) {
			CAPTURE(policy.name);
			CAPTURE(n);
			const KvPlan p = make_plan(policy, {4, 2, 64});
			BudgetPool pool;
			KvCache cache(p, pool);
			cache.begin_prompt(n);
			const std::vector<float> scores(2 * n, 1.f);
			for (uint32_t l = 0; l < 4; ++l)
				cache.prompt_moves(l, p.ranked() ? std::span<const float>(scores) : std::span<const float>());
			cache.end_prompt();
			const KvBytes b = bytes_at(p, n);
			CHECK(b.total() == cache.bytes().total());
			CHECK(b.total() - b.fetch == pool.used_bytes() + (p.layers[0].balanced ? 4 * p.balancer_bytes() : 0));
			CHECK(b.slack < b.total()); // no underflow
			CHECK(b.f16 % (4 * 2 * 64 * 4) == 0);
			if (p.keeps_all) CHECK(b.f16 == p.f16_bytes(n));
		}
}

TEST_CASE("plan: stored bits per element at the sizes the papers speak of, window apart") {
	auto window_bits = [](const KvPlan& p, uint64_t n) {
		return 8.0 * double(bytes_at(p, n).f16) / double(p.f16_bytes(n)) * 2;
	};
	const uint64_t n = 4096;
	CHECK(stored_bits(plan("fp16"), n) == doctest::Approx(16).epsilon(0.002));
	const KvPlan kivi = plan("kivi2,group=64"), x = plan("xquant,group=128");
	CHECK(stored_bits(kivi, n) <= 2.75 + window_bits(kivi, n));
	CHECK(stored_bits(kivi, n) > 2.5); // 2 bits and two halves per 64 elements, for K and V, except in the window
	CHECK(stored_bits(x, n) <= 1.9 + window_bits(x, n));
	CHECK(code_bits(kivi) == 2);
	CHECK(code_bits(plan("zipcache")) == doctest::Approx(3.2));
	CHECK(code_bits(plan("mikv")) == doctest::Approx(4.8));
	CHECK(code_bits(plan("h2o")) == 0);
	// ZipCache's own ratios, with every parameter, table and half-empty page counted
	const double at_840 = 16 / stored_bits(plan("zipcache,ratio=0.6"), 840),
	             at_3072 = 16 / stored_bits(plan("zipcache,ratio=0.8"), 3072);
	CHECK(at_840 == doctest::Approx(4.98).epsilon(0.05));
	CHECK(at_3072 == doctest::Approx(4.43).epsilon(0.05));
	// a small cache at 32k tokens: after eviction it does not grow
	CHECK(bytes_at(plan("streaming"), 4096).total() == bytes_at(plan("streaming"), 32768).total());
	CHECK(16 / stored_bits(plan("kivi2"), 32768) >= 5);
	CHECK(16 / stored_bits(plan("xquant"), 32768) >= 6);
	CHECK(16 / stored_bits(plan("xquant,group=128,flush=128,recent_keep=64,vm=16"), 32768) >= 7);
	for (const KvShape& s : {kMistral, KvShape{30, 3, 64}}) CHECK(16 / stored_bits(plan("specache1", s), 32768) >= 10);
}

TEST_CASE("plan: tokens counted many at a time are those counted one by one") {
	const auto same = [](const KvCounts& a, const KvCounts& b) {
		return a.n_tokens == b.n_tokens && a.judged == b.judged && a.sinks == b.sinks && a.kept == b.kept &&
		       a.recent == b.recent && std::ranges::equal(a.waiting, b.waiting) &&
		       std::ranges::equal(a.packed, b.packed) && std::ranges::equal(a.pages, b.pages) &&
		       std::ranges::equal(a.blocks, b.blocks);
	};
	std::vector<std::string> texts = {"kivi2,flush=40", "kivi2,flush=1,k.scale=token", "streaming,sinks=3,recent=50"};
	for (const KvPolicy& p : all_policies()) texts.push_back(p.text);
	for (const std::string& text : texts) {
		const KvPlan plan = make_plan(parse_policy(text), {4, 2, 64});
		for (const uint64_t n : {1u, 33u, 127u, 161u, 500u, 1000u, 1777u, 4001u}) {
			INFO(text << ", " << n);
			KvCounts at_once, with_events, decoded, steps;
			std::vector<FlushEvent> events;
			advance(plan, at_once, n, /*prompt=*/true, nullptr);
			advance(plan, with_events, n, /*prompt=*/true, &events);
			CHECK(same(at_once, with_events));
			advance(plan, decoded, n, /*prompt=*/false, nullptr);
			for (uint64_t i = 0; i < n; ++i) advance(plan, steps, 1, /*prompt=*/false, nullptr);
			CHECK(same(decoded, steps));
			const size_t budget = most_bytes(plan, n);
			const uint64_t most = tokens_that_fit(plan, budget, 100000);
			CHECK(most >= n);
			CHECK(most_bytes(plan, most) <= budget);
			if (most < 100000) CHECK(most_bytes(plan, most + 1) > budget);
		}
	}
}

TEST_CASE("plan: a context of billions of tokens is counted by whole flushes") {
	const KvPlan plan = make_plan(parse_policy("streaming"), {2, 2, 16}); // flushes after every token
	CHECK(bytes_at(plan, UINT32_MAX).total() == bytes_at(plan, 100000).total());
	CHECK(tokens_that_fit(plan, size_t(1) << 40, UINT32_MAX) == UINT32_MAX);
}
