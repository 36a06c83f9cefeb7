// Policies that fetch f16 tokens from host memory, on every device: which tokens are chosen, and that the model
// computes with the fetched ones.
#include "engine/core/npy.h"
#include "engine/kv_device/fetch.h"
#include "engine/kv_device/prefill.h"
#include "engine/kv_device/step.h"
#include "tests/device/sequences.h"
#include "tests/support/scoped_env.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <iterator>
#include <random>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";
const std::string kWindow = ",recent_keep=8,flush=32"; // so short that most of a hundred tokens are packed

// Greedy tokens and the logits after a prompt and after each of n steps; `tokens`, if given, replace the greedy ones.
Floats follow(Session& s, std::span<const uint32_t> prompt, std::span<const uint32_t> tokens) {
	Floats all = keep(s.prefill(prompt));
	for (const uint32_t t : tokens) {
		const std::span<const float> step = s.decode(t);
		all.insert(all.end(), step.begin(), step.end());
	}
	return all;
}

} // namespace

TEST_CASE("fetch: a fork goes on with the same bits, and positions inside an answer are not exact") {
	const std::vector<Case> policies = {{"specache1,fetch=12"}, {"zipcache,flush=24,fetch=12"}, {"kivi2,fetch=7"}};
	each_row(policies, [](Backend& be, const Case& c, const TestRow& row) {
		for (const std::string queue : {"", "transfer=2,visible=0"}) { // of a card: copies in submissions of their own
			if (!queue.empty() && be.name() != std::string("vulkan")) continue;
			const ScopedEnv caps("KVRUN_TEST_CAPS", test_caps_and(queue));
			const auto engine = open_engine(row.device, kModel);
			const uint32_t vocab = engine->config().vocab;
			Session s(*engine, with(c.name + (c.name[0] == 'z' ? "" : kWindow)));
			s.prefill(random_tokens(100, vocab, 3));
			for (const uint32_t t : random_tokens(5, vocab, 4)) s.decode(t);
			const auto fork = s.fork();
			for (const uint32_t t : random_tokens(30, vocab, 5))
				check_same_bits(row, keep(s.decode(t)), keep(fork->decode(t)));
			CHECK(s.exact_position(134) == 0); // the set of fetched tokens there is no longer known
			CHECK(s.exact_position(135) == 135);
		}
	});
}

TEST_CASE("fetch: behind a truncation into the prompt, positions inside the answer are not exact") {
	each_row(std::vector<Case>{{"specache2,fetch=12"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		Session s(*engine, with(c.name + kWindow));
		s.prefill(random_tokens(100, vocab, 3));
		const uint32_t back = s.exact_position(99);
		REQUIRE(back == 99);
		s.truncate(back);
		for (const uint32_t t : random_tokens(6, vocab, 4)) s.decode(t);
		CHECK(s.exact_position(103) <= back);
	});
}

TEST_CASE("fetch: a step that fails because of another row leaves the set of fetched tokens") {
	each_row(std::vector<Case>{{"kivi2,recent_keep=8,flush=32,fetch=40"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, kModel);
		         const uint32_t vocab = engine->config().vocab;
		         const Tokens prompt = random_tokens(70, vocab, 3), tokens = random_tokens(12, vocab, 4);
		         Session s(*engine, with(c.name)), alone(*engine, with(c.name)), full(*engine, with("fp16", 8));
		         for (Session* one : {&s, &alone}) one->prefill(prompt);
		         full.prefill(random_tokens(7, vocab, 5));
		         full.decode(1);
		         for (const uint32_t t : tokens) {
			         const SessionRow rows[] = {{&full, 1}, {&s, t}}; // the context of the first one is full
			         CHECK_THROWS_AS(decode(rows), RowError);
			         check_same_bits(row, keep(s.decode(t)), keep(alone.decode(t)));
		         }
	         });
}

TEST_CASE("fetch: where a step's speculative token finds no memory, its own row is named") {
	each_row(std::vector<Case>{{"specache2,fetch=12"}}, [](Backend&, const Case& c, const TestRow& row) {
		bool named = false;
		for (size_t budget = 16 << 10; !named && budget < 4 << 20; budget += 1 << 10) {
			EngineOptions o;
			o.model = kModel, o.backend = select_test_device(row.device), o.kv_budget = budget;
			const auto engine = Engine::open(o);
			try {
				Session plain(*engine, with("fp16", 60)), s(*engine, with(c.name + kWindow, 200));
				plain.prefill(random_tokens(20, engine->config().vocab, 3));
				s.prefill(random_tokens(100, engine->config().vocab, 4));
				const SessionRow rows[] = {{&plain, 1}, {&s, 2}};
				try {
					decode(rows);
					break; // there is room for everything
				} catch (const RowError& e) {
					CHECK(e.code == Code::OutOfMemory);
					CHECK(e.row == 1);
					named = true;
				}
			} catch (const RowError&) { throw; } catch (const Error&) {
			} // the sessions do not fit
		}
		CHECK(named);
	});
}

TEST_CASE("fetch: a session that begins anew with fewer tokens has the bits of a fresh one") {
	const std::vector<Case> policies = {{"specache1,fetch=12"}, {"kivi2,fetch=7"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		Session used(*engine, with(c.name + kWindow)), fresh(*engine, with(c.name + kWindow));
		used.prefill(random_tokens(240, vocab, 3));
		for (const uint32_t t : random_tokens(5, vocab, 4))
			used.decode(t); // their fetched tokens hide tokens of late pages
		used.reset();
		const Tokens prompt = random_tokens(25, vocab, 5),
		             tokens = random_tokens(30, vocab, 6); // none is packed at first
		check_same_bits(row, follow(used, prompt, tokens), follow(fresh, prompt, tokens));
	});
}

TEST_CASE("fetch: rows have the same bits alone and beside sessions of other policies") {
	each_row(std::vector<Case>{{"company"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const std::vector<std::string> policies = {"kivi1,fetch=12" + kWindow, "fp16",
		                                           "mikv,fetch=9,recent_keep=8,flush=16", "kivi1,fetch=20" + kWindow};
		const Tokens prompt = random_tokens(90, vocab, 3), tokens = random_tokens(20, vocab, 4);
		std::vector<Floats> alone(policies.size()), beside(policies.size());
		std::vector<std::unique_ptr<Session>> all;
		for (size_t i = 0; i < policies.size(); ++i) {
			Session s(*engine, with(policies[i]));
			s.prefill(prompt);
			for (const uint32_t t : tokens) alone[i] = keep(s.decode(t));
			all.push_back(std::make_unique<Session>(*engine, with(policies[i])));
			all.back()->prefill(prompt);
		}
		for (const uint32_t t : tokens) {
			std::vector<SessionRow> rows;
			for (const auto& s : all) rows.push_back({s.get(), t});
			const Floats logits = keep(decode(rows));
			for (size_t i = 0; i < all.size(); ++i)
				beside[i].assign(logits.begin() + std::ptrdiff_t(i * vocab),
				                 logits.begin() + std::ptrdiff_t((i + 1) * vocab));
		}
		for (size_t i = 0; i < all.size(); ++i)
			check_same_bits({row.device, row.number, policies[i]}, beside[i], alone[i]);
	});
}

TEST_CASE("fetch: the largest weights, of many equal ones the first") {
	struct Top {
		uint32_t n, k;
		std::string text() const { return fmt::format("the {} largest of {}", k, n); }
	};
	const std::vector<Top> cases = {{1, 1},    {31, 4},    {64, 64}, {65, 100},   {1000, 64},
	                                {5000, 1}, {257, 256}, {40, 0},  {20011, 64}, {33000, 700}};
	each_row(cases, [](Backend& be, const Top& c, const TestRow&) {
		std::mt19937 draw(c.n + c.k);
		std::vector<float> weight(c.n * 2);
		for (float& w : weight) // many ties, some slots without a token, the range of small probabilities
			w = draw() % 5 == 0 ? -1.f : draw() % 3 == 0 ? 0.25f : std::exp(-float(draw() % 100));
		const uint32_t k = std::max(c.k, 1u);
		const Buffer w = be.alloc(weight.size() * 4, Mem::Device, "weights"), p = be.alloc(k * 8, Mem::Device, "picks"),
		             list = be.alloc(32, Mem::Device, "work");
		const uint32_t work[8] = {0, c.n, 0, c.k, c.n, c.n, c.k, c.k};
		be.write(w, 0, std::as_bytes(std::span(weight)));
		be.write(list, 0, std::as_bytes(std::span(work)));
		be.top_k(view(p, 0, DType::U32, k * 2), view(w, 0, DType::F32, c.n * 2), view(list, 0, DType::U32, 2, 4));
		std::vector<uint32_t> got(k * 2);
		be.read(p, 0, std::as_writable_bytes(std::span(got)));
		be.submit(), be.wait();
		for (uint32_t half = 0; half < 2; ++half) {
			std::vector<uint32_t> order;
			for (uint32_t i = 0; i < c.n; ++i)
				if (weight[half * c.n + i] >= 0) order.push_back(i);
			std::stable_sort(order.begin(), order.end(),
			                 [&](uint32_t a, uint32_t b) { return weight[half * c.n + a] > weight[half * c.n + b]; });
			order.resize(std::min<size_t>(order.size(), c.k));
			std::sort(order.begin(), order.end());
			order.resize(c.k, UINT32_MAX);
			CHECK(std::equal(order.begin(), order.end(), got.begin() + half * c.k));
		}
	});
}

TEST_CASE("fetch: the share of a row's attention that the first of its parts hold") {
	struct Shares {
		uint32_t n_heads, head_dim;
		std::string text() const { return fmt::format("{} heads of {} channels", n_heads, head_dim); }
	};
	each_row(std::vector<Shares>{{1, 4}, {3, 64}, {40, 128}}, [](Backend& be, const Shares& c, const TestRow&) {
		// {first part, parts, parts that count}: none, some and all of them; the last row has seen no token
		const std::vector<uint32_t> work = {0, 4, 0, 0, 0,  4,   1,  0, 4,  5, 3, 0,
		                                    9, 1, 1, 0, 12, 160, 70, 0, 10, 2, 1, 0};
		const uint32_t n = uint32_t(work.size()) / 4, n_parts = 172, step = c.head_dim + 2;
		std::mt19937 draw(c.n_heads);
		std::vector<float> parts(size_t(n_parts) * c.n_heads * step, 1e30f); // outputs are not read
		for (uint32_t i = 0; i < n_parts * c.n_heads; ++i) {
			const uint32_t part = i / c.n_heads;
			const bool empty = part == 10 || part == 11 || draw() % 7 == 0;
			parts[i * step + c.head_dim] = empty ? -INFINITY : float(draw() % 400) / 10 - 20; // maximum
			parts[i * step + c.head_dim + 1] = empty ? 0 : 1 + float(draw() % 100);           // sum
		}
		const Buffer p = be.alloc(parts.size() * 4, Mem::Device, "parts"),
		             list = be.alloc(work.size() * 4, Mem::Device, "work"),
		             out = be.alloc(size_t(n) * c.n_heads * 4, Mem::Device, "shares");
		be.write(p, 0, std::as_bytes(std::span(parts)));
		be.write(list, 0, std::as_bytes(std::span(work)));
		be.part_share(view(out, 0, DType::F32, n, c.n_heads), view(p, 0, DType::F32, n_parts, c.n_heads, step),
		              view(list, 0, DType::U32, n, 4));
		std::vector<float> got(size_t(n) * c.n_heads);
		be.read(out, 0, std::as_writable_bytes(std::span(got)));
		be.submit(), be.wait();
		for (uint32_t i = 0; i < n; ++i)
			for (uint32_t h = 0; h < c.n_heads; ++h) {
				double inside = 0, all = 0;
				for (uint32_t k = 0; k < work[i * 4 + 1]; ++k) {
					const float* state = &parts[((work[i * 4] + k) * c.n_heads + h) * step + c.head_dim];
					const double x = state[1] > 0 ? state[1] * std::exp(double(state[0])) : 0;
					all += x;
					if (k < work[i * 4 + 2]) inside += x;
				}
				CAPTURE(i);
				CAPTURE(h);
				CHECK(got[size_t(i) * c.n_heads + h] == doctest::Approx(all > 0 ? inside / all : 0).epsilon(1e-4));
			}
	});
}

TEST_CASE("fetch: KVRUN_CHECK finds nothing on a whole model") {
	std::vector<Case> policies;
	for (const std::string& p : kFetching) policies.push_back({p});
	each_row(policies,
	         [](Backend&, const Case& c, const TestRow& row) { check_sequence(row, kPolicyModel, c.name, 40); });
}

// Latents: the set is chosen by scores with both parts of a query, and rows have two widths.
TEST_CASE("fetch: latents: the same bits in forks and in other company, and every op computes what the cpu does") {
	const std::vector<Case> policies = {{"kivi2,fetch=12" + kWindow},
	                                    {"rtn2,fetch=7,rope.bits=4" + kWindow},
	                                    {"kivi2,group=32,fetch=9,fetch_mode=sync,rope.bits@0=4" + kWindow},
	                                    {"zipcache,flush=24,fetch=12"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		for (const char* model : {"deepseek2_v3", "deepseek2_wide"}) check_sequence(row, model, c.name, 40);
		const auto engine = open_engine(row.device, kGolden + "tiny/deepseek2_v3.gguf");
		const uint32_t vocab = engine->config().vocab;
		Session s(*engine, with(c.name)), again(*engine, with(c.name));
		const Tokens prompt = random_tokens(200, vocab, 3), tokens = random_tokens(12, vocab, 4);
		check_same_bits(row, follow(s, prompt, tokens), follow(again, prompt, tokens));
		const auto fork = s.fork();
		for (const uint32_t t : random_tokens(20, vocab, 5))
			check_same_bits(row, keep(s.decode(t)), keep(fork->decode(t)));
		CHECK(s.seq().fetch()->stats().bytes % (2 * (32 + 8)) == 0); // of a token in a layer
	});
}

TEST_CASE("fetch: latents: a policy that fetches every packed token computes what an f16 cache does") {
	const std::vector<Case> policies = {{"kivi1" + kWindow}, {"kivi2,fetch_mode=sync" + kWindow}, {"rtn2" + kWindow}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		for (const char* model : {"deepseek2_v3", "deepseek2_wide"}) {
			const auto engine = open_engine(row.device, kGolden + "tiny/" + model + ".gguf");
			const uint32_t vocab = engine->config().vocab;
			const Tokens prompt = random_tokens(100, vocab, 3), tokens = random_tokens(30, vocab, 4);
			Session exact(*engine), all(*engine, with(c.name + ",fetch=4096")), plain(*engine, with(c.name));
			const Floats want = follow(exact, prompt, tokens);
			const double error = relative_error(follow(all, prompt, tokens), want),
			             packed = relative_error(follow(plain, prompt, tokens), want);
			INFO(model << ": " << c.name << " errors " << error << " " << packed);
			CHECK(error < 5e-3);
			CHECK(packed > 2 * error);
			const FetchStats& stats = all.seq().fetch()->stats();
			CHECK(stats.share / double(stats.steps) == doctest::Approx(1).epsilon(1e-3));
		}
	});
}

// One layer with the tensors of tests/golden/fetch.
struct Golden {
	NpyArray k = load("k"), v = load("v"), q = load("q"), new_k = load("new_k"), new_v = load("new_v"),
	         out = load("out");
	uint32_t n_heads = uint32_t(q.shape[1]), n_kv = uint32_t(k.shape[1]), D = uint32_t(k.shape[2]),
	         T = uint32_t(k.shape[0]);
	static NpyArray load(const char* name) { return npy_read(kGolden + "fetch/" + name + ".npy"); }
};

TEST_CASE("fetch: the sets and the attention of a decode step are those of the paper's algorithms in numpy") {
	each_row(std::vector<Case>{{"golden"}}, [](Backend& be, const Case&, const TestRow&) {
		const Golden g;
		const NpyArray want[] = {Golden::load("picks_1"), Golden::load("picks_2")};
		const uint32_t n_picks = uint32_t(want[0].shape[1]);
		const KvPlan plan = make_plan(
		    parse_policy(fmt::format("specache1,group=32,param_bits=16,recent_keep=32,flush=32,fetch={}", n_picks)),
		    {1, g.n_kv, g.D});
		KvPool pool(be, 1, size_t(64) << 20);
		KvSequence seq(be, plan, pool, g.T);
		KvScratch scratch;
		const uint32_t cap = g.T + KvPrefill::tail_rows(seq), rows_at_once = 32;
		const auto f32 = [&](uint32_t n, uint32_t heads) {
			return be.alloc(size_t(n) * heads * g.D * 4, Mem::Device, "x");
		};
		const Buffer qb = f32(rows_at_once, g.n_heads), ob = f32(rows_at_once, g.n_heads),
		             kb = f32(rows_at_once, g.n_kv), vb = f32(rows_at_once, g.n_kv), rb = f32(rows_at_once, 1),
		             own = be.alloc(size_t(cap) * g.n_kv * g.D * 4, Mem::Device, "own");
		const auto rows_of = [&](const Buffer& b, uint32_t n, uint32_t heads) {
			return view(b, 0, DType::F32, n, heads, g.D);
		};
		std::vector<float> turn(size_t(rows_at_once) * g.D); // rotation by angle 0
		for (size_t i = 0; i < turn.size(); i += 2) turn[i] = 1;
		be.write(rb, 0, std::as_bytes(std::span(turn)));
		const auto put = [&](const NpyArray& q, const NpyArray& k, const NpyArray& v, uint32_t first, uint32_t n,
		                     uint32_t row, const KvDst& dst) { // q: row `first` on as far as there are any
			const auto part = [&](const NpyArray& x, uint32_t heads) {
				const size_t size = size_t(heads) * g.D;
				return std::as_bytes(x.as<float>().subspan(first * size, n * size));
			};
			if (first + n <= q.shape[0]) be.write(qb, size_t(row) * g.n_heads * g.D * 4, part(q, g.n_heads));
			be.write(kb, size_t(row) * g.n_kv * g.D * 4, part(k, g.n_kv));
			be.write(vb, size_t(row) * g.n_kv * g.D * 4, part(v, g.n_kv));
			be.rope_store(rows(rows_of(qb, row + n, g.n_heads), row, n), rows(rows_of(kb, row + n, g.n_kv), row, n),
			              rows(rows_of(vb, row + n, g.n_kv), row, n),
			              {view(rb, 0, DType::F32, n, g.D / 2, 2), g.D, /*neox=*/true}, {}, dst);
		};
		{
			KvPrefill prompt(be, scratch, seq, g.T,
			                 {view(own, 0, DType::F16, g.n_kv, cap, g.D),
			                  view(own, own.bytes() / 2, DType::F16, g.n_kv, cap, g.D), 0},
			                 g.n_heads, rows_at_once);
			prompt.begin_layer(0);
			for (uint32_t at = 0; at < g.T; at += rows_at_once) {
				const uint32_t n = std::min(rows_at_once, g.T - at);
				put(g.q, g.k, g.v, at, n, 0, prompt.destination(0, at, n));
			}
			prompt.end_layer(0);
			be.submit(), be.wait();
			prompt.end();
		}
		const auto step = [&](std::span<const StepRow> rows_in, uint32_t first, const NpyArray& picks) {
			const uint32_t n = uint32_t(rows_in.size());
			KvStep kv(be, scratch, pool, rows_in, g.n_heads);
			kv.before_layer(0);
			for (uint32_t i = 0; i < n; ++i) {
				uint32_t one = 1;
				KvDst dst = kv.destination(0, i, one);
				dst.at = rows(dst.at, 0, 1);
				put(g.q, g.new_k, g.new_v, first + i, 1, i, dst);
			}
			kv.stored(0);
			kv.attend(0, rows_of(ob, n, g.n_heads), rows_of(qb, n, g.n_heads));
			Floats out(size_t(n) * g.n_heads * g.D);
			be.read(ob, 0, std::as_writable_bytes(std::span(out)));
			kv.fetch_next();
			be.submit(), be.wait();
			kv.end();
			CHECK(relative_error(out, g.out.as<float>().subspan(first * size_t(g.n_heads) * g.D, out.size())) <
			      (be.info().int8_attend ? 3e-2 : 2e-3));
			for (uint32_t h = 0; h < g.n_kv; ++h) {
				std::vector<int64_t> got;
				for (const PackedSlot& p : seq.fetch()->set().slots(0, h))
					got.push_back(seq.cache().positions(0, p.tier, h)[p.slot]);
				std::ranges::sort(got);
				const auto wanted = picks.as<int64_t>().subspan(size_t(h) * n_picks, n_picks);
				std::vector<int64_t> both;
				std::ranges::set_intersection(got, wanted, std::back_inserter(both));
				CHECK(got.size() == n_picks);
				// With rounded queries the last ones may be exchanged.
				CHECK(both.size() >= (be.info().int8_attend ? n_picks - (n_picks + 15) / 16 : n_picks));
			}
		};
		step(std::array{StepRow{&seq, false}}, 0, want[0]);
		seq.fetch()->speculate(1);
		step(std::array{StepRow{&seq, true}, StepRow{&seq, false}}, 1, want[1]);
	});
}

TEST_CASE("fetch: a policy that fetches every packed token computes what an f16 cache does") {
	const std::vector<Case> policies = {{"kivi1" + kWindow},
	                                    {"kivi2" + kWindow},
	                                    {"kivi2,fetch_mode=sync" + kWindow},
	                                    {"rtn2" + kWindow},
	                                    {"zipcache,flush=24"},
	                                    {"mikv,recent_keep=8,flush=16"},
	                                    {"xquant,vm=0,recent_keep=8,flush=32,group=32"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device == "swiftshader" && row.number > 1) return; // slow
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(100, vocab, 3), tokens = random_tokens(40, vocab, 4);
		Session exact(*engine), all(*engine, with(c.name + ",fetch=4096")), plain(*engine, with(c.name));
		const Floats want = follow(exact, prompt, tokens);
		const double error = relative_error(follow(all, prompt, tokens), want);
		INFO(c.name << " error " << error);
		CHECK(error < 5e-3);
		CHECK(relative_error(follow(plain, prompt, tokens), want) > 2 * error); // packing alone has a visible effect
		const FetchStats& stats = all.seq().fetch()->stats();
		CHECK(stats.steps == tokens.size());
		CHECK(stats.share / double(stats.steps) == doctest::Approx(1).epsilon(1e-3));
		Session few(*engine, with(c.name + ",fetch=4"));
		follow(few, prompt, tokens);
		const FetchStats& of_few = few.seq().fetch()->stats();
		CHECK(of_few.share / double(of_few.steps) > 0.05);
		CHECK(of_few.share / double(of_few.steps) < 0.8); // the rest went to packed tokens
	});
}

TEST_CASE(
    "fetch: in models with windows or recurrent layers each token chooses for itself, and computes what f16 does") {
	const std::vector<Case> models = {{"gpt_oss"}, {"gemma3"},        {"laguna"},
	                                  {"qwen35"},  {"granitehybrid"}, {"bailingmoe3"}};
	each_row(models, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf");
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(100, vocab, 3), tokens = random_tokens(40, vocab, 4);
		const std::string packed = "kivi2" + kWindow;
		Session exact(*engine), all(*engine, with(packed + ",fetch=4096")), plain(*engine, with(packed)),
		    few(*engine, with(packed + ",fetch=64"));
		CHECK(all.plan().policy.text == packed + ",fetch=4096,fetch_mode=sync");
		const Floats want = follow(exact, prompt, tokens);
		const double error = relative_error(follow(all, prompt, tokens), want),
		             of_plain = relative_error(follow(plain, prompt, tokens), want);
		INFO(c.name << " error " << error << ", packed " << of_plain);
		CHECK(error < 5e-3);
		CHECK(of_plain > 2 * error);
		const FetchStats& stats = all.seq().fetch()->stats();
		CHECK(stats.steps == tokens.size());
		CHECK(stats.share / double(stats.steps) == doctest::Approx(1).epsilon(1e-3));
		const double of_few = relative_error(follow(few, prompt, tokens), want);
		if (!engine->config().layers.back().experts.n) CHECK(of_few < of_plain); // another expert is another output
		const auto fork = few.fork();
		check_same_bits(row, keep(fork->decode(7)), keep(few.decode(7)));
	});
	for (const TestDevice& d : test_devices()) {
		if (!d.backend || d.name != "cpu") continue;
		const auto refused = [&](const std::string& model, const std::string& policy) {
			const auto engine = open_engine(d.name, kGolden + "tiny/" + model + ".gguf");
			try {
				Session(*engine, with(policy));
			} catch (const Error& e) { return std::string(e.what()); }
			return std::string();
		};
		CHECK(refused("gemma3", "specache2,fetch_mode=spec") ==
		      "policy 'specache2,fetch_mode=spec' fetches by speculation, which kvrun does not do for models with "
		      "sliding windows; give fetch_mode=sync");
		CHECK(refused("gemma3n", "specache2").find("whose layers share keys and values; give fetch=0") !=
		      std::string::npos);
	}
}
