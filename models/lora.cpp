// LoRA adapters: low-rank changes of a model's matrices.
#include "models/lora.h"
#include "engine/core/round.h"
#include "engine/core/utf8.h"
#include "models/experts.h"
#include "models/fingerprint.h"
#include "models/tensor_values.h"
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <optional>

namespace kvrun {
namespace {

constexpr uint32_t kRankStep = 32; // ranks are padded with zeros, so that kernels read whole vectors
constexpr uint64_t kMostRank = 8192;
constexpr std::string_view kA = ".lora_a", kB = ".lora_b";

std::optional<float> scale_of(std::string_view text) {
	float x = 0;
	const auto r = std::from_chars(text.data(), text.data() + text.size(), x);
	if (text.empty() || r.ec != std::errc() || r.ptr != text.data() + text.size()) return {};
	return x;
}

bool of_experts(const TensorSpec& s) { return s.depth > 1 && is_expert_tensor(s.name); }

// One matrix in the file and on the device, or one for each expert.
bool can_change(const TensorSpec& s, const Config& c) {
	if (of_experts(s) && c.layers[layer_of_tensor(s.name)].experts.clamped) return false;
	return s.matrix && s.together == 1 && (s.depth == 1 || s.flat || of_experts(s)) &&
	       (s.name.starts_with("blk.") || s.name == "output.weight");
}

std::map<std::string, TensorSpec, std::less<>> specs_by_name(const Config& c) {
	std::map<std::string, TensorSpec, std::less<>> out;
	for (TensorSpec& s : tensor_specs(c)) out.emplace(s.name, s);
	return out;
}

LoraMatrix matrix_of(const Gguf& g, const std::string& name, const TensorSpec& s) {
	const GgufTensor *a = g.find_tensor(name + std::string(kA)), *b = g.find_tensor(name + std::string(kB));
	if (!a || !b)
		fail(Code::Format, "{}: {}{} is there without {}{}; get the file again", g.name(), one_line(name), a ? kA : kB,
		     one_line(name), a ? kB : kA);
	const uint32_t experts = of_experts(s) ? s.depth : 1;
	const uint64_t rank = a->rows() / experts;
	const bool each = experts == 1 || (a->shape[2] == experts && b->shape[2] == experts);
	if (a->cols() != s.cols || b->cols() != rank || b->rows() != s.rows || rank > kMostRank || !each)
		fail(Code::Format,
		     "{}: {} has A {} x {} and B {} x {}, expected A rank x {} and B {} x rank{}, of the same rank up "
		     "to {}; the adapter is of another model, or damaged",
		     g.name(), one_line(name), rank, a->cols(), b->rows() / experts, b->cols(), s.cols, s.rows / experts,
		     experts == 1 ? "" : fmt::format(" for each of {} experts", experts), kMostRank);
	return {a, b, uint32_t(rank)};
}

LoraFile open_lora(const LoraOption& o, const Gguf& model, const Config& c,
                   const std::map<std::string, TensorSpec, std::less<>>& specs) {
	LoraFile f{Gguf::open(o.path), o.scale, 0, {}};
	const Gguf& g = f.file;
	if (g.text("general.type", "model") != "adapter")
		fail(Code::Unsupported, "{} is no adapter (general.type is '{}'); give models with -m", g.name(),
		     one_line(g.text("general.type", "model")));
	if (g.text("adapter.type", "") != "lora" || g.find("adapter.alora.invocation_tokens"))
		fail(Code::Unsupported, "{}: adapter.type is '{}'{}; kvrun applies plain 'lora' alone", g.name(),
		     one_line(g.text("adapter.type", "")),
		     g.find("adapter.alora.invocation_tokens") ? " with invocation tokens" : "");
	if (const auto arch = model.text("general.architecture"); g.text("general.architecture", arch) != arch)
		fail(Code::Unsupported, "{}: the adapter is of architecture '{}', {} has '{}'", g.name(),
		     one_line(g.text("general.architecture")), model.name(), one_line(arch));
	f.alpha = g.f32("adapter.lora.alpha", 0);
	for (const GgufTensor& t : g.tensors()) {
		if (!t.name.ends_with(kA) && !t.name.ends_with(kB))
			fail(Code::Unsupported, "{}: tensor {} is neither {} nor {} of another; kvrun applies these alone",
			     g.name(), one_line(t.name), kA, kB);
		const std::string name(t.name.substr(0, t.name.size() - kA.size()));
		if (f.matrices.contains(name)) continue;
		const auto s = specs.find(name);
		if (s == specs.end() && !model.find_tensor(name))
			fail(Code::Format, "{}: it changes {}, which {} does not have; the adapter is of another model", g.name(),
			     one_line(name), model.name());
		if (s == specs.end() && !name.ends_with(".attn_kv_b.weight")) continue; // nothing reads the model's, either
		if (s == specs.end() || !can_change(s->second, c))
			fail(Code::Unsupported,
			     "{}: it changes {}; kvrun applies adapters to matrices of layers, but not to attn_kv_b and experts "
			     "with a clamped SwiGLU, and to an output that is not the embedding",
			     g.name(), one_line(name));
		f.matrices.emplace(name, matrix_of(g, name, s->second));
	}
	if (f.matrices.empty())
		fail(Code::Format, "{}: it changes nothing that the model reads; the adapter is of another model", g.name());
	return f;
}

// Matrices of all files for one tensor, side by side.
struct Joined {
	std::vector<std::pair<const LoraFile*, LoraMatrix>> parts;
	uint32_t rank() const {
		uint32_t n = 0;
		for (const auto& [f, m] : parts) n += m.rank;
		return align_up(n, kRankStep);
	}
	DType type() const { // a type that loses nothing of halves, and little of blocks
		for (const auto& [f, m] : parts)
			for (const GgufTensor* t : {m.a, m.b})
				if (t->type == DType::F32 || t->type == DType::BF16) return DType::F32;
		return DType::F16;
	}
};

std::map<std::string, Joined> joined(const std::vector<LoraFile>& files) {
	std::map<std::string, Joined> out;
	for (const LoraFile& f : files)
		for (const auto& [name, m] : f.matrices) out[name].parts.emplace_back(&f, m);
	return out;
}

// a (rank, n) of all parts, of experts for each of them.
void upload_a(Backend& be, const Joined& j, const TensorSpec& s, const LoraWeights& to) {
	const uint32_t rank = to.b.shape[1], experts = of_experts(s) ? s.depth : 1;
	std::vector<float> a(size_t(experts) * rank * s.cols);
	uint32_t first = 0;
	for (const auto& [f, m] : j.parts) {
		const std::vector<float> from = tensor_values(f->file, *m.a);
		for (size_t e = 0; e < experts; ++e)
			std::copy_n(from.begin() + ptrdiff_t(e * m.rank * s.cols), size_t(m.rank) * s.cols,
			            a.begin() + ptrdiff_t((e * rank + first) * s.cols));
		first += m.rank;
	}
	write_values(be, to.a, a);
}

// b (d, rank) of all parts with their scales, rows where the tensor's rows are on the device.
void upload_b(Backend& be, const Joined& j, const TensorSpec& s, const LoraWeights& to) {
	const uint32_t rank = to.b.shape[1];
	std::vector<float> b(size_t(s.rows) * rank);
	uint32_t first = 0;
	for (const auto& [f, m] : j.parts) {
		const std::vector<float> from = tensor_values(f->file, *m.b);
		const float factor = f->factor(m);
		for (uint32_t row = 0; row < s.rows; ++row) {
			float* out = &b[size_t(row_place(s, s.rows, row).to) * rank + first];
			for (uint32_t i = 0; i < m.rank; ++i) out[i] = factor * from[size_t(row) * m.rank + i];
		}
		first += m.rank;
	}
	write_values(be, to.b, b);
}

// b's rows for `part`, which is rows of the tensor `whole`; nothing if it is no part.
std::optional<View> rows_for(Backend& be, const View& b, const View& whole, const View& part) {
	if (!part || part.buf != whole.buf || part.at < whole.at || part.shape[1] != whole.shape[1]) return {};
	const size_t row = (part.at - whole.at) / be.weight_row_bytes(whole.type, whole.shape[1]);
	if (row + part.shape[0] > whole.shape[0]) return {};
	View v = b;
	v.at += row * be.weight_row_bytes(b.type, b.shape[1]), v.shape[0] = part.shape[0];
	return v;
}

} // namespace

std::vector<LoraOption> parse_loras(std::string_view text) {
	std::vector<LoraOption> out;
	while (!text.empty()) {
		const size_t end = std::min(text.find(','), text.size());
		std::string_view one = text.substr(0, end);
		text.remove_prefix(std::min(end + 1, text.size()));
		LoraOption o;
		const size_t colon = one.rfind(':'); // also of "C:\..."
		if (colon != one.npos)
			if (const auto scale = scale_of(one.substr(colon + 1))) o.scale = *scale, one = one.substr(0, colon);
		if (one.empty() || !std::isfinite(o.scale))
			fail(Code::Invalid, "adapter '{}': expected FILE or FILE:SCALE, several separated by commas",
			     one_line(one));
		o.path = one;
		out.push_back(std::move(o));
	}
	return out;
}

std::vector<LoraFile> open_loras(const std::vector<LoraOption>& options, const Gguf& model, const Config& c) {
	std::vector<LoraFile> out;
	if (options.empty()) return out;
	const auto specs = specs_by_name(c);
	for (const LoraOption& o : options) out.push_back(open_lora(o, model, c, specs));
	return out;
}

uint64_t fingerprint(const Gguf& model, const std::vector<LoraFile>& files, std::span<const float> scales) {
	uint64_t all = fingerprint(model);
	for (size_t i = 0; i < files.size(); ++i) // order counts: sums are rounded
		all =
		    std::rotl(all, 17) * 0x9e3779b97f4a7c15u ^ fingerprint(files[i].file) ^ std::bit_cast<uint32_t>(scales[i]);
	return all;
}

uint64_t lora_bytes(const std::vector<LoraFile>& files, const Config& c) {
	uint64_t bytes = 0;
	if (files.empty()) return bytes;
	const auto specs = specs_by_name(c);
	for (const auto& [name, j] : joined(files)) {
		const TensorSpec& s = specs.at(name);
		const uint64_t a_rows = of_experts(s) ? s.depth : 1;
		bytes += uint64_t(j.rank()) * (a_rows * s.cols + s.rows) * dtype_info(j.type()).bytes;
	}
	return bytes;
}

Loras load_loras(const std::vector<LoraFile>& files, const Config& c, const Weights& w, Backend& be) {
	Loras out;
	if (files.empty()) return out;
	out.layers.resize(layers_with_weights(c));
	const auto specs = specs_by_name(c);
	for (const auto& [name, j] : joined(files)) {
		const TensorSpec& s = specs.at(name);
		const uint32_t rank = j.rank(), a_rows = of_experts(s) ? s.depth * rank : rank;
		const size_t a_bytes = align_up(be.weight_row_bytes(j.type(), s.cols) * a_rows, size_t(kBufferAlign)),
		             b_bytes = be.weight_row_bytes(j.type(), rank) * s.rows;
		const bool in_layer = name.starts_with("blk.");
		const uint32_t l = in_layer ? uint32_t(layer_of_tensor(name)) : c.n_layers;
		const Buffer& buffer =
		    out.buffers.emplace_back(be.alloc_part(be.part_of(l), a_bytes + b_bytes, Mem::Device, "adapters"));
		out.bytes += buffer.bytes();
		const LoraWeights both{view(buffer, 0, j.type(), a_rows, s.cols),
		                       view(buffer, a_bytes, j.type(), s.rows, rank)};
		upload_a(be, j, s, both), upload_b(be, j, s, both);
		out.whole.emplace(name, both);
		out.rank = std::max(out.rank, rank), out.experts |= of_experts(s);
		if (!in_layer) {
			out.output = both;
			continue;
		}
		const View& whole = w.matrices.at(name);
		const LayerViews views = views_of(w.layers[l]);
		for (size_t i = 0; i < views.size(); ++i)
			if (const auto b = rows_for(be, both.b, whole, views[i])) out.layers[l].push_back({i, {both.a, *b}});
	}
	be.wait();
	return out;
}

void write_scales(const std::vector<LoraFile>& files, const Config& c, const Loras& loras, Backend& be) {
	const auto specs = specs_by_name(c);
	for (const auto& [name, j] : joined(files)) upload_b(be, j, specs.at(name), loras.whole.at(name));
	be.submit();
	be.wait();
}

} // namespace kvrun
