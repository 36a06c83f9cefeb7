// libkvrun as an application uses it: devices, plans, models, chat templates, handles, misuse. Only kvrun.h is
// included, and only the shared library is linked.
#include "objects.h"

#include "../support/sanitizer.h"
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>
#ifdef _WIN32
#include <windows.h>

#include <psapi.h>
#endif

using namespace api;

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

TEST_CASE("api: policies are listed, and each can be planned with") {
	REQUIRE(kvrun_policy_count() > 5);
	kvrun_policy_info i = KVRUN_POLICY_INFO_INIT;
	bool packed = false;
	for (size_t k = 0; k < kvrun_policy_count(); ++k) {
		REQUIRE(kvrun_policy_get(k, &i) == KVRUN_OK);
		CHECK(std::string(i.summary) != "");
		packed |= std::string(i.name) == "kivi2" && std::string(i.source) != "";
		kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
		o.model_path = kModel.c_str();
		o.kv = i.name;
		o.memory_bytes = 64 << 20;
		kvrun_plan p = KVRUN_PLAN_INIT;
		CHECK_MESSAGE(kvrun_plan_memory(&p, &o) == KVRUN_OK, i.name, ": ", error());
	}
	CHECK(packed);
	CHECK(kvrun_policy_get(kvrun_policy_count(), &i) == KVRUN_EINVALID);
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

TEST_CASE("api: a cache has room in the bytes that its plan names") {
	constexpr uint32_t kCtx = 400;
	for (const char* kv : {"fp16", "kivi2", "turbo2", "zipcache", "h2o", "logquant", "mikv"}) {
		CAPTURE(kv);
		kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
		o.model_path = kModel.c_str();
		o.kv = kv, o.ctx = kCtx, o.memory_bytes = 64 << 20;
		kvrun_plan p = KVRUN_PLAN_INIT;
		REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
		const Engine e(kModel, p.kv_bytes);
		const Session s(e, kv, kCtx);
		const std::vector<uint32_t> prompt(kCtx / 2, 5);
		REQUIRE_MESSAGE(kvrun_prefill(s.h, prompt.data(), prompt.size(), nullptr, nullptr) == KVRUN_OK, error());
		kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
		REQUIRE(kvrun_engine_get_info(e.h, &info) == KVRUN_OK);
		std::vector<float> logits(info.vocab);
		while (s.n_tokens() < kCtx)
			REQUIRE_MESSAGE(kvrun_decode(&s.h, prompt.data(), 1, logits.data(), nullptr) == KVRUN_OK, error());
		// What the plan says of fitting goes by the same bytes.
		for (const int more : {-1, 0}) {
			o.memory_bytes = p.memory_bytes - p.cache_bytes + p.kv_bytes + more;
			kvrun_plan q = KVRUN_PLAN_INIT;
			REQUIRE(kvrun_plan_memory(&q, &o) == KVRUN_OK);
			CHECK(q.fits == (q.cache_bytes >= q.kv_bytes));
			CHECK((q.fits == 1) == (q.most_tokens >= kCtx));
		}
	}
}

TEST_CASE("api: a model without a cache fits only where its weights do") {
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = "synth:falcon-mamba-7b:q4_k";
	o.ctx = 4096;
	o.memory_bytes = uint64_t(1) << 30;
	kvrun_plan p = KVRUN_PLAN_INIT;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.weight_bytes > o.memory_bytes);
	CHECK(p.fits == 0);
	CHECK(p.most_tokens == 0);
	CHECK(p.cache_bytes == 0);
	o.memory_bytes = uint64_t(8) << 30;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.fits == 1);
	CHECK(p.most_tokens == p.ctx_train);
	CHECK(p.kv_f16_bytes == 0);
	CHECK(p.kv_bytes > 0); // its states
	CHECK(p.kv_bytes <= p.cache_bytes);
}

TEST_CASE("api: a plan with weights in host memory") {
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = "synth:qwen3-30b-a3b:q4_k";
	o.ctx = 16384;
	o.memory_bytes = uint64_t(8) << 30;
	kvrun_plan p = KVRUN_PLAN_INIT;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK); // nothing says that this device reads host memory
	CHECK(p.fits == 0);
	CHECK(p.host_weight_bytes == 0);
	CHECK(p.host_token_bytes == 0);
	const uint64_t all = p.weight_bytes;
	CHECK(all > o.memory_bytes);

	kvrun_weight_options w = KVRUN_WEIGHT_OPTIONS_INIT;
	o.weights = &w;
	REQUIRE_MESSAGE(kvrun_plan_memory(&p, &o) == KVRUN_OK, error());
	CHECK(p.fits == 1);
	CHECK(p.most_tokens >= o.ctx);
	CHECK(p.weight_bytes < o.memory_bytes);
	CHECK(p.host_weight_bytes > all / 4);
	CHECK(p.host_token_bytes > 0);
	CHECK(p.host_token_bytes < p.host_weight_bytes / 8); // a token reads 8 of 128 experts
	const uint64_t f16_host = p.host_weight_bytes;
	o.kv = "kivi2"; // a smaller cache leaves room for weights
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.host_weight_bytes < f16_host);

	w.cpu_moe_layers = 48;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.host_weight_bytes > f16_host);
	w.budget_bytes = 1000;
	CHECK(kvrun_plan_memory(&p, &o) == KVRUN_EINVALID);
	w.budget_bytes = 0, w.cpu_moe_layers = 0, w.no_fit = 1;
	REQUIRE(kvrun_plan_memory(&p, &o) == KVRUN_OK);
	CHECK(p.host_weight_bytes == 0);
	CHECK(p.fits == 0);
}

TEST_CASE("api: the model, its metadata and its tokens") {
	Engine e;
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &i) == KVRUN_OK);
	CHECK(std::string(i.architecture) == "llama");
	CHECK(i.vocab > 100);
	CHECK(i.n_layers == 4);
	CHECK(i.weight_bytes > 1 << 20);
	CHECK(i.n_params > i.vocab * i.dim);
	CHECK(i.tensor_bytes >= 2 * i.n_params); // f16, and some f32
	CHECK(i.tensor_bytes < 3 * i.n_params);
	kvrun_engine_info older = KVRUN_ENGINE_INFO_INIT; // of a program that does not know them
	older.struct_size = offsetof(kvrun_engine_info, n_params), older.n_params = 7;
	REQUIRE(kvrun_engine_get_info(e.h, &older) == KVRUN_OK);
	CHECK(older.n_params == 7);
	CHECK(older.vocab == i.vocab);
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
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EINVALID); // both are given
	o.messages = nullptr;
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EINVALID);
	CHECK(said("messages_json is not JSON"));
	o.messages_json = "[{\"role\": \"user\", \"content\": \"x\"}]";
	REQUIRE(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_OK);
	CHECK(std::string(text, n) == "[user] x");
	o.no_answer = 2; // the answer continues the last message
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EINVALID);
	CHECK(said("is not a text of the assistant"));
	o.messages_json = R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is "}])";
	o.template_text = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}.{% endfor %}";
	REQUIRE(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_OK);
	CHECK(std::string(text, n) == "[user] x.[assistant] It is ");
	o.template_text = "{% for m in messages %}[{{ m.role }}]{% endfor %}";
	CHECK(kvrun_chat_text(e.h, &o, text, sizeof text, &n) == KVRUN_EUNSUPPORTED);
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
	kvrun_chat_options chatml = KVRUN_CHAT_OPTIONS_INIT;
	chatml.messages_json = o.messages_json, chatml.tools_json = o.tools_json, chatml.template_name = "chatml";
	kvrun_chat_features written = KVRUN_CHAT_FEATURES_INIT;
	REQUIRE(kvrun_chat_get_features(e.h, &chatml, &written) == KVRUN_OK);
	CHECK(written.tools == 2);
	char prompt[2000];
	REQUIRE(kvrun_chat_text(e.h, &chatml, prompt, sizeof prompt, &n) == KVRUN_OK);
	CHECK(std::string(prompt, n).find("\"name\": \"weather\"") != std::string::npos);
	CHECK(f.special_markers == 0);
	kvrun_reply* r = nullptr;
	REQUIRE(kvrun_reply_new(&r, e.h, &o) == KVRUN_OK);
	std::string content, reasoning, calls, deltas;
	const std::string text =
	    "<think>well</think>Let me see.<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
	kvrun_reply_part p = KVRUN_REPLY_PART_INIT;
	const auto note = [&] {
		content += p.content, reasoning += p.reasoning, calls += p.calls, deltas += p.call_deltas;
	};
	for (const char c : text) {
		REQUIRE(kvrun_reply_push(r, &c, 1, &p) == KVRUN_OK);
		note();
	}
	REQUIRE(kvrun_reply_finish(r, &p) == KVRUN_OK);
	note();
	CHECK(content == "Let me see.");
	CHECK(reasoning == "well");
	CHECK(calls.find("\"name\":\"weather\"") != std::string::npos);
	std::erase(deltas, '['), std::erase(deltas, ']');
	CHECK(deltas.starts_with(R"({"index":0,"id":"call)"));
	CHECK(deltas.find(R"("function":{"name":"weather","arguments":"{)") != std::string::npos);
	kvrun_reply_free(r);
	CHECK(kvrun_reply_finish(r, &p) == KVRUN_EINVALID);
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
		CHECK(said("struct_size is " + std::to_string(size) + ", expected " + std::to_string(sizeof o) + " ("));
	}
	o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = kModel.c_str();
	for (const uint32_t rows : {0u, 65537u}) {
		o.ubatch = rows;
		CHECK(kvrun_engine_open(&e, &o) == KVRUN_EINVALID);
		CHECK(said("expected 1 to 65536"));
	}
	struct {
		kvrun_engine_options o;
		uint64_t newer;
	} bigger = {KVRUN_ENGINE_OPTIONS_INIT, 0};
	bigger.o.struct_size = sizeof bigger;
	bigger.o.model_path = "/nowhere.gguf";
	CHECK(kvrun_engine_open(&e, &bigger.o) == KVRUN_ENOTFOUND); // a field that this library does not know, zero
	bigger.newer = 1;
	CHECK(kvrun_engine_open(&e, &bigger.o) == KVRUN_EUNSUPPORTED);
	CHECK(e == nullptr);
	kvrun_session* s = nullptr;
	CHECK(kvrun_session_open(&s, nullptr, nullptr) == KVRUN_EINVALID);
	CHECK(kvrun_session_open(&s, reinterpret_cast<kvrun_engine*>(uintptr_t(0x1234567)), nullptr) == KVRUN_EINVALID);
	s = reinterpret_cast<kvrun_session*>(uintptr_t(8));
	CHECK(kvrun_session_fork(&s, nullptr) == KVRUN_EINVALID);
	CHECK(s == nullptr);
	kvrun_session_free(nullptr);
	kvrun_engine_free(nullptr);
	kvrun_batch_free(nullptr);
	kvrun_devices_free(nullptr);
	kvrun_session* stale = nullptr;
	{
		Engine engine;
		Session session(engine);
		CHECK(kvrun_session_open(&s, reinterpret_cast<kvrun_engine*>(session.h), nullptr) ==
		      KVRUN_EINVALID); // a session handle
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
	CHECK(kvrun_generate_text(s.h, "The", &o, nullptr) == KVRUN_OK); // its engine lives as long as the session
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
	o.ctx = 100000; // longer than the model's training context
	kvrun_session* s = nullptr;
	REQUIRE(kvrun_session_open(&s, e.h, &o) == KVRUN_OK);
	kvrun_session_free(s);
	REQUIRE(kvrun_set_log(nullptr, 0, nullptr) == KVRUN_OK);
	CHECK(!lines.empty());
}

// The memory of the process after many engines is the same as after a few.
TEST_CASE("T81 api: 1000 engines and sessions opened and closed leave nothing behind") {
	const auto resident = [] {
#ifdef _WIN32
		PROCESS_MEMORY_COUNTERS m{};
		REQUIRE(K32GetProcessMemoryInfo(GetCurrentProcess(), &m, sizeof m));
		return size_t(m.WorkingSetSize);
#else
		std::ifstream f("/proc/self/statm");
		size_t pages = 0, r = 0;
		f >> pages >> r;
		return r * size_t(sysconf(_SC_PAGESIZE));
#endif
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
#ifdef KVRUN_TEST_ASAN
	MESSAGE("AddressSanitizer keeps freed memory: ", resident(), " bytes, ", early, " after 100 engines");
#else
	CHECK(resident() < early + (8 << 20));
#endif
}
