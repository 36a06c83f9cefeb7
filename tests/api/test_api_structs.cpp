// Functions that initialise structs of the C API, and the targets of log lines.
#include "objects.h"

#include <algorithm>
#include <cstddef>
#include <doctest/doctest.h>

using namespace api;

// The function gives the same as the macro, within the caller's size, and writes no byte more.
template <class S> static void check_init(const S& macro, void (*init)(S*, size_t)) {
	struct Guarded {
		S s;
		unsigned char behind[16];
	} g;
	const auto byte = [&](size_t i) { return reinterpret_cast<const unsigned char*>(&g)[i]; };
	std::memset(&g, 0xcc, sizeof g);
	init(&g.s, sizeof(S));
	CHECK(g.s.struct_size == macro.struct_size);
	CHECK(std::memcmp(&g.s, &macro, sizeof(S)) == 0);
	CHECK(byte(sizeof(S)) == 0xcc);
	std::memset(&g, 0xcc, sizeof g);
	init(&g.s, sizeof(S) - 4); // a program built with an older header
	CHECK(g.s.struct_size == sizeof(S) - 4);
	CHECK(byte(sizeof(S) - 4) == 0xcc);
	std::memset(&g, 0xcc, sizeof g);
	init(&g.s, sizeof(S) + 8); // and with a newer one
	CHECK(g.s.struct_size == sizeof(S) + 8);
	CHECK(byte(sizeof(S)) == 0);
	CHECK(byte(sizeof(S) + 7) == 0);
	CHECK(byte(sizeof(S) + 8) == 0xcc);
	init(nullptr, sizeof(S));
}

// In static memory, so that the bytes between fields are zero.
#define CHECK_INIT(type, defaults)                                                                                     \
	do {                                                                                                               \
		static constexpr type macro = defaults;                                                                        \
		check_init<type>(macro, type##_init);                                                                          \
	} while (false)

TEST_CASE("api: _init functions give what the _INIT macros give") {
	CHECK_INIT(kvrun_device_options, KVRUN_DEVICE_OPTIONS_INIT);
	CHECK_INIT(kvrun_device_info, KVRUN_DEVICE_INFO_INIT);
	CHECK_INIT(kvrun_engine_options, KVRUN_ENGINE_OPTIONS_INIT);
	CHECK_INIT(kvrun_engine_info, KVRUN_ENGINE_INFO_INIT);
	CHECK_INIT(kvrun_host_memory_options, KVRUN_HOST_MEMORY_OPTIONS_INIT);
	CHECK_INIT(kvrun_chat_options, KVRUN_CHAT_OPTIONS_INIT);
	CHECK_INIT(kvrun_chat_features, KVRUN_CHAT_FEATURES_INIT);
	CHECK_INIT(kvrun_reply_part, KVRUN_REPLY_PART_INIT);
	CHECK_INIT(kvrun_policy_info, KVRUN_POLICY_INFO_INIT);
	CHECK_INIT(kvrun_session_options, KVRUN_SESSION_OPTIONS_INIT);
	CHECK_INIT(kvrun_session_info, KVRUN_SESSION_INFO_INIT);
	CHECK_INIT(kvrun_fetch_info, KVRUN_FETCH_INFO_INIT);
	CHECK_INIT(kvrun_restore_options, KVRUN_RESTORE_OPTIONS_INIT);
	CHECK_INIT(kvrun_grammar_options, KVRUN_GRAMMAR_OPTIONS_INIT);
	CHECK_INIT(kvrun_generate_options, KVRUN_GENERATE_OPTIONS_INIT);
	CHECK_INIT(kvrun_generate_result, KVRUN_GENERATE_RESULT_INIT);
	CHECK_INIT(kvrun_plan_options, KVRUN_PLAN_OPTIONS_INIT);
	CHECK_INIT(kvrun_plan, KVRUN_PLAN_INIT);
}

TEST_CASE("api: contexts that session files cannot have are refused") {
	constexpr uint32_t kMost = 16777216;
	const Engine e(kTiny);
	for (const uint32_t ctx : {kMost + 1, UINT32_MAX}) {
		CAPTURE(ctx);
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.ctx = ctx;
		kvrun_session* s = nullptr;
		CHECK(kvrun_session_open(&s, e.h, &so) == KVRUN_EINVALID);
		CHECK(s == nullptr);
		CHECK(error() == "ctx is " + std::to_string(ctx) + ", expected 0 to 16777216");
		kvrun_plan_options po = KVRUN_PLAN_OPTIONS_INIT;
		po.model_path = kTiny.c_str(), po.memory_bytes = 64 << 20, po.ctx = ctx;
		kvrun_plan p = KVRUN_PLAN_INIT;
		CHECK(kvrun_plan_memory(&p, &po) == KVRUN_EINVALID);
		CHECK(said("16777216"));
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = device();
		kvrun_weight_options w = KVRUN_WEIGHT_OPTIONS_INIT;
		w.ctx = ctx;
		kvrun_engine_options eo = KVRUN_ENGINE_OPTIONS_INIT;
		eo.model_path = kTiny.c_str(), eo.device = &d, eo.weights = &w;
		kvrun_engine* other = nullptr;
		CHECK(kvrun_engine_open(&other, &eo) == KVRUN_EINVALID);
		CHECK(said("16777216"));
	}
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = kTiny.c_str(), o.memory_bytes = 64 << 20, o.ctx = kMost;
	kvrun_plan p = KVRUN_PLAN_INIT;
	CHECK_MESSAGE(kvrun_plan_memory(&p, &o) == KVRUN_OK, error());
	CHECK(p.kv_bytes >= kMost);
	for (const uint32_t ubatch : {0u, 65537u}) {
		o.ubatch = ubatch;
		CHECK(kvrun_plan_memory(&p, &o) == KVRUN_EINVALID);
		CHECK(said("ubatch is " + std::to_string(ubatch)));
	}
}

namespace {
struct Lines {
	std::vector<std::pair<int, std::string>> all;
	static void add(int level, const char* line, size_t length, void* payload) {
		CHECK(std::strlen(line) == length);
		static_cast<Lines*>(payload)->all.emplace_back(level, line);
	}
};

kvrun_engine* open(Lines* own, int level) {
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = device();
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = kModel.c_str();
	o.device = &d;
	if (own) o.log = Lines::add, o.log_level = level, o.log_payload = own;
	kvrun_engine* e = nullptr;
	REQUIRE(kvrun_engine_open(&e, &o) == KVRUN_OK);
	return e;
}

void answer(kvrun_engine* e) {
	kvrun_session* s = nullptr;
	REQUIRE(kvrun_session_open(&s, e, nullptr) == KVRUN_OK);
	kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
	g.max_tokens = 3;
	CHECK(kvrun_generate_text(s, "Once", &g, nullptr) == KVRUN_OK);
	kvrun_session_free(s);
}
} // namespace

TEST_CASE("api: an engine's log has the lines of that engine, the process's those of the others") {
	Lines process, a_lines, quiet;
	REQUIRE(kvrun_set_log(Lines::add, 3, &process) == KVRUN_OK);
	kvrun_engine* a = open(&a_lines, 3);
	kvrun_engine* b = open(&quiet, -1);
	CHECK(process.all.empty());
	const size_t loaded = a_lines.all.size();
	answer(a);
	CHECK(a_lines.all.size() > loaded);
	CHECK(std::ranges::all_of(a_lines.all, [](const auto& l) { return l.first <= 3; }));
	CHECK(process.all.empty());
	answer(b);
	CHECK(quiet.all.empty());
	CHECK(process.all.empty());
	const size_t before = a_lines.all.size();
	kvrun_engine* c = open(nullptr, 0);
	answer(c);
	CHECK(!process.all.empty());
	CHECK(a_lines.all.size() == before);
	for (kvrun_engine* e : {a, b, c}) kvrun_engine_free(e);
	REQUIRE(kvrun_set_log(nullptr, 0, nullptr) == KVRUN_OK);
}
