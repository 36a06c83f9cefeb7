// The exception type of the library, and an assertion that is active in every build.
#pragma once
#include <fmt/format.h>
#include <stdexcept>
#include <string>

namespace kvrun {

enum class Code {
	Invalid,     // a value the caller (or the user) gave is wrong
	NotFound,    // a named thing does not exist
	Unsupported, // well-formed, but not supported by kvrun
	OutOfMemory, // host or device memory, or a byte budget
	Device,      // the device or its driver refused or failed
	Io,          // reading or writing a file failed
	Format,      // a file's content breaks its format
	Context,     // the prompt does not fit the context
	Internal,    // kvrun violated one of its own rules
};

struct Error : std::runtime_error {
	Code code;
	Error(Code c, const std::string& what) : std::runtime_error(what), code(c) {}
};

// Throws Error{c} with a formatted one-line message: the fault, both values, then what to do.
template <class... A> [[noreturn]] void fail(Code c, fmt::format_string<A...> f, A&&... a) {
	throw Error(c, fmt::format(f, std::forward<A>(a)...));
}

} // namespace kvrun

#define KV_STRINGIFY_(x) #x
#define KV_STRINGIFY(x) KV_STRINGIFY_(x)
// Checks for wrong use inside kvrun. Active in all builds; it throws, so that tests can check it.
#define KV_ASSERT(cond)                                                                                                \
	do {                                                                                                               \
		if (!(cond))                                                                                                   \
			throw ::kvrun::Error(::kvrun::Code::Internal,                                                              \
			                     "assertion failed: " #cond " at " __FILE__ ":" KV_STRINGIFY(__LINE__));               \
	} while (0)
