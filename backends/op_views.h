// Describes a view in the operation table (op_table.h): a row, created by one of the functions below.
#pragma once
#include "backends/memory.h"
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace kvrun {

struct DeviceInfo;

constexpr uint64_t kAny = UINT64_MAX; // as an extent: any number, including 0

struct ViewRow {
	enum class Use : uint8_t {
		In,
		Out,
		InOut,   // read, then written
		Scratch, // written, and undefined afterwards
		Memory,  // words that other arguments address: pages, tables
	};
	enum class Needed : uint8_t {
		Yes,
		Optional, // may be empty
		No,       // not used in this call, and may hold anything
	};
	enum class Compare : uint8_t { // how an output is compared with another backend's
		No,
		Values,  // f32 or f16
		Slots,   // the same; unwritten elements may hold anything that is equal on both
		Words,   // u32, equal
		Adopted, // not compared; both continue with the device's result
	};

	const char* name; // in dumps and messages
	Use use;
	DType type = DType::F32;
	bool any_type = false;  // of a weight: every type but u32
	bool weight = false;    // may have been written by write_weight()
	bool dumped = true;     // of an input: its contents before the op
	bool has_shape = false; // else any shape is accepted
	bool stored = false;    // of Memory: the op writes to it
	Needed needed = Needed::Yes;
	Compare compare = Compare::No;
	std::string_view tolerance = ""; // rule of tolerance()
	const View* queries = nullptr;   // of attention; larger ones widen the tolerance (score_factor())
	// Outermost first. The last extent is the number of elements of all further dimensions: {n} accepts any shape of n.
	uint64_t shape[4] = {};
	uint8_t dims = 0;

	constexpr bool reads() const { return use == Use::In || use == Use::InOut; }
	constexpr bool writes() const { return use == Use::Out || use == Use::InOut; }
	constexpr ViewRow optional() const { return with(&ViewRow::needed, Needed::Optional); }
	constexpr ViewRow only_if(bool used) const { return with(&ViewRow::needed, used ? needed : Needed::No); }
	constexpr ViewRow undumped() const { return with(&ViewRow::dumped, false); }
	constexpr ViewRow uploaded() const { return with(&ViewRow::weight, true); } // as weights
	constexpr ViewRow stores(bool s = true) const { return with(&ViewRow::stored, s); }
	constexpr ViewRow slots(bool c = true) const { return with(&ViewRow::compare, c ? Compare::Slots : compare); }
	constexpr ViewRow words() const { return with(&ViewRow::compare, Compare::Words); }
	constexpr ViewRow adopted_if(bool c) const { return with(&ViewRow::compare, c ? Compare::Adopted : compare); }
	constexpr ViewRow added_to_if(bool c) const { return with(&ViewRow::use, c ? Use::InOut : use); }
	constexpr ViewRow widened_by(const View& q) const { return with(&ViewRow::queries, &q); }
	constexpr ViewRow sized(std::initializer_list<uint64_t> extents) const {
		ViewRow r = *this;
		r.has_shape = true;
		for (const uint64_t n : extents) r.shape[r.dims++] = n;
		return r;
	}

 private:
	template <class T> constexpr ViewRow with(T ViewRow::*field, T value) const {
		ViewRow r = *this;
		r.*field = value;
		return r;
	}
};

namespace op {

using Extents = std::initializer_list<uint64_t>;

constexpr ViewRow input(const char* name, DType t, Extents shape) {
	return ViewRow{.name = name, .use = ViewRow::Use::In, .type = t}.sized(shape);
}
// rule: of tolerance(); empty: the output is neither compared nor dumped.
constexpr ViewRow output(const char* name, DType t, Extents shape, std::string_view rule) {
	const auto compare = rule.empty() ? ViewRow::Compare::No : ViewRow::Compare::Values;
	return ViewRow{.name = name, .use = ViewRow::Use::Out, .type = t, .compare = compare, .tolerance = rule}.sized(
	    shape);
}
constexpr ViewRow inout(const char* name, DType t, Extents shape, std::string_view rule) {
	return output(name, t, shape, rule).added_to_if(true);
}
constexpr ViewRow scratch(const char* name, DType t, Extents shape) {
	return ViewRow{.name = name, .use = ViewRow::Use::Scratch, .type = t}.sized(shape);
}
constexpr ViewRow words_input(const char* name) { // a list of u32 words of any length
	return ViewRow{.name = name, .use = ViewRow::Use::In, .type = DType::U32};
}
constexpr ViewRow memory(const char* name, DType t = DType::U32) {
	return ViewRow{.name = name, .use = ViewRow::Use::Memory, .type = t};
}
constexpr ViewRow weight_input(const char* name, uint64_t rows, uint64_t cols) { // in blocks of its type
	return ViewRow{.name = name, .use = ViewRow::Use::In, .any_type = true, .weight = true, .dumped = false}.sized(
	    {rows, cols});
}

} // namespace op

// Throws Error{Internal} if the view does not match its row.
void check_view(const char* op, const ViewRow&, const View&);
void check_transfer(const View& dst, const View& src); // of Backend::transfer()

std::string shape_text(const View&); // (rows, cols) for messages

} // namespace kvrun
