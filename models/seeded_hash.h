// Hashes of what a file chose: texts, and pairs of numbers in PairTable. They depend on random bytes of this process,
// so that no file can bring keys that collide; nothing but time may depend on them.
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
