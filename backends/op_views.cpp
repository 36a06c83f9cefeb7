// Checks a view against its row of the operation table.
#include "backends/op_views.h"
#include <fmt/ranges.h>

namespace kvrun {
namespace {

bool fits(const ViewRow& row, const View& v) {
	uint64_t rest = 1; // elements of all dimensions from the last extent on
	for (size_t i = row.dims ? row.dims - 1u : 0; i < 4; ++i) rest *= v.shape[i];
	for (size_t i = 0; i < row.dims; ++i)
		if (const uint64_t n = i + 1u == row.dims ? rest : v.shape[i]; row.shape[i] != kAny && row.shape[i] != n)
			return false;
	return !row.writes() || row.dims < 2 || row.shape[0] > 0; // an op has at least one row
}

// A weight's rows are one dimension and consist of whole blocks.
bool is_weight(const View& v) {
	return v.type != DType::U32 && v.row_elements() == v.shape[1] && v.shape[1] % dtype_info(v.type).block == 0;
}

std::string extents_text(const ViewRow& row) {
	std::string r;
	for (size_t i = 0; i < row.dims; ++i)
		r += (i ? ", " : "") + (row.shape[i] == kAny ? "any" : fmt::format("{}", row.shape[i]));
	return "(" + r + ")";
}

} // namespace

std::string shape_text(const View& v) {
	int dims = 4;
	while (dims > 1 && v.shape[dims - 1] == 1) --dims;
	return fmt::format("({})", fmt::join(v.shape, v.shape + dims, ", "));
}

void check_view(const char* op, const ViewRow& row, const View& v) {
	if (row.needed == ViewRow::Needed::No || (row.needed == ViewRow::Needed::Optional && !v)) return;
	const bool typed = row.any_type ? is_weight(v) : v.type == row.type;
	if (v && typed && (!row.has_shape || fits(row, v))) return;
	if (!v) fail(Code::Internal, "{}: {} is missing", op, row.name);
	fail(Code::Internal, "{}: {} is {} {}; expected {} {}", op, row.name, dtype_info(v.type).name, shape_text(v),
	     row.any_type ? "rows of whole blocks," : dtype_info(row.type).name,
	     row.has_shape ? extents_text(row) : "of any shape");
}

void check_transfer(const View& dst, const View& src) {
	KV_ASSERT(dst.buf && src.buf && dst.type == src.type && dst.elements() == src.elements());
}

} // namespace kvrun
