// Conditions, texts and byte counts that the rows of op_index.h do not state.
#include "backends/op_index.h"
#include <algorithm>
#include <fmt/format.h>

namespace kvrun::op {

std::string IndexScore::text() const {
	return fmt::format("score {} q {}{}", shape_text(score), shape_text(q),
	                   weights ? " weighed"
	                   : pool  ? fmt::format(" of {} keys", pool)
	                           : "");
}
void IndexScore::check() const {
	KV_ASSERT(q.shape[0] >= 1 && score.shape[0] == q.shape[0] && work.shape[0] >= 1);
	KV_ASSERT(q.shape[2] >= 8 && q.shape[2] % 8 == 0 && q.shape[2] <= 256);
	KV_ASSERT(!pool || (pool <= 256 && 256 % pool == 0 && q.shape[1] == 1 && !weights));
}
double IndexScore::bytes() const {
	const double n_keys = double(score.shape[1]) * std::max(pool, 1u);
	return 4. * double(q.elements() + score.elements()) + 2. * n_keys * q.shape[2];
}

std::string IndexPick::text() const {
	return fmt::format("score {} block {} most {}{}", shape_text(score), block, most,
	                   local ? fmt::format(" local {}", local) : "");
}

} // namespace kvrun::op
