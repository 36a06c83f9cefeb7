// Logits of a row: all of them, or only the largest if no more are wanted and the device finds them.
#pragma once
#include "shared/candidates.h"
#include <bit>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

namespace kvrun {

struct Logit {
	uint32_t id; // token
	float value;
};

struct RowLogits {
	std::span<const float> all = {}; // (vocab); empty if `top` has the result
	std::span<const Logit> top = {}; // by id: every logit not below some bound, at least as many as requested
	std::exception_ptr fault = {};   // Error{Device} if no token can be chosen: logits are not finite
};

// Results of Backend::candidates() for some rows, on the host.
class CandidateLists {
 public:
	// Memory for the lists of n rows, into which the caller reads them from the device.
	std::span<uint32_t> words(uint32_t n) {
		words_.resize(size_t(n) * KV_CANDIDATE_WORDS);
		lists_.resize(n);
		return words_;
	}
	// Call once the lists have been read. A list with tokens outside the vocabulary or out of order is cleared.
	void arrived(uint32_t vocab) {
		for (size_t row = 0; row < lists_.size(); ++row) {
			const uint32_t* w = &words_[row * KV_CANDIDATE_WORDS];
			std::vector<Logit>& list = lists_[row];
			list.clear();
			for (uint32_t i = 0; w[0] <= KV_CANDIDATES && i < w[0]; ++i) {
				const uint32_t id = w[1 + 2 * i];
				if (id >= vocab || (i && id <= list.back().id)) {
					list.clear();
					break;
				}
				list.push_back({id, std::bit_cast<float>(w[2 + 2 * i])});
			}
		}
	}
	// List of row i; empty if it has fewer than k entries, so that the row's logits have to be read.
	std::span<const Logit> of(uint32_t i, uint32_t k) const {
		return std::span(lists_[i]).first(lists_[i].size() < k ? 0 : lists_[i].size());
	}

 private:
	std::vector<uint32_t> words_;
	std::vector<std::vector<Logit>> lists_;
};

} // namespace kvrun
