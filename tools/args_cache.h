// Options that choose the policy of the KV cache.
#pragma once
#include "tools/args_model.h"

namespace kvrun {

// --kv, with the given value name and help, and llama.cpp's -ctk and -ctv, which set the same value. When the command
// runs, `kv` is the policy's text; empty if none is given.
void add_cache_policy(Command&, std::string& kv, const char* type, const std::string& help,
                      const char* group = kCacheGroup);

} // namespace kvrun
