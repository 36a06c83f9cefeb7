// Last messages of the program on fatal errors, on Windows.
#include "engine/core/system/files.h"
#include "engine/core/system/wide.h"
#include "tools/crash.h"
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <span>
#include <string_view>

namespace kvrun {
namespace {

void put(std::string_view s) { (void)sys::write_file(2, std::as_bytes(std::span(s))); }

// Names the library in which the program crashed; 4 if it is another's.
LONG WINAPI on_crash(EXCEPTION_POINTERS* e) {
	HMODULE module = nullptr;
	GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
	                   static_cast<const wchar_t*>(e->ExceptionRecord->ExceptionAddress), &module);
	const bool own = module == GetModuleHandleW(nullptr);
	char code[64], file[MAX_PATH] = "code that a driver generated";
	if (module) GetModuleFileNameA(module, file, sizeof file);
	std::snprintf(code, sizeof code, "crashed with exception 0x%08lX", e->ExceptionRecord->ExceptionCode);
	put(own ? "error: internal: " : "error: "), put(code);
	if (!own) put(" inside "), put(file), put("; update the driver, give it more memory, or choose another --device");
	put("\n");
	std::_Exit(own ? 1 : 4);
}

[[noreturn]] void on_terminate() {
	try {
		if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
	} catch (const std::bad_alloc&) {
	} catch (...) {
		put("error: internal: an exception that nobody expected\n");
		std::_Exit(1);
	}
	say_out_of_memory();
	std::_Exit(4);
}

} // namespace

void say_out_of_memory() noexcept {
	put("error: out of host memory; give a smaller -c, a --kv with fewer bits, or a smaller model\n");
}

void install_last_words() {
	std::set_terminate(on_terminate);
	SetUnhandledExceptionFilter(on_crash);
}

} // namespace kvrun
