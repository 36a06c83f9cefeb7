// Tensors of an encoder's file on their way to a backend: collected, then uploaded into one buffer.
#pragma once
#include "models/projection.h"
#include "models/weights.h"
#include <array>

namespace kvrun {

struct StepWeights { // of a Step
	Step::Kind kind = Step::End;
	NormWeights norm = {}; // (columns) f32
	float norm_eps = 0;
	Activation function = Activation::None;
	View w = {}, bias = {};      // (rows, columns), (rows) f32; of a gated MLP its last matrix
	View gate = {}, up = {};     // (hidden, columns)
	uint32_t rows = 0;           // columns of the result
	std::vector<float> row = {}; // (rows) on the host, of Step::joins(); (queries, columns) of Step::Queries
	// Of Step::Queries, whose last matrix is w: (columns, columns), (columns) f32.
	View wq = {}, bq = {}, wk = {}, bk = {}, wv = {}, bv = {};
};
struct EncoderWeights {
	Weights transformer; // its layers alone
	std::vector<StepWeights> projector;
	std::deque<Buffer> buffers;
	size_t bytes = 0;
};

constexpr uint32_t kAnySize = 0; // of a shape: any number

// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
class EncoderTensors {
 public:
	EncoderTensors(const Gguf& g, Backend& be, EncoderWeights& to) : g_(g), be_(be), to_(to) {}

	// Null: the file has none.
	const GgufTensor* find(const std::string& name, uint64_t rows, uint64_t cols) const;
	const GgufTensor& need(const std::string& name, uint64_t rows, uint64_t cols) const;
	void check(bool fits, const std::string& name) const; // that a tensor has a shape that fits the others
	// A matrix, or the weights of a convolution over merged patches, as a matrix.
	const GgufTensor& need_matrix(const std::string& name, uint64_t columns);
	std::vector<float> values(const GgufTensor& t) const;

	// A matrix in its own type, its rows in another order if given; with factors (rows) that its rows are multiplied
	// by, in f32 or f16.
	void matrix(View& to, const GgufTensor&, const std::vector<float>& factors = {},
	            const std::vector<uint32_t>& order = {});
	void matrix(View& to, uint32_t rows, uint32_t cols, std::vector<float>, DType type = DType::F32);
	// So many of its rows, from `first` on.
	void part(View& to, const GgufTensor&, uint32_t first, uint32_t rows);
	void vector(View& to, std::vector<float>);
	// Nothing if the file has none; then with factors or in another order, if given.
	void bias(View& to, const std::string& name, uint64_t n, const std::vector<float>& factors = {},
	          const std::vector<uint32_t>& order = {});
	// Matrices of q, k and v, or biases, that the file has as one.
	void parts(const std::array<View*, 3>& to, const GgufTensor&, const std::array<uint32_t, 3>& rows);
	void parts_of_bias(const std::array<View*, 3>& to, const std::string& name, const std::array<uint32_t, 3>& rows);
	// Limits of a matrix, in four tensors of one value beside it.
	void limits(const View& w, const std::string& name);
	void weights(View& to, const std::string& name, uint64_t n, const std::vector<uint32_t>& order = {});
	void norm(NormWeights& to, const std::string& name, uint64_t n, bool needed = true);
	void upload();

	// The steps of a projector, one after the other; `columns` of what the first one reads.
	std::vector<StepWeights> steps(std::span<const Step>, uint32_t columns, float layer_norm_eps, float rms_eps,
	                               const std::string& prefix = "");

 private:
	struct Item {
		View* to;
		DType type;
		uint32_t rows, cols; // no columns: a vector
		const GgufTensor* tensor;
		std::vector<float> values; // where there is no tensor
		uint32_t first = 0;        // row of the tensor
		std::vector<uint32_t> order = {};
	};
	const Gguf& g_;
	Backend& be_;
	EncoderWeights& to_;
	std::vector<Item> items_;
	std::vector<std::pair<const View*, Limits>> limits_;
	std::deque<GgufTensor> flat_;
};

constexpr float kLayerNormEps = 1e-5f; // in projectors, whatever the transformer's

} // namespace kvrun
