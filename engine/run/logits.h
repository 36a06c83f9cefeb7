// Logits of a row: all of them, or the largest where no more are wanted and the device finds them.
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
	std::span<const float> all = {}; // (vocab); empty: `top` has what was asked for
	std::span<const Logit> top = {}; // by id: every logit that is not below some bound, and as many as were asked for
	std::exception_ptr fault = {};   // Error{Device}: these are no numbers to choose a token from
};

// What Backend::candidates() found in some rows, on the host.
class CandidateLists {
 public:
	// Room for the lists of n rows, to be read from the device.
	std::span<uint32_t> words(uint32_t n) {
		words_.resize(size_t(n) * KV_CANDIDATE_WORDS);
		lists_.resize(n);
		return words_;
	}
	// They have been read. A list that a driver got wrong, with tokens outside the vocabulary or out of order, is none.
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
	// Of row i; empty: it has less than k, and the row's logits have to be read.
	std::span<const Logit> of(uint32_t i, uint32_t k) const {
		return std::span(lists_[i]).first(lists_[i].size() < k ? 0 : lists_[i].size());
	}

 private:
	std::vector<uint32_t> words_;
	std::vector<std::vector<Logit>> lists_;
};

} // namespace kvrun
