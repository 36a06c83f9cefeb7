// Host memory of caches: keys and values of every token in f16, for sequences whose policy fetches.
#pragma once
#include "backends/backend.h"
#include "engine/kv_device/offload_file.h"
#include "engine/kv_host/plan.h"
#include <functional>
#include <memory>

namespace kvrun {

// Host memory within one budget for all sequences of an engine. It is pinned, or pageable where pinning fails. Chunks
// beyond the budget lie in a file if an offload folder is set.
class HostPool {
 public:
	static constexpr uint32_t kTokens = 256; // tokens of a chunk

	explicit HostPool(Backend&);   // a quarter of the machine's memory
	void set_budget(size_t bytes); // 0: a quarter of the machine's memory
	// Folder for later chunks; empty: no file is used. Throws Error{Io} where no file can be created there.
	void set_offload(const std::string& folder);
	bool offloads() const { return file_ != nullptr; }
	size_t budget_bytes() const { return budget_; }
	size_t used_bytes() const { return used_; } // part of the budget in use
	bool pinned() const { return pinned_; }     // all memory so far is pinned
	static size_t chunk_bytes(const KvShape& s) { return size_t(2) * s.n_layers * s.token_channels() * kTokens; }

	struct Chunk {                          // by layer K, then V: (n_kv_heads, kTokens, channels) f16
		Buffer pinned;                      // Mem::Host; if empty, `plain` has the bytes
		std::unique_ptr<std::byte[]> plain; //
		std::shared_ptr<OffloadFile> file;  // if set, has the bytes from `piece.at` on
		OffloadFile::Piece piece;
		std::span<std::byte> bytes;
		void read(size_t at, std::span<std::byte> to) const; // throws Error{Io}
	};
	// Throws Error{OutOfMemory} if the budget or the machine's memory is used up, Error{Io} if the disk is full.
	std::shared_ptr<Chunk> take(const KvShape&);

 private:
	std::shared_ptr<Chunk> take_from_file(size_t bytes);
	void take_memory(Chunk&, size_t bytes);
	Backend& be_;
	size_t budget_, used_ = 0;
	bool pinned_ = true;
	std::shared_ptr<OffloadFile> file_; // null if absent
};

// The copy of one sequence. Chunks are shared with forks until one of them writes.
class HostCopy {
 public:
	HostCopy(Backend& be, const KvShape& shape, HostPool& pool) : be_(be), shape_(shape), pool_(pool) {}
	void share(const HostCopy& o) { chunks_ = o.chunks_; } // o: copy of a sequence with the same tokens

	// Reserves room for tokens [0, n); chunks from token `first` on become unshared. Throws as HostPool::take(); the
	// existing contents are then unchanged.
	void reserve(uint32_t first, uint32_t n);
	void clear() { chunks_.clear(); }
	size_t bytes() const { return chunks_.size() * HostPool::chunk_bytes(shape_); }
	size_t file_bytes() const; // bytes of them that lie in a file
	// Enqueues copies of rows [row, row + n) of k and v in one kv head to tokens [pos, pos + n) of layer l. The host
	// sees them after the next wait.
	void keep(uint32_t l, uint32_t head, const KvRows&, uint32_t row, uint32_t pos, uint32_t n);
	// Reads the f16 values of token `pos`. Throws Error{Io}.
	void key(uint32_t l, uint32_t head, uint32_t pos, std::byte* to) const { row(l, 0, head, pos, to); }
	void value(uint32_t l, uint32_t head, uint32_t pos, std::byte* to) const { row(l, 1, head, pos, to); }

 private:
	uint32_t channels(uint32_t side) const { return side ? shape_.v_dim() : shape_.head_dim; }
	size_t row_at(uint32_t l, uint32_t side, uint32_t head, uint32_t index) const { // bytes in a chunk
		const size_t before = l * shape_.token_channels() + (side ? size_t(shape_.n_kv_heads) * shape_.head_dim : 0);
		return (before * HostPool::kTokens + (size_t(head) * HostPool::kTokens + index) * channels(side)) * 2;
	}
	void row(uint32_t l, uint32_t side, uint32_t head, uint32_t pos, std::byte* to) const {
		KV_ASSERT(pos / HostPool::kTokens < chunks_.size());
		chunks_[pos / HostPool::kTokens]->read(row_at(l, side, head, pos % HostPool::kTokens),
		                                       {to, size_t(channels(side)) * 2});
	}

	Backend& be_;
	KvShape shape_;
	HostPool& pool_;
	std::vector<std::shared_ptr<HostPool::Chunk>> chunks_;
};

} // namespace kvrun
