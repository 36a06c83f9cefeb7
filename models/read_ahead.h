// Pieces of tensors in order. Worker threads read a piece, check it for values that are not finite and arrange it for a
// device, while the caller works on the previous piece.
#pragma once
#include "models/gguf.h"
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace kvrun {

struct WeightPiece {
	const GgufTensor* tensor = nullptr;
	uint64_t from = 0; // first byte, counted in the tensor
	size_t bytes = 0;
	uint32_t cols = 0;                   // elements of a row on the device
	std::span<const float> factors = {}; // of the tensor's matrices (weight_factors())
};

class ReadAhead {
 public:
	// Converts a piece to the device's layout; called by any thread; false: the piece stays as it is.
	using Arrange = std::function<bool(const WeightPiece&, std::span<const std::byte> in, std::vector<std::byte>& out)>;
	// The file must outlive this object. Without threads next() itself reads.
	ReadAhead(const Gguf&, std::vector<WeightPiece>, unsigned threads, Arrange = {});
	~ReadAhead();
	ReadAhead(const ReadAhead&) = delete;

	struct Read {
		WeightPiece piece;
		std::span<const std::byte> bytes; // valid until the next call, like `arranged`
		std::span<const std::byte> arranged;
		std::optional<uint64_t> not_finite; // index in the tensor of this piece's first element that is not finite
	};
	// The next piece; at most one call per piece of the list. Throws the exception of the thread that read it.
	Read next();

 private:
	struct Slot {
		std::vector<std::byte> bytes, arranged;
		std::optional<uint64_t> not_finite;
		std::exception_ptr error;
		bool ready = false;
	};
	void fill(Slot&, const WeightPiece&) const;
	void work();

	const Gguf& gguf_;
	const std::vector<WeightPiece> pieces_;
	const Arrange arrange_;
	std::vector<Slot> slots_; // piece i is in slot i % slots
	std::mutex mutex_;
	std::condition_variable changed_;
	size_t taken_ = 0; // pieces that threads have begun
	size_t given_ = 0; // pieces that next() has returned
	bool stop_ = false;
	std::vector<std::thread> threads_;
};

} // namespace kvrun
