// Walks over the views of an op by the rows of the operation table.
#pragma once
#include "backends/op_table.h"
#include <memory>
#include <type_traits>

namespace kvrun {

const DeviceInfo& unknown_device(); // for walks that use no tolerances

// Throws Error{Internal}, naming op, argument and condition, when the arguments do not fit each other.
void check_op(const Op&);
const char* op_name(const Op&);
std::string op_text(const Op&);
double op_bytes(const Op&); // read and written, at least
bool op_moves_bytes(const Op&);
// Bytes of weights in Mem::Mapped memory, each read once: of embeddings only the rows looked up, of experts at most the
// chosen ones.
double op_mapped_bytes(const Op&);
std::vector<WrittenWords> op_written(const Op&, const WordReader&);

// Calls f(row, view) for every view of the op's own arguments.
template <class F> class ViewReader {
 public:
	explicit ViewReader(F f, const DeviceInfo& device = unknown_device()) : f_(std::move(f)), device_(device) {}
	void operator()(const ViewRow& row, const View& v) { f_(row, v); }
	template <class T> std::span<const T> items(std::span<const T> args) const { return args; }
	template <class T> std::span<const T> items(const T* arg) const { return {arg, arg ? size_t(1) : 0}; }
	const DeviceInfo& device() const { return device_; }

 private:
	F f_;
	const DeviceInfo& device_;
};

template <class F> void read_views_of(const Op& op, F f, const DeviceInfo& device = unknown_device()) {
	ViewReader reader(std::move(f), device);
	std::visit([&](const auto& o) { o.views(o, reader); }, op);
}

// The first output of an op, for messages; an empty view if it writes only Memory.
View op_output(const Op&);

// A copy of op `from`, with each view replaced by map(row, view).
class MappedOp {
 public:
	template <class F> MappedOp(const Op& from, F map) : op_(from) {
		Mapper<F> mapper{std::move(map), kept_};
		std::visit([&](auto& o) { o.views(o, mapper); }, op_);
	}
	const Op& operator*() const { return op_; }

 private:
	using Kept = std::vector<std::shared_ptr<void>>;
	template <class F> struct Mapper {
		F map;
		Kept& kept;
		void operator()(const ViewRow& row, View& v) {
			if (v) v = map(row, v);
		}
		template <class T> std::span<T> items(std::span<const T>& args) {
			auto own = std::make_shared<std::vector<T>>(args.begin(), args.end());
			args = *own;
			kept.push_back(own);
			return *own;
		}
		template <class T> std::span<T> items(const T*& arg) {
			if (!arg) return {};
			auto own = std::make_shared<T>(*arg);
			arg = own.get();
			kept.push_back(own);
			return {own.get(), 1};
		}
		const DeviceInfo& device() const { return unknown_device(); }
	};

	Kept kept_; // arguments that op_ points to
	Op op_;
};

} // namespace kvrun
