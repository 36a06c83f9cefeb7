// Ops of typical sizes, or of a model's, that `kvrun tune --kernels` runs on a device: how long they take, and whether
// their results are those of the cpu backend.
#pragma once
#include "backends/backend.h"
#include <memory>

namespace kvrun {

class TuneLoad {
 public:
	virtual ~TuneLoad() = default;
	std::string name;                 // "Q4_K 4096 x 4096, 512 tokens"
	std::vector<std::string> choices; // of Tunable::name: what it measures
	// Called once for every choice of the device, before its runs.
	virtual void prepare(Backend&) {}
	virtual void run(Backend&) = 0; // enqueues the ops once
	// What the last run computed, compared with the reference; empty if it agrees.
	std::string fault(Backend& device, Backend& reference);

 protected:
	struct Result {
		std::vector<float> x;
		std::string_view rule; // of tolerance()
	};
	virtual Result result(Backend& device) = 0;
	virtual std::vector<float> expected(Backend& reference) = 0; // as many elements, or the first rows of a repetition

 private:
	std::vector<float> expected_;
};

struct TuneMatmul {
	DType type;
	uint32_t rows, cols;
};
struct TuneShapes { // sizes of the ops
	std::vector<TuneMatmul> matmuls;
	uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0; // n_heads 0: no attention over keys and values
};
TuneShapes typical_shapes(const DeviceInfo&);
// Those of the weights that have the most bytes, and of the first layer that attends to all tokens.
TuneShapes shapes_of(const std::string& model, const DeviceInfo&);
std::vector<std::unique_ptr<TuneLoad>> make_loads(Backend& device, const TuneShapes&);

} // namespace kvrun
