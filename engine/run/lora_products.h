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
	LoraProducts(Backend&, const Config&, const Weights&, const Loras* loras, uint32_t most_rows);
	size_t bytes() const { return (low_ ? low_.bytes() : 0) + (slots_ ? slots_.bytes() : 0); }

	// As LayerRunner::use(): layer l's weights may lie at another place.
	void use(uint32_t l, const LayerWeights*);
	bool change(std::span<const Proj>) const; // whether any weight is changed
	// out of each projection += b . (a . x); x (T, n).
	void add(std::span<const Proj>, const View& x, bool decode) const;
	// The same of experts: x (T, n) or (T * used, n), out (T, used, d).
	void add_experts(std::span<const Proj>, const View& x, const ExpertRows&, bool decode) const;
	View slot_up() const { return up_; } // (rows, used * channels) f32, where the model needs none; else empty

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
	uint32_t lay_slots(const Config&);
	Backend& be_;
	const Loras* loras_;
	std::vector<Place> places_; // in order
	std::vector<Place> copied_; // of use()
	Buffer low_, slots_;        // x behind a; of experts what is added to their outputs, and up_
	View change_, up_;
	size_t low_bytes_ = 0; // of one projection
	uint32_t most_rows_;
};

} // namespace kvrun
