// Several residual streams per token: their metadata and tensors.
#include "models/streams.h"
#include "backends/ops.h"
#include <algorithm>

namespace kvrun {

constexpr uint32_t kCutLayers = 10; // first layers of files without the key

static void read_cuts(const ConfigKeys& k, Config& c) {
	const char* key = "activation_sparsity_scale";
	if (!k.has(key)) {
		for (uint32_t l = 0; l < std::min(c.n_layers, kCutLayers); ++l) c.layers[l].gate_cut = kGateCut;
		return;
	}
	const std::vector<float> cuts = k.g.floats(k.key(key));
	if (cuts.size() != c.n_layers)
		fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", k.g.name(),
		     k.key(key), cuts.size(), c.n_layers);
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		if (!(cuts[l] < std::numeric_limits<float>::infinity()))
			fail(Code::Format, "{}: key {} is {} for layer {}; the file is damaged", k.g.name(), k.key(key), cuts[l],
			     l);
		c.layers[l].gate_cut = cuts[l];
	}
}

static void read_attended(const ConfigKeys& k, Config& c) {
	const char* key = "attn_res.block_size";
	Streams& s = c.streams;
	s.block = k.u32(key);
	if (!s.block) return; // layers add to one stream
	s.kind = StreamKind::Attended;
	s.n = (c.n_layers - 1) / s.block + 2;
	if (s.n > kMostAttended)
		fail(Code::Unsupported, "{}: key {} is {}: {} layers make {} residual streams; kvrun runs up to {}", k.g.name(),
		     k.key(key), s.block, c.n_layers, s.n, kMostAttended);
}

void read_streams(const ConfigKeys& k, const Family& f, Config& c) {
	if (f.streams == StreamKind::Attended) read_attended(k, c);
	if (f.streams != StreamKind::AltUp) return;
	Streams& s = c.streams;
	s.kind = f.streams;
	s.n = k.u32("altup.num_inputs", kMostStreams);
	if (s.n < 2 || s.n > kMostStreams)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs 2 to {} residual streams", k.g.name(),
		     k.key("altup.num_inputs"), s.n, kMostStreams);
	s.active = k.u32("altup.active_idx", 0);
	if (s.active >= s.n)
		fail(Code::Format, "{}: key {} is {}, there are {} streams; the file is damaged", k.g.name(),
		     k.key("altup.active_idx"), s.active, s.n);
	if (!c.layer_input_dim)
		fail(Code::Format, "{}: key {} is missing or 0; the file is damaged", k.g.name(),
		     k.key("embedding_length_per_layer_input"));
	const GgufTensor* left = k.g.find_tensor("blk.0.laurel_l.weight"); // check_tensor() reports a missing one
	const uint64_t rank = left ? left->rows() : 1;
	if (rank == 0 || rank > UINT32_MAX / 4)
		fail(Code::Format, "{}: tensor blk.0.laurel_l.weight has {} rows; wrong or damaged file", k.g.name(), rank);
	for (Layer& l : c.layers) l.laurel_rank = uint32_t(rank);
	read_cuts(k, c);
}

void add_stream_specs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.streams.kind == StreamKind::Attended) out.push_back({"output_res_score.weight", 1, c.dim, false});
	if (c.streams.kind != StreamKind::AltUp) return;
	const uint32_t others = c.streams.n - 1;
	for (const char* name : {"altup_proj.weight", "altup_unembd_proj.weight"})
		out.push_back({name, others * c.dim, c.dim, true, others});
}

void add_stream_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	const uint32_t n = c.streams.n, rank = c.layers[l].laurel_rank;
	const auto name = [l](const char* what) { return fmt::format("blk.{}.{}.weight", l, what); };
	if (c.streams.kind == StreamKind::Attended)
		for (const char* what : {"attn_res_score", "ffn_res_score"}) out.push_back({name(what), 1, c.dim, false});
	if (c.streams.kind == StreamKind::AltUp) {
		out.push_back({name("altup_router"), n, c.dim, true});
		out.push_back({name("altup_router_norm"), 1, c.dim, false});
		out.push_back({name("altup_predict_coef"), n * n, n, true});
		out.push_back({name("altup_correct_coef"), n, n, true});
		out.push_back({name("altup_correct_scale"), 1, c.dim, false});
	}
	if (!rank) return;
	out.push_back({name("laurel_l"), rank, c.dim, true});
	out.push_back({name("laurel_r"), c.dim, rank, true});
	out.push_back({name("laurel_post_norm"), 1, c.dim, false});
}

} // namespace kvrun
