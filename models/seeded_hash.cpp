// The process's hash secret, and hashes of texts with it.
#include "models/seeded_hash.h"
#include "models/inline_xxh3.h"
#include <array>
#include <cstring>
#include <random>

namespace kvrun {
namespace {

static_assert(kHashSecretBytes >= XXH3_SECRET_SIZE_MIN);

std::array<uint8_t, kHashSecretBytes> draw() {
	std::array<uint8_t, kHashSecretBytes> out;
	std::random_device source;
	for (size_t at = 0; at < out.size(); at += sizeof(uint32_t)) {
		const uint32_t v = source();
		std::memcpy(out.data() + at, &v, sizeof v);
	}
	return out;
}

} // namespace

const uint8_t* hash_secret() {
	static const std::array<uint8_t, kHashSecretBytes> secret = draw();
	return secret.data();
}

size_t TextHash::operator()(std::string_view s) const {
	return XXH3_64bits_withSecret(s.data(), s.size(), secret, kHashSecretBytes);
}

} // namespace kvrun
