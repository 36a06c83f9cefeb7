// No memory at the n-th allocation, once and permanently, while a model is loaded, a prompt read, tokens decoded and a
// session forked: an error or the right answer, and afterwards the same call gives the same answer (T74). Also the
// memory of a cache's books. A separate program, because it replaces operator new.
#include "tests/device/sequences.h"
#include <atomic>
#include <cstdlib>
#include <doctest/doctest.h>
#include <malloc.h>
#include <new>

using namespace kvrun;

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> calls{0}, first{0}, last{0}; // calls number first .. last fail
std::atomic<size_t> held{0};                       // bytes

bool fails() {
	if (!counting.load(std::memory_order_relaxed)) return false;
	const uint64_t n = ++calls;
	return n >= first && n <= last;
}
void* allocate(size_t bytes) {
	void* p = fails() ? nullptr : std::malloc(bytes ? bytes : 1);
	if (!p) throw std::bad_alloc();
	held += malloc_usable_size(p);
	return p;
}
void release(void* p) noexcept {
	if (p) held -= malloc_usable_size(p);
	std::free(p);
}
void* allocate_or_null(size_t bytes) noexcept {
	try {
		return allocate(bytes);
	} catch (const std::bad_alloc&) { return nullptr; }
}

} // namespace

// All of a kind: AddressSanitizer has forms of its own for those that are not replaced.
void* operator new(size_t n) { return allocate(n); }
void* operator new[](size_t n) { return allocate(n); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }

namespace {

constexpr uint64_t kForGood = UINT64_MAX;

struct Outcome {
	bool threw = false;
	uint64_t calls = 0;
};
// Runs `f` while calls number `from` to `to` fail; 0: none fails.
template <class F> Outcome with_faults(uint64_t from, uint64_t to, F f) {
	Outcome o;
	calls = 0, first = from ? from : UINT64_MAX, last = to;
	counting = true;
	try {
		f();
	} catch (const std::bad_alloc&) { o.threw = true; } catch (const Error& e) {
		o.threw = true;
		counting = false;
		CHECK_MESSAGE(e.code == Code::OutOfMemory, e.what());
	}
	counting = false;
	o.calls = calls;
	return o;
}

std::unique_ptr<Engine> tiny_engine() { return open_engine("cpu", kSmallModel, 64); }

// `f(session)` at every n, once and permanently; after each, the session answers like an undisturbed one.
template <class F> void check_every_n(const char* policy, F f) {
	CAPTURE(std::string(policy));
	const auto engine = tiny_engine();
	const Tokens prompt = random_tokens(80, engine->config().vocab, 4);
	Session reference(*engine, with(policy, 200));
	const Floats want = greedy_logits(reference, prompt, 3);
	Session s(*engine, with(policy, 200));
	f(s, prompt); // memory that is kept for the next time exists
	s.reset();
	const uint64_t n_calls = with_faults(0, 0, [&] { f(s, prompt); }).calls;
	REQUIRE(n_calls > 0);
	for (uint64_t n = 1; n <= n_calls; n += n < 200 ? 1 : 7)
		for (const uint64_t to : {n, kForGood}) {
			CAPTURE(n);
			CAPTURE(to == n);
			s.reset();
			const Outcome o = with_faults(n, to, [&] { f(s, prompt); });
			if (to == kForGood) CHECK((o.threw || o.calls < n));
			if (s.n_tokens()) s.reset();
			REQUIRE(greedy_logits(s, prompt, 3) == want);
		}
}

} // namespace

TEST_CASE("T74 memory: an engine is opened, or is not, at every allocation that fails") {
	Floats want;
	uint64_t n_calls = 0;
	tiny_engine(); // memory that is allocated once per process exists
	{
		std::unique_ptr<Engine> engine;
		n_calls = with_faults(0, 0, [&] { engine = tiny_engine(); }).calls;
		Session s(*engine, with("kivi2,recent_keep=8,flush=32", 200));
		want = greedy_logits(s, random_tokens(80, engine->config().vocab, 4), 3);
	}
	MESSAGE(n_calls << " allocations");
	REQUIRE(n_calls > 500);
	for (uint64_t n = 1; n <= n_calls; ++n)
		for (const uint64_t to : {n, kForGood}) {
			CAPTURE(n);
			std::unique_ptr<Engine> engine;
			const Outcome o = with_faults(n, to, [&] { engine = tiny_engine(); });
			if (to == kForGood) CHECK(o.threw);
			CHECK(o.threw == !engine);
			if (!engine) continue;
			CHECK(engine->pool().budget_bytes() > 1 << 20); // free memory was read, or the engine is not opened
			if (n % 50) continue;
			Session s(*engine, with("kivi2,recent_keep=8,flush=32", 200));
			CHECK(greedy_logits(s, random_tokens(80, engine->config().vocab, 4), 3) == want);
		}
}

TEST_CASE(
    "T74 memory: a session is made, reads a prompt and decodes, or says why not, at every allocation that fails") {
	for (const char* policy : {"fp16", "kivi2,recent_keep=8,flush=32", "mikv,recent_keep=8,flush=16",
	                           "zipcache,flush=25", "h2o,recent_keep=8,flush=16,budget=24"}) {
		check_every_n(policy, [](Session& s, const Tokens& prompt) { s.prefill(prompt); });
		check_every_n(policy, [](Session& s, const Tokens& prompt) {
			s.prefill(std::span(prompt).first(40));
			for (uint32_t i = 0; i < 20; ++i) s.decode(prompt[40 + i]);
		});
		check_every_n(policy, [](Session& s, const Tokens& prompt) {
			s.prefill(prompt);
			const std::unique_ptr<Session> other = s.fork();
			other->decode(prompt[0]);
			s.decode(prompt[1]);
		});
		check_every_n(policy, [policy](Session& s, const Tokens& prompt) {
			Session another(s.engine(), with(policy, 100));
			another.prefill(std::span(prompt).first(30));
		});
	}
}

TEST_CASE("T74 memory: a session that fetches decodes, or says why not, at every allocation that fails") {
	check_every_n("kivi2,recent_keep=8,flush=32,fetch=12", [](Session& s, const Tokens& prompt) {
		s.prefill(std::span(prompt).first(72));
		for (uint32_t i = 72; i < 76; ++i) s.decode(prompt[i]); // from any of them, the window flushes within these
	});
}

TEST_CASE("memory: the books of 32768 tokens and an answer take at most 2 % of their cache") {
	const KvShape shape{4, 8, 128};
	for (const KvPolicy& policy : policy_samples()) {
		const KvPlan plan = make_plan(policy, shape);
		CAPTURE(policy.text);
		BudgetPool pool;
		const size_t before = held;
		KvCache cache(plan, pool);
		Random random(1);
		const auto scores = [&](size_t n) {
			Floats x(plan.ranked() ? n : 0);
			for (float& s : x) s = random.uniform(0, 1);
			return x;
		};
		const uint32_t n = 32768;
		cache.begin_prompt(n);
		for (uint32_t l = 0; l < shape.n_layers; ++l) cache.prompt_moves(l, scores(size_t(shape.n_kv_heads) * n));
		cache.end_prompt();
		for (uint32_t i = 0; i < 200; ++i) {
			cache.begin_token(cache.wants_scores()
			                      ? scores(size_t(shape.n_layers) * shape.n_kv_heads * cache.n_f16_slots())
			                      : Floats());
			for (uint32_t l = 0; l < shape.n_layers; ++l) cache.token_moves(l);
			cache.end_token();
		}
		const double books = double(held - before), kv = double(cache.bytes().total());
		INFO(fmt::format("{:.2f} MiB of {:.1f}, {:.2f} %", books / (1 << 20), kv / (1 << 20), books / kv * 100));
		CHECK(books < 0.02 * kv);
	}
}
