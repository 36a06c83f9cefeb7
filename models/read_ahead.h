// Pieces of tensors in order, read, looked through and arranged for a device by other threads while the caller works on
// the one before.
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
	uint64_t from = 0; // byte of the tensor
	size_t bytes = 0;
	uint32_t cols = 0; // of a row on the device
};

class ReadAhead {
 public:
	// What a device makes of a piece, called by any thread; false: nothing.
	using Arrange = std::function<bool(const WeightPiece&, std::span<const std::byte> in, std::vector<std::byte>& out)>;
	// The file outlives this. Without threads next() reads by itself.
	ReadAhead(const Gguf&, std::vector<WeightPiece>, unsigned threads, Arrange = {});
	~ReadAhead();
	ReadAhead(const ReadAhead&) = delete;

	struct Read {
		WeightPiece piece;
		std::span<const std::byte> bytes; // valid until the next call, as `arranged`
		std::span<const std::byte> arranged;
		std::optional<uint64_t> not_finite; // first element of the tensor in this piece that is no finite number
	};
	// The next piece of the list; no more often than it has pieces. Throws what reading threw.
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
