// Host memory of caches: chunks within a budget, and one sequence's keys and values in them.
#include "engine/kv_device/host_store.h"
#include "engine/core/log.h"
#include "engine/core/system/machine.h"
#include <algorithm>
#include <cstring>

namespace kvrun {
namespace {

size_t machine_bytes() {
	const size_t bytes = sys::memory_bytes();
	return bytes ? bytes : size_t(4) << 30;
}

double mib(size_t bytes) { return double(bytes) / (1 << 20); }

} // namespace

HostPool::HostPool(Backend& be) : be_(be), budget_(machine_bytes() / 4), pinned_(be.pins()) {}

void HostPool::set_budget(size_t bytes) { budget_ = bytes ? bytes : machine_bytes() / 4; }

void HostPool::set_offload(const std::string& folder) {
	file_ = folder.empty() ? nullptr : std::make_shared<OffloadFile>(folder);
}

void HostPool::Chunk::read(size_t at, std::span<std::byte> to) const {
	if (file)
		file->read(piece.at + at, to);
	else
		std::memcpy(to.data(), bytes.data() + at, to.size());
}

std::shared_ptr<HostPool::Chunk> HostPool::take(const KvShape& s) {
	const size_t bytes = chunk_bytes(s);
	if (bytes > budget_ - std::min(used_, budget_)) {
		if (file_) return take_from_file(bytes);
		fail(Code::OutOfMemory,
		     "the copy in host memory that fetch= reads needs {:.1f} MiB more, {:.1f} of {:.1f} MiB are used; raise "
		     "--host-budget, give --offload-dir, shorten the context, or give fetch=0",
		     mib(bytes), mib(used_), mib(budget_));
	}
	auto chunk = std::make_unique<Chunk>();
	take_memory(*chunk, bytes);
	used_ += bytes;
	return {chunk.release(), [this, bytes](Chunk* c) {
		        delete c;
		        used_ -= bytes;
	        }};
}

std::shared_ptr<HostPool::Chunk> HostPool::take_from_file(size_t bytes) {
	std::shared_ptr<Chunk> chunk(new Chunk, [](Chunk* c) {
		if (!c->bytes.empty()) c->file->give(c->piece);
		delete c;
	});
	chunk->file = file_;
	chunk->piece = file_->take(bytes);
	chunk->bytes = chunk->piece.bytes;
	return chunk;
}

void HostPool::take_memory(Chunk& chunk, size_t bytes) {
	if (pinned_) try {
			chunk.pinned = be_.alloc(bytes, Mem::Host, "host copy");
			chunk.bytes = be_.host_bytes(chunk.pinned);
			return;
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			pinned_ = false;
			warn_once(fmt::format("host memory cannot be pinned, fetches go through another copy: {}", e.what()));
		}
	try {
		chunk.plain = std::make_unique_for_overwrite<std::byte[]>(bytes);
	} catch (const std::bad_alloc&) {
		fail(Code::OutOfMemory,
		     "the copy in host memory that fetch= reads needs {:.1f} MiB, which the machine has not; shorten the "
		     "context, or give fetch=0",
		     mib(bytes));
	}
	chunk.bytes = {chunk.plain.get(), bytes};
}

void HostCopy::reserve(uint32_t first, uint32_t n) {
	std::vector<std::shared_ptr<HostPool::Chunk>> chunks = chunks_;
	for (size_t c = first / HostPool::kTokens; c < chunks.size() && c * HostPool::kTokens < n; ++c) {
		if (chunks[c].use_count() <= 2) continue; // owned by this copy and the list only
		auto own = pool_.take(shape_);
		chunks[c]->read(0, own->bytes);
		chunks[c] = std::move(own);
	}
	while (chunks.size() * HostPool::kTokens < n) chunks.push_back(pool_.take(shape_));
	chunks_ = std::move(chunks);
}

size_t HostCopy::file_bytes() const {
	return size_t(std::ranges::count_if(chunks_, [](const auto& c) { return c->file != nullptr; })) *
	       HostPool::chunk_bytes(shape_);
}

void HostCopy::keep(uint32_t l, uint32_t head, const KvRows& rows, uint32_t row, uint32_t pos, uint32_t n) {
	for (uint32_t done = 0; done < n;) {
		const uint32_t index = (pos + done) % HostPool::kTokens, some = std::min(n - done, HostPool::kTokens - index);
		HostPool::Chunk& chunk = *chunks_.at((pos + done) / HostPool::kTokens);
		for (const uint32_t side : {0u, 1u}) {
			const View& from = side ? rows.v : rows.k;
			const uint32_t D = channels(side);
			const size_t at = from.at + (size_t(head) * from.shape[1] + row + done) * D * 2;
			const size_t to = row_at(l, side, head, index), bytes = size_t(some) * D * 2;
			if (chunk.pinned) {
				be_.copy(view(chunk.pinned, to, DType::F16, some, D), view(*from.buf, at, DType::F16, some, D));
				continue;
			}
			if (chunk.file) chunk.file->touch(chunk.bytes.subspan(to, bytes));
			be_.read(*from.buf, at, chunk.bytes.subspan(to, bytes));
		}
		done += some;
	}
}

} // namespace kvrun
