// Takes rows that see each other through layers, one layer at a time: patches of an image, tokens of texts.
#pragma once
#include "engine/run/layer_runner.h"

namespace kvrun {

// Rows see those of their group, which are consecutive.
struct RowGroups {
	std::vector<uint32_t> begins; // of groups; then the number of rows
	// (n, n_kv_heads, 2) u32: where keys and values go, of layers without and with a window
	std::array<View, 2> places;
};

class RowEncoder {
 public:
	static constexpr uint32_t kRows = 1024; // rows that a projection or MLP takes at once
	// n: rows. room: elements of a row of q() and att(), which the caller may use before the first layer; at least
	// those of a query. groupings: calls of write_groups(). Backend, config, weights and adapters must outlive it.
	// Throws Error{OutOfMemory}.
	RowEncoder(Backend&, const Config&, const Weights&, uint32_t n, uint32_t room, uint32_t groupings,
	           uint32_t most_rows, const Loras* = nullptr);
	RowEncoder(const RowEncoder&) = delete; // views look at the buffer
	// Of device memory.
	static uint64_t bytes(const Config&, uint64_t n, uint32_t room, uint32_t groupings);
	size_t bytes() const { return memory_.bytes() + runner_.bytes(); }

	uint32_t n() const { return n_; }
	const View& x() const { return x_; }     // (n, dim) f32: the residual stream
	const View& q() const { return q_; }     // (n, room) f32
	const View& att() const { return att_; } // (n, room) f32
	const View& ids() const { return ids_; } // (n) u32
	// (n, rotary_dim / 2, 2) f32: cos and sin, of Config::ropes[i]
	const View& rope(size_t i) const { return ropes_[i]; }
	RowGroups write_groups(std::vector<uint32_t> begins);
	// Runs layer l. Of a layer with a window a row sees as many rows of its group on either side as half of it.
	void run(uint32_t l, const RowGroups&);
	LayerRunner& runner() { return runner_; }

 private:
	LayerRows rows_of(uint32_t layer, uint32_t first) const; // rows from `first` on
	Backend& be_;
	const Config& config_;
	const uint32_t n_, most_rows_;
	LayerRunner runner_;
	Buffer memory_;
	View x_, q_, att_, ids_, k_, v_, slopes_;
	RopeViews ropes_;
	// Of groupings; those from given_ on are free. The second one is empty if all layers have keys and values alike.
	std::vector<std::array<View, 2>> places_;
	size_t given_ = 0;
};

// Writes all of a view.
template <class T> void write_view(Backend& be, const View& to, const std::vector<T>& values) {
	be.write(*to.buf, to.at, std::as_bytes(std::span(values)));
}
std::vector<float> read_view(Backend&, const View&); // waits

} // namespace kvrun
