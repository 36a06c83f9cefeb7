// Factors of whole matrices.
#include "models/weight_factors.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

std::string weight_factors_name(std::string_view weight) {
	constexpr std::string_view kEnd = ".weight";
	return weight.ends_with(kEnd) ? fmt::format("{}.scale", weight.substr(0, weight.size() - kEnd.size())) : "";
}

bool check_weight_factors(const Gguf& g, std::string_view weight, uint32_t depth) {
	const GgufTensor* w = g.find_tensor(weight);
	const GgufTensor* f = w && has_row_factor(w->type) ? g.find_tensor(weight_factors_name(weight)) : nullptr;
	if (!f) return false;
	const uint64_t n = f->rows() * f->cols();
	if (f->type != DType::F32 || (n != 1 && n != depth))
		fail(Code::Format, "{}: tensor {} has {} elements of type {}, expected {}{} of type F32; the file is damaged",
		     g.name(), one_line(f->name), n, dtype_info(f->type).name, depth == 1 ? "" : "1 or ", depth);
	return true;
}

std::vector<float> weight_factors(const Gguf& g, std::string_view weight, uint32_t depth) {
	if (!check_weight_factors(g, weight, depth)) return {};
	const GgufTensor& f = *g.find_tensor(weight_factors_name(weight));
	std::vector<float> out(f.rows() * f.cols());
	g.read(f, 0, std::as_writable_bytes(std::span(out)));
	if (!std::ranges::all_of(out, [](float x) { return std::isfinite(x); }))
		fail(Code::Format, "{}: tensor {} holds a value that is not finite; download the file again", g.name(),
		     one_line(f.name));
	return out;
}

} // namespace kvrun
