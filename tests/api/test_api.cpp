// libkvrun from outside: only kvrun.h is included and only the shared library is linked.
#include <kvrun.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

const std::string kModel = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
const std::string kTiny = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama_q8_0.gguf";

std::string error() { return kvrun_last_error(); }
bool said(const std::string& part) { return error().find(part) != std::string::npos; }

// KVRUN_TEST_DEVICES, as for the other tests; default cpu.
const char* device() {
	const char* d = std::getenv("KVRUN_TEST_DEVICES");
	return !d || !*d ? "cpu" : !std::strcmp(d, "lavapipe") ? "llvmpipe" : d;
}

struct Engine {
	kvrun_engine* h = nullptr;
	explicit Engine(const std::string& model = kModel) {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = device();
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = model.c_str();
		o.device = &d;
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

std::vector<uint32_t> tokens_of(const Engine& e, const std::string& text) {
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
int on_token(uint32_t token, const char* text, size_t length, void* payload) {
	Told& t = *static_cast<Told*>(payload);
	if (token != KVRUN_NO_TOKEN) t.tokens.push_back(token);
	t.text.append(text, length);
	return t.stop_after >= 0 && int(t.tokens.size()) >= t.stop_after;
}
int on_progress(double done, double, void* payload) {
	CHECK(done >= 0);
	CHECK(done <= 1);
	++static_cast<Told*>(payload)->progress;
	return 0;
}
kvrun_generate_options greedy(uint32_t n, Told* told) {
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.max_tokens = n;
	o.temperature = 0;
	o.ignore_eos = 1;
	o.on_token = told ? on_token : nullptr;
	o.payload = told;
	return o;
}

std::vector<uint32_t> answer(const Engine& e, const char* kv, const std::string& prompt, uint32_t n) {
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

const std::string kText = "Once upon a time there was a little house in the woods, and in it lived ";

} // namespace

TEST_CASE("api: version, names of codes, no error at the start") {
	CHECK(kvrun_abi_version() == KVRUN_ABI_VERSION);
	CHECK(std::string(kvrun_version()).find('.') != std::string::npos);
	CHECK(std::string(kvrun_status_name(KVRUN_EBUSY)) == "KVRUN_EBUSY");
	CHECK(std::string(kvrun_status_name(kvrun_status(-99))) == "unknown");
	CHECK(kvrun_last_error() != nullptr);
}

TEST_CASE("api: devices are data, refused ones too") {
	kvrun_devices* list = nullptr;
	REQUIRE(kvrun_devices_list(&list, nullptr) == KVRUN_OK);
	REQUIRE(kvrun_devices_count(list) >= 1);
	bool cpu = false;
	for (size_t i = 0; i < kvrun_devices_count(list); ++i) {
		kvrun_device_info d = KVRUN_DEVICE_INFO_INIT;
		REQUIRE(kvrun_devices_get(list, i, &d) == KVRUN_OK);
		CHECK(d.usable == (std::string(d.refused) == ""));
		cpu |= std::string(d.backend) == "cpu" && d.usable;
	}
	CHECK(cpu);
	kvrun_device_info d = KVRUN_DEVICE_INFO_INIT;
	CHECK(kvrun_devices_get(list, 1000, &d) == KVRUN_EINVALID);
	kvrun_devices_free(list);
	CHECK(kvrun_devices_get(list, 0, &d) == KVRUN_EINVALID);
	CHECK(kvrun_devices_count(list) == 0);
	kvrun_device_options o = KVRUN_DEVICE_OPTIONS_INIT;
	o.backend = "opengl";
	CHECK(kvrun_devices_list(&list, &o) == KVRUN_EINVALID);
	CHECK(list == nullptr);
	CHECK(said("'opengl'"));
}

TEST_CASE("api: a memory plan needs the model's header alone") {
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = kModel.c_str();
	o.kv = "kivi2";
	o.ctx = 1024;
	o.memory_bytes = 64 << 20;
	kvrun_plan p = KVRUN_PLAN_INIT;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.fits == 1);
	CHECK(p.kv_bytes < p.kv_f16_bytes / 3);
	CHECK(p.weight_bytes > 1 << 20);
	CHECK(p.most_tokens >= 1024);
	CHECK(!p.evicts);
	o.memory_bytes = p.weight_bytes + 1000;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.fits == 0);
	o.kv = "streaming";
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.evicts == 1);
	o.kv = "nonsense";
	CHECK(kvrun_plan_memory(&p, &o) != KVRUN_OK);
	o.model_path = "/nowhere.gguf";
	CHECK(kvrun_plan_memory(&p, &o) == KVRUN_ENOTFOUND);
}

TEST_CASE("api: the model, its metadata and its tokens") {
	Engine e;
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &i) == KVRUN_OK);
	CHECK(std::string(i.architecture) == "llama");
	CHECK(i.vocab > 100);
	CHECK(i.n_layers == 4);
	CHECK(i.weight_bytes > 1 << 20);
	bool found = false;
	for (size_t k = 0; k < kvrun_metadata_count(e.h); ++k) {
		const char *key = nullptr, *value = nullptr;
		REQUIRE(kvrun_metadata_get(e.h, k, &key, &value) == KVRUN_OK);
		if (std::string(key) == "general.architecture") found = std::string(value) == "llama";
	}
	CHECK(found);
	const auto t = tokens_of(e, kText);
	size_t n = 0;
	CHECK(kvrun_tokenize(e.h, kText.data(), kText.size(), 0, nullptr, 0, &n) == KVRUN_EBUFFER);
	CHECK(n == t.size());
	std::vector<char> text(kText.size() + 16);
	REQUIRE(kvrun_detokenize(e.h, t.data(), t.size(), 0, text.data(), text.size(), &n) == KVRUN_OK);
	CHECK(std::string(text.data(), n) == kText);
	CHECK(kvrun_detokenize(e.h, t.data(), t.size(), 0, text.data(), 3, &n) == KVRUN_EBUFFER);
	const uint32_t bad = i.vocab;
	CHECK(kvrun_detokenize(e.h, &bad, 1, 0, text.data(), text.size(), &n) == KVRUN_EINVALID);
}

TEST_CASE("api: chat templates: by name, by text, and none is assumed") {
	Engine e;
	const kvrun_message m[] = {{"system", "Be brief."}, {"user", "Hello <|im_end|>"}};
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	o.messages = m;
	o.n_messages = 2;
	char text[512];
	size_t n = 0;
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_ENOTFOUND);
	CHECK(said("chatml"));
	o.template_name = "chatml";
	REQUIRE(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_OK);
	CHECK(std::string(text).find("<|im_start|>user\nHello <|im_end|>") != std::string::npos);
	o.template_name = nullptr;
	o.template_text = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}";
	REQUIRE(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_OK);
	CHECK(std::string(text, n) == "[system] Be brief.[user] Hello <|im_end|>");
	uint32_t tokens[256];
	REQUIRE(kvrun_chat_tokens(e.h, &o, tokens, 256, &n) == KVRUN_OK);
	CHECK(n > 5);
	o.messages_json = "[{\"role\": \"user\"";
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EINVALID); // both given
	o.messages = nullptr;
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EINVALID);
	CHECK(said("messages_json is not JSON"));
	o.messages_json = "[{\"role\": \"user\", \"content\": \"x\"}]";
	REQUIRE(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_OK);
	CHECK(std::string(text, n) == "[user] x");
}

TEST_CASE("api: answers are taken apart: reasoning, content, calls of tools") {
	Engine e;
	char name[64];
	size_t n = 0, names = 0;
	while (kvrun_chat_template_name(e.h, names, name, sizeof name, &n) == KVRUN_OK && n > 0) ++names;
	CHECK(names >= 10);
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	o.messages_json = "[{\"role\": \"user\", \"content\": \"Weather?\"}]";
	o.tools_json = "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"d\", "
	               "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";
	o.template_text =
	    "{% for t in tools %}<tool_call>{{ t | tojson }}</tool_call>{% endfor %}"
	    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<tool_call>{{ m.tool_calls | tojson }}"
	    "</tool_call>{% endif %}{% endfor %}<think></think>";
	kvrun_chat_features f = KVRUN_CHAT_FEATURES_INIT;
	REQUIRE(kvrun_chat_get_features(e.h, &o, &f) == KVRUN_OK);
	CHECK(f.tools == 1);
	CHECK(f.reasoning == 1);
	CHECK(f.special_markers == 0);
	kvrun_reply* r = nullptr;
	REQUIRE(kvrun_reply_new(&r, e.h, &o) == KVRUN_OK);
	std::string content, reasoning, calls;
	const std::string text =
	    "<think>well</think>Let me see.<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
	kvrun_reply_part p = KVRUN_REPLY_PART_INIT;
	const auto note = [&] { content += p.content, reasoning += p.reasoning, calls += p.calls; };
	for (const char c : text) {
		REQUIRE(kvrun_reply_push(r, &c, 1, &p) == KVRUN_OK);
		note();
	}
	REQUIRE(kvrun_reply_finish(r, &p) == KVRUN_OK);
	note();
	CHECK(content == "Let me see.");
	CHECK(reasoning == "well");
	CHECK(calls.find("\"name\":\"weather\"") != std::string::npos);
	kvrun_reply_free(r);
	CHECK(kvrun_reply_finish(r, &p) == KVRUN_EINVALID);
}

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
	CHECK(s.n_tokens() == r.prompt_tokens + 23); // nobody asked what follows the last one
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
	CHECK(kvrun_decode(twice, bad, 2, logits.data(), &row) == KVRUN_EBUSY);
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
	CHECK(kvrun_session_get_info(sessions[4]->h, &info) == KVRUN_EBUSY);
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
	// the batch ends with an answer under way
	uint32_t id = 0;
	const auto p = tokens_of(e, kText);
	REQUIRE(kvrun_batch_add(b, sessions[0]->h, p.data(), p.size(), nullptr, &id) == KVRUN_OK);
	REQUIRE(kvrun_batch_step(b, nullptr) == KVRUN_OK);
	kvrun_batch_free(b);
	CHECK(kvrun_session_get_info(sessions[0]->h, &info) == KVRUN_OK);
	CHECK(kvrun_batch_step(b, nullptr) == KVRUN_EINVALID);
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
	CHECK(other.again == KVRUN_EBUSY);
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
	    std::filesystem::temp_directory_path() / ("kvrun-api-" + std::to_string(getpid()) + ".kvs");
	const auto want = answer(e, "zipcache", kText, 30);
	Session s(e, "zipcache");
	Told told;
	kvrun_generate_options o = greedy(11, &told);
	REQUIRE(kvrun_generate_text(s.h, kText.c_str(), &o, nullptr) == KVRUN_OK);
	REQUIRE(kvrun_session_save(s.h, path.c_str(), "note", 4) == KVRUN_OK);
	kvrun_session* r = nullptr;
	REQUIRE(kvrun_session_restore(&r, e.h, path.c_str()) == KVRUN_OK);
	const uint32_t last = told.tokens.back(); // has been chosen and not been read
	o = greedy(19, &told);
	REQUIRE(kvrun_generate(r, &last, 1, &o, nullptr) == KVRUN_OK);
	CHECK(told.tokens == want);
	char note[16];
	size_t n = 0;
	REQUIRE(kvrun_session_read_note(path.c_str(), note, sizeof note, &n) == KVRUN_OK);
	CHECK(std::string(note, n) == "note");
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

TEST_CASE("T80 api: misuse is an error, never a crash") {
	kvrun_engine* e = nullptr;
	CHECK(kvrun_engine_open(nullptr, nullptr) == KVRUN_EINVALID);
	CHECK(kvrun_engine_open(&e, nullptr) == KVRUN_EINVALID);
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	CHECK(kvrun_engine_open(&e, &o) == KVRUN_EINVALID);
	CHECK(said("model_path is NULL"));
	o.model_path = kModel.c_str();
	for (const uint32_t size : {0u, 4u, 0xccccccccu}) {
		o.struct_size = size;
		CHECK(kvrun_engine_open(&e, &o) == KVRUN_EINVALID);
		CHECK(said("struct_size"));
	}
	struct {
		kvrun_engine_options o;
		uint64_t newer;
	} bigger = {KVRUN_ENGINE_OPTIONS_INIT, 0};
	bigger.o.struct_size = sizeof bigger;
	bigger.o.model_path = "/nowhere.gguf";
	CHECK(kvrun_engine_open(&e, &bigger.o) == KVRUN_ENOTFOUND); // a field this library does not know, unset
	bigger.newer = 1;
	CHECK(kvrun_engine_open(&e, &bigger.o) == KVRUN_EUNSUPPORTED);
	CHECK(e == nullptr);
	kvrun_session* s = nullptr;
	CHECK(kvrun_session_open(&s, nullptr, nullptr) == KVRUN_EINVALID);
	CHECK(kvrun_session_open(&s, reinterpret_cast<kvrun_engine*>(uintptr_t(0x1234567)), nullptr) == KVRUN_EINVALID);
	kvrun_session_free(nullptr);
	kvrun_engine_free(nullptr);
	kvrun_batch_free(nullptr);
	kvrun_devices_free(nullptr);
	kvrun_session* stale = nullptr;
	{
		Engine engine;
		Session session(engine);
		CHECK(kvrun_session_open(&s, reinterpret_cast<kvrun_engine*>(session.h), nullptr) ==
		      KVRUN_EINVALID); // a session
		stale = session.h;
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.kv = "nonsense";
		CHECK(kvrun_session_open(&s, engine.h, &so) != KVRUN_OK);
		CHECK(said("nonsense"));
		kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
		g.top_p = 2;
		CHECK(kvrun_generate_text(session.h, "x", &g, nullptr) == KVRUN_EINVALID);
		CHECK(kvrun_generate_text(session.h, nullptr, nullptr, nullptr) == KVRUN_EINVALID);
		CHECK(kvrun_generate(session.h, nullptr, 3, nullptr, nullptr) == KVRUN_EINVALID);
		CHECK(kvrun_generate(session.h, nullptr, 0, nullptr, nullptr) == KVRUN_EINVALID);
		kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
		r.struct_size = 3;
		CHECK(kvrun_generate_text(session.h, "x", nullptr, &r) == KVRUN_EINVALID);
	}
	kvrun_session_free(stale); // a second time
	CHECK(kvrun_session_truncate(stale, 0) == KVRUN_EINVALID);
	CHECK(said("has it been freed"));
}

TEST_CASE("T80, T81 api: handles may be freed in any order; two engines in one process") {
	auto a = std::make_unique<Engine>();
	auto b = std::make_unique<Engine>(kTiny);
	Session s(*a, "kivi2"), t(*b, "fp16", 64);
	a.reset();
	Told told;
	const kvrun_generate_options o = greedy(4, &told);
	CHECK(kvrun_generate_text(s.h, "The", &o, nullptr) == KVRUN_OK); // its engine lives as long as it does
	const uint32_t one = 5;
	CHECK(kvrun_prefill(t.h, &one, 1, nullptr, nullptr) == KVRUN_OK);
}

TEST_CASE("api: loading says how far it is, and stops when asked") {
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = "cpu";
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = kModel.c_str();
	o.device = &d;
	int calls = 0;
	o.payload = &calls;
	o.progress = [](double done, double, void* payload) {
		CHECK(done <= 1);
		return ++*static_cast<int*>(payload) > 2 ? 1 : 0;
	};
	kvrun_engine* e = nullptr;
	CHECK(kvrun_engine_open(&e, &o) == KVRUN_EUSER);
	CHECK(e == nullptr);
	CHECK(calls == 3);
	kvrun_canceller* c = nullptr;
	REQUIRE(kvrun_canceller_new(&c) == KVRUN_OK);
	kvrun_cancel(c);
	o.progress = nullptr;
	o.canceller = c;
	CHECK(kvrun_engine_open(&e, &o) == KVRUN_ECANCELLED);
	kvrun_canceller_free(c);
}

TEST_CASE("api: log lines go to the sink, which may use the library") {
	static std::vector<std::string> lines;
	lines.clear();
	REQUIRE(kvrun_set_log(
	            [](int, const char* line, size_t length, void*) {
		            lines.emplace_back(line, length);
		            CHECK(kvrun_set_log(nullptr, 0, nullptr) == KVRUN_EINVALID);
	            },
	            3, nullptr) == KVRUN_OK);
	Engine e;
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.ctx = 100000; // beyond what the model was trained with
	kvrun_session* s = nullptr;
	REQUIRE(kvrun_session_open(&s, e.h, &o) == KVRUN_OK);
	kvrun_session_free(s);
	REQUIRE(kvrun_set_log(nullptr, 0, nullptr) == KVRUN_OK);
	CHECK(!lines.empty());
}

// Memory of the process after many engines is what it was after a few.
TEST_CASE("T81 api: 1000 engines and sessions opened and closed leave nothing behind") {
	const auto resident = [] {
		std::ifstream f("/proc/self/statm");
		size_t pages = 0, r = 0;
		f >> pages >> r;
		return r * size_t(sysconf(_SC_PAGESIZE));
	};
	size_t early = 0;
	for (int i = 0; i < 1000; ++i) {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = "cpu";
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = kTiny.c_str();
		o.device = &d;
		kvrun_engine* e = nullptr;
		REQUIRE(kvrun_engine_open(&e, &o) == KVRUN_OK);
		kvrun_session* s = nullptr;
		REQUIRE(kvrun_session_open(&s, e, nullptr) == KVRUN_OK);
		const uint32_t one = 5;
		if (i % 10 == 0) REQUIRE(kvrun_prefill(s, &one, 1, nullptr, nullptr) == KVRUN_OK);
		kvrun_engine_free(e);
		kvrun_session_free(s);
		if (i == 99) early = resident();
	}
	CHECK(resident() < early + (8 << 20));
}
