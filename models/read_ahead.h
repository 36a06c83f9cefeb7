// Pieces of tensors in order, read and looked through by other threads while the caller works on the one before.
#pragma once
#include "models/gguf.h"
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace kvrun {

struct WeightPiece {
	const GgufTensor* tensor = nullptr;
	uint64_t from = 0; // byte of the tensor
	size_t bytes = 0;
};

class ReadAhead {
 public:
	// The file and the list outlive this. Without threads next() reads by itself.
	ReadAhead(const Gguf&, std::vector<WeightPiece>, unsigned threads);
	~ReadAhead();
	ReadAhead(const ReadAhead&) = delete;

	struct Read {
		WeightPiece piece;
		std::span<const std::byte> bytes;   // valid until the next call
		std::optional<uint64_t> not_finite; // first element of the tensor in this piece that is no finite number
	};
	// The next piece of the list; no more often than it has pieces. Throws what reading threw.
	Read next();

 private:
	struct Slot {
		std::vector<std::byte> bytes;
		std::optional<uint64_t> not_finite;
		std::exception_ptr error;
		bool ready = false;
	};
	void fill(Slot&, const WeightPiece&) const;
	void work();

	const Gguf& gguf_;
	const std::vector<WeightPiece> pieces_;
	std::vector<Slot> slots_; // piece i is in slot i % slots
	std::mutex mutex_;
	std::condition_variable changed_;
	size_t taken_ = 0; // pieces that threads have begun
	size_t given_ = 0; // pieces that next() has returned
	bool stop_ = false;
	std::vector<std::thread> threads_;
};

} // namespace kvrun
