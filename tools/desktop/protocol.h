// Messages between window and engine thread: commands in, events out.
#pragma once
#include "tools/answer/sampling.h"
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace kvrun::desktop {

struct Sampling : kvrun::Sampling {
	int max_tokens = 0; // of an answer; 0: until the model ends it or the context is full
	int64_t seed = -1;  // -1: random
};

// ---- commands
struct Load { // a model, replacing the current one
	std::string model, device;
	uint64_t kv_budget = 0;    // bytes for the caches of all conversations; 0: the device's free memory
	std::string chat_template; // name, or path of a Jinja file; empty: the model's own
	std::string encoder;       // vision encoder; empty: that of the model's repository, if it has one
};
struct Answer {
	std::string conversation;
	int message = 0;      // the answer's number
	std::string messages; // JSON array, up to the question; the ids of images are paths of files
	std::string kv;       // policy
	uint32_t ctx = 0;     // tokens; 0: what fits
	Sampling sampling;
	uint64_t seed = 0;    // of this answer
	bool goes_on = false; // `messages` ends with its text so far
};
struct Stop { // an answer; its text so far is kept
	std::string conversation;
};
struct Forget { // the cache of a conversation
	std::string conversation;
};
struct Watch { // the layer and kv head whose tiers are reported
	uint32_t layer = 0, kv_head = 0;
};
struct Unload {}; // the model; its memory is free afterwards
using Command = std::variant<Load, Unload, Answer, Stop, Forget, Watch>;

// ---- events
struct Loading {
	double share = 0; // 0 .. 1
};
struct Loaded { // facts of the model and its device
	std::string model, name, architecture, device, driver, backend;
	uint32_t n_layers = 0, n_kv_heads = 0, ctx_train = 0;
	uint64_t weight_bytes = 0, activation_bytes = 0, kv_budget_bytes = 0;
	bool has_template = true;
	bool reads_images = false, reads_audio = false;
	std::string no_images;              // why the encoder is not used; empty: it is, or there is none
	std::vector<std::string> templates; // names of chat templates
};
struct LoadFailed {
	std::string text = {};
	std::string model = {}; // path of the model that failed
	std::string back = {};  // model that is in use again; empty: none
	bool kept = false;      // that model was not given up; false: it is loaded again now
	bool bad_file = false;  // the reason is in the model's file
};
struct Reading { // the prompt of an answer
	std::string conversation;
	int message = 0;
	double share = 0, seconds_left = 0;
};
struct Piece { // of an answer
	std::string conversation;
	int message = 0;
	std::string content, reasoning;
};
struct CacheView {
	std::vector<uint8_t> tiers; // kvrun_tier of each token, in the watched layer and head
	uint32_t ctx = 0;           // longest sequence
	uint64_t f16_bytes = 0, code_bytes = 0, param_bytes = 0, overhead_bytes = 0, f16_equivalent = 0;
	uint64_t total_bytes() const { return f16_bytes + code_bytes + param_bytes + overhead_bytes; }
};
struct Cache {
	std::string conversation;
	CacheView view;
};
struct Ended {
	std::string conversation;
	int message = 0;
	kvrun_stop_reason reason = KVRUN_STOP_END;
	uint32_t prompt_tokens = 0, reused_tokens = 0, answer_tokens = 0;
	double prefill_seconds = 0, decode_seconds = 0;
	std::string error;     // why it ended early; else empty
	bool no_model = false; // that is the reason
	kvrun_status status = KVRUN_OK;
};
using Event = std::variant<Loading, Loaded, LoadFailed, Reading, Piece, Cache, Ended>;

} // namespace kvrun::desktop
