// Products of LoRA adapters (models/lora.h), beside those of the weights that they change.
#pragma once
#include "backends/backend.h"
#include "models/lora.h"
#include <functional>
#include <vector>

namespace kvrun {

class LoraProducts {
 public:
	// most_rows: limit of x. `loras` may be null; it and the weights must outlive this object.
	LoraProducts(Backend&, const Weights&, const Loras* loras, uint32_t most_rows);
	static uint64_t bytes(uint32_t rank, uint32_t rows); // device memory for the widest rank
	size_t bytes() const { return low_ ? low_.bytes() : 0; }

	// As LayerRunner::use(): layer l's weights may lie at another place.
	void use(uint32_t l, const LayerWeights*);
	bool change(std::span<const Proj>) const; // whether any weight is changed
	// out of each projection += b . (a . x); x (T, n).
	void add(std::span<const Proj>, const View& x, bool decode) const;

 private:
	struct Place { // of a changed weight
		const Buffer* buf;
		size_t at;
		const LoraWeights* weights;
	};
	static bool before(const Place& a, const Place& b) {
		return a.buf != b.buf ? std::less<>()(a.buf, b.buf) : a.at < b.at;
	}
	const LoraWeights* of(const View& w) const;
	Backend& be_;
	const Loras* loras_;
	std::vector<Place> places_; // in order
	std::vector<Place> copied_; // of use()
	Buffer low_;
	uint32_t most_rows_;
};

} // namespace kvrun
