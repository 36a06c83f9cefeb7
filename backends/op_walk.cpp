// Walks over the operation table.
#include "backends/op_walk.h"
#include "backends/backend.h"

namespace kvrun {

const DeviceInfo& unknown_device() {
	static const DeviceInfo none;
	return none;
}

void check_op(const Op& op) {
	std::visit(
	    [](const auto& o) {
		    if constexpr (requires { o.check(); }) o.check();
		    ViewReader missing([&](const ViewRow& row, const View& v) {
			    if (!v) check_view(o.name(), row, v);
		    });
		    o.views(o, missing); // first, because their shapes determine which views are missing
		    ViewReader reader([&](const ViewRow& row, const View& v) { check_view(o.name(), row, v); });
		    o.views(o, reader);
	    },
	    op);
}

const char* op_name(const Op& op) {
	return std::visit([](const auto& o) { return o.name(); }, op);
}

std::string op_text(const Op& op) {
	return std::visit([](const auto& o) { return o.text(); }, op);
}

View op_output(const Op& op) {
	View r;
	read_views_of(op, [&](const ViewRow& row, const View& v) {
		if (!r && row.writes()) r = v;
	});
	return r;
}

static double view_bytes(const ViewRow& row, const View& v) {
	if (!v || row.needed == ViewRow::Needed::No || row.use == ViewRow::Use::Memory) return 0;
	const double once =
	    row.any_type ? double(v.shape[0]) * double(dtype_row_bytes(v.type, v.shape[1])) : double(v.bytes());
	return once * (row.reads() + row.writes());
}

double op_bytes(const Op& op) {
	return std::visit(
	    [](const auto& o) {
		    if constexpr (requires { o.bytes(); }) return o.bytes();
		    double sum = 0;
		    ViewReader reader([&](const ViewRow& row, const View& v) { sum += view_bytes(row, v); });
		    o.views(o, reader);
		    return sum;
	    },
	    op);
}

bool op_moves_bytes(const Op& op) {
	return std::visit(
	    [](const auto& o) {
		    return requires { o.moves_bytes; };
	    },
	    op);
}

double op_mapped_bytes(const Op& op) {
	return std::visit(
	    [](const auto& o) {
		    double sum = 0;
		    ViewReader reader([&](const ViewRow& row, const View& v) {
			    if (!v || !row.any_type || !v.buf || v.buf->mem() != Mem::Mapped) return;
			    double share = 1; // share of the rows
			    if constexpr (requires { o.read_share(); }) share = o.read_share();
			    sum += share * view_bytes(row, v);
		    });
		    o.views(o, reader);
		    return sum;
	    },
	    op);
}

void Backend::check_and_count(const Op& op) {
	check_op(op);
	if (has_mapped_) mapped_bytes_read_ += uint64_t(op_mapped_bytes(op) + 0.5);
}

void Backend::check_and_count(const View& dst, const View& src) {
	check_transfer(dst, src);
	if (src.buf->mem() == Mem::Mapped) mapped_bytes_read_ += src.bytes();
}

std::vector<WrittenWords> op_written(const Op& op, const WordReader& words) {
	return std::visit(
	    [&](const auto& o) -> std::vector<WrittenWords> {
		    if constexpr (requires { o.written(words); })
			    return o.written(words);
		    else
			    return {};
	    },
	    op);
}

} // namespace kvrun
