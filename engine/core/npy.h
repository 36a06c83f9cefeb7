// Reading and writing of NumPy's .npy files (versions 1 to 3, C order, little endian): dumps, golden vectors, tests.
#pragma once
#include "engine/core/error.h"
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvrun {

enum class NpyType : uint8_t { F32, F16, U8, I32, I64, Bool, U16, U32 }; // F16 is read as uint16_t bit patterns

struct NpyTypeInfo {
	const char* name;  // as NumPy prints it
	const char* descr; // as the file's header spells it
	size_t bytes;      // per element
};
const NpyTypeInfo& npy_type_info(NpyType t);

template <class T> struct NpyTypeOf;
template <> struct NpyTypeOf<float> { static constexpr NpyType value = NpyType::F32; };
template <> struct NpyTypeOf<uint8_t> { static constexpr NpyType value = NpyType::U8; };
template <> struct NpyTypeOf<int32_t> { static constexpr NpyType value = NpyType::I32; };
template <> struct NpyTypeOf<int64_t> { static constexpr NpyType value = NpyType::I64; };
template <> struct NpyTypeOf<bool> { static constexpr NpyType value = NpyType::Bool; };
template <> struct NpyTypeOf<uint16_t> { static constexpr NpyType value = NpyType::U16; };
template <> struct NpyTypeOf<uint32_t> { static constexpr NpyType value = NpyType::U32; };

struct NpyHeader { // type and shape according to the file
	NpyType type = NpyType::F32;
	std::vector<uint64_t> shape; // outermost first; empty for a scalar

	uint64_t count() const; // product of shape
	uint64_t bytes() const; // of all elements
};

struct NpyArray : NpyHeader {
	std::vector<std::byte> data; // count() elements in C order

	// The elements, if T is the file's type; uint16_t also reads F16. Otherwise throws Error{Format} naming both types.
	template <class T> std::span<const T> as() const {
		const NpyType want = NpyTypeOf<T>::value;
		if (want != type && !(want == NpyType::U16 && type == NpyType::F16)) wrong_type(want);
		return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
	}

 private:
	[[noreturn]] void wrong_type(NpyType want) const;
};

// Parses a whole file's bytes. `name` appears in messages. Throws Error{Format}, or {Unsupported} for Fortran order,
// big-endian data and element types not listed above.
NpyArray npy_parse(std::span<const std::byte> file, std::string_view name);

constexpr uint64_t kMaxNpyBytes = uint64_t(4) << 30; // of one array; larger arrays are refused without reading
using NpyCheck = std::function<void(const NpyHeader&)>;
// Reads a regular file. `check` gets the header before memory is allocated for the data, and throws if the caller
// cannot use it. Also throws Error{Io} and {OutOfMemory}.
NpyArray npy_read(const std::filesystem::path& path, const NpyCheck& check = {});

// Writes version 1 (version 2 if the header needs it). data: exactly the elements of the shape. Throws Error{Io}.
void npy_write(const std::filesystem::path& path, NpyType type, std::span<const uint64_t> shape,
               std::span<const std::byte> data);
template <class T>
void npy_write(const std::filesystem::path& path, std::initializer_list<uint64_t> shape, std::span<const T> values) {
	npy_write(path, NpyTypeOf<std::remove_const_t<T>>::value, {shape.begin(), shape.size()}, std::as_bytes(values));
}

} // namespace kvrun
