// Structs of the C API begin with struct_size, so that programs and libraries of different versions agree on their
// contents.
#pragma once
#include "backends/registry.h"
#include "engine/api/status.h"
#include <algorithm>
#include <atomic>
#include <cstring>

namespace kvrun::api {

constexpr uint32_t kMostStructBytes = 4096; // a larger struct_size was never initialised

// first: bytes of the struct in the oldest version that is accepted; now: in this version.
inline void check_struct_size(uint32_t given, size_t first, size_t now, const char* name) {
	if (given >= first && given <= kMostStructBytes) return;
	refuse(KVRUN_EINVALID, "{}: struct_size is {}, expected {}{}; initialise it with its _INIT macro or _init function",
	       name, given, now, first < now ? fmt::format(" ({} or more of an older program)", first) : "");
}

// Options in this library's version. Fields of a newer program that this library does not know must be zero. Fields
// that an older program lacks get defaults; its struct must have at least `first` bytes.
template <class S> S read_options(const S* given, const S& defaults, const char* name, size_t first = sizeof(S)) {
	if (!given) return defaults;
	const uint32_t size = given->struct_size;
	check_struct_size(size, first, sizeof(S), name);
	const char* bytes = reinterpret_cast<const char*>(given);
	if (size > sizeof(S) && std::any_of(bytes + sizeof(S), bytes + size, [](char c) { return c != 0; }))
		refuse(KVRUN_EUNSUPPORTED, "{}: a field that this version of the library does not know is set", name);
	S s = defaults;
	std::memcpy(&s, given, std::min<size_t>(size, sizeof(S)));
	s.struct_size = sizeof(S);
	return s;
}

// Writes as many bytes of a result as the caller's struct has, at least `first`.
template <class S> void write_result(S* out, const S& value, const char* name, size_t first = sizeof(S)) {
	check_pointer(out, name);
	const uint32_t size = out->struct_size;
	check_struct_size(size, first, sizeof(S), name);
	std::memset(out, 0, size);
	std::memcpy(out, &value, std::min<size_t>(size, sizeof(S)));
	out->struct_size = size;
}

// Refuse numbers that are out of range.
void check_ctx(uint32_t ctx);
void check_ubatch(uint32_t ubatch);

inline std::string text_or_empty(const char* s) { return s ? s : ""; }

BackendOptions backend_options(const kvrun_device_options*);

// Copies `n` elements to the caller's buffer of `capacity` elements; *out_count is always set.
template <class T, class U>
void fill_buffer(const T* from, size_t n, U* out, size_t capacity, size_t* out_count, const char* what) {
	check_pointer(out_count, "out_count");
	*out_count = n;
	if (n > capacity) refuse(KVRUN_EBUFFER, "{} {} do not fit a buffer of {}", n, what, capacity);
	if (n) {
		check_pointer(out, "out");
		std::copy_n(from, n, out);
	}
}
// The same for text, with a terminating zero.
void fill_text(const std::string& text, char* out, size_t capacity, size_t* out_length);

} // namespace kvrun::api

struct kvrun_canceller {
	std::atomic<bool> set = false;
};
