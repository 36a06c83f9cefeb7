// Positions with several numbers: which channels turn by which.
#include "models/rope_axes.h"
#include <cmath>
#include <numeric>

namespace kvrun {
namespace {

constexpr const char* kSections = "rope.dimension_sections";

// NTK-aware extension of the context by a fixed factor.
void scale_base(const ConfigKeys& k, Rope& r) {
	const char* key = "rope.scaling.alpha";
	const double alpha = k.positive(key, 1), dim = r.dim;
	if (dim > 2) r.theta = float(r.theta * std::pow(alpha, dim / (dim - 2)));
	if (!std::isfinite(r.theta))
		fail(Code::Format, "{}: key {} is {}, too large a factor of RoPE's base; the file is damaged", k.g.name(),
		     k.key(key), alpha);
}

} // namespace

void read_axes(const ConfigKeys& k, const Family& f, Rope& r) {
	if (f.axes_numbered) scale_base(k, r);
	if (!k.has(kSections)) return;
	std::vector<int64_t> axes = k.g.ints(k.key(kSections));
	constexpr size_t kAxes = 4; // the last one is of RopeAxes::numbered alone
	if (axes.size() > kAxes)
		fail(Code::Format, "{}: key {} has {} axes, expected at most {}; the file is damaged", k.g.name(),
		     k.key(kSections), axes.size(), kAxes);
	axes.resize(kAxes);
	for (const int64_t n : axes)
		if (n < 0 || n > r.dim / 2)
			fail(Code::Format, "{}: key {} has {} pairs of channels, {} are rotated; the file is damaged", k.g.name(),
			     k.key(kSections), n, r.dim / 2);
	if (!f.axes_numbered) {
		r.axes = {uint32_t(axes[0]), uint32_t(axes[1]), uint32_t(axes[2]), f.axes_interleaved};
		if (r.axes) r.neox = true; // also in GLM's files, whose converter orders the channels so
		return;
	}
	const int64_t pairs = std::accumulate(axes.begin(), axes.end(), int64_t(0));
	if (pairs != r.dim / 2)
		fail(Code::Unsupported, "{}: key {} has {} pairs of channels on four axes; kvrun runs {} with all {}",
		     k.g.name(), k.key(kSections), pairs, k.arch, r.dim / 2);
	r.axes = {uint32_t(axes[0]), uint32_t(axes[2]), uint32_t(axes[1]), false, true, uint32_t(axes[3])};
}

} // namespace kvrun
