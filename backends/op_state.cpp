// Conditions, texts and byte counts that the rows of op_state.h do not state.
#include "backends/op_state.h"
#include <algorithm>
#include <fmt/format.h>

namespace kvrun::op {

void check_state_rows(const StateRows& rows, uint32_t words) {
	KV_ASSERT(rows.work && rows.work.shape[0] >= 1 && rows.from && rows.to);
	KV_ASSERT(words >= 1 && words <= rows.from.elements() && words <= rows.to.elements());
}

std::vector<WrittenWords> written_states(const StateRows& rows, uint32_t words, std::string_view rule,
                                         const WordReader& read) {
	const std::vector<uint32_t> work = read(rows.work);
	size_t first = SIZE_MAX, end = 0;
	for (size_t i = 0; i < work.size(); i += STATE_WORDS)
		first = std::min<size_t>(first, work[i + 3]), end = std::max<size_t>(end, size_t(work[i + 3]) + words);
	KV_ASSERT(end <= rows.to.elements());
	return {{"state", view(*rows.to.buf, rows.to.at + first * 4, F32, uint32_t(end - first)), 0, rule}};
}

// Each item with rows replaces one state.
static double state_bytes(const StateRows& rows, uint32_t words) { return 8. * rows.work.shape[0] * words; }

std::string ShortConv::text() const {
	return fmt::format("x {} taps {}{}{}", shape_text(x), taps(), how.bias ? " bias" : "",
	                   how.mixes   ? fmt::format(" mixes {}", how.mixes)
	                   : how.gates ? " gates"
	                   : how.silu  ? ""
	                               : " linear");
}
void ShortConv::check() const {
	KV_ASSERT(x.shape[0] >= 1 && taps() >= 2 && taps() <= kMostTaps && !(how.gates && (how.bias || how.silu)));
	KV_ASSERT(!how.mixes || (how.mixes == w.shape[0] && !how.bias && !how.gates && !how.silu));
	check_state_rows(rows, state_words());
}
double ShortConv::bytes() const {
	return 4. * double((how.gates ? 2 : 1) * x.elements() + out.elements() + w.elements()) +
	       state_bytes(rows, state_words());
}

std::string PoolBlocks::text() const {
	return fmt::format("x {} of {}{}", shape_text(x), places.shape[0], overlaps() ? " overlapping" : "");
}
void PoolBlocks::check() const {
	KV_ASSERT(x.shape[0] >= 1 && places.shape[0] >= 2 && places.shape[1] == x.row_elements());
	KV_ASSERT(x.row_elements() == dim() || x.row_elements() == 2 * uint64_t(dim()));
	check_state_rows(rows, state_words(dim(), overlaps()));
}
double PoolBlocks::bytes() const {
	return 4. * double(2 * x.elements() + out.elements() + places.elements()) +
	       state_bytes(rows, state_words(dim(), overlaps()));
}

std::string DeltaRule::text() const {
	return fmt::format("out {} key heads {} of {}{}{}{}{}", shape_text(out), how.n_key_heads, how.k_dim,
	                   how.tiled ? " tiled" : "", how.by_channel ? " by channel" : "", how.bound < 0 ? " bounded" : "",
	                   how.apart ? " apart" : "") +
	       (gates.removal ? " with removal" : "");
}
void DeltaRule::check() const {
	KV_ASSERT(x.shape[0] >= 1 && how.n_key_heads >= 1 && out.shape[1] % how.n_key_heads == 0);
	KV_ASSERT(how.k_dim >= 8 && how.k_dim % 8 == 0 && how.k_dim <= kMostStateRows && how.eps >= 0);
	KV_ASSERT(how.bound == 0 || (how.bound < 0 && how.by_channel));
	KV_ASSERT(!gates.removal || (gates.taken && gates.bonus && own && how.by_channel && how.k_dim <= kMostRemovalRows));
	KV_ASSERT(!gates.removal || (how.n_key_heads == out.shape[1] && how.eps > 0));
	check_state_rows(rows, state_words());
}
double DeltaRule::bytes() const {
	return 4. * double(x.elements() + (own ? 2 : 1) * out.elements() + gates.beta.elements() + gates.alpha.elements()) +
	       state_bytes(rows, state_words());
}

std::string SsmScan::text() const {
	return fmt::format("out {} groups {} of {}", shape_text(out), how.n_groups, how.k_dim);
}
void SsmScan::check() const {
	KV_ASSERT(x.shape[0] >= 1 && how.n_groups >= 1 && out.shape[1] % how.n_groups == 0);
	KV_ASSERT(how.k_dim >= 8 && how.k_dim % 8 == 0 && how.k_dim <= kMostStateRows);
	check_state_rows(rows, state_words());
}
double SsmScan::bytes() const {
	return 4. * double(x.elements() + out.elements() + gates.step.elements()) + state_bytes(rows, state_words());
}

std::string SelectiveScan::text() const { return fmt::format("out {} states of {}", shape_text(out), k_dim()); }
void SelectiveScan::check() const {
	KV_ASSERT(x.shape[0] >= 1 && k_dim() >= 4 && k_dim() % 4 == 0 && k_dim() <= kMostChannelRows);
	check_state_rows(rows, state_words());
}
double SelectiveScan::bytes() const {
	return 4. * double(x.elements() + out.elements() + gates.step.elements() + gates.rate.elements()) +
	       state_bytes(rows, state_words());
}

} // namespace kvrun::op
