// Speculation through the C API: the same answers with fewer steps, a draft model, refused requests.
#include "objects.h"
#include <algorithm>
#include <limits>

using namespace api;

namespace {

struct Answered {
	Told told;
	kvrun_generate_result result = KVRUN_GENERATE_RESULT_INIT;
	kvrun_status status = KVRUN_OK;
};

Answered answer(const Session& s, const char* prompt, uint32_t draft_max, double temperature = 0, int stop_after = -1) {
	Answered a;
	a.told.stop_after = stop_after;
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.max_tokens = 60, o.temperature = temperature, o.seed = 4, o.ignore_eos = 1, o.draft_max = draft_max;
	o.on_token = on_token, o.payload = &a.told;
	a.status = kvrun_generate_text(s.h, prompt, &o, &a.result);
	return a;
}

const char* const kRepeats = "Lily was happy. Lily was happy. Lily was happy. Lily was";

} // namespace

TEST_CASE("api: answers with drafts are those without, and say how many drafts they took") {
	const Engine e;
	for (const char* kv : {"fp16", "kivi2,recent_keep=8,flush=32", "turbo3/2", "zipcache,flush=25"})
		for (const double temperature : {0.0, 0.7}) {
			CAPTURE(std::string(kv));
			const Session plain(e, kv), fast(e, kv);
			const Answered want = answer(plain, kRepeats, 0, temperature), got = answer(fast, kRepeats, 5, temperature);
			REQUIRE(want.status == KVRUN_OK);
			REQUIRE(got.status == KVRUN_OK);
			CHECK(got.told.tokens == want.told.tokens);
			CHECK(got.told.text == want.told.text);
			CHECK(fast.n_tokens() == plain.n_tokens());
			CHECK(want.result.drafted == 0);
			CHECK(got.result.drafts_accepted <= got.result.drafted);
			if (temperature == 0) CHECK(got.result.drafts_accepted > 0);
		}
}

TEST_CASE("api: an answer that a callback stops behind an accepted draft goes on from where the session is") {
	const Engine e;
	const Session s(e);
	const Answered stopped = answer(s, kRepeats, 5, 0, 7);
	CHECK(stopped.status == KVRUN_EUSER);
	CHECK(stopped.told.tokens.size() == 7);
	CHECK(answer(s, " and", 5).status == KVRUN_OK);
}

TEST_CASE("api: a draft model of the same vocabulary drafts, another one is refused") {
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = device();
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = kModel.c_str(), o.device = &d;
	o.draft_model = kTiny.c_str();
	kvrun_engine* h = nullptr;
	CHECK(kvrun_engine_open(&h, &o) == KVRUN_EINVALID);
	CHECK_MESSAGE(said("a draft model needs the vocabulary"), error());
	o.draft_model = "/nowhere.gguf";
	CHECK(kvrun_engine_open(&h, &o) == KVRUN_ENOTFOUND);
	o.draft_model = kModel.c_str();
	REQUIRE(kvrun_engine_open(&h, &o) == KVRUN_OK);
	const Engine e;
	const Session plain(e);
	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.ctx = 512;
	const Answered want = answer(plain, "Once upon a time", 0);
	kvrun_session* session = nullptr;
	REQUIRE(kvrun_session_open(&session, h, &so) == KVRUN_OK);
	Told told;
	kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
	g.max_tokens = 60, g.temperature = 0, g.ignore_eos = 1, g.draft_max = 4, g.on_token = on_token, g.payload = &told;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	CHECK(kvrun_generate_text(session, "Once upon a time", &g, &r) == KVRUN_OK);
	CHECK(told.tokens == want.told.tokens);
	CHECK(r.drafted > 20);
	CHECK(r.drafts_accepted == r.drafted); // the model drafts for itself
	kvrun_session_free(session);
	kvrun_engine_free(h);
}

TEST_CASE("api: adapters change the answer; a file that is none, and a bad scale, are refused") {
	const std::string model = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama.gguf",
	                  adapter = KVRUN_SOURCE_DIR "/tests/golden/lora/llama.gguf";
	const auto tokens = [&](const char* loras, std::vector<float> scales = {}) {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = device();
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = model.c_str(), o.device = &d, o.loras = loras;
		kvrun_engine* h = nullptr;
		const kvrun_status opened = kvrun_engine_open(&h, &o);
		std::vector<uint32_t> out = {uint32_t(opened)};
		if (opened != KVRUN_OK) return out;
		if (!scales.empty()) {
			CHECK(kvrun_engine_set_lora_scales(h, scales.data(), scales.size() + 1) == KVRUN_EINVALID);
			CHECK_MESSAGE(said("scales for"), error());
			CHECK(kvrun_engine_set_lora_scales(h, nullptr, scales.size()) == KVRUN_EINVALID);
			CHECK(kvrun_engine_set_lora_scales(nullptr, scales.data(), scales.size()) == KVRUN_EINVALID);
			CHECK(kvrun_engine_set_lora_scales(h, scales.data(), scales.size()) == KVRUN_OK);
		}
		kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
		so.ctx = 64;
		kvrun_session* session = nullptr;
		REQUIRE(kvrun_session_open(&session, h, &so) == KVRUN_OK);
		Told told;
		kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
		g.max_tokens = 12, g.temperature = 0, g.ignore_eos = 1, g.on_token = on_token, g.payload = &told;
		CHECK(kvrun_generate_text(session, "a b c", &g, nullptr) == KVRUN_OK);
		kvrun_session_free(session);
		kvrun_engine_free(h);
		out.insert(out.end(), told.tokens.begin(), told.tokens.end());
		return out;
	};
	const std::vector<uint32_t> plain = tokens(nullptr), with = tokens(adapter.c_str());
	CHECK(plain.size() == 13);
	CHECK(with.size() == 13);
	CHECK(with != plain);
	CHECK(tokens("") == plain);
	CHECK(tokens((adapter + ":0").c_str()) == plain);
	CHECK(tokens((adapter + ":0.5," + adapter + ":0.5").c_str()) == with);
	CHECK(tokens((adapter + ":0").c_str(), {1}) == with);
	CHECK(tokens((adapter + ":3," + adapter).c_str(), {1, 0}) == with);
	CHECK(tokens(adapter.c_str(), {0}) == plain);
	CHECK(tokens(model.c_str()) == std::vector<uint32_t>{uint32_t(KVRUN_EUNSUPPORTED)});
	CHECK_MESSAGE(said("is no adapter"), error());
	CHECK(tokens((adapter + ":inf").c_str()) == std::vector<uint32_t>{uint32_t(KVRUN_EINVALID)});
	CHECK(tokens("/nowhere.gguf") == std::vector<uint32_t>{uint32_t(KVRUN_ENOTFOUND)});
}

// golden/vision/text.gguf with an encoder of golden, or none.
static kvrun_status open_with(kvrun_engine** h, const std::string& encoder) {
	const std::string golden = KVRUN_SOURCE_DIR "/tests/golden/", model = golden + "vision/text.gguf",
	                  mmproj = golden + encoder;
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = device();
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = model.c_str(), o.device = &d, o.mmproj = encoder.empty() ? nullptr : mmproj.c_str();
	return kvrun_engine_open(h, &o);
}

TEST_CASE("api: images, as tokens of prompts and as parts of messages") {
	kvrun_engine* h = nullptr;
	REQUIRE_MESSAGE(open_with(&h, "vision/mlp.gguf") == KVRUN_OK, error());
	kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
	CHECK(kvrun_engine_get_info(h, &info) == KVRUN_OK);
	CHECK(info.reads_images == 1);
	std::vector<uint8_t> rgb(20 * 10 * 3, 77);
	uint64_t id = 0, same = 0;
	CHECK(kvrun_image_add(h, rgb.data(), 20, 10, &id) == KVRUN_OK);
	CHECK(kvrun_image_add(h, rgb.data(), 20, 10, &same) == KVRUN_OK);
	CHECK(id == same);
	CHECK(kvrun_image_add(h, rgb.data(), 10, 20, &same) == KVRUN_OK);
	CHECK(id != same);
	uint32_t rows[16] = {};
	size_t n = 0;
	CHECK(kvrun_image_tokens(h, id, rows, 8, &n) == KVRUN_EBUFFER);
	CHECK(n == 16);
	CHECK(kvrun_image_tokens(h, id, rows, 16, &n) == KVRUN_OK);
	for (const uint32_t t : rows) CHECK((t >= KVRUN_FIRST_IMAGE_ROW && t != KVRUN_NO_TOKEN));
	char text[8] = "x";
	CHECK(kvrun_detokenize(h, rows, 16, 0, text, sizeof text, &n) == KVRUN_OK);
	CHECK(n == 0);

	char messages[200];
	std::snprintf(messages, sizeof messages,
	              "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"id\":\"%016llx\"},"
	              "{\"type\":\"text\",\"text\":\"ab\"}]}]",
	              (unsigned long long)id);
	kvrun_chat_options c = KVRUN_CHAT_OPTIONS_INIT;
	c.messages_json = messages, c.template_name = "chatml";
	uint32_t chat[256] = {};
	REQUIRE_MESSAGE(kvrun_chat_tokens(h, &c, chat, 256, &n) == KVRUN_OK, error());
	CHECK(std::search(chat, chat + n, rows, rows + 16) != chat + n);
	char shown[200];
	CHECK(kvrun_chat_text(h, &c, shown, sizeof shown, &n) == KVRUN_OK);
	CHECK_MESSAGE(std::strstr(shown, "[image]ab"), shown);
	c.messages_json = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"id\":\"xyz\"}]}]";
	CHECK(kvrun_chat_tokens(h, &c, chat, 256, &n) == KVRUN_EINVALID);
	c.messages_json = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"id\":\"0123456789abcdef\"}]}]";
	CHECK(kvrun_chat_tokens(h, &c, chat, 256, &n) == KVRUN_ENOTFOUND);

	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.ctx = 64;
	kvrun_session* session = nullptr;
	REQUIRE(kvrun_session_open(&session, h, &so) == KVRUN_OK);
	kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	g.max_tokens = 4, g.temperature = 0, g.ignore_eos = 1, g.draft_max = 3;
	CHECK_MESSAGE(kvrun_generate(session, rows, 16, &g, &r) == KVRUN_OK, error());
	CHECK(r.prompt_tokens == 16);
	uint32_t row = 0x80000000u;
	CHECK(kvrun_prefill(session, &row, 1, nullptr, nullptr) == KVRUN_ENOTFOUND);
	CHECK(kvrun_image_add(h, rgb.data(), 0, 10, &id) == KVRUN_EINVALID);
	CHECK(kvrun_image_add(h, nullptr, 1, 1, &id) == KVRUN_EINVALID);
	kvrun_session_free(session);
	kvrun_engine_free(h);

	REQUIRE(open_with(&h, "") == KVRUN_OK);
	CHECK(kvrun_image_add(h, rgb.data(), 20, 10, &id) == KVRUN_EUNSUPPORTED);
	CHECK_MESSAGE(said("vision encoder"), error());
	kvrun_engine_free(h);
	CHECK(open_with(&h, "vision/text.gguf") == KVRUN_EUNSUPPORTED);
	CHECK_MESSAGE(said("is no vision encoder"), error());
}

TEST_CASE("api: MiniCPM-V's images are counted in a conversation") {
	kvrun_engine* h = nullptr;
	REQUIRE_MESSAGE(open_with(&h, "vision/minicpmv4_6.gguf") == KVRUN_OK, error());
	const std::vector<uint8_t> rgb(16 * 16 * 3, 77);
	uint64_t id = 0;
	REQUIRE(kvrun_image_add(h, rgb.data(), 16, 16, &id) == KVRUN_OK);
	char image[64], messages[300];
	std::snprintf(image, sizeof image, "{\"type\":\"image\",\"id\":\"%016llx\"}", (unsigned long long)id);
	std::snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":[%s,%s]}]", image, image);
	kvrun_chat_options c = KVRUN_CHAT_OPTIONS_INIT;
	c.messages_json = messages, c.template_name = "chatml";
	uint32_t tokens[256] = {};
	char text[400];
	const auto count = [&](const std::string& part) {
		const std::string all = text;
		int n = 0;
		for (size_t at = all.find(part); at != all.npos; at = all.find(part, at + 1)) ++n;
		return n;
	};
	size_t n = 0;
	REQUIRE_MESSAGE(kvrun_chat_tokens(h, &c, tokens, 256, &n) == KVRUN_OK, error());
	REQUIRE(kvrun_detokenize(h, tokens, n, KVRUN_TOKENS_SPECIAL, text, sizeof text, &n) == KVRUN_OK);
	CHECK_MESSAGE(count("<image></image>") == 2, text);
	CHECK_MESSAGE(count("0</image_id>") == 1, text);
	CHECK_MESSAGE(count("1</image_id>") == 1, text);
	REQUIRE(kvrun_image_tokens(h, id, tokens, 256, &n) == KVRUN_OK);
	REQUIRE(kvrun_detokenize(h, tokens, n, KVRUN_TOKENS_SPECIAL, text, sizeof text, &n) == KVRUN_OK);
	CHECK_MESSAGE(count("0</image_id>") == 1, text);
	kvrun_engine_free(h);
}

TEST_CASE("api: sounds, as tokens of prompts and as parts of messages") {
	kvrun_engine* h = nullptr;
	REQUIRE_MESSAGE(open_with(&h, "audio/qwen2a.gguf") == KVRUN_OK, error());
	kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
	CHECK(kvrun_engine_get_info(h, &info) == KVRUN_OK);
	CHECK(info.audio_rate == 16000);
	CHECK(info.reads_images == 0);
	std::vector<float> samples(8000);
	for (size_t i = 0; i < samples.size(); ++i) samples[i] = float(i % 50) / 50 - 0.5f;
	uint64_t id = 0, same = 0;
	REQUIRE_MESSAGE(kvrun_audio_add(h, samples.data(), samples.size(), &id) == KVRUN_OK, error());
	CHECK(kvrun_audio_add(h, samples.data(), samples.size(), &same) == KVRUN_OK);
	CHECK(id == same);
	CHECK(kvrun_audio_add(h, samples.data(), samples.size() - 1, &same) == KVRUN_OK);
	CHECK(id != same);
	size_t n = 0;
	CHECK(kvrun_image_tokens(h, id, nullptr, 0, &n) == KVRUN_EBUFFER);
	std::vector<uint32_t> rows(n);
	CHECK(kvrun_image_tokens(h, id, rows.data(), n, &n) == KVRUN_OK);
	CHECK(std::count_if(rows.begin(), rows.end(), [](uint32_t t) { return t >= KVRUN_FIRST_IMAGE_ROW; }) > 5);

	char messages[200];
	std::snprintf(messages, sizeof messages,
	              "[{\"role\":\"user\",\"content\":[{\"type\":\"audio\",\"id\":\"%016llx\"},"
	              "{\"type\":\"text\",\"text\":\"ab\"}]}]",
	              (unsigned long long)id);
	kvrun_chat_options c = KVRUN_CHAT_OPTIONS_INIT;
	c.messages_json = messages, c.template_name = "chatml";
	std::vector<uint32_t> chat(1024);
	REQUIRE_MESSAGE(kvrun_chat_tokens(h, &c, chat.data(), chat.size(), &n) == KVRUN_OK, error());
	CHECK(std::search(chat.data(), chat.data() + n, rows.begin(), rows.end()) != chat.data() + n);
	char shown[200];
	CHECK(kvrun_chat_text(h, &c, shown, sizeof shown, &n) == KVRUN_OK);
	CHECK_MESSAGE(std::strstr(shown, "[audio]ab"), shown);

	kvrun_session* session = nullptr;
	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.ctx = 256;
	REQUIRE(kvrun_session_open(&session, h, &so) == KVRUN_OK);
	kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	g.max_tokens = 4, g.temperature = 0, g.ignore_eos = 1;
	CHECK_MESSAGE(kvrun_generate(session, rows.data(), rows.size(), &g, &r) == KVRUN_OK, error());
	CHECK(r.prompt_tokens == rows.size());
	kvrun_session_free(session);
	CHECK(kvrun_audio_add(h, nullptr, 5, &id) == KVRUN_EINVALID);
	CHECK(kvrun_audio_add(h, samples.data(), 0, &id) == KVRUN_EINVALID);
	CHECK_MESSAGE(said("too short"), error());
	samples[7] = std::numeric_limits<float>::infinity();
	CHECK(kvrun_audio_add(h, samples.data(), samples.size(), &id) == KVRUN_EINVALID);
	CHECK_MESSAGE(said("not finite"), error());
	samples[7] = 0;
	const uint8_t pixel[3] = {};
	CHECK(kvrun_image_add(h, pixel, 1, 1, &id) == KVRUN_EUNSUPPORTED);
	kvrun_engine_free(h);
	REQUIRE(open_with(&h, "vision/mlp.gguf") == KVRUN_OK);
	CHECK(kvrun_audio_add(h, samples.data(), samples.size(), &id) == KVRUN_EUNSUPPORTED);
	CHECK_MESSAGE(said("audio encoder"), error());
	kvrun_engine_free(h);
}

TEST_CASE("api: a model's own prediction layer drafts, and a file without one is refused") {
	const std::string right = KVRUN_SOURCE_DIR "/tests/golden/prediction/right.gguf";
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = device();
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = kModel.c_str(), o.device = &d, o.draft_model = KVRUN_DRAFT_MTP;
	kvrun_engine* h = nullptr;
	CHECK(kvrun_engine_open(&h, &o) == KVRUN_EUNSUPPORTED);
	CHECK_MESSAGE(said("prediction layers"), error());
	o.model_path = right.c_str();
	REQUIRE(kvrun_engine_open(&h, &o) == KVRUN_OK);
	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.ctx = 256;
	kvrun_session* session = nullptr;
	REQUIRE(kvrun_session_open(&session, h, &so) == KVRUN_OK);
	const Engine e(right);
	const Session plain(e, nullptr, 256);
	for (int turn = 0; turn < 2; ++turn) { // the second one goes on
		Told want, got;
		kvrun_generate_options g = KVRUN_GENERATE_OPTIONS_INIT;
		g.max_tokens = 40, g.temperature = 0, g.ignore_eos = 1, g.on_token = on_token, g.payload = &want;
		REQUIRE(kvrun_generate_text(plain.h, "a b c", &g, nullptr) == KVRUN_OK);
		g.draft_max = 4, g.payload = &got;
		kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
		CHECK(kvrun_generate_text(session, "a b c", &g, &r) == KVRUN_OK);
		CHECK(got.tokens == want.tokens);
		CHECK(r.drafted > 20);
		CHECK(r.drafts_accepted == r.drafted);
	}
	kvrun_session_free(session);
	kvrun_engine_free(h);
}

TEST_CASE("api: a session that can take nothing back says so, and refuses drafts") {
	const Engine e(kTiny);
	const Session takes(e, "kivi2,recent_keep=8,flush=32", 100), none(e, "h2o,recent_keep=8,flush=16,budget=24", 100);
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	REQUIRE(kvrun_session_get_info(takes.h, &i) == KVRUN_OK);
	CHECK(i.takes_drafts == 1);
	REQUIRE(kvrun_session_get_info(none.h, &i) == KVRUN_OK);
	CHECK(i.takes_drafts == 0);
	CHECK(answer(none, "a", 4).status == KVRUN_EUNSUPPORTED);
	CHECK_MESSAGE(said("every row's attention"), error());
	CHECK(answer(none, "a", 0).status == KVRUN_OK);
}
