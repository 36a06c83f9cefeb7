// Weights on a backend: a plan of where each tensor lies, then an upload in bounded pieces.
#include "models/weights.h"
#include "engine/core/block_quant.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "models/assistant.h"
#include "models/checked.h"
#include "models/dflash.h"
#include "models/eagle.h"
#include "models/prediction.h"
#include "models/read_ahead.h"
#include "models/text_encoder.h"
#include "models/weight_factors.h"
#include <algorithm>
#include <array>
#include <unordered_map>

namespace kvrun {

RowPlace row_place(const TensorSpec& s, uint32_t n, uint32_t row) {
	if (!s.halves) return {row, n - row};
	const uint32_t all = n / s.depth, first = s.first ? s.first : all / 2, of = row / all, at = row % all;
	if (s.swapped && at < first) return {of * all + all - first + at, first - at};
	if (s.swapped) return {of * all + at - first, all - at};
	if (at < first) return {of * first + at, first - at};
	return {s.depth * first + of * (all - first) + at - first, all - at};
}

namespace {

constexpr size_t kAlign = 256;                     // of a tensor inside a buffer, in bytes
constexpr size_t kBufferBytes = size_t(512) << 20; // tensors share buffers of this size if the device allows it
constexpr size_t kPieceBytes = size_t(8) << 20;    // read from the file and handed to the backend at once

struct Item { // one tensor of the file
	const TensorSpec* spec;
	const GgufTensor* tensor;
	DType type;                 // on the device
	size_t bytes;               // on the device
	size_t buffer;              // index
	size_t at;                  // bytes from the start of the buffer
	std::vector<float> factors; // weight_factors()
	View view(const std::deque<Buffer>& buffers) const {
		if (!spec->matrix) return kvrun::view(buffers[buffer], at, type, spec->device_cols());
		return kvrun::view(buffers[buffer], at, type, spec->rows, spec->cols);
	}
};

struct Piece { // a buffer to allocate
	Mem mem;
	uint32_t part; // of Backend::alloc_part()
	size_t bytes = 0;
};

// The part that reads the tensor: that of its layer; the last one for the output, unless that is the embedding; else
// the first one, which looks tokens up.
uint32_t part_of(const TensorSpec& s, const Config& c, const Backend& b) {
	if (s.name.starts_with("blk.")) return b.part_of(uint32_t(layer_of_tensor(s.name)));
	return b.part_of(
	    (s.name.starts_with("output") || s.name.starts_with(c.final_norm)) && !c.tied_embedding ? c.n_layers : 0);
}

// Where each tensor goes; returns the buffers.
std::vector<Piece> plan(const Gguf& g, const Config& c, const std::vector<TensorSpec>& specs, Backend& backend,
                        const std::vector<bool>& in_host, std::vector<Item>& items) {
	const size_t limit = backend.info().max_buffer_bytes;
	const size_t shared = limit == 0 ? kBufferBytes : std::min(limit, kBufferBytes);
	std::vector<Piece> pieces;
	// buffers being filled, by part: on the device, in host memory
	std::vector<std::array<size_t, 2>> last(backend.n_parts(), {SIZE_MAX, SIZE_MAX});
	for (size_t t_index = 0; t_index < specs.size(); ++t_index) {
		const TensorSpec& s = specs[t_index];
		const bool host = !in_host.empty() && in_host[t_index];
		const GgufTensor* t = g.find_tensor(s.name);
		KV_ASSERT(t && t->rows() * t->cols() == uint64_t(s.rows) * s.cols); // read_config() checked it
		Item i{&s, t, s.matrix ? t->type : s.words ? DType::U32 : DType::F32, 0, 0, 0, {}};
		i.bytes = s.matrix ? backend.weight_row_bytes(t->type, s.cols) * size_t(s.rows) : size_t(s.device_cols()) * 4;
		if (limit != 0 && i.bytes > limit)
			fail(Code::Unsupported, "{}: tensor {} takes {} bytes, a buffer of {} holds {}; choose another device",
			     g.name(), one_line(s.name), i.bytes, one_line(backend.info().name), limit);
		const uint32_t part = part_of(s, c, backend);
		size_t& open = last[part][host];
		const size_t end = open == SIZE_MAX ? 0 : *checked_align_up(pieces[open].bytes, kAlign);
		if (open == SIZE_MAX || end + i.bytes > shared) {
			open = pieces.size();
			pieces.push_back({host ? Mem::Mapped : Mem::Device, part});
			i.at = 0;
		} else {
			i.at = end;
		}
		i.buffer = open;
		pieces[open].bytes = i.at + i.bytes;
		if (s.matrix) i.factors = weight_factors(g, s.name, s.depth);
		items.push_back(std::move(i));
	}
	return pieces;
}

// The reads of the file, tensor by tensor.
std::vector<WeightPiece> pieces_of(const std::vector<Item>& items) {
	std::vector<WeightPiece> out;
	for (const Item& i : items) {
		const size_t row_bytes = i.tensor->bytes / i.spec->rows;
		const size_t step = i.spec->matrix ? std::max<size_t>(kPieceBytes / row_bytes, 1) * row_bytes : i.tensor->bytes;
		for (size_t from = 0; from < i.tensor->bytes; from += step)
			out.push_back({i.tensor, from, std::min(step, size_t(i.tensor->bytes) - from), i.spec->cols, i.factors});
	}
	return out;
}

// The factor of each row of a piece; empty if they are 1.
std::vector<float> row_factors(const WeightPiece& p) {
	std::vector<float> out;
	if (p.factors.empty()) return out;
	const size_t row_bytes = dtype_row_bytes(p.tensor->type, p.cols);
	const size_t rows_of_matrix = p.tensor->bytes / row_bytes / p.factors.size();
	for (size_t row = p.from / row_bytes; out.size() < p.bytes / row_bytes; ++row)
		out.push_back(p.factors[row / rows_of_matrix]);
	return out;
}

// TensorSpec::apart
std::vector<float> set_apart(const TensorSpec& s, std::span<const float> values) {
	std::vector<float> out(s.device_cols());
	const size_t n = s.cols / s.depth, width = out.size() / s.depth;
	for (size_t i = 0; i < values.size(); ++i) out[i / n * width + i % n * s.apart] = values[i];
	return out;
}

unsigned reading_threads() { return std::clamp(std::thread::hardware_concurrency(), 2u, 5u) - 1; }

class Uploader {
 public:
	Uploader(const Gguf& g, Backend& b, const LoadProgress& p, const std::vector<Item>& items)
	    : gguf_(g), backend_(b), progress_(p), ahead_(g, pieces_of(items), reading_threads(), arranging(b)) {
		for (const Item& i : items) total_ += i.tensor->bytes;
	}
	void matrix(const Item& i, const View& v) {
		const size_t row_bytes = i.tensor->bytes / i.spec->rows;
		for (uint32_t row = 0; row < i.spec->rows;) {
			const ReadAhead::Read piece = next();
			const uint32_t n = uint32_t(piece.bytes.size() / row_bytes);
			const size_t arranged_bytes = piece.arranged.size() / n;
			const std::vector<float> factors = row_factors(piece.piece);
			const WeightRows rows(piece.bytes, factors);
			for (uint32_t done = 0; done < n;) {
				const auto [to, most] = row_place(*i.spec, i.spec->rows, row + done);
				const uint32_t m = std::min(n - done, most);
				backend_.write_weight(v, to, m, rows.rows(done, m, row_bytes),
				                      piece.arranged.subspan(done * arranged_bytes, m * arranged_bytes));
				done += m;
			}
			count(piece.bytes.size());
			row += n;
		}
	}
	void vector(const Item& i, const View& v) {
		const std::span<const std::byte> piece = next().bytes;
		if (i.spec->words) {
			backend_.write(*v.buf, v.at, piece);
			return count(piece.size());
		}
		std::vector<float> values(i.spec->cols), placed(i.spec->cols);
		dequantise_row(i.tensor->type, piece.data(), values.data(), values.size());
		for (uint32_t at = 0; at < i.spec->cols;) {
			const auto [to, n] = row_place(*i.spec, i.spec->cols, at);
			std::copy_n(values.begin() + at, n, placed.begin() + to);
			at += n;
		}
		if (i.spec->factor != 1)
			for (float& x : placed) x *= i.spec->factor;
		if (i.spec->apart > 1) placed = set_apart(*i.spec, placed);
		backend_.write(*v.buf, v.at, std::as_bytes(std::span(placed)));
		count(piece.size());
	}
	void finish() {
		backend_.submit();
		backend_.wait();
	}
	// Warns about weights that are not finite. The model still loads: they may belong to unused tokens.
	void warn_about_values() const {
		if (bad_tensors_ > 0)
			warn_once(
			    fmt::format("{}: {} of {} tensors hold values that are not finite, first {}; output may be wrong, "
			                "download the file again",
			                gguf_.name(), bad_tensors_, gguf_.tensors().size(), first_bad_));
	}

 private:
	// Arranges matrices only: vectors are few and are converted to f32.
	static ReadAhead::Arrange arranging(const Backend& b) {
		return [&b](const WeightPiece& p, std::span<const std::byte> in, std::vector<std::byte>& out) {
			const GgufTensor& t = *p.tensor;
			if (t.rows() < 2 || t.type == DType::U32) return false;
			out.resize(in.size() / dtype_row_bytes(t.type, p.cols) * b.weight_row_bytes(t.type, p.cols));
			return b.arrange_weight(t.type, p.cols, WeightRows(in, row_factors(p)), out);
		};
	}
	ReadAhead::Read next() {
		const ReadAhead::Read r = ahead_.next();
		const GgufTensor& t = *r.piece.tensor;
		if (r.not_finite && &t != last_bad_) {
			last_bad_ = &t;
			if (bad_tensors_++ == 0)
				first_bad_ = fmt::format("{} at row {}, column {}", one_line(t.name), *r.not_finite / t.cols(),
				                         *r.not_finite % t.cols());
		}
		return r;
	}
	void count(size_t bytes) {
		done_ += bytes;
		backend_.submit(); // the backend waits if it has no more staging memory
		if (progress_) progress_(done_, total_);
	}
	const Gguf& gguf_;
	Backend& backend_;
	const LoadProgress& progress_;
	ReadAhead ahead_;
	uint64_t done_ = 0, total_ = 0;
	const GgufTensor* last_bad_ = nullptr; // each tensor is counted once
	uint64_t bad_tensors_ = 0;
	std::string first_bad_;
};

// Rows [first, first + n) of a matrix in any format: rows are stored consecutively.
View matrix_rows(Backend& b, const View& v, uint32_t first, uint32_t n) {
	View r = v;
	r.at += first * b.weight_row_bytes(v.type, v.shape[1]);
	r.shape[0] = n;
	return r;
}

using Views = std::unordered_map<std::string_view, View>;

// Elements [first, first + n) of a vector.
View elements(const View& v, uint32_t first, uint32_t n) {
	if (!v) return {};
	View r = v;
	r.at += first * sizeof(float);
	r.shape[0] = n;
	return r;
}

template <class Find, class Bias, class Scale>
ExpertWeights expert_weights(const Experts& e, Find find, Bias bias, Scale scale, Backend& b) {
	ExpertWeights w;
	w.router = find("ffn_gate_inp"), w.router_bias = bias("ffn_gate_inp"), w.choice_bias = bias("exp_probs_b");
	w.latent_down = find(e.latent_down), w.latent_up = find(e.latent_up), w.latent_norm = find(kLatentNorm);
	if (e.fused_gate_up) {
		const View all = find("ffn_gate_up_exps"), biases = bias("ffn_gate_up_exps");
		const uint32_t half = e.n * e.hidden_dim;
		w.w_gate = matrix_rows(b, all, 0, half), w.w_up = matrix_rows(b, all, half, half);
		w.b_gate = elements(biases, 0, half), w.b_up = elements(biases, half, half);
	} else {
		w.w_gate = find("ffn_gate_exps"), w.b_gate = bias("ffn_gate_exps");
		w.w_up = find("ffn_up_exps"), w.b_up = bias("ffn_up_exps");
	}
	if (e.by_token) w.of_tokens = find("ffn_gate_tid2eid");
	w.w_down = find("ffn_down_exps"), w.b_down = bias("ffn_down_exps");
	w.shared_switch = find("ffn_gate_inp_shexp");
	if (e.factors) w.factors = scale("ffn_down_exps");
	if (e.at_input) w.norm.w = find("ffn_norm_exps");
	if (e.beside_mlp) {
		w.router_norm = scale("ffn_gate_inp");
		w.norm = {find("pre_ffw_norm_2"), {}}, w.out_norm = {find("post_ffw_norm_2"), {}};
		w.mlp_out_norm = {find("post_ffw_norm_1"), {}};
	}
	w.shared_gate = find("ffn_gate_shexp"), w.shared_up = find("ffn_up_shexp"), w.shared_down = find("ffn_down_shexp");
	if (e.shared_fused) {
		const View all = w.shared_up;
		w.shared_gate = matrix_rows(b, all, 0, e.shared_dim);
		w.shared_up = matrix_rows(b, all, e.shared_dim, e.shared_dim);
	}
	return w;
}

template <class Find, class Named>
RecurrentWeights recurrent_weights(const Recurrent& r, Find find, Named named, Backend& b) {
	RecurrentWeights w;
	if (r.kind == RecurrentKind::ShortConv) {
		const View in = find("shortconv.in_proj");
		const uint32_t n = r.values();
		w.qkv = matrix_rows(b, in, 0, n), w.gate = matrix_rows(b, in, n, n), w.value = matrix_rows(b, in, 2 * n, n);
		w.conv = find("shortconv.conv"), w.out = find("shortconv.out_proj");
		w.conv.shape[0] = r.channels(), w.conv.shape[1] = r.taps;
		return w;
	}
	if (r.kind == RecurrentKind::ChannelDelta) {
		const auto conv = [&](const char* what) {
			View v = find(what);
			v.shape[0] = r.values(), v.shape[1] = r.taps;
			return v;
		};
		w.q = find("attn_q"), w.k = find("attn_k"), w.v = find("attn_v");
		w.conv_q = conv("ssm_conv1d_q"), w.conv_k = conv("ssm_conv1d_k"), w.conv_v = conv("ssm_conv1d_v");
		w.alpha_low = find("ssm_f_a"), w.alpha = find("ssm_f_b");
		w.gate_low = find("ssm_g_a"), w.gate = find("ssm_g_b");
		if (r.full_gates) w.alpha = std::exchange(w.alpha_low, {}), w.gate = std::exchange(w.gate_low, {});
		if (r.full_gate) w.gate = find("ssm_g");
		w.beta = find("ssm_beta"), w.rate = named("ssm_a"), w.shift = named("ssm_dt.bias");
		w.norm = find("ssm_norm"), w.out = find("attn_output");
		return w;
	}
	if (r.kind == RecurrentKind::Removal) {
		w.q = find("time_mix_receptance"), w.k = find("time_mix_key"), w.v = find("time_mix_value");
		w.alpha_low = find("time_mix_w1"), w.alpha = find("time_mix_w2"), w.shift = find("time_mix_w0");
		w.beta_low = find("time_mix_a1"), w.beta = find("time_mix_a2"), w.beta_b = find("time_mix_a0");
		if (r.share_rank)
			w.share_low = find("time_mix_v1"), w.share = find("time_mix_v2"), w.share_b = find("time_mix_v0");
		w.gate_low = find("time_mix_g1"), w.gate = find("time_mix_g2");
		w.removal = find("time_mix_k_k"), w.taken = find("time_mix_k_a"), w.bonus = find("time_mix_r_k");
		w.norm = find("time_mix_ln"), w.out = find("time_mix_output");
		if (r.normed) w.norm_b = named("time_mix_ln.bias");
		w.conv = find("time_mix_lerp_fused");
		w.conv.shape[0] = r.mixes(), w.conv.shape[1] = r.values();
		return w;
	}
	w.out = find("ssm_out");
	w.conv = find("ssm_conv1d");
	w.conv.shape[0] = r.channels(), w.conv.shape[1] = r.taps;
	w.rate = named("ssm_a"), w.shift = named("ssm_dt.bias");
	if (r.kind == RecurrentKind::SelectiveScan) {
		const View in = find("ssm_in"), x = find("ssm_x");
		w.qkv = matrix_rows(b, in, 0, r.values()), w.gate = matrix_rows(b, in, r.values(), r.values());
		w.step_low = matrix_rows(b, x, 0, r.rank), w.alpha = find("ssm_dt");
		w.b = matrix_rows(b, x, r.rank, r.k_dim), w.c = matrix_rows(b, x, r.rank + r.k_dim, r.k_dim);
		w.b_norm = find("ssm_b_norm"), w.c_norm = find("ssm_c_norm"), w.step_norm = find("ssm_dt_norm");
		w.conv_bias = named("ssm_conv1d.bias"), w.skip = named("ssm_d");
		w.rate.shape[0] = r.values(), w.rate.shape[1] = r.k_dim;
		return w;
	}
	w.norm = find("ssm_norm");
	if (r.kind == RecurrentKind::StateSpace) {
		const View in = find("ssm_in");
		w.gate = matrix_rows(b, in, 0, r.values()), w.qkv = matrix_rows(b, in, r.values(), r.channels());
		w.alpha = matrix_rows(b, in, r.values() + r.channels(), r.n_heads);
		if (r.conv_bias) w.conv_bias = named("ssm_conv1d.bias");
		w.skip = named("ssm_d");
		return w;
	}
	w.qkv = find("attn_qkv"), w.gate = find("attn_gate");
	w.beta = find("ssm_beta"), w.alpha = find("ssm_alpha");
	if (r.fused_gates) {
		const View both = find("ssm_ba");
		w.beta = matrix_rows(b, both, 0, r.n_heads), w.alpha = matrix_rows(b, both, r.n_heads, r.n_heads);
	}
	return w;
}

template <class Find> LatentWeights latent_weights(const Layer& layer, Find find, Backend& b) {
	const Latent& t = layer.latent;
	LatentWeights w;
	if (t.out_groups) {
		w.q_a = find("attn_q_a"), w.q_a_norm = find("attn_q_a_norm"), w.q_nope = find("attn_q_b");
		w.kv_a = find("attn_kv"), w.kv_norm = find("attn_kv_a_norm"), w.v_b = find("attn_output_a");
		return w;
	}
	const View q = find(t.q_rank ? "attn_q_b" : "attn_q"), kv = find("attn_kv_a_mqa");
	if (t.q_rank) w.q_a = find("attn_q_a"), w.q_a_norm = find("attn_q_a_norm");
	const uint32_t nope = layer.n_heads * t.nope_dim;
	w.q_nope = matrix_rows(b, q, 0, nope), w.kv_a = matrix_rows(b, kv, 0, t.rank);
	if (!t.no_rope) {
		w.q_rope = matrix_rows(b, q, nope, layer.n_heads * t.rope_dim);
		w.k_rope = matrix_rows(b, kv, t.rank, t.rope_dim);
	}
	w.kv_norm = find("attn_kv_a_norm");
	w.k_b = find("attn_k_b"), w.v_b = find("attn_v_b");
	return w;
}

// find: of names without ".weight"
template <class Find> MixerWeights mixer_weights(const Config& c, const std::string& name, Find find) {
	MixerWeights w{find(name + "_norm"), find(name + "_down"), find(name + "_up"),    find(name + "_inject"),
	               find(name + "_fn"),   find(name + "_base"), find(name + "_scale"), {}};
	if (w.norm) w.norm.shape[0] = c.streams.n, w.norm.shape[1] = c.dim;
	return w;
}

template <class Find> NGramWeights ngram_weights(const Config& c, Find find) {
	NGramWeights w{find("ple_key"),        find("ple_value"),     find("ple_norm_key"),
	               find("ple_norm_query"), find("ple_norm_conv"), find("ple_conv1d")};
	if (!w.key) return w;
	for (View* v : {&w.key_norm, &w.query_norm, &w.conv_norm}) v->shape[0] = c.streams.n, v->shape[1] = c.dim;
	w.conv.shape[0] = c.streams.n * c.dim, w.conv.shape[1] = c.ngrams.span();
	return w;
}

LayerWeights layer_weights(const Config& c, const Layer& layer, uint32_t l, const Views& views, Backend& b) {
	auto optional = [&](std::string_view what, const char* kind) { // read_config() checked that required tensors exist
		const auto v = views.find(fmt::format("blk.{}.{}.{}", l, what, kind));
		return v == views.end() ? View() : v->second;
	};
	auto find = [&](std::string_view what) { return optional(what, "weight"); };
	auto bias = [&](const char* what) { return optional(what, "bias"); };
	auto norm = [&](const char* what) { return NormWeights{find(what), bias(what)}; };
	auto bare = [&](const char* what) { return NormWeights{views.at(fmt::format("blk.{}.{}", l, what)), {}}; };
	auto out_norm = [&](const char* what) { return layer.out_norms_bare ? bare(what) : norm(what); };
	const uint32_t q = layer.n_heads * layer.head_dim, kv = layer.n_kv_heads * layer.head_dim,
	               v = layer.n_kv_heads * value_dim(layer), hidden = layer.hidden_dim;
	LayerWeights w;
	if (layer.attn_norm) w.attn_norm = norm(layer.attn_norm_name);
	if (layer.recurrent.n_heads) {
		const auto named = [&](const char* what) { return views.at(fmt::format("blk.{}.{}", l, what)); };
		w.recurrent = recurrent_weights(layer.recurrent, find, named, b);
	}
	if (layer.latent.rank) {
		w.latent = latent_weights(layer, find, b);
	} else if (layer.fused_qkv) {
		const View all = find("attn_qkv");
		w.wq = matrix_rows(b, all, 0, q);
		w.wk = matrix_rows(b, all, q, kv);
		w.wv = matrix_rows(b, all, q + kv, v);
		const View biases = bias("attn_qkv");
		w.bq = elements(biases, 0, q), w.bk = elements(biases, q, kv), w.bv = elements(biases, q + kv, v);
	} else {
		w.wq = find("attn_q"), w.wk = find("attn_k"), w.wv = find("attn_v");
		if (layer.output_gate && !layer.gate_apart)
			w.wq_gate = matrix_rows(b, w.wq, q, q), w.wq = matrix_rows(b, w.wq, 0, q);
		w.bq = bias("attn_q"), w.bk = bias("attn_k"), w.bv = bias("attn_v");
	}
	if (layer.gate_apart) w.wq_gate = find("attn_gate");
	w.value_experts.router = find("attn_v_gate"), w.value_experts.choice_bias = bias("attn_v_gate");
	w.value_experts.w_up = find("attn_v_exps");
	const auto scale = [&](const char* what) { return optional(what, "scale"); };
	if (layer.experts.n) w.experts = expert_weights(layer.experts, find, bias, scale, b);
	if (layer.experts.choice_bias_bare) w.experts.choice_bias = views.at(fmt::format("blk.{}.exp_probs_b", l));
	w.q_norm = find("attn_q_norm"), w.k_norm = find("attn_k_norm");
	w.q_norm_b = bias("attn_q_norm"), w.k_norm_b = bias("attn_k_norm");
	if (layer.sinks) w.sinks = find("attn_sinks");
	w.wo = find(layer.latent.out_groups ? "attn_output_b" : "attn_output"), w.bo = bias("attn_output");
	if (layer.attn_out_norm) w.attn_out_norm = out_norm(attn_out_norm_name(layer));
	if (layer.sums_twice) w.attn_second_norm = norm(kSecondNorm);
	w.attn_sub_norm = find(kAttnSubNorm), w.mlp_sub_norm = find(kMlpSubNorm);
	if (layer.mlp_norm_bare)
		w.mlp_norm = bare(layer.mlp_norm_name);
	else if (has_mlp_norm(layer.mlp_input))
		w.mlp_norm = norm(layer.mlp_norm_name);
	if (layer.fused_gate_up && !layer.experts.n) {
		const View all = find("ffn_up");
		w.w_gate = matrix_rows(b, all, layer.up_first ? hidden : 0, hidden);
		w.w_up = matrix_rows(b, all, layer.up_first ? 0 : hidden, hidden);
	} else {
		w.w_gate = find("ffn_gate"), w.b_gate = bias("ffn_gate");
		w.w_up = find(up_name(layer)), w.b_up = bias(up_name(layer));
	}
	w.w_down = find(down_name(layer)), w.b_down = bias(down_name(layer));
	if (layer.mlp_shift) w.mlp_mix = find("channel_mix_lerp_k"), w.mlp_mix.shape[0] = 1, w.mlp_mix.shape[1] = c.dim;
	if (layer.mlp_out_norm) w.mlp_out_norm = out_norm(mlp_out_norm_name(layer));
	w.streams = {find("altup_router"),       find("altup_router_norm"),   find("altup_predict_coef"),
	             find("altup_correct_coef"), find("altup_correct_scale"), find("laurel_l"),
	             find("laurel_r"),           find("laurel_post_norm")};
	w.attn_mixer = mixer_weights(c, "hc_attn", find), w.mlp_mixer = mixer_weights(c, "hc_ffn", find);
	w.attn_mixer.attend = find("attn_res_score"), w.mlp_mixer.attend = find("ffn_res_score");
	w.ngrams = ngram_weights(c, find);
	const bool of_latent = c.indexer.of_latent;
	w.index = {find(of_latent ? "indexer.attn_q_b" : "indexer.q_proj"),
	           find(of_latent ? "indexer.attn_k" : "indexer.k_proj"),
	           find("indexer.proj"),
	           find("indexer_compressor_gate"),
	           find("indexer_compressor_ape"),
	           find("indexer.q_norm"),
	           norm("indexer.k_norm")};
	if (View& v = w.index.places) v.shape[1] = v.shape[0] / c.indexer.block, v.shape[0] = c.indexer.block;
	if (c.indexer.of_entries)
		w.index.k = find("indexer_compressor_kv"), w.index.k_norm = norm("indexer_compressor_norm");
	w.blocks = {find("attn_compressor_kv"), find("attn_compressor_gate"), find("attn_compressor_ape"),
	            find("attn_compressor_norm")};
	if (View& v = w.blocks.places) v.shape[0] = layer.blocks.tokens, v.shape[1] = layer.blocks.width(layer.head_dim);
	w.input_gate = find("inp_gate"), w.input_proj = find("proj"), w.input_norm = find("post_norm");
	return w;
}

template <class Find> TextWeights text_weights(const Config& c, Find find) {
	TextWeights w;
	w.positions = find(kPositionTable), w.types = find(kTypeTable);
	const std::string norm = kEmbeddingNorm;
	if (c.text_input.normed) w.norm = {find(norm + ".weight"), find(norm + ".bias")};
	for (size_t i = 0; i < 2; ++i)
		if (c.text_head.dense[i]) w.dense[i] = find(dense_name(c.text_head, i));
	w.hidden = find("cls.weight"), w.hidden_b = find("cls.bias"), w.hidden_norm = find(kHiddenNorm);
	w.classifier = find("cls.output.weight"), w.classifier_b = find("cls.output.bias");
	return w;
}

} // namespace

uint64_t weight_bytes(const Gguf& g, const Config& c) {
	uint64_t n = 0;
	for (const TensorSpec& s : tensor_specs(c)) n += g.find_tensor(s.name)->bytes;
	return n;
}

Weights load_weights(const Gguf& g, const Config& c, Backend& backend, const LoadProgress& progress,
                     const std::vector<bool>& in_host) {
	const std::vector<TensorSpec> specs = tensor_specs(c);
	std::vector<Item> items;
	Weights w;
	KV_ASSERT(in_host.empty() || in_host.size() == specs.size());
	for (const Piece& p : plan(g, c, specs, backend, in_host, items)) {
		w.buffers.push_back(backend.alloc_part(p.part, p.bytes, p.mem, "weights"));
		w.bytes += p.bytes;
		if (p.mem == Mem::Mapped) w.host_bytes += p.bytes;
	}
	Uploader up(g, backend, progress, items);
	Views views;
	for (const Item& i : items) {
		const View v = i.view(w.buffers);
		if (i.spec->matrix)
			up.matrix(i, v);
		else
			up.vector(i, v);
		views.emplace(i.spec->name, v);
		if (i.spec->matrix) w.matrices.emplace(i.spec->name, v);
	}
	up.finish();
	up.warn_about_values();
	for (uint32_t l = 0; l < c.n_layers; ++l)
		w.layers.push_back(
		    layer_weights(c, c.layers[l], l % layers_with_weights(c) + c.prediction.block, views, backend));
	const auto found = [&](const std::string& name) {
		const auto v = views.find(name);
		return v == views.end() ? View() : v->second;
	};
	if (c.prediction.block) {
		const auto own = [&](const char* what) { return found(prediction_tensor(c, what)); };
		w.prediction = {own("enorm.weight"), own("hnorm.weight"), own("eh_proj.weight")};
		w.embed = own("embed_tokens.weight"), w.lm_head = own("shared_head_head.weight");
		w.final_norm.w = found(prediction_norm(c));
		return w;
	}
	if (!c.fusion.layers.empty()) {
		w.fusion = {found(kFusionNorm), views.at(kFusionJoin), found(kEagleStateNorm), found(kMarkovIn),
		            found(kMarkovOut)};
		w.embed = found("token_embd.weight"), w.lm_head = found("output.weight");
		if (c.block.size && !w.lm_head) w.lm_head = w.embed; // the model's, where there is neither
		w.final_norm.w = views.at("output_norm.weight");
		return w;
	}
	w.embed = views.at("token_embd.weight");
	if (!c.final_norm.empty() && !is_bare(c.norm)) {
		w.final_norm.w = views.at(c.final_norm + ".weight");
		if (c.norm == NormKind::LayerBiased) w.final_norm.b = views.at(c.final_norm + ".bias");
	}
	w.text = text_weights(c, found);
	if (c.output_bias) w.lm_head_b = views.at("output.bias");
	w.lm_head = c.tied_embedding ? w.embed : views.at("output.weight");
	if (c.target_dim) w.assistant = {views.at(kAssistantIn), views.at(kAssistantOut)};
	if (c.layer_input_dim) {
		w.input_table = found("per_layer_token_embd.weight");
		w.input_model_proj = views.at("per_layer_model_proj.weight");
		w.input_proj_norm = views.at("per_layer_proj_norm.weight");
	}
	w.out_mixer = mixer_weights(c, "output_hc", [&](const std::string& name) { return found(name + ".weight"); });
	w.out_mixer.attend = found("output_res_score.weight");
	if (c.streams.kind == StreamKind::AltUp)
		w.streams_in = views.at("altup_proj.weight"), w.streams_out = views.at("altup_unembd_proj.weight");
	return w;
}

const Limits* limits_of(const Weights& w, const View& v) {
	const auto limited =
	    std::ranges::find_if(w.limits, [&](const LimitedWeight& l) { return l.buf == v.buf && l.at == v.at; });
	return limited == w.limits.end() ? nullptr : &limited->limits;
}

} // namespace kvrun
