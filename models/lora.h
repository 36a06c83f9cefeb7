// LoRA adapters: low-rank changes of a model's matrices, W' = W + scale * alpha / rank * B A (Hu et al. 2021, eq. 3),
// from GGUF files as llama.cpp's convert_lora_to_gguf.py writes them: for a tensor NAME of the model NAME.lora_a (n,
// rank) and NAME.lora_b (rank, d), innermost first, for experts with one such matrix each, and the key
// adapter.lora.alpha. The model's weights stay in their
// block formats; A and B are multiplied beside them.
#pragma once
#include "models/weights.h"
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct LoraOption { // an adapter as a user names it
	std::string path;
	float scale = 1;
	bool operator==(const LoraOption&) const = default;
};
// "FILE[:SCALE],FILE[:SCALE]". Throws Error{Invalid} for an empty name or a scale that is not finite.
std::vector<LoraOption> parse_loras(std::string_view);

struct LoraMatrix { // of one tensor of the model
	const GgufTensor *a, *b;
	uint32_t rank;
};
struct LoraFile {
	Gguf file;
	float scale;                                // the user's
	float alpha;                                // 0: none, then the user's scale is all there is
	std::map<std::string, LoraMatrix> matrices; // by name of the model's tensor
	float factor(const LoraMatrix& m) const { return alpha == 0 ? scale : scale * alpha / float(m.rank); }
};
// Opens adapters of this model. They may change matrices of layers, except attn_kv_b and those of experts with
// Experts::clamped, and an output that is not the embedding; what they change in tensors that the model does not read
// has no effect. Throws
// Error{Io, Format}; Unsupported if a file is not a LoRA adapter, is of another architecture, or changes another
// tensor.
std::vector<LoraFile> open_loras(const std::vector<LoraOption>&, const Gguf& model, const Config&);
// Identifies a model with its adapters at these scales; without adapters it is the model's own fingerprint.
uint64_t fingerprint(const Gguf& model, const std::vector<LoraFile>&, std::span<const float> scales);

struct LoraWeights { // of one matrix of all adapters together: y += b . (a . x)
	View a;          // (rank, n); of experts, one after the other, (experts * rank, n)
	View b;          // (d, rank), with the scales; of experts (experts * d, rank)
};
// Adapters on a backend; each matrix is on the device that has the weight it changes.
struct Loras {
	struct Entry {
		size_t view; // index among the views of LayerWeights
		LoraWeights weights;
	};
	std::vector<std::vector<Entry>> layers;   // of layers_with_weights()
	LoraWeights output;                       // empty: it is not changed
	uint32_t rank = 0;                        // widest
	bool experts = false;                     // some change matrices of experts
	std::map<std::string, LoraWeights> whole; // by name of the model's tensor
	std::deque<Buffer> buffers;
	size_t bytes = 0;
	explicit operator bool() const { return rank != 0; }
};
// Device memory that load_loras() will take, without rounding of buffers.
uint64_t lora_bytes(const std::vector<LoraFile>&, const Config&);
Loras load_loras(const std::vector<LoraFile>&, const Config&, const Weights&, Backend&);
// Writes the matrices B anew, with the scales that the files have now. Reads the files.
void write_scales(const std::vector<LoraFile>&, const Config&, const Loras&, Backend&);

} // namespace kvrun
