// KVRUN_TEST_ASAN is defined in programs that are built with AddressSanitizer, of which compilers say so differently.
#pragma once
#if defined(__SANITIZE_ADDRESS__)
#define KVRUN_TEST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVRUN_TEST_ASAN
#endif
#endif
