// Options shared by several commands, with the engine or the C API: model and device, cache budget, sampling.
#pragma once
#include "models/vision.h"
#include "tools/answer/sampling.h"
#include "tools/args.h"
#include <optional>

namespace kvrun {

constexpr const char *kModelGroup = "Model and device", *kCacheGroup = "KV cache", *kSamplingGroup = "Sampling";

struct WeightArgs {         // which weights lie in host memory
	uint64_t budget = 0;    // most bytes of weights on the device; 0: no limit
	std::string gpu_layers; // a number, auto or all; empty: auto
	int64_t n_cpu_moe = 0;  // layers whose experts lie in host memory
	bool cpu_moe = false, fit = true, no_fit = false;
	double host_share = 0; // of all bytes in host memory, at least

	std::optional<uint32_t> layers() const; // layers that stay on the device; nullopt: all. Throws Error{Invalid}
	uint32_t moe_layers() const { return cpu_moe ? UINT32_MAX : uint32_t(n_cpu_moe); }
};

struct VisionArgs {     // the model's encoder of images or sounds
	std::string mmproj; // file; empty: none. Before the command runs: that of the model's repository, if any
	bool none = false;  // not even that
	int64_t least_tokens = 0, most_tokens = 0; // of an image; 0: the encoder's limits
	ImageRows rows() const { return {uint32_t(least_tokens), uint32_t(most_tokens)}; }
	bool read = false; // the command reads images: it has these options
};
struct MediaArgs {
	std::vector<std::string> images, sounds; // files
	bool empty() const { return images.empty() && sounds.empty(); }
};

struct ModelArgs {
	std::string model, device; // file; index or part of a name, several separated by commas, or empty for the best
	std::string split;         // layers of each device, or in proportion; empty: by speed and free memory
	int64_t ctx = 0;           // tokens; 0: the engine's choice
	int64_t ubatch = 512;      // prompt tokens that go through a layer together
	uint64_t kv_budget = 0;    // bytes; 0: the free device memory
	uint64_t host_budget = 0;  // bytes; 0: a quarter of the machine's memory
	std::string offload_dir;   // folder for data beyond host_budget; empty if none
	bool check = false;        // compare every op with the cpu backend
	VisionArgs vision;
	std::vector<std::string> loras; // adapters: FILE[:SCALE], or several separated by commas
	WeightArgs weights;

	// ubatch limited to the context, because no prompt is longer.
	uint32_t ubatch_within_ctx() const { return uint32_t(ctx ? std::min(ctx, ubatch) : ubatch); }
};

// The model as a file, a name from 'kvrun list', or with -hf one of the hub; `model` is the path of its file when the
// command runs.
Option* add_model(Command&, std::string& model, const char* group = kModelGroup, VisionArgs* = nullptr);
// Adds -hf and model names to an option that a command adds itself.
void add_hub(Command&, Option* option, std::string& model, VisionArgs* = nullptr);
void add_device(Command&, std::string& device);
void add_split(Command&, std::string& split);
// Model, device, context, ubatch and weight placement. longest: describes the context, e.g. "the longest sequence in
// tokens".
void add_model_options(Command&, ModelArgs&, const std::string& longest);
int64_t longest_context(); // that --ctx-size takes, in tokens
// Of the model for whose option add_model() got the same VisionArgs.
void add_mmproj(Command&, VisionArgs&, const char* group = kModelGroup);
void add_media(Command&, MediaArgs&, const std::string& where, const char* group); // --image, --audio
void add_lora(Command&, std::vector<std::string>& loras, const char* group = kModelGroup);
std::string lora_text(const std::vector<std::string>& loras); // all of them, for parse_loras(); empty: none
void add_weight_options(Command&, WeightArgs&);
void add_check(Command&, bool& check);
void add_kv_budget(Command&, uint64_t& bytes, const std::string& what);
void add_host_memory(Command&, ModelArgs&);

struct SamplingArgs : Sampling {
	int64_t seed = -1; // -1: random
	std::vector<kvrun_logit_bias> logit_bias;
};
void add_sampling(Command&, SamplingArgs&, const std::string& seed_help);

} // namespace kvrun
