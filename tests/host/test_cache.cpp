// KvCache by simulation: tens of thousands of tokens per policy on a device made of lists, against plain references.
#include "engine/core/error.h"
#include "engine/core/npy.h"
#include "engine/kv_host/counts.h"
#include "tests/support/assets.h"
#include "tests/support/kv_sim.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

namespace {

constexpr KvShape kShape = {4, 2, 64};
const char* const kPolicies[] = {
    "fp16",
    "rtn8",
    "rtn4",
    "rtn2",
    "rtn4,k.bits=16",
    "rtn4,v.bits=16,k.scale=channel,k.group=32,k.bits=2",
    "turbo8/3,v.bits@1=8,k.bits@1=1",
    "rtn2,flush=1,page=32",
    "kivi4",
    "kivi2",
    "kivi1,eta=0.25",
    "kivi2,group=64",
    "kivi2,group=128",
    "kivi2,flush=20,recent_keep=50,sinks=3",
    "kivi2,group=all",
    "kivi4,v.prescale=sqrtmax,k.scale=token",
    "logquant",
    "logquant,W=32,group=32",
    "logquant,W=64,sinks=4",
    "xquant",
    "xquant,kq=2,vq=4,km=2,vm=0",
    "asymkv32/0",
    "streaming,sinks=4,recent=96",
    "streaming,flush=32,recent=128",
    "zipcache",
    "zipcache,recent_keep=20,ratio=0.3,probe=all,score=sum",
    "mikv",
    "mikv,salient.bits=4",
    "mikv,per_head=off,ratio=50%,sinks=2",
    "mikv,score=mean,probe=0.2",
    "h2o,budget=40,recent=64",
    "h2o,budget=40,recent_keep=63,flush=1,per_head=off",
    "kivi2,score=mean,ratio=0.2",
    "mikv,score=key_length",
    "zipcache,score=key_length,key_length=small",
    ("kivi2,score=sum,ratio=0.3,salient.k.bits=4,salient.v.bits=8,salient.k.scale=channel,salient.k.group=32,"
     "per_head=on"), // in parentheses: one literal
};

// One sequence and its references, one per layer and kv head.
struct Pair {
	Sim sim;
	std::vector<Reference> refs; // (n_layers, n_kv_heads)
	Pair(SimMemory& m, int id, uint64_t seed = 1) : sim(m, id, seed) {
		for (uint32_t l = 0; l < m.plan.shape.n_layers; ++l)
			for (uint32_t h = 0; h < m.plan.shape.n_kv_heads; ++h) refs.emplace_back(m.plan, l, h);
	}
	Pair(Pair& other, int id) : sim(other.sim, id), refs(other.refs) {} // a fork
	void prompt(uint32_t n) {
		sim.prompt(n);
		for (Reference& r : refs) r.prompt(n, sim.prompt_rows.back());
	}
	void decode(uint32_t n) {
		for (uint32_t i = 0; i < n; ++i) {
			sim.decode(1);
			const bool scores = sim.cache.token_scores();
			for (Reference& r : refs) r.decode(scores);
		}
	}
	void check() {
		sim.verify();
		for (const Reference& r : refs) {
			REQUIRE(sim.cache.tiers(r.l, r.h) == r.tiers());
			check_order(r);
		}
	}
	// Packed tokens lie in the order in which they were judged; a block covers exactly the tokens compressed together.
	void check_order(const Reference& r) {
		for (Tier t : {Tier::Salient, Tier::Regular}) {
			const Fill fill = sim.plan.fill[int(t)];
			if (fill == Fill::None) continue;
			std::vector<uint32_t> packed;
			for (uint32_t p : sim.cache.positions(r.l, t, r.h))
				if (p != kNone) packed.push_back(p);
			const auto& gone = r.gone[int(t)];
			REQUIRE(packed.size() <= gone.size());
			REQUIRE(std::equal(packed.begin(), packed.end(), gone.begin()));
			if (fill != Fill::Block) continue;
			size_t at = 0, page = 0;
			const auto blocks = sim.cache.blocks(r.l, t);
			std::set<uint32_t> seen;
			for (size_t n : r.runs[int(t)]) {
				const std::set<uint32_t> together(gone.begin() + at, gone.begin() + at + n);
				REQUIRE(page < blocks.size());
				REQUIRE(sim.memory.page.at(blocks[page]).covers[r.h] == together);
				REQUIRE(seen.insert(blocks[page]).second);
				const size_t n_pages = (n + sim.plan.page[int(t)] - 1) / sim.plan.page[int(t)];
				for (size_t i = 0; i < n_pages; ++i) REQUIRE(blocks[page + i] == blocks[page]);
				at += n, page += n_pages;
			}
			REQUIRE(page == blocks.size());
		}
	}
};

size_t f16_tokens(const KvCache& c, uint32_t l, uint32_t h) {
	const auto pos = c.positions(l, Tier::F16, h);
	return pos.size() - size_t(std::count(pos.begin(), pos.end(), kNone));
}

} // namespace

TEST_CASE("cache: 6000 decoded tokens per policy are where the references say, and nowhere else") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		SimMemory memory(plan);
		Pair p(memory, 7);
		for (uint32_t n = 0; n < 6000;) { // every state near the first flushes, later only some
			const uint32_t step = n < 300 ? 1 : 997;
			p.decode(step);
			n += step;
			if (n < 300 ? n % 7 == 0 || (n > 120 && n < 135) : true) p.check();
		}
		REQUIRE(memory.used_bytes() + (plan.layers[0].balanced ? 2 * plan.balancer_bytes() : 0) ==
		        p.sim.cache.bytes().total());
	}
}

TEST_CASE("cache: prompts of any size between decoded tokens keep every invariant") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		for (uint32_t seed = 1; seed <= 3; ++seed) {
			CAPTURE(seed);
			SimMemory memory(plan);
			Pair p(memory, 1, seed);
			std::mt19937 rng(seed);
			for (int turn = 0; turn < 12; ++turn) {
				const uint32_t sizes[] = {1, 5, 31, 32, 33, 97, 128, 129, 300, 700};
				p.prompt(sizes[rng() % 10]);
				p.check();
				p.decode(rng() % 150);
				p.check();
			}
		}
	}
}

TEST_CASE("cache: a long prompt, then decode") {
	for (const char* text : {"fp16", "rtn4", "kivi2", "logquant", "xquant", "streaming"}) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		SimMemory memory(plan);
		Pair p(memory, 1);
		p.prompt(30000);
		p.check();
		p.decode(300);
		p.check();
	}
}

TEST_CASE("cache: however a prompt is cut, position-only policies end in the same state as token by token") {
	for (const char* text : kPolicies) {
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		if (plan.ranked()) continue;
		CAPTURE(text);
		const uint32_t n = 1500;
		SimMemory memory(plan);
		Sim one_by_one(memory, 1);
		one_by_one.decode(n);
		std::mt19937 rng(5);
		for (int cut = 0; cut < 6; ++cut) {
			Sim other(memory, 2 + cut);
			while (other.cache.n_tokens() < n) {
				const uint32_t left = n - other.cache.n_tokens();
				const uint32_t step = cut == 0 ? left : std::min<uint32_t>(left, 1 + rng() % (cut == 1 ? 40 : 600));
				rng() % 4 || cut == 0 ? other.prompt(step) : other.decode(step);
			}
			other.verify();
			for (Tier t : {Tier::Salient, Tier::Regular}) { // the same tokens in the same slots: the same groups
				const auto a = one_by_one.cache.positions(0, t, 0), b = other.cache.positions(0, t, 0);
				if (plan.fill[int(t)] != Fill::None) REQUIRE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
			}
			REQUIRE(one_by_one.cache.tiers(0, 0) == other.cache.tiers(0, 0));
		}
	}
}

TEST_CASE("cache: windows stay within the papers' bounds") {
	struct {
		const char* text;
		size_t lo, hi; // f16 tokens once the window is full; exact except for the parity of logquant's waiting tokens
	} rows[] = {{"kivi2", 97, 128},
	            {"kivi2,group=64", 65, 128},
	            {"kivi2,group=128", 1, 128},
	            {"kivi4,recent_keep=64,flush=64", 65, 128},
	            {"rtn2", 1, 32},
	            {"streaming,recent=96", 100, 100},
	            {"logquant", 85, 126 + 63},
	            {"logquant,W=32,group=32", 65, 96},
	            {"zipcache", 1, 100},
	            {"h2o,budget=40,recent=64", 73, 104}};
	for (const auto& r : rows) {
		CAPTURE(r.text);
		const KvPlan plan = make_plan(parse_policy(r.text), {2, 2, 64});
		SimMemory memory(plan);
		Sim s(memory, 1);
		s.decode(400);
		size_t lo = SIZE_MAX, hi = 0;
		for (int i = 0; i < 600; ++i) {
			s.decode(1);
			lo = std::min(lo, f16_tokens(s.cache, 0, 0)), hi = std::max(hi, f16_tokens(s.cache, 0, 0));
		}
		CHECK(lo >= r.lo);
		CHECK(hi <= r.hi);
		if (std::string(r.text) != "logquant") CHECK((lo == r.lo && hi == r.hi));
	}
}

TEST_CASE("cache: LogQuant keeps exactly the set of its Algorithm 1") {
	for (uint32_t W : {32u, 42u, 64u, 85u}) {
		const KvPlan plan = make_plan(parse_policy(fmt::format("logquant,W={},group=32", W)), {1, 1, 64});
		SimMemory memory(plan);
		Sim s(memory, 1);
		std::vector<uint32_t> a; // Algorithm 1, as written
		for (uint32_t t = 0; t < 4200; ++t) {
			if (a.size() >= 3 * W) {
				std::vector<uint32_t> b;
				for (uint32_t i = 0; i < 2 * W; i += 2) b.push_back(a[i]);
				b.insert(b.end(), a.begin() + 2 * W, a.end());
				a = b;
			}
			a.push_back(t);
			s.decode(1);
			const uint32_t n = t + 1;
			if (n % 61 && n != 300 && n != 4096) continue;
			std::vector<uint8_t> tiers = s.cache.tiers(0, 0);
			std::vector<uint32_t> dropped; // judged Regular: packed, or the newest few still waiting for their group
			size_t n_packed = 0;
			for (uint32_t i = 0; i < n; ++i) {
				const bool kept = std::binary_search(a.begin(), a.end(), i);
				n_packed += tiers[i] == 2;
				if (kept) REQUIRE(tiers[i] == 0);
			}
			REQUIRE(n - a.size() - n_packed == (n - a.size()) % 32);
		}
	}
}

TEST_CASE("cache: prompts of the golden cases end in the tiers the reference gives") {
	const std::string dir = shared_file("reference/golden");
	if (dir.empty()) return;
	int n_cases = 0;
	for (const auto& entry : std::filesystem::directory_iterator(dir)) {
		const std::string at = entry.path().string(), text = file_text(at + "/case.json");
		CAPTURE(at);
		const size_t kv = text.find("\"kv\": \"") + 7;
		const KvPolicy policy = parse_policy(text.substr(kv, text.find('"', kv) - kv));
		const NpyArray tier = npy_read(at + "/tier.npy"), probes = npy_read(at + "/probes.npy"),
		               v = npy_read(at + "/v.npy");
		const auto want = tier.as<uint8_t>();
		const uint32_t L = uint32_t(tier.shape[0]), T = uint32_t(tier.shape[1]), H = uint32_t(tier.shape[2]);
		const KvPlan plan = make_plan(policy, {L, H, uint32_t(v.shape[3])});
		BudgetPool pool;
		KvCache cache(plan, pool);
		std::vector<uint32_t> rows;
		if (policy.name == "zipcache")
			for (int64_t r : probes.as<int64_t>()) rows.push_back(uint32_t(r));
		cache.begin_prompt(T, rows);
		std::vector<float> score(plan.ranked() ? size_t(H) * T : 0);
		if (plan.ranked()) { // the file's scores are means; the cache's input is sums over the rows that see the token
			const NpyArray file = npy_read(at + "/score.npy");
			for (uint32_t h = 0; h < H; ++h)
				for (uint32_t t = 0; t < T; ++t) {
					const auto see = rows.end() - std::lower_bound(rows.begin(), rows.end(), t);
					score[h * T + t] =
					    file.as<float>()[t * H + h] * (rows.empty() ? 1.f : float(std::max<ptrdiff_t>(1, see)));
				}
		}
		for (uint32_t l = 0; l < L; ++l) cache.prompt_moves(l, score);
		cache.end_prompt();
		for (uint32_t l = 0; l < L; ++l)
			for (uint32_t h = 0; h < H; ++h) {
				const std::vector<uint8_t> got = cache.tiers(l, h);
				for (uint32_t t = 0; t < T; ++t) REQUIRE_MESSAGE(got[t] == want[(l * T + t) * H + h], "token " << t);
			}
		++n_cases;
	}
	CHECK(n_cases >= 10);
}

TEST_CASE("cache: several sequences share a pool, and give everything back") {
	for (const char* text :
	     {"kivi2", "logquant", "xquant,kq=2,vq=4,km=2,vm=0", "zipcache", "mikv", "h2o,budget=40,recent=64", "fp16"}) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		SimMemory memory(plan);
		std::vector<std::unique_ptr<Pair>> seqs;
		std::mt19937 rng(9);
		for (int i = 0; i < 3; ++i) seqs.push_back(std::make_unique<Pair>(memory, i, i + 1));
		for (int round = 0; round < 8; ++round) {
			for (auto& s : seqs) {
				s->prompt(1 + rng() % 200);
				s->decode(rng() % 200);
			}
			if (round == 3) { // one ends, another replaces it
				seqs[1] = nullptr;
				seqs[1] = std::make_unique<Pair>(memory, 10, 77);
				seqs[1]->prompt(50);
			}
			size_t bytes = 0;
			for (auto& s : seqs) s->check(), bytes += s->sim.cache.bytes().total();
			for (const LayerPlan& L : plan.layers) bytes -= L.balanced ? seqs.size() * plan.balancer_bytes() : 0;
			REQUIRE(bytes == memory.used_bytes());
		}
		seqs[0]->sim.cache.reset();
		CHECK(seqs[0]->sim.cache.n_tokens() == 0);
		seqs.clear();
		CHECK(memory.used_bytes() == 0);
		CHECK(memory.inner.n_live() == 0);
		CHECK(memory.broken.empty());
	}
}

TEST_CASE("cache: a spent budget is one error with need, budget and advice, and changes nothing") {
	for (const char* text : {"fp16", "kivi4", "logquant", "zipcache", "mikv"}) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {4, 2, 128});
		const size_t budget = bytes_at(plan, 1000).total();
		SimMemory memory(plan, budget);
		Pair p(memory, 1);
		p.prompt(200);
		const size_t used = memory.used_bytes();
		try {
			p.sim.cache.begin_prompt(1500);
			FAIL("1700 tokens fit where 1000 should");
		} catch (const Error& e) {
			CHECK(e.code == Code::OutOfMemory);
			const std::string what = e.what();
			CHECK(what.find("1500 more tokens make 1700") != std::string::npos);
			CHECK(what.find(fmt::format("{:.1f} MiB", double(budget) / (1 << 20))) != std::string::npos);
			CHECK(what.find("--kv") != std::string::npos);
			CHECK(what.find("or sequences) hold 0.0 MiB") != std::string::npos); // its own pages are returned
			CHECK(what.find('\n') == std::string::npos);
		}
		CHECK(memory.used_bytes() == used);
		p.check(); // unchanged, and usable
		p.prompt(300);
		p.check();
		bool full = false;
		for (int i = 0; i < 3000 && !full; ++i) {
			try {
				p.decode(1);
			} catch (const Error& e) {
				CHECK(e.code == Code::OutOfMemory);
				full = true;
			}
		}
		CHECK(full);
		p.check(); // the token that did not fit changed nothing
		CHECK(memory.used_bytes() <= budget);
		p.sim.cache.reset();
		CHECK(memory.used_bytes() == 0);
	}
}

TEST_CASE("cache: the advice of a spent budget is a policy that indeed fits") {
	const KvShape shape = {8, 4, 128};
	for (uint64_t n : {500u, 4000u, 20000u})
		for (double share : {1.0, 0.6, 0.3, 0.2, 0.1}) {
			const size_t budget = size_t(share * 16 * shape.n_layers * shape.n_kv_heads * shape.head_dim * n / 8 * 2);
			const std::string name = policy_that_fits(shape, n, budget);
			if (name.empty()) { // then not even one bit fits
				CHECK(double(bytes_at(make_plan(parse_policy("kivi1"), shape), n).total()) > 0.95 * double(budget));
				continue;
			}
			const KvPlan plan = make_plan(parse_policy(name), shape);
			BudgetPool pool(budget);
			KvCache cache(plan, pool);
			cache.begin_prompt(uint32_t(n));
			CHECK(pool.used_bytes() <= budget);
		}
}

TEST_CASE("cache: tokens_that_fit is the largest number, and holds while tokens arrive one by one") {
	for (const char* text :
	     {"fp16", "rtn4", "kivi2", "logquant", "streaming,recent=96", "zipcache", "mikv", "xquant"}) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		const size_t budget = bytes_at(plan, 3000).total() + (1 << 12);
		const uint64_t n = tokens_that_fit(plan, budget, 1u << 20);
		CHECK(n >= 1000);
		if (std::string(text) == "streaming,recent=96") {
			CHECK(n == 1u << 20);
			continue;
		}
		CHECK(n < 8000);
		SimMemory memory(plan, budget);
		Sim s(memory, 1);
		s.decode(uint32_t(n)); // throws if it does not fit
		CHECK(tokens_that_fit(plan, budget / 2, 1u << 20) < n);
	}
	const KvPlan plan = make_plan(parse_policy("fp16"), {2, 2, 64});
	CHECK(tokens_that_fit(plan, 0, 100) == 0);
	CHECK(tokens_that_fit(plan, SIZE_MAX, 100) == 100);
}

TEST_CASE("cache: a cancelled prompt leaves the books as they were") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), kShape);
		SimMemory memory(plan);
		Pair p(memory, 1);
		p.decode(150);
		const size_t used = memory.used_bytes();
		for (uint32_t layers_done : {0u, 2u}) {
			p.sim.cache.begin_prompt(333);
			const std::vector<float> scores(2 * 333, 1.f);
			for (uint32_t l = 0; l < layers_done; ++l)
				p.sim.cache.prompt_moves(l, plan.ranked() ? std::span<const float>(scores) : std::span<const float>());
			p.sim.cache.cancel_prompt();
			CHECK(memory.used_bytes() == used);
			p.check();
		}
		p.prompt(200);
		p.check();
	}
}

TEST_CASE("cache: forks share pages until they write, and go their own ways") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		SimMemory memory(plan);
		std::mt19937 rng(3);
		{
			std::vector<std::unique_ptr<Pair>> seqs;
			seqs.push_back(std::make_unique<Pair>(memory, 0));
			seqs[0]->prompt(300);
			for (int i = 1; i < 12; ++i) {
				Pair& from = *seqs[rng() % seqs.size()];
				const size_t used = memory.used_bytes();
				seqs.push_back(std::make_unique<Pair>(from, i));
				REQUIRE(memory.used_bytes() == used); // nothing is copied yet
				for (auto& s : seqs) {
					if (rng() % 3 == 0)
						s->prompt(1 + rng() % 150);
					else
						s->decode(rng() % 130);
					if (rng() % 2) s->sim.cancelled_token();
				}
				for (auto& s : seqs) s->check();
				if (rng() % 3 == 0) seqs.erase(seqs.begin() + rng() % seqs.size());
			}
		}
		CHECK(memory.used_bytes() == 0);
		CHECK_MESSAGE(memory.broken.empty(), memory.broken);
	}
}

TEST_CASE("cache: a copy of a shared page that the budget has no room for changes nothing") {
	const KvPlan plan = make_plan(parse_policy("fp16"), {2, 2, 64});
	SimMemory memory(plan, bytes_at(plan, 100).total());
	Pair a(memory, 0);
	a.prompt(70);
	Pair b(a, 1), c(a, 2);
	const auto full = [](Pair& p) {
		for (int i = 0; i < 100; ++i) try {
				p.decode(1);
			} catch (const Error& e) { return e.code == Code::OutOfMemory; }
		return false;
	};
	CHECK(full(b));
	CHECK(full(c));
	CHECK(full(a));
	for (Pair* p : {&a, &b, &c}) p->check();
}

TEST_CASE("cache: going back to an exact position is as if the tokens behind it had never come") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		SimMemory memory(plan);
		std::mt19937 rng(4);
		for (int round = 0; round < 30; ++round) {
			const uint32_t first = 1 + rng() % 260, more = rng() % 40;
			const bool prompt = rng() % 2;
			Pair p(memory, 0), kept(memory, 1);
			p.prompt(first), kept.prompt(first);
			if (prompt && more)
				p.prompt(more);
			else
				p.decode(more);
			CHECK(p.sim.cache.exact_position(first + more) == first + more);
			CHECK(p.sim.cache.exact_position(0) == 0);
			const uint32_t back = p.sim.cache.exact_position(first);
			REQUIRE((back == first || back == 0));
			if (plan.keeps_all) REQUIRE(back == first);
			if (back != first) continue;
			p.sim.cache.truncate(first);
			for (const Reference& r : kept.refs) REQUIRE(p.sim.cache.tiers(r.l, r.h) == r.tiers());
			p.sim.verify();
			const uint32_t n = rng() % 200; // the following tokens are also the same
			p.sim.decode(n), kept.decode(n);
			p.sim.verify();
			for (const Reference& r : kept.refs) REQUIRE(p.sim.cache.tiers(r.l, r.h) == kept.sim.cache.tiers(r.l, r.h));
		}
	}
}

TEST_CASE("cache: a token that is given up leaves everything as it was, flush or not") {
	for (const char* text : kPolicies) {
		CAPTURE(text);
		const KvPlan plan = make_plan(parse_policy(text), {2, 2, 64});
		SimMemory memory(plan);
		Pair p(memory, 0);
		p.prompt(20);
		for (int i = 0; i < 300; ++i) {
			const size_t used = memory.used_bytes();
			p.sim.cancelled_token();
			REQUIRE(memory.used_bytes() == used);
			p.decode(1);
			if (i % 5 == 0) p.check();
		}
	}
}

TEST_CASE("cache: f16 pages that a flush empties go back when the flush is done") {
	const KvShape shape{2, 2, 64};
	const KvPlan plan = make_plan(parse_policy("zipcache"), shape);
	SimMemory memory(plan);
	Pair p(memory, 1);
	p.prompt(128); // packed at once
	p.decode(100); // the window is full
	KvCache& c = p.sim.cache;
	REQUIRE(c.flush_due());
	CHECK(c.n_pages(0, Tier::F16) == 4);
	const size_t fullest = memory.used_bytes();
	std::vector<float> scores(size_t(2) * 2 * c.n_f16_slots(), 1.f);
	c.begin_token(scores);
	CHECK(c.n_pages(0, Tier::F16) == 4); // its moves read these pages
	c.cancel_token();
	CHECK(memory.used_bytes() == fullest);
	p.check();
	p.decode(1);
	CHECK(c.n_pages(0, Tier::F16) == 1);
	CHECK(memory.used_bytes() == c.bytes().total());
	CHECK(memory.used_bytes() < fullest);
	p.decode(40); // into new pages
	CHECK(c.n_pages(0, Tier::F16) == 2);
	p.check();
	// 512 tokens of a prompt and 512 decoded ones: the bits include the paper's window in between
	KvCounts counts;
	const KvPlan bundled = make_plan(parse_policy("zipcache"), {4, 2, 64});
	advance(bundled, counts, 512, /*prompt=*/true, nullptr);
	advance(bundled, counts, 512, /*prompt=*/false, nullptr);
	CHECK(16.0 * double(bytes_of(bundled, counts).total()) / double(bundled.f16_bytes(1024)) < 4.7);
}
