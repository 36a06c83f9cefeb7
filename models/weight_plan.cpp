// Which weights lie on the device and which in host memory, where the device reads them over the bus.
#include "models/weight_plan.h"
#include "backends/weight_rows.h"
#include "engine/core/round.h"
#include "models/gguf.h"
#include <algorithm>
#include <map>

namespace kvrun {
namespace {

// The part of a tensor by its name: the first row whose text the name contains. Tensors without a part are small and
// stay on the device.
struct PartRow {
	std::string_view name;
	std::optional<WeightPart> part;
};
constexpr PartRow kParts[] = {
    {"token_embd.", WeightPart::Embedding}, // also of single layers
    {"_exps.", WeightPart::Experts},        {"ffn_gate_inp", std::nullopt},  {".ffn_", WeightPart::Mlp},
    {"blk.", WeightPart::Attention},        {"output.", WeightPart::Output},
};

std::optional<WeightPart> part_of(const TensorSpec& s, const Config& c) {
	if (!s.matrix) return std::nullopt; // vectors are small
	for (const PartRow& r : kParts)
		if (s.name.find(r.name) != s.name.npos)
			return c.tied_embedding && s.name == "token_embd.weight" ? WeightPart::Output : r.part;
	return std::nullopt;
}

// Bytes of a tensor that a token reads, in the file's type: the minimum for any device.
uint64_t token_bytes(const TensorSpec& s, DType type, std::optional<WeightPart> part, const Config& c) {
	const uint64_t rounds = s.name.starts_with("blk.") ? c.rounds : 1;
	const uint64_t row = rounds * (s.matrix ? dtype_row_bytes(type, s.cols) : uint64_t(s.cols) * 4);
	if (s.words) return row / s.depth;                                           // a row for each token
	if (s.together > 1) return row * s.together;                                 // a row for each layer
	const uint64_t looked_up = row * (1 + (c.layer_input_dim ? c.n_layers : 0)); // each layer reads it again
	if (part == WeightPart::Embedding) return looked_up;
	if (part == WeightPart::Experts) {
		const Layer& layer = c.layers[layer_of_tensor(s.name)];
		const bool of_values = s.name.find("attn_v_exps") != s.name.npos;
		return row * s.rows / s.depth * (of_values ? layer.value_experts : layer.experts).used;
	}
	// an embedding that is also the output projection is also looked up
	return row * s.rows + (s.name == "token_embd.weight" ? looked_up : 0);
}

// Whether group a leaves the device before group b.
bool leaves_first(const WeightGroup& a, const WeightGroup& b) {
	const double x = double(a.token_bytes) * double(b.bytes), y = double(b.token_bytes) * double(a.bytes);
	const bool whole = a.part >= WeightPart::Mlp, also = b.part >= WeightPart::Mlp; // read by every token
	if ((!whole || !also) && x != y) return x < y;
	if (a.part != b.part) return a.part < b.part;
	// experts leave from the first layer on, as --n-cpu-moe counts; other parts from the last
	return a.part == WeightPart::Experts ? a.layer < b.layer : a.layer > b.layer;
}

} // namespace

WeightPlan::WeightPlan(const Gguf& g, const Config& c) : WeightPlan(g, c, device_row_bytes) {}

WeightPlan::WeightPlan(const Gguf& g, const Config& c, const RowBytes& row_bytes) : n_layers_(layers_with_weights(c)) {
	std::map<std::pair<WeightPart, uint32_t>, WeightGroup> groups;
	const std::vector<TensorSpec> specs = tensor_specs(c);
	n_tensors_ = specs.size();
	for (size_t i = 0; i < specs.size(); ++i) {
		const TensorSpec& s = specs[i];
		const DType type = g.find_tensor(s.name)->type; // present: read_config() checked it
		const uint64_t bytes = s.matrix ? uint64_t(row_bytes(type, s.cols)) * s.rows : uint64_t(s.cols) * 4;
		const std::optional<WeightPart> part = part_of(s, c);
		bytes_ += bytes;
		if (!part) {
			fixed_bytes_ += bytes;
			fixed_token_bytes_ += token_bytes(s, type, part, c);
			continue;
		}
		const uint32_t layer = uint32_t(layer_of_tensor(s.name));
		WeightGroup& group = groups.try_emplace({*part, layer}, WeightGroup{*part}).first->second;
		group.layer = layer;
		group.bytes += bytes;
		group.token_bytes += token_bytes(s, type, part, c);
		group.tensors.push_back(i);
		group.tensor_bytes.push_back(bytes);
	}
	for (auto& [key, group] : groups) groups_.push_back(std::move(group));
	std::ranges::stable_sort(groups_, leaves_first);
}

void WeightPlan::move(WeightGroup& g) {
	if (!g.in_host) host_bytes_ += g.bytes;
	g.in_host = true;
}

bool WeightPlan::move_next() {
	const auto next = std::ranges::find(groups_, false, &WeightGroup::in_host);
	if (next == groups_.end()) return false;
	move(*next);
	return true;
}

void WeightPlan::apply(const WeightOptions& o) {
	const uint32_t stay = o.gpu_layers.value_or(UINT32_MAX);
	for (WeightGroup& g : groups_) {
		const bool of_layer =
		    g.part == WeightPart::Experts || g.part == WeightPart::Mlp || g.part == WeightPart::Attention;
		if (of_layer ? uint64_t(g.layer) + stay < n_layers_ : stay <= n_layers_) move(g);
		if (g.part == WeightPart::Experts && g.layer < o.cpu_moe_layers) move(g);
	}
	while (double(host_bytes_) < o.host_share * double(bytes_) && move_next()) {}
	if (!o.budget) return;
	if (o.budget < fixed_bytes_)
		fail(Code::Invalid,
		     "a weights budget of {} bytes is below the {} bytes of norms, biases and routers, which always lie on the "
		     "device; raise it",
		     o.budget, fixed_bytes_);
	while (device_bytes() > o.budget && move_next()) {}
}

RingSize WeightPlan::ring_within(uint64_t most) const {
	constexpr uint64_t kPieces = 3; // parts of a tensor that the engine uses, such as q, k and v, aligned separately
	std::map<uint32_t, std::vector<uint64_t>> layers; // bytes of the tensors that would be copied, experts last
	for (const WeightPart part : {WeightPart::Attention, WeightPart::Mlp, WeightPart::Experts})
		for (const WeightGroup& g : groups_)
			if (g.in_host && g.part == part)
				for (const uint64_t n : g.tensor_bytes)
					layers[g.layer].push_back(align_up(n + (kPieces - 1) * kRingAlign, kRingAlign));
	for (const uint64_t slots : {2, 1}) {
		uint64_t need = 0;
		for (const auto& [layer, tensors] : layers) {
			uint64_t sum = 0;
			for (const uint64_t n : tensors)
				if (sum + n <= most / slots) sum += n;
			need = std::max(need, sum);
		}
		if (need) return {need, uint32_t(std::min<uint64_t>(slots, layers.size()))};
	}
	return {};
}

uint64_t WeightPlan::host_token_bytes() const {
	uint64_t n = 0;
	for (const WeightGroup& g : groups_) n += g.in_host ? g.token_bytes : 0;
	return n;
}

uint64_t WeightPlan::device_token_bytes() const {
	uint64_t n = fixed_token_bytes_;
	for (const WeightGroup& g : groups_) n += g.in_host ? 0 : g.token_bytes;
	return n;
}

std::vector<bool> WeightPlan::in_host() const {
	std::vector<bool> out(n_tensors_);
	for (const WeightGroup& g : groups_)
		for (const size_t t : g.tensors) out[t] = g.in_host;
	return out;
}

std::string WeightPlan::host_text() const {
	constexpr const char* names[kWeightParts] = {"embedding", "experts", "MLP", "attention", "output"};
	uint32_t n[kWeightParts] = {};
	for (const WeightGroup& g : groups_) n[int(g.part)] += g.in_host;
	std::string out;
	for (int p = 0; p < kWeightParts; ++p) {
		if (!n[p]) continue;
		const bool of_layers =
		    p == int(WeightPart::Experts) || p == int(WeightPart::Mlp) || p == int(WeightPart::Attention);
		if (!out.empty()) out += ", ";
		out += names[p];
		if (of_layers) out += fmt::format(" of {} layer{}", n[p], n[p] == 1 ? "" : "s");
	}
	return out;
}

} // namespace kvrun
