// XXH3 as inline functions. Memory is read by memcpy: what xxHash 0.8.1 takes for GCC reads 32 bits of any object
// through a pointer to another type, and GCC 12 for aarch64 then hashed a key before it was written.
#pragma once
#define XXH_FORCE_MEMORY_ACCESS 0
#define XXH_INLINE_ALL
#include <xxhash.h>
