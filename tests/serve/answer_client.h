// A client that stores what it receives, the model whose answers it gets, and texts that the model might write.
#pragma once
#include "tools/serve/requests.h"
#include <doctest/doctest.h>

namespace kvrun::serve {

struct Client final : Responder {
	void respond(Response r) override { whole = Json::parse(r.body), status = r.status; }
	void begin(Response r) override { status = r.status; }
	void send(std::string piece) override { stream += piece; }
	void end() override { ended = true; }
	void note(std::string) override {}

	// Events of the stream: without names, the last one is [DONE]; or named, with the name repeated in the data.
	std::vector<Json> events(bool named = false) const {
		std::vector<Json> out;
		REQUIRE(ended);
		for (size_t at = 0; at < stream.size();) {
			const size_t end = stream.find("\n\n", at);
			REQUIRE(end != std::string::npos);
			const std::string event = stream.substr(at, end - at);
			at = end + 2;
			if (!named && at == stream.size()) {
				CHECK(event == "data: [DONE]");
				return out;
			}
			const size_t data = event.find("data: ");
			REQUIRE(data != std::string::npos);
			out.push_back(Json::parse(event.substr(data + 6)));
			CHECK(event.substr(0, data) ==
			      (named ? "event: " + out.back()["type"].get<std::string>() + "\n" : std::string()));
		}
		CHECK(named);
		return out;
	}
	int status = 0;
	Json whole;
	std::string stream;
	bool ended = false;
};

inline const Model& model() {
	static const Model m = [] {
		kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
		d.device = "cpu";
		kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
		o.model_path = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
		o.device = &d;
		kvrun_engine* engine = nullptr;
		REQUIRE(kvrun_engine_open(&engine, &o) == KVRUN_OK);
		return Model(EngineHandle(engine), "m", KVRUN_SOURCE_DIR "/tests/serve/tools.jinja");
	}();
	return m;
}

// Says the text, a byte at a time.
inline void say(Listener& a, const std::string& text, const Ended& how) {
	a.begin();
	for (const char c : text) a.piece({&c, 1});
	a.end(how);
}

// Rules under which unknown fields are refused.
inline Defaults strict() {
	Defaults d;
	d.strict = true;
	return d;
}

constexpr const char* kCall = "Let me see.<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

} // namespace kvrun::serve
