// Rows of n-grams, read from the file.
#include "models/ngram_table.h"
#include "engine/core/block_quant.h"
#include "models/hyper_streams.h"
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace kvrun {

NGramTable::NGramTable(const Gguf& file, const Config& c)
    : file_(file), grams_(c.ngrams), vocab_(c.vocab), table_(file.find_tensor(kNGramTable)) {
	KV_ASSERT(grams_.longest >= 2 && table_); // read_config() checked it
}

void NGramTable::rows_of(std::span<const uint32_t> text, std::span<uint32_t> rows) const {
	KV_ASSERT(!text.empty() && rows.size() == grams_.rows());
	const auto token = [&](size_t back) -> uint64_t {
		const uint32_t t = text[text.size() - 1 - back];
		return t < vocab_ ? t : grams_.image;
	};
	uint64_t hash = token(0) * grams_.factors[0];
	bool cut = false;
	for (uint32_t n = 2, j = 0; n <= grams_.longest; ++n) {
		const size_t back = n - 1;
		cut = cut || back >= text.size() || token(back) == grams_.separator;
		hash ^= (cut ? grams_.separator : token(back)) * grams_.factors[back];
		for (uint32_t i = 0; i < grams_.per_length; ++i, ++j)
			rows[j] = uint32_t(grams_.first[j] + hash % grams_.sizes[j]);
	}
}

std::vector<float> NGramTable::read(std::span<const uint32_t> text, uint32_t n) const {
	KV_ASSERT(n >= 1 && n <= text.size());
	// A disk that is asked for many rows at once answers sooner.
	constexpr uint32_t kTokensOfThread = 8, kMostThreads = 16;
	std::vector<float> out(size_t(n) * grams_.width());
	std::atomic<uint32_t> next = 0;
	std::exception_ptr failed;
	std::mutex failing;
	const size_t row_bytes = dtype_row_bytes(table_->type, grams_.dim);
	const auto work = [&] {
		std::vector<uint32_t> rows(grams_.rows());
		std::vector<std::byte> bytes(row_bytes);
		try {
			for (uint32_t t; (t = next++) < n;) {
				rows_of(text.first(text.size() - n + t + 1), rows);
				for (uint32_t j = 0; j < rows.size(); ++j) {
					file_.read(*table_, rows[j] * row_bytes, bytes);
					dequantise_row(table_->type, bytes.data(), &out[size_t(t) * grams_.width() + j * grams_.dim],
					               grams_.dim);
				}
			}
		} catch (...) {
			const std::lock_guard lock(failing);
			failed = std::current_exception();
			next = n;
		}
	};
	{
		std::vector<std::jthread> threads;
		const uint32_t wanted = std::min((n - 1) / kTokensOfThread, kMostThreads - 1);
		while (threads.size() < wanted) threads.emplace_back(work);
		work();
	}
	if (failed) std::rethrow_exception(failed);
	return out;
}

} // namespace kvrun
