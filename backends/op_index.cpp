// Conditions, texts and byte counts that the rows of op_index.h do not state.
#include "backends/op_index.h"
#include <fmt/format.h>

namespace kvrun::op {

std::string IndexScore::text() const {
	return fmt::format("score {} q {}{}", shape_text(score), shape_text(q), weights ? " weighed" : "");
}
void IndexScore::check() const {
	KV_ASSERT(q.shape[0] >= 1 && score.shape[0] == q.shape[0] && work.shape[0] >= 1);
	KV_ASSERT(q.shape[2] >= 8 && q.shape[2] % 8 == 0 && q.shape[2] <= 256);
}
double IndexScore::bytes() const {
	return 4. * double(q.elements() + score.elements()) + 2. * double(score.shape[1]) * q.shape[2];
}

std::string IndexPick::text() const { return fmt::format("score {} block {} most {}", shape_text(score), block, most); }

} // namespace kvrun::op
