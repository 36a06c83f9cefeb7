// Learned queries ask windows of an audio encoder's rows.
#include "engine/run/window_queries.h"
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include "engine/run/near_attention.h"
#include "engine/run/row_encoder.h"
#include "engine/run/tile_encoder.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kMostAsked = 1024; // rows at once
constexpr float kEps = 1e-12f;        // of norms

// Windows that are asked at once.
class Asking {
 public:
	Asking(Backend& be, const AudioConfig& c, const WindowQueries& w, uint32_t windows)
	    : be_(be), c_(c), w_(w), windows_(windows) {
		uint32_t hidden = 0;
		for (const QueryLayer& l : w.layers) hidden = std::max(hidden, l.up.w.shape[0]);
		allocate(be, memory_, "queries of a sound", [&](Arena& a) {
			const uint32_t dim = c.transformer.dim, n = windows * c.queries, asked = windows * c.window;
			for (View* v : {&x_, &sum_, &q_}) *v = a.take(DType::F32, n, dim);
			for (View* v : {&rows_, &k_, &v_}) *v = a.take(DType::F32, std::max(n, asked), dim);
			hidden_ = a.take(DType::F32, n, hidden);
		});
	}
	// rows: (windows * window, dim)
	std::vector<float> run(const std::vector<float>& rows) {
		std::vector<float> queries;
		for (uint32_t i = 0; i < windows_; ++i) queries.insert(queries.end(), w_.queries.begin(), w_.queries.end());
		write_view(be_, x_, queries);
		be_.at_layer(0); // of a split the first device has the encoder
		norm_rows(be_, x_, w_.norm, NormKind::LayerBiased, kEps);
		const View asked = kvrun::rows(rows_, 0, windows_ * c_.window);
		write_view(be_, asked, rows);
		for (const QueryLayer& l : w_.layers) {
			attend(l.among, x_, c_.queries);
			attend(l.rows, asked, c_.window);
			const View hidden = shaped(hidden_, x_.shape[0], l.up.w.shape[0]);
			multiply(hidden, l.up, x_);
			be_.activate(hidden, hidden, {}, {.function = Activation::Gelu});
			add(l.down, hidden, l.norm);
		}
		return read_view(be_, x_);
	}

 private:
	void multiply(const View& to, const Projection& p, const View& by) {
		const Proj all[] = {{to, p.w, p.bias}};
		be_.matmul(all, by, Epilogue::None, /*decode=*/false);
	}
	// x becomes the norm of its sum with a product.
	void add(const Projection& p, const View& by, const NormWeights& norm) {
		multiply(sum_, p, by);
		be_.activate(x_, sum_, {}, {.add = true});
		norm_rows(be_, x_, norm, NormKind::LayerBiased, kEps);
	}
	void attend(const QueryLayer::Attention& a, const View& asked, uint32_t n) {
		const View k = kvrun::rows(k_, 0, asked.shape[0]), v = kvrun::rows(v_, 0, asked.shape[0]);
		multiply(q_, a.q, x_);
		multiply(k, a.k, asked);
		multiply(v, a.v, asked);
		const std::vector<float> keys = read_view(be_, k), values = read_view(be_, v);
		write_view(be_, q_,
		           attend_groups(read_view(be_, q_), keys, values, c_.queries, n, c_.query_heads,
		                         c_.transformer.dim / c_.query_heads));
		add(a.out, q_, a.norm);
	}

	Backend& be_;
	const AudioConfig& c_;
	const WindowQueries& w_;
	uint32_t windows_;
	Buffer memory_;
	View x_, sum_, q_, rows_, k_, v_, hidden_;
};

} // namespace

std::vector<float> ask_windows(Backend& be, const AudioConfig& c, const WindowQueries& w, std::vector<float> rows) {
	const size_t window = size_t(c.window) * c.transformer.dim;
	rows.resize(align_up(rows.size(), window));
	const uint32_t windows = uint32_t(rows.size() / window), most = std::max(1u, kMostAsked / c.window);
	std::vector<float> out;
	for (uint32_t first = 0; first < windows; first += most) {
		const uint32_t n = std::min(most, windows - first);
		const auto from = rows.begin() + ptrdiff_t(first * window);
		const std::vector<float> more = Asking(be, c, w, n).run({from, from + ptrdiff_t(n * window)});
		out.insert(out.end(), more.begin(), more.end());
	}
	return out;
}

} // namespace kvrun
