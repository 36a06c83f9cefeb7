// Hashes of data that a file controls: texts, and pairs of numbers in PairTable. They depend on random bytes drawn by
// the process, so that a file cannot contain keys that collide. No result may depend on them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvrun {

constexpr size_t kHashSecretBytes = 192;
const uint8_t* hash_secret(); // kHashSecretBytes, drawn once per process

// For unordered containers. Not noexcept: libstdc++ then keeps each key's hash instead of computing it again.
struct TextHash {
	size_t operator()(std::string_view) const;
	const uint8_t* secret = hash_secret();
};

} // namespace kvrun
