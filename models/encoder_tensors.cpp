// Tensors of an encoder's file on their way to a backend.
#include "models/encoder_tensors.h"
#include "engine/core/round.h"
#include "models/tensor_values.h"

namespace kvrun {

static std::vector<float> ordered(std::vector<float> v, const std::vector<uint32_t>& order) {
	std::vector<float> out(order.size());
	for (size_t i = 0; i < order.size(); ++i) out[i] = v[order[i]];
	return order.empty() ? v : out;
}

const GgufTensor* EncoderTensors::find(const std::string& name, uint64_t rows, uint64_t cols) const {
	const GgufTensor* t = g_.find_tensor(name);
	if (t && ((rows != kAnySize && t->rows() != rows) || (cols != kAnySize && t->cols() != cols)))
		fail(Code::Format, "{}: tensor {} is {} x {}, expected {} x {}; the file is damaged", g_.name(), name,
		     t->rows(), t->cols(), rows == kAnySize ? "any" : std::to_string(rows),
		     cols == kAnySize ? "any" : std::to_string(cols));
	return t;
}

const GgufTensor& EncoderTensors::need(const std::string& name, uint64_t rows, uint64_t cols) const {
	const GgufTensor* t = find(name, rows, cols);
	if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", g_.name(), name);
	return *t;
}

void EncoderTensors::check(bool fits, const std::string& name) const {
	if (!fits)
		fail(Code::Format, "{}: tensor {} has another shape than expected; the file is damaged", g_.name(), name);
}

const GgufTensor& EncoderTensors::need_matrix(const std::string& name, uint64_t columns) {
	const GgufTensor* t = find(name, kAnySize, kAnySize);
	if (!t || t->n_dims != 4 || t->cols() * t->shape[1] * t->shape[2] != columns) return need(name, kAnySize, columns);
	GgufTensor& flat = flat_.emplace_back(*t);
	flat.shape[0] = columns, flat.shape[1] = t->shape[3], flat.shape[2] = flat.shape[3] = 1;
	return flat;
}

std::vector<float> EncoderTensors::values(const GgufTensor& t) const { return tensor_values(g_, t); }

void EncoderTensors::matrix(View& to, const GgufTensor& t, const std::vector<float>& factors,
                            const std::vector<uint32_t>& order) {
	if (factors.empty()) {
		items_.push_back({&to, t.type, uint32_t(t.rows()), uint32_t(t.cols()), &t, {}, 0, order});
		return;
	}
	std::vector<float> v = values(t);
	for (size_t i = 0; i < v.size(); ++i) v[i] *= factors[i / t.cols()];
	matrix(to, uint32_t(t.rows()), uint32_t(t.cols()), std::move(v), t.type == DType::F32 ? t.type : DType::F16);
}

void EncoderTensors::matrix(View& to, uint32_t rows, uint32_t cols, std::vector<float> v, DType type) {
	items_.push_back({&to, type, rows, cols, nullptr, std::move(v)});
}

void EncoderTensors::vector(View& to, std::vector<float> v) {
	const uint32_t n = uint32_t(v.size());
	items_.push_back({&to, DType::F32, n, 0, nullptr, std::move(v)});
}

void EncoderTensors::bias(View& to, const std::string& name, uint64_t n, const std::vector<float>& factors,
                          const std::vector<uint32_t>& order) {
	const GgufTensor* t = find(name, 1, n);
	if (!t) return;
	std::vector<float> v = values(*t);
	for (size_t i = 0; i < factors.size(); ++i) v[i] *= factors[i];
	vector(to, ordered(v, order));
}

void EncoderTensors::parts(const std::array<View*, 3>& to, const GgufTensor& t, const std::array<uint32_t, 3>& rows) {
	for (uint32_t i = 0, first = 0; i < 3; first += rows[i++])
		items_.push_back({to[i], t.type, rows[i], uint32_t(t.cols()), &t, {}, first});
}

void EncoderTensors::parts_of_bias(const std::array<View*, 3>& to, const std::string& name,
                                   const std::array<uint32_t, 3>& rows) {
	const GgufTensor* t = find(name, 1, uint64_t(rows[0]) + rows[1] + rows[2]);
	if (!t) return;
	const std::vector<float> v = values(*t);
	auto from = v.begin();
	for (size_t i = 0; i < 3; from += rows[i++]) vector(*to[i], {from, from + rows[i]});
}

void EncoderTensors::limits(const View& w, const std::string& name) {
	const auto value = [&](const char* what) { return values(need(name + what, 1, 1))[0]; };
	limits_.push_back({&w, {value(".input_min"), value(".input_max"), value(".output_min"), value(".output_max")}});
}

void EncoderTensors::weights(View& to, const std::string& name, uint64_t n, const std::vector<uint32_t>& order) {
	vector(to, ordered(values(need(name + ".weight", 1, n)), order));
}

void EncoderTensors::norm(NormWeights& to, const std::string& name, uint64_t n, bool needed) {
	if (!needed && !find(name + ".weight", 1, n)) return;
	weights(to.w, name, n);
	bias(to.b, name + ".bias", n);
}

void EncoderTensors::upload() {
	size_t bytes = 0;
	const auto size_of = [&](const Item& i) {
		return i.cols ? be_.weight_row_bytes(i.type, i.cols) * i.rows : i.rows * sizeof(float);
	};
	for (const Item& i : items_) bytes += align_up(size_of(i), kBufferAlign);
	if (!bytes) return;
	const Buffer& buffer = to_.buffers.emplace_back(be_.alloc_part(0, bytes, Mem::Device, "encoder"));
	to_.bytes += buffer.bytes();
	size_t at = 0;
	for (Item& i : items_) {
		*i.to = i.cols ? view(buffer, at, i.type, i.rows, i.cols) : view(buffer, at, i.type, i.rows);
		at += align_up(size_of(i), kBufferAlign);
		if (i.tensor)
			write_tensor(be_, *i.to, g_, *i.tensor, i.first, i.order);
		else if (i.cols)
			write_values(be_, *i.to, i.values);
		else
			be_.write(buffer, i.to->at, std::as_bytes(std::span(i.values)));
	}
	be_.submit();
	items_.clear();
	for (const auto& [w, limits] : limits_) to_.transformer.limits.push_back({w->buf, w->at, limits});
	limits_.clear();
}

void EncoderTensors::part(View& to, const GgufTensor& t, uint32_t first, uint32_t rows) {
	items_.push_back({&to, t.type, rows, uint32_t(t.cols()), &t, {}, first});
}

std::vector<StepWeights> EncoderTensors::steps(std::span<const Step> steps, uint32_t columns, float layer_norm_eps,
                                               float rms_eps, const std::string& prefix) {
	std::vector<StepWeights> out;
	out.reserve(steps.size()); // items_ keeps their addresses
	for (const Step& s : steps) {
		if (s.kind == Step::End) break;
		const std::string name = prefix + s.tensor;
		const std::string weight = name + (s.kind == Step::GatedMlp  ? "gate.weight"
		                                   : s.kind == Step::Queries ? "query"
		                                   : s.joins()               ? ""
		                                                             : ".weight");
		if (s.optional && !find(weight, kAnySize, kAnySize)) continue;
		StepWeights& to = out.emplace_back(StepWeights{.kind = s.kind, .rows = columns});
		to.norm_eps = s.kind == Step::LayerNorm || s.kind == Step::Queries ? layer_norm_eps : rms_eps;
		to.function = s.function;
		switch (s.kind) {
		case Step::Matrix: {
			const GgufTensor& t = need_matrix(weight, columns);
			matrix(to.w, t);
			to.rows = uint32_t(t.rows());
			bias(to.bias, name + ".bias", to.rows);
			break;
		}
		case Step::Turned: {
			const GgufTensor& t = need(weight, columns, kAnySize);
			const std::vector<float> from = values(t);
			std::vector<float> turned(from.size());
			to.rows = uint32_t(t.cols());
			for (size_t r = 0; r < columns; ++r)
				for (size_t c = 0; c < to.rows; ++c) turned[c * columns + r] = from[r * to.rows + c];
			matrix(to.w, to.rows, columns, std::move(turned));
			break;
		}
		case Step::LayerNorm:
		case Step::RmsNorm: norm(to.norm, name, columns); break;
		case Step::UnitNorm: vector(to.norm.w, std::vector<float>(columns, 1)); break;
		case Step::GatedMlp: {
			const GgufTensor &gate = need(weight, kAnySize, columns),
			                 &down = need(name + "down.weight", kAnySize, gate.rows());
			matrix(to.gate, gate);
			matrix(to.up, need(name + "up.weight", gate.rows(), columns));
			matrix(to.w, down);
			to.rows = uint32_t(down.rows());
			break;
		}
		case Step::Halves: {
			const GgufTensor& t = need(weight, kAnySize, columns);
			to.rows = uint32_t(t.rows() / 2);
			part(to.up, t, 0, to.rows);
			part(to.gate, t, to.rows, to.rows);
			break;
		}
		case Step::Queries: {
			to.row = values(need(weight, kAnySize, columns));
			norm(to.norm, name + "ln_q", columns);
			const auto project = [&](View& w, View& b, const char* what) {
				matrix(w, need(fmt::format("{}attn.{}.weight", name, what), columns, columns));
				bias(b, fmt::format("{}attn.{}.bias", name, what), columns);
			};
			project(to.wq, to.bq, "q"), project(to.wk, to.bk, "k"), project(to.wv, to.bv, "v");
			project(to.w, to.bias, "out");
			break;
		}
		case Step::Between:
		case Step::Behind:
		case Step::First:
		case Step::Last: to.row = values(need(name, 1, columns)); break;
		case Step::Activate:
		case Step::Stack:
		case Step::End: break;
		}
		columns = to.rows;
	}
	return out;
}

} // namespace kvrun
