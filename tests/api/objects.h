// Shared by tests of the C API: handles that free themselves, tokens, greedy answers. Includes only kvrun.h.
#pragma once
#include <kvrun.h>

#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace api {

inline const std::string kModel = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
inline const std::string kTiny = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama_q8_0.gguf";

inline std::string error() { return kvrun_last_error(); }
inline bool said(const std::string& part) { return error().find(part) != std::string::npos; }

// KVRUN_TEST_DEVICES, as for the other tests; default cpu.
inline const char* device() {
	const char* d = std::getenv("KVRUN_TEST_DEVICES");
	return !d || !*d ? "cpu" : !std::strcmp(d, "lavapipe") ? "llvmpipe" : d;
}

struct Engine {
	kvrun_engine* h = nullptr;
	explicit Engine(const std::string& model = kModel, uint64_t kv_budget = 0) {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = device();
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = model.c_str();
		o.device = &d;
		o.kv_budget_bytes = kv_budget;
		const kvrun_status s = kvrun_engine_open(&h, &o);
		INFO(error());
		REQUIRE(s == KVRUN_OK);
	}
	~Engine() { kvrun_engine_free(h); }
};
struct Session {
	kvrun_session* h = nullptr;
	explicit Session(const Engine& e, const char* kv = nullptr, uint32_t ctx = 512) {
		kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
		o.kv = kv;
		o.ctx = ctx;
		const kvrun_status s = kvrun_session_open(&h, e.h, &o);
		INFO(error());
		REQUIRE(s == KVRUN_OK);
	}
	~Session() { kvrun_session_free(h); }
	uint32_t n_tokens() const {
		kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
		REQUIRE(kvrun_session_get_info(h, &i) == KVRUN_OK);
		return i.n_tokens;
	}
};

inline std::vector<uint32_t> tokens_of(const Engine& e, const std::string& text) {
	size_t n = 0;
	std::vector<uint32_t> t(text.size() + 8);
	REQUIRE(kvrun_tokenize(e.h, text.data(), text.size(), 0, t.data(), t.size(), &n) == KVRUN_OK);
	t.resize(n);
	return t;
}

struct Told { // by callbacks
	std::vector<uint32_t> tokens;
	std::string text;
	int progress = 0, stop_after = -1;
};
inline int on_token(uint32_t token, const char* text, size_t length, void* payload) {
	Told& t = *static_cast<Told*>(payload);
	if (token != KVRUN_NO_TOKEN) t.tokens.push_back(token);
	t.text.append(text, length);
	return t.stop_after >= 0 && int(t.tokens.size()) >= t.stop_after;
}
inline int on_progress(double done, double, void* payload) {
	CHECK(done >= 0);
	CHECK(done <= 1);
	++static_cast<Told*>(payload)->progress;
	return 0;
}
inline kvrun_generate_options greedy(uint32_t n, Told* told) {
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.max_tokens = n;
	o.temperature = 0;
	o.ignore_eos = 1;
	o.on_token = told ? on_token : nullptr;
	o.payload = told;
	return o;
}

inline std::vector<uint32_t> answer(const Engine& e, const char* kv, const std::string& prompt, uint32_t n) {
	Session s(e, kv);
	Told told;
	const kvrun_generate_options o = greedy(n, &told);
	const auto p = tokens_of(e, prompt);
	const kvrun_status status = kvrun_generate(s.h, p.data(), p.size(), &o, nullptr);
	INFO(error());
	REQUIRE(status == KVRUN_OK);
	CHECK(told.tokens.size() == n);
	return told.tokens;
}

inline const std::string kText = "Once upon a time there was a little house in the woods, and in it lived ";

// An answer to kText whose logits `hook` sees: its status, and the error's text.
inline std::pair<kvrun_status, std::string>
answer_with(const Engine& e, const Session& s, const kvrun_generate_options& o, kvrun_logits_cb hook, void* payload) {
	const auto prompt = tokens_of(e, kText);
	kvrun_batch* b = nullptr;
	uint32_t id = 0;
	size_t active = 1;
	REQUIRE(kvrun_batch_new(&b, e.h) == KVRUN_OK);
	REQUIRE(kvrun_batch_add(b, s.h, prompt.data(), prompt.size(), &o, &id) == KVRUN_OK);
	REQUIRE(kvrun_batch_on_logits(b, id, hook, payload) == KVRUN_OK);
	CHECK(kvrun_batch_on_logits(b, id + 1, hook, payload) == KVRUN_EINVALID);
	while (active) REQUIRE(kvrun_batch_step(b, &active) == KVRUN_OK);
	const kvrun_status status = kvrun_batch_take(b, id, nullptr);
	const std::string message = error();
	kvrun_batch_free(b);
	return {status, message};
}

} // namespace api
