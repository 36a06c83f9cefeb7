// The C API's view of the cache: which tier holds each token, also while a batch uses the session.
#include "objects.h"
#include <algorithm>

using namespace api;

namespace {

struct Cached { // the bundled model, and a session with n tokens
	Cached(const char* kv, uint32_t n) : session(engine, kv) {
		const std::vector<uint32_t> prompt(n, 7);
		if (n) REQUIRE(kvrun_prefill(session.h, prompt.data(), n, nullptr, nullptr) == KVRUN_OK);
	}
	std::vector<uint8_t> tiers(uint32_t layer = 0) const {
		size_t n = 0;
		std::vector<uint8_t> out(1000);
		REQUIRE(kvrun_session_tiers(session.h, layer, 0, out.data(), out.size(), &n) == KVRUN_OK);
		out.resize(n);
		return out;
	}
	Engine engine;
	Session session;
};

size_t count(const std::vector<uint8_t>& tiers, kvrun_tier t) {
	return size_t(std::count(tiers.begin(), tiers.end(), uint8_t(t)));
}

} // namespace

TEST_CASE("api: tiers of tokens: f16, packed, salient, evicted") {
	Cached plain("fp16", 150), packed("rtn4,recent=32,sinks=0", 150), evicts("streaming,recent=64,sinks=4", 150),
	    ranked("zipcache,ratio=0.4", 200);
	CHECK(count(plain.tiers(), KVRUN_TIER_F16) == 150);
	const std::vector<uint8_t> p = packed.tiers(1);
	REQUIRE(p.size() == 150);
	CHECK(p.front() == KVRUN_TIER_REGULAR);
	CHECK(p.back() == KVRUN_TIER_F16);
	CHECK(std::is_sorted(p.rbegin(), p.rend())); // old tokens are packed first
	kvrun_session_info info = KVRUN_SESSION_INFO_INIT;
	REQUIRE(kvrun_session_get_info(packed.session.h, &info) == KVRUN_OK);
	CHECK(info.code_bytes > 0);
	const std::vector<uint8_t> e = evicts.tiers();
	REQUIRE(e.size() == 150);
	CHECK(count(e, KVRUN_TIER_EVICTED) > 0);
	CHECK(e.front() == KVRUN_TIER_F16); // a sink
	CHECK(e.back() == KVRUN_TIER_F16);
	CHECK(count(ranked.tiers(), KVRUN_TIER_SALIENT) > 0);
	CHECK(count(ranked.tiers(), KVRUN_TIER_REGULAR) > 0);
}

TEST_CASE("api: tiers are seen while a batch has the session") {
	Cached c("fp16", 0);
	kvrun_batch* batch = nullptr;
	REQUIRE(kvrun_batch_new(&batch, c.engine.h) == KVRUN_OK);
	const std::vector<uint32_t> prompt(20, 7);
	const kvrun_generate_options o = greedy(5, nullptr);
	uint32_t id = 0;
	REQUIRE(kvrun_batch_add(batch, c.session.h, prompt.data(), prompt.size(), &o, &id) == KVRUN_OK);
	CHECK(c.tiers().empty());
	size_t most = 0;
	for (size_t active = 1; active;) {
		REQUIRE(kvrun_batch_step(batch, &active) == KVRUN_OK);
		const size_t now = c.tiers().size();
		CHECK(now >= most);
		most = now;
	}
	CHECK(most >= 20);
	CHECK(kvrun_batch_take(batch, id, nullptr) == KVRUN_OK);
	kvrun_batch_free(batch);
}

TEST_CASE("api: tiers of a layer that is not there, a buffer too small, a session that was freed") {
	Cached c("fp16", 10);
	size_t n = 0;
	uint8_t out[10];
	CHECK(kvrun_session_tiers(c.session.h, 1000, 0, out, 10, &n) == KVRUN_EINVALID);
	CHECK(said("layer 1000"));
	CHECK(kvrun_session_tiers(c.session.h, 0, 1000, out, 10, &n) == KVRUN_EINVALID);
	CHECK(kvrun_session_tiers(c.session.h, 0, 0, out, 9, &n) == KVRUN_EBUFFER);
	CHECK(n == 10);
	CHECK(kvrun_session_tiers(c.session.h, 0, 0, out, 10, nullptr) == KVRUN_EINVALID);
	kvrun_session_free(c.session.h);
	CHECK(kvrun_session_tiers(c.session.h, 0, 0, out, 10, &n) == KVRUN_EINVALID);
	c.session.h = nullptr;
}

TEST_CASE("api: what a session fetches, and the host memory it may take for it") {
	Engine e(kTiny);
	const auto fetched = [](const Session& s) {
		kvrun_fetch_info i = KVRUN_FETCH_INFO_INIT;
		REQUIRE(kvrun_session_get_fetch_info(s.h, &i) == KVRUN_OK);
		return i;
	};
	const char* kv = "kivi2,fetch=12,recent_keep=8,flush=32";
	const std::vector<uint32_t> prompt(200, 7);
	const auto ask = [&](const Session& s) {
		Told told;
		const kvrun_generate_options o = greedy(20, &told);
		const kvrun_status status = kvrun_generate(s.h, prompt.data(), prompt.size(), &o, nullptr);
		INFO(error());
		REQUIRE(status == KVRUN_OK);
		return told.tokens;
	};
	std::vector<uint32_t> want;
	{
		Session s(e, kv), plain(e, "kivi2");
		CHECK(fetched(s).fetch == 12);
		CHECK(fetched(s).steps == 0);
		CHECK(fetched(plain).fetch == 0);
		want = ask(s);
		const kvrun_fetch_info i = fetched(s);
		CHECK(i.steps == 19); // no step reads the logits after the last token
		CHECK(i.f16_share > 0.02);
		CHECK(i.f16_share < 0.7); // at most 52 of some 210 tokens, to which this model attends about equally
		CHECK(i.hidden_seconds + i.open_seconds > 0);
		kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
		REQUIRE(kvrun_engine_get_info(e.h, &info) == KVRUN_OK);
		const uint64_t row = uint64_t(4) * info.n_layers * info.n_kv_heads * info.head_dim; // f16 keys and values
		CHECK(i.fetched_bytes == 20 * 12 * row); // by the speculative step after the prompt, and by each of the 19
		CHECK(i.host_bytes == 256 * row);
		CHECK(i.file_bytes == 0);
		kvrun_session_info session = KVRUN_SESSION_INFO_INIT;
		REQUIRE(kvrun_session_get_info(s.h, &session) == KVRUN_OK);
		CHECK(session.f16_bytes + session.code_bytes + session.param_bytes + session.overhead_bytes ==
		      session.total_bytes);
	}
	kvrun_host_memory_options o = KVRUN_HOST_MEMORY_OPTIONS_INIT;
	o.budget_bytes = 1;
	REQUIRE(kvrun_engine_set_host_memory(e.h, &o) == KVRUN_OK);
	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.kv = kv, so.ctx = 512;
	kvrun_session* none = nullptr;
	CHECK(kvrun_session_open(&none, e.h, &so) == KVRUN_ENOMEM);
	CHECK(said("--host-budget"));
	o.offload_dir = "/nonexistent";
	CHECK(kvrun_engine_set_host_memory(e.h, &o) == KVRUN_EIO);
	o.offload_dir = "/tmp";
	REQUIRE(kvrun_engine_set_host_memory(e.h, &o) == KVRUN_OK);
	Session s(e, kv);
	CHECK(ask(s) == want);
	CHECK(fetched(s).file_bytes == fetched(s).host_bytes);
	CHECK(kvrun_engine_set_host_memory(nullptr, &o) == KVRUN_EINVALID);
	CHECK(kvrun_session_get_fetch_info(s.h, nullptr) == KVRUN_EINVALID);
}
