// The layer behind a model's own that predicts one more token.
#include "models/prediction.h"
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

std::string prediction_tensor(const Config& c, const char* what) {
	return fmt::format("blk.{}.nextn.{}", c.prediction.block, what);
}

std::string prediction_norm(const Config& c) {
	return fmt::format("blk.{}.{}.weight", c.prediction.block, c.prediction.norm_name);
}

static std::string families_that_predict() {
	std::string out;
	for (const Family& f : families())
		if (f.predicts) out += fmt::format("{}{}", out.empty() ? "" : " ", f.arch);
	return out;
}

// It is shaped like the last layer that attends.
Config prediction_config(const Config& of) {
	Config c = of;
	c.prediction = {.block = of.n_layers, .own_norm = true};
	c.n_layers = 1;
	Layer layer;
	for (const Layer& l : of.layers)
		if (attends(l)) layer = l;
	layer.kv_layer = 0, layer.window = {}, layer.rope = 0;
	layer.indexed = false, c.indexer = {}; // it attends to all tokens
	c.layers.assign(1, layer);
	return c;
}

uint32_t prediction_layers(const Gguf& g, const Config& of) {
	return find_family(of.arch)->predicts ? ConfigKeys{g, of.arch}.u32("nextn_predict_layers", 0) : 0;
}

uint64_t prediction_tensor_bytes(const Gguf& g, const Config& of) {
	uint64_t n = 0;
	if (prediction_layers(g, of))
		for (const GgufTensor& t : g.tensors())
			if (layer_of_tensor(t.name) >= of.n_layers) n += t.bytes;
	return n;
}

Config read_prediction(const Gguf& g, const Config& of) {
	const ConfigKeys k{g, of.arch};
	const Family& f = *find_family(of.arch);
	if (!f.predicts)
		fail(Code::Unsupported, "{}: architecture is {}; kvrun runs the prediction layers (--draft mtp) of {}",
		     g.name(), of.arch, families_that_predict());
	const std::string key = k.key("nextn_predict_layers");
	if (k.u32("nextn_predict_layers", 0) == 0)
		fail(
		    Code::Unsupported,
		    "{}: key {} is {}: the file has no prediction layer, which --draft mtp needs; take a file with it, or give "
		    "--draft lookup",
		    g.name(), key, k.has("nextn_predict_layers") ? "0" : "missing");
	Config c = prediction_config(of);
	const auto found = [&](const char* what) { return g.find_tensor(prediction_tensor(c, what)) != nullptr; };
	c.prediction.own_embedding = found("embed_tokens.weight");
	c.prediction.own_head = found("shared_head_head.weight");
	if (!g.find_tensor(prediction_norm(c))) c.prediction.norm_name = "layer_output_norm"; // bailingmoe3's name
	c.prediction.own_norm = g.find_tensor(prediction_norm(c)) != nullptr;
	for (const TensorSpec& s : tensor_specs(c)) check_tensor(g, s);
	return c;
}

void add_prediction_inputs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.prediction.own_embedding) out.push_back({prediction_tensor(c, "embed_tokens.weight"), c.vocab, c.dim, true});
	for (const char* norm : {"enorm.weight", "hnorm.weight"})
		out.push_back({prediction_tensor(c, norm), 1, c.dim, false});
	out.push_back({prediction_tensor(c, "eh_proj.weight"), c.dim, 2 * c.dim, true});
}

void add_prediction_outputs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.prediction.own_norm) out.push_back({prediction_norm(c), 1, c.dim, false});
	if (c.prediction.own_head) out.push_back({prediction_tensor(c, "shared_head_head.weight"), c.vocab, c.dim, true});
}

} // namespace kvrun
