// Layer inputs: vectors that each layer reads for the token itself, beside the residual stream.
#include "models/layer_inputs.h"
#include "engine/core/dtype.h"

namespace kvrun {

constexpr const char* kTable = "per_layer_token_embd.weight";

void read_layer_inputs(const ConfigKeys& k, const Family& f, Config& c) {
	const char* key = "embedding_length_per_layer_input";
	const uint32_t n = k.u32(key, 0);
	if (n == 0) return;
	if (!f.layer_inputs)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without inputs of layers", k.g.name(), k.key(key), n,
		     c.arch);
	constexpr uint64_t kMost = UINT32_MAX / 4; // rows of the table, and sums of a few such counts, stay in 32 bits
	if (uint64_t(c.vocab) * c.n_layers > kMost || uint64_t(n) * c.n_layers > kMost)
		fail(Code::Format, "{}: {} tokens with {} channels for each of {} layers: too large; the file is damaged",
		     k.g.name(), c.vocab, n, c.n_layers);
	c.layer_input_dim = n, c.inputs_projected = f.inputs_projected;
	if (c.inputs_projected) return;
	const GgufTensor* table = k.g.find_tensor(kTable);
	if (!table) return; // check_tensor() reports it
	if (const uint32_t block = dtype_info(table->type).block; n % block != 0)
		fail(Code::Unsupported,
		     "{}: tensor {} is {}, in blocks of {}; a layer reads {} channels of a row, kvrun needs "
		     "whole blocks: convert the model to another type",
		     k.g.name(), kTable, dtype_info(table->type).name, block, n);
}

void add_layer_input_specs(std::vector<TensorSpec>& out, const Config& c) {
	const uint32_t n = c.layer_input_dim;
	if (n == 0) return;
	if (!c.inputs_projected) {
		TensorSpec table{kTable, c.vocab * c.n_layers, n, true};
		table.together = c.n_layers;
		out.push_back(table);
	}
	out.push_back({"per_layer_model_proj.weight", c.n_layers * n, c.dim, true});
	out.push_back({"per_layer_proj_norm.weight", 1, n, false});
}

void add_layer_input_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	const uint32_t n = c.layer_input_dim;
	if (n == 0) return;
	const auto name = [l](const char* what) { return fmt::format("blk.{}.{}.weight", l, what); };
	out.push_back({name("inp_gate"), n, c.dim, true});
	out.push_back({name("proj"), c.dim, n, true});
	out.push_back({name("post_norm"), 1, c.dim, false});
}

} // namespace kvrun
