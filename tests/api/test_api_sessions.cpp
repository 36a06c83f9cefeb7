// libkvrun as an application uses it: sessions, with answers, callbacks, forks, batches, threads, files.
#include "objects.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <vector>

using namespace api;

TEST_CASE("api: generate, by tokens and by text, with callbacks; stop strings") {
	Engine e;
	const auto want = answer(e, "kivi2", kText, 24);
	Session s(e, "kivi2");
	Told told;
	kvrun_generate_options o = greedy(24, &told);
	o.on_prefill = on_progress;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	REQUIRE(kvrun_generate_text(s.h, kText.c_str(), &o, &r) == KVRUN_OK);
	CHECK(told.tokens == want);
	CHECK(told.progress > 0);
	CHECK(r.reason == KVRUN_STOP_LENGTH);
	CHECK(r.answer_tokens == 24);
	CHECK(r.prompt_tokens == r.prompt_cached);
	CHECK(s.n_tokens() == r.prompt_tokens + 23); // no step reads what follows the last one
	size_t n = 0;
	std::vector<char> text(4096);
	REQUIRE(kvrun_detokenize(e.h, want.data(), want.size(), 0, text.data(), text.size(), &n) == KVRUN_OK);
	CHECK(std::string(text.data(), n).find(told.text.substr(1, 5)) != std::string::npos);
	Session t(e, "kivi2");
	Told until;
	const std::string stop = told.text.substr(told.text.size() / 2, 3);
	const char* stops[] = {stop.c_str()};
	o = greedy(24, &until);
	o.stops = stops;
	o.n_stops = 1;
	REQUIRE(kvrun_generate_text(t.h, kText.c_str(), &o, &r) == KVRUN_OK);
	CHECK(r.reason == KVRUN_STOP_STRING);
	CHECK(until.text == told.text.substr(0, told.text.find(stop)));
}

TEST_CASE("api: a callback stops, a canceller stops; the session goes on") {
	Engine e;
	Session s(e);
	Told told;
	told.stop_after = 5;
	kvrun_generate_options o = greedy(100, &told);
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, &r) == KVRUN_EUSER);
	CHECK(r.reason == KVRUN_STOP_CANCELLED);
	CHECK(told.tokens.size() == 5);
	kvrun_canceller* c = nullptr;
	REQUIRE(kvrun_canceller_new(&c) == KVRUN_OK);
	kvrun_cancel(c);
	told = {};
	o = greedy(100, &told);
	o.canceller = c;
	const uint32_t before = s.n_tokens();
	CHECK(kvrun_generate_text(s.h, " and", &o, &r) == KVRUN_ECANCELLED);
	CHECK(told.tokens.empty());
	CHECK(s.n_tokens() == before);
	kvrun_canceller_reset(c);
	o.max_tokens = 3;
	CHECK(kvrun_generate_text(s.h, " and", &o, &r) == KVRUN_OK);
	CHECK(told.tokens.size() == 3);
	kvrun_canceller_free(c);
	kvrun_canceller_free(nullptr);
	kvrun_cancel(nullptr);
}

TEST_CASE("api: prefill and decode for callers that sample themselves; fork, truncate, common beginnings") {
	Engine e;
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &i) == KVRUN_OK);
	const auto want = answer(e, "fp16", kText, 8);
	Session s(e, "fp16");
	const auto prompt = tokens_of(e, kText);
	std::vector<float> logits(i.vocab * 2);
	REQUIRE(kvrun_prefill(s.h, prompt.data(), prompt.size(), nullptr, logits.data()) == KVRUN_OK);
	kvrun_session* fork = nullptr;
	REQUIRE(kvrun_session_fork(&fork, s.h) == KVRUN_OK);
	kvrun_session* both[] = {s.h, fork};
	const auto best = [&](size_t row) {
		const float* l = logits.data() + row * i.vocab;
		return uint32_t(std::max_element(l, l + i.vocab) - l);
	};
	std::copy_n(logits.begin(), i.vocab, logits.begin() + i.vocab);
	for (const uint32_t t : want) {
		CHECK(best(0) == t);
		CHECK(best(1) == t);
		const uint32_t next[] = {t, t};
		size_t row = 99;
		REQUIRE(kvrun_decode(both, next, 2, logits.data(), &row) == KVRUN_OK);
		CHECK(row == 2);
	}
	const uint32_t bad[] = {want[0], i.vocab};
	size_t row = 0;
	CHECK(kvrun_decode(both, bad, 2, logits.data(), &row) == KVRUN_EINVALID);
	CHECK(row == 1);
	kvrun_session* twice[] = {s.h, s.h};
	row = 0;
	CHECK(kvrun_decode(twice, bad, 2, logits.data(), &row) == KVRUN_EBUSY);
	CHECK(row == 1);
	kvrun_session* gone = nullptr;
	REQUIRE(kvrun_session_fork(&gone, s.h) == KVRUN_OK);
	kvrun_session_free(gone);
	kvrun_session* freed[] = {s.h, gone};
	CHECK(kvrun_decode(freed, bad, 2, logits.data(), &row) == KVRUN_EINVALID);
	CHECK(row == 1);
	CHECK(s.n_tokens() == prompt.size() + 8);
	uint32_t at = 0;
	REQUIRE(kvrun_session_exact_position(s.h, uint32_t(prompt.size()), &at) == KVRUN_OK);
	CHECK(at == prompt.size());
	REQUIRE(kvrun_session_truncate(s.h, at) == KVRUN_OK);
	CHECK(kvrun_session_truncate(s.h, 5000) == KVRUN_EINVALID);
	std::vector<uint32_t> other = prompt;
	other[prompt.size() / 2] ^= 1;
	REQUIRE(kvrun_session_keep_common(s.h, other.data(), other.size(), &at) == KVRUN_OK);
	CHECK(at == prompt.size() / 2);
	std::vector<uint32_t> history(at);
	size_t n = 0;
	REQUIRE(kvrun_session_tokens(s.h, history.data(), history.size(), &n) == KVRUN_OK);
	CHECK(std::equal(history.begin(), history.end(), prompt.begin()));
	kvrun_session_free(fork);
	std::vector<uint32_t> many(600, prompt[0]);
	CHECK(kvrun_prefill(s.h, many.data(), many.size(), nullptr, nullptr) == KVRUN_ECONTEXT);
}

TEST_CASE("api: hidden states of every token, and one vector for all of them") {
	Engine e;
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &i) == KVRUN_OK);
	if (std::string(device()) == "cpu") CHECK(i.device_is_cpu == 1);
	const auto prompt = tokens_of(e, kText);
	const size_t n = prompt.size(), dim = i.dim;
	REQUIRE(n > 3);
	std::vector<float> states(n * dim), first(dim), pooled(dim);
	{
		Session s(e);
		REQUIRE(kvrun_hidden_states(s.h, prompt.data(), n, nullptr, states.data()) == KVRUN_OK);
		CHECK(s.n_tokens() == n);
	}
	{ // a token sees only earlier tokens
		Session s(e);
		REQUIRE(kvrun_hidden_states(s.h, prompt.data(), 2, nullptr, states.data()) == KVRUN_OK);
		REQUIRE(kvrun_hidden_states(s.h, prompt.data() + 2, 1, nullptr, first.data()) == KVRUN_OK);
		for (size_t d = 0; d < dim; ++d) CHECK(first[d] == doctest::Approx(states[2 * dim + d]).epsilon(1e-3));
	}
	const auto embed = [&](kvrun_pooling how) {
		Session s(e);
		REQUIRE(kvrun_embed(s.h, prompt.data(), n, how, nullptr, pooled.data()) == KVRUN_OK);
		return pooled;
	};
	const auto row = [&](size_t at) { return std::vector<float>(&states[at * dim], &states[at * dim] + dim); };
	std::vector<float> mean(dim);
	for (size_t d = 0; d < dim; ++d) {
		double sum = 0;
		for (size_t t = 0; t < n; ++t) sum += states[t * dim + d];
		mean[d] = float(sum / double(n));
	}
	CHECK(embed(KVRUN_POOL_MEAN) == mean);
	CHECK(embed(KVRUN_POOL_MODEL) == mean); // its file does not give it
	CHECK(embed(KVRUN_POOL_FIRST) == row(0));
	CHECK(embed(KVRUN_POOL_LAST) == row(n - 1));
	Session s(e);
	CHECK(kvrun_embed(s.h, prompt.data(), n, kvrun_pooling(9), nullptr, pooled.data()) == KVRUN_EINVALID);
	CHECK(said("pooling"));
	CHECK(kvrun_embed(s.h, prompt.data(), n, KVRUN_POOL_MEAN, nullptr, nullptr) == KVRUN_EINVALID);
	CHECK(kvrun_hidden_states(s.h, nullptr, 2, nullptr, states.data()) == KVRUN_EINVALID);
	CHECK(kvrun_hidden_states(s.h, prompt.data(), 0, nullptr, states.data()) == KVRUN_EINVALID);
	kvrun_canceller* c = nullptr;
	REQUIRE(kvrun_canceller_new(&c) == KVRUN_OK);
	kvrun_cancel(c);
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.canceller = c;
	CHECK(kvrun_embed(s.h, prompt.data(), n, KVRUN_POOL_MEAN, &o, pooled.data()) == KVRUN_ECANCELLED);
	CHECK(s.n_tokens() == 0);
	kvrun_canceller_free(c);
}

TEST_CASE("api: bias and penalties change what is chosen; the stop string that ended an answer is named") {
	Engine e;
	const auto want = answer(e, nullptr, kText, 8);
	const auto run = [&](kvrun_generate_options& o, kvrun_generate_result* r = nullptr) {
		Session s(e);
		Told told;
		o.on_token = on_token, o.payload = &told;
		REQUIRE(kvrun_generate_text(s.h, kText.c_str(), &o, r) == KVRUN_OK);
		return told.tokens;
	};
	kvrun_generate_options o = greedy(8, nullptr);
	CHECK(run(o) == want);
	kvrun_logit_bias bias[] = {{want[0], -std::numeric_limits<float>::infinity()}};
	o.bias = bias, o.n_bias = 1;
	const auto without = run(o);
	CHECK(std::count(without.begin(), without.end(), want[0]) == 0);
	bias[0] = {want[1], 1e6f};
	CHECK(run(o) == std::vector<uint32_t>(8, want[1]));
	o.frequency_penalty = 100, bias[0].bias = 150; // once, then the penalty prevents it
	const auto once = run(o);
	CHECK(once[0] == want[1]);
	CHECK(std::count(once.begin(), once.end(), want[1]) < 8);
	Session s(e);
	bias[0] = {1u << 30, 1};
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_EINVALID);
	CHECK(said("bias of token"));
	o.bias = nullptr;
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_EINVALID);
	o = greedy(8, nullptr), o.presence_penalty = 101;
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_EINVALID);

	// No pair of tokens occurs twice: each would lengthen a repetition of one token.
	o = greedy(60, nullptr), o.ignore_eos = 1;
	const auto pairs_twice = [](const std::vector<uint32_t>& t) {
		std::set<std::pair<uint32_t, uint32_t>> seen;
		size_t twice = 0;
		for (size_t i = 1; i < t.size(); ++i) twice += !seen.emplace(t[i - 1], t[i]).second;
		return twice;
	};
	CHECK(pairs_twice(run(o)) > 0);
	o.dry_multiplier = 100, o.dry_allowed_length = 1;
	const char* none[] = {nullptr};
	o.dry_breakers = none;
	CHECK(pairs_twice(run(o)) == 0);
	const char* breakers[] = {"", "x"};
	o.dry_breakers = breakers, o.n_dry_breakers = 2;
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_EINVALID);
	CHECK(said("breaker is empty"));
	o.dry_breakers = none, o.n_dry_breakers = 1;
	CHECK(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_EINVALID);

	size_t n = 0;
	char text[64];
	REQUIRE(kvrun_detokenize(e.h, &want[2], 1, 0, text, sizeof text, &n) == KVRUN_OK);
	const char* stops[] = {"never said", text};
	o = greedy(8, nullptr), o.stops = stops, o.n_stops = 2;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	run(o, &r);
	CHECK(r.reason == KVRUN_STOP_STRING);
	CHECK(r.stop == 1);
	o.n_stops = 1;
	run(o, &r);
	CHECK(r.reason == KVRUN_STOP_LENGTH);
	CHECK(r.stop == UINT32_MAX);

	// a program that was built before these fields existed
	o = greedy(8, nullptr), o.struct_size = offsetof(kvrun_generate_options, presence_penalty);
	o.bias = reinterpret_cast<kvrun_logit_bias*>(8), o.n_bias = 5, o.presence_penalty = 1e9; // not memory of its struct
	r = KVRUN_GENERATE_RESULT_INIT;
	r.struct_size = offsetof(kvrun_generate_result, stop), r.stop = 77;
	CHECK(run(o, &r) == want);
	CHECK(r.stop == 77);
	CHECK(r.answer_tokens == 8);
}

TEST_CASE("api: a batch gives each session the tokens it has alone") {
	Engine e;
	const char* policies[] = {"fp16", "kivi2", "zipcache", "mikv", "logquant"};
	std::vector<std::vector<uint32_t>> want;
	for (const char* kv : policies) want.push_back(answer(e, kv, kText + kv, 20));
	kvrun_batch* b = nullptr;
	REQUIRE(kvrun_batch_new(&b, e.h) == KVRUN_OK);
	std::vector<std::unique_ptr<Session>> sessions;
	std::vector<Told> told(5);
	std::vector<uint32_t> ids(5);
	size_t active = 0;
	for (size_t k = 0; k < 5; ++k) {
		sessions.push_back(std::make_unique<Session>(e, policies[k]));
		const auto p = tokens_of(e, kText + policies[k]);
		const kvrun_generate_options o = greedy(20, &told[k]);
		REQUIRE(kvrun_batch_add(b, sessions[k]->h, p.data(), p.size(), &o, &ids[k]) == KVRUN_OK);
		for (int step = 0; step < 3; ++step) REQUIRE(kvrun_batch_step(b, &active) == KVRUN_OK); // they join one by one
	}
	kvrun_session_info info = KVRUN_SESSION_INFO_INIT;
	CHECK(kvrun_session_truncate(sessions[0]->h, 0) == KVRUN_EBUSY);
	REQUIRE(kvrun_session_get_info(sessions[0]->h, &info) == KVRUN_OK); // reading is possible
	CHECK(info.n_tokens > tokens_of(e, kText + policies[0]).size());
	std::vector<uint32_t> held(info.n_tokens);
	size_t n_held = 0;
	REQUIRE(kvrun_session_tokens(sessions[0]->h, held.data(), held.size(), &n_held) == KVRUN_OK);
	CHECK(n_held == info.n_tokens);
	while (active) REQUIRE(kvrun_batch_step(b, &active) == KVRUN_OK);
	for (size_t k = 0; k < 5; ++k) {
		CHECK(kvrun_batch_is_done(b, ids[k]));
		kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
		CHECK(kvrun_batch_take(b, ids[k], &r) == KVRUN_OK);
		CHECK(r.answer_tokens == 20);
		CHECK(told[k].tokens == want[k]);
	}
	CHECK(kvrun_batch_take(b, ids[0], nullptr) == KVRUN_EINVALID);
	CHECK(kvrun_session_get_info(sessions[4]->h, &info) == KVRUN_OK);
	// the batch ends during an answer
	uint32_t id = 0;
	const auto p = tokens_of(e, kText);
	REQUIRE(kvrun_batch_add(b, sessions[0]->h, p.data(), p.size(), nullptr, &id) == KVRUN_OK);
	REQUIRE(kvrun_batch_step(b, nullptr) == KVRUN_OK);
	kvrun_batch_free(b);
	CHECK(kvrun_session_get_info(sessions[0]->h, &info) == KVRUN_OK);
	CHECK(kvrun_batch_step(b, nullptr) == KVRUN_EINVALID);
}

TEST_CASE("api: an answer of a batch in use is not said to have ended") {
	struct Asking {
		kvrun_batch* batch = nullptr;
		uint32_t id = 0, calls = 0, done = 0;
	} asking;
	Engine e;
	Session s(e);
	const auto p = tokens_of(e, kText);
	kvrun_generate_options o = greedy(3, nullptr);
	o.payload = &asking;
	o.on_token = [](uint32_t, const char*, size_t, void* payload) {
		Asking& a = *static_cast<Asking*>(payload);
		++a.calls;
		a.done += uint32_t(kvrun_batch_is_done(a.batch, a.id));
		return 0;
	};
	REQUIRE(kvrun_batch_new(&asking.batch, e.h) == KVRUN_OK);
	REQUIRE(kvrun_batch_add(asking.batch, s.h, p.data(), p.size(), &o, &asking.id) == KVRUN_OK);
	CHECK(kvrun_batch_is_done(asking.batch, asking.id) == 0);
	CHECK(kvrun_batch_is_done(asking.batch, asking.id + 1) == 1); // there is none
	for (size_t active = 1; active;) REQUIRE(kvrun_batch_step(asking.batch, &active) == KVRUN_OK);
	CHECK(asking.calls >= 3);
	CHECK(asking.done == 0);
	CHECK(kvrun_batch_is_done(asking.batch, asking.id) == 1);
	kvrun_batch_free(asking.batch);
	CHECK(kvrun_batch_is_done(asking.batch, asking.id) == 1);
}

TEST_CASE("api: answers to one prompt, which is read once") {
	Engine e;
	const auto p = tokens_of(e, kText);
	const auto options = [](uint64_t seed, Told* told) {
		kvrun_generate_options o = greedy(16, told);
		o.temperature = 2, o.seed = seed;
		o.on_prefill = on_progress;
		return o;
	};
	for (const char* kv : {"fp16", "kivi2,recent=32"}) {
		std::vector<Told> alone(3), told(3);
		for (size_t k = 0; k < 3; ++k) {
			Session s(e, kv);
			const kvrun_generate_options o = options(k, &alone[k]);
			REQUIRE(kvrun_generate(s.h, p.data(), p.size(), &o, nullptr) == KVRUN_OK);
		}
		CHECK(alone[0].tokens != alone[1].tokens);
		Session first(e, kv), stranger(e, kv);
		kvrun_session *forks[2] = {}, *other = stranger.h;
		for (kvrun_session*& f : forks) REQUIRE(kvrun_session_fork(&f, first.h) == KVRUN_OK);
		kvrun_batch* b = nullptr;
		uint32_t ids[3] = {}, none = 0;
		size_t active = 1;
		REQUIRE(kvrun_batch_new(&b, e.h) == KVRUN_OK);
		kvrun_generate_options o = options(0, &told[0]);
		CHECK(kvrun_batch_add_fork(b, forks[0], 0, &o, &none) == KVRUN_EINVALID); // there is no answer 0
		REQUIRE(kvrun_batch_add(b, first.h, p.data(), p.size(), &o, &ids[0]) == KVRUN_OK);
		CHECK(kvrun_batch_add_fork(b, other, ids[0], &o, &none) == KVRUN_EINVALID);
		CHECK(said("no fork"));
		CHECK(kvrun_batch_add_fork(b, first.h, ids[0], &o, &none) == KVRUN_EBUSY);
		CHECK(kvrun_batch_add_fork(b, forks[0], ids[0], &o, nullptr) == KVRUN_EINVALID);
		for (size_t k = 1; k < 3; ++k) {
			o = options(k, &told[k]);
			REQUIRE(kvrun_batch_add_fork(b, forks[k - 1], ids[0], &o, &ids[k]) == KVRUN_OK);
		}
		CHECK(kvrun_session_truncate(forks[0], 0) == KVRUN_EBUSY);
		while (active) REQUIRE(kvrun_batch_step(b, &active) == KVRUN_OK);
		for (size_t k = 0; k < 3; ++k) {
			kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
			CHECK(kvrun_batch_take(b, ids[k], &r) == KVRUN_OK);
			CHECK(r.prompt_tokens == (k ? 0 : p.size()));
			CHECK((told[k].progress > 0) == (k == 0));
			CHECK(told[k].tokens == alone[k].tokens);
		}
		kvrun_batch_free(b);
		for (kvrun_session* f : forks) kvrun_session_free(f);
	}
}

TEST_CASE("T79 api: threads share an engine, each with its session; a third one cancels") {
	Engine e;
	const auto want_a = answer(e, "kivi2", kText, 40), want_b = answer(e, "fp16", kText, 40);
	Session a(e, "kivi2"), b(e, "fp16"), c(e, "zipcache");
	kvrun_canceller* stop = nullptr;
	REQUIRE(kvrun_canceller_new(&stop) == KVRUN_OK);
	Told told_a, told_b, told_c;
	kvrun_status status_a = KVRUN_EINTERNAL, status_b = KVRUN_EINTERNAL, status_c = KVRUN_EINTERNAL;
	const auto run = [&](Session& s, Told& told, kvrun_canceller* canceller, uint32_t n, kvrun_status& status) {
		kvrun_generate_options o = greedy(n, &told);
		o.canceller = canceller;
		status = kvrun_generate_text(s.h, kText.c_str(), &o, nullptr);
	};
	std::thread ta([&] { run(a, told_a, nullptr, 40, status_a); });
	std::thread tb([&] { run(b, told_b, nullptr, 40, status_b); });
	std::thread tc([&] { run(c, told_c, stop, 400, status_c); });
	std::thread td([&] {
		std::this_thread::sleep_for(std::chrono::milliseconds(30));
		kvrun_cancel(stop);
	});
	for (std::thread* t : {&ta, &tb, &tc, &td}) t->join();
	CHECK(status_a == KVRUN_OK);
	CHECK(status_b == KVRUN_OK);
	CHECK(status_c == KVRUN_ECANCELLED);
	CHECK(told_a.tokens == want_a);
	CHECK(told_b.tokens == want_b);
	CHECK(told_c.tokens.size() < 400);
	kvrun_canceller_free(stop);
}

TEST_CASE("api: logits are seen and changed before a token is chosen") {
	Engine e;
	const auto want = answer(e, nullptr, kText, 12);
	struct Look {
		std::vector<uint32_t> likeliest;
		uint32_t banned = KVRUN_NO_TOKEN;
		int stop_at = -1;
	};
	const auto look = [](float* logits, size_t vocab, void* payload) -> int {
		Look& l = *static_cast<Look*>(payload);
		if (l.banned != KVRUN_NO_TOKEN) logits[l.banned] = -std::numeric_limits<float>::infinity();
		l.likeliest.push_back(uint32_t(std::max_element(logits, logits + vocab) - logits));
		return int(l.likeliest.size()) == l.stop_at;
	};
	const auto run = [&](Look& l, kvrun_status& status) {
		Session s(e);
		Told told;
		status = answer_with(e, s, greedy(12, &told), look, &l).first;
		return told.tokens;
	};
	kvrun_status status = KVRUN_OK;
	Look all;
	CHECK(run(all, status) == want);
	CHECK(status == KVRUN_OK);
	CHECK(all.likeliest == want);
	Look without;
	without.banned = want[0];
	const auto other = run(without, status);
	CHECK(other == without.likeliest);
	CHECK(std::count(other.begin(), other.end(), want[0]) == 0);
	Look stop;
	stop.stop_at = 5;
	CHECK(run(stop, status).size() == 4);
	CHECK(status == KVRUN_EUSER);
}

TEST_CASE("api: a logits callback may read what it works on, and is told if it leaves no token") {
	Engine e;
	Session s(e), other(e);
	struct Hook {
		kvrun_engine* e;
		kvrun_session *s, *other, *extra;
		kvrun_status reads = KVRUN_EINTERNAL, works = KVRUN_EINTERNAL;
		uint32_t n_tokens = 0;
		float all = 0; // added to every logit
	} hook{e.h, s.h, other.h, nullptr};
	REQUIRE(kvrun_session_fork(&hook.extra, other.h) == KVRUN_OK);
	const auto call = [](float* logits, size_t vocab, void* payload) -> int {
		Hook& h = *static_cast<Hook*>(payload);
		kvrun_session_info si = KVRUN_SESSION_INFO_INIT;
		kvrun_engine_info ei = KVRUN_ENGINE_INFO_INIT;
		size_t n = 0;
		uint32_t tokens[512];
		h.reads = kvrun_session_get_info(h.s, &si);
		if (!h.reads) h.reads = kvrun_engine_get_info(h.e, &ei);
		if (!h.reads) h.reads = kvrun_session_tokens(h.s, tokens, 512, &n);
		h.n_tokens = n == si.n_tokens ? si.n_tokens : 0;
		kvrun_session* fork = nullptr;
		h.works = kvrun_session_fork(&fork, h.other);
		if (h.works == KVRUN_EBUSY) h.works = kvrun_prefill(h.other, tokens, 1, nullptr, nullptr);
		kvrun_session_free(h.extra); // takes effect at once, in the turn of this thread
		for (size_t i = 0; i < vocab; ++i) logits[i] += h.all;
		return 0;
	};
	const auto run = [&] { return answer_with(e, s, greedy(2, nullptr), call, &hook); };
	CHECK(run().first == KVRUN_OK);
	CHECK(hook.reads == KVRUN_OK);
	CHECK(hook.works == KVRUN_EBUSY);
	CHECK(hook.n_tokens == s.n_tokens());
	CHECK(kvrun_session_truncate(other.h, 0) == KVRUN_OK); // it is not in use any more
	hook.all = -std::numeric_limits<float>::infinity();
	auto [none, message] = run();
	CHECK(none == KVRUN_EINVALID);
	CHECK(message.find("left no token") != std::string::npos);
	hook.all = std::numeric_limits<float>::quiet_NaN();
	std::tie(none, message) = run();
	CHECK(none == KVRUN_EINVALID);
	CHECK(message.find("no number") != std::string::npos);
}

TEST_CASE("T79 api: a session belongs to one thread at a time") {
	Engine e;
	Session s(e);
	struct Other {
		kvrun_session* s;
		kvrun_status status = KVRUN_OK, again = KVRUN_OK;
	} other{s.h};
	kvrun_generate_options o = greedy(3, nullptr);
	o.payload = &other;
	o.on_token = [](uint32_t, const char*, size_t, void* payload) { // from another thread, and from the callback
		Other& x = *static_cast<Other*>(payload);
		kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
		x.again = kvrun_session_get_info(x.s, &i);
		std::thread([&] { x.status = kvrun_session_truncate(x.s, 0); }).join();
		return 0;
	};
	CHECK(kvrun_generate_text(s.h, "a", &o, nullptr) == KVRUN_OK);
	CHECK(other.status == KVRUN_EBUSY);
	CHECK(other.again == KVRUN_OK); // it only reads
	CHECK(error() == "");
}

TEST_CASE("api: other sessions of the engine can be used in a callback") {
	Engine e;
	Session s(e), inner(e, "kivi2");
	struct Inner {
		kvrun_session* s;
		Told told;
		kvrun_status status = KVRUN_EINTERNAL;
	} x{inner.h, {}};
	kvrun_generate_options o = greedy(2, nullptr);
	o.payload = &x;
	o.on_token = [](uint32_t, const char*, size_t, void* payload) {
		Inner& i = *static_cast<Inner*>(payload);
		const kvrun_generate_options g = greedy(4, &i.told);
		i.status = kvrun_generate_text(i.s, "The", &g, nullptr);
		return 0;
	};
	CHECK(kvrun_generate_text(s.h, "a", &o, nullptr) == KVRUN_OK);
	CHECK(x.status == KVRUN_OK);
	CHECK(x.told.tokens.size() == 8);
}

TEST_CASE("T44 api: sessions on disk") {
	Engine e;
	const std::string path =
	    (std::filesystem::temp_directory_path() / ("kvrun-api-" + std::to_string(getpid()) + ".kvs")).string();
	const auto want = answer(e, "zipcache", kText, 30);
	Session s(e, "zipcache");
	Told told;
	kvrun_generate_options o = greedy(11, &told);
	REQUIRE(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_OK);
	REQUIRE(kvrun_session_save(s.h, path.c_str(), "note", 4) == KVRUN_OK);
	kvrun_session* r = nullptr;
	REQUIRE(kvrun_session_restore(&r, e.h, path.c_str()) == KVRUN_OK);
	const uint32_t last = told.tokens.back(); // was chosen but not read
	o = greedy(19, &told);
	REQUIRE(kvrun_generate(r, &last, 1, &o, nullptr) == KVRUN_OK);
	CHECK(told.tokens == want);
	char note[16];
	size_t n = 0;
	REQUIRE(kvrun_session_read_note(path.c_str(), note, sizeof note, &n) == KVRUN_OK);
	CHECK(std::string(note, n) == "note");
	kvrun_session_free(r);
	// with checkpoints, truncation to the end of the next prompt is possible, although its tokens are compressed
	kvrun_restore_options with = KVRUN_RESTORE_OPTIONS_INIT;
	for (const uint32_t checkpoints : {0u, 1u}) {
		with.checkpoints = checkpoints;
		REQUIRE(kvrun_session_restore_with(&r, e.h, path.c_str(), &with) == KVRUN_OK);
		const auto more = tokens_of(e, kText + kText + kText);
		REQUIRE(kvrun_prefill(r, more.data(), more.size(), nullptr, nullptr) == KVRUN_OK);
		kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
		REQUIRE(kvrun_session_get_info(r, &i) == KVRUN_OK);
		o = greedy(200, nullptr);
		REQUIRE(kvrun_generate(r, &last, 1, &o, nullptr) == KVRUN_OK);
		CHECK(kvrun_session_truncate(r, i.n_tokens) != KVRUN_OK); // a single checkpoint is the newest prompt's
		CHECK((kvrun_session_truncate(r, i.n_tokens + 1) == KVRUN_OK) == (checkpoints == 1));
		kvrun_session_free(r);
	}
	CHECK(kvrun_session_restore_with(&r, e.h, path.c_str(), nullptr) == KVRUN_OK);
	kvrun_session_free(r);
	Engine tiny(kTiny);
	CHECK(kvrun_session_restore(&r, tiny.h, path.c_str()) == KVRUN_EINVALID);
	CHECK(r == nullptr);
	CHECK(said("another model"));
	{
		std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
		f.seekp(1000);
		f.put('\x7f');
	}
	CHECK(kvrun_session_restore(&r, e.h, path.c_str()) == KVRUN_EFORMAT);
	CHECK(said("damaged session file"));
	std::filesystem::remove(path);
	CHECK(kvrun_session_restore(&r, e.h, path.c_str()) == KVRUN_ENOTFOUND);
}
