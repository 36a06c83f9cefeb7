// Checksums by OpenSSL's libcrypto.
#include "engine/core/error.h"
#include "tools/hub/checksum.h"
#include <openssl/evp.h>

namespace kvrun {

struct Checksum::State {
	std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
	std::string wanted;
};

static void check_openssl(int ok) {
	if (ok != 1) fail(Code::Internal, "libcrypto refused to compute a checksum");
}

Checksum::Checksum(const HubFile& f) : state_(std::make_unique<State>()) {
	if (!state_->context) throw std::bad_alloc();
	const bool large = !f.sha256.empty();
	state_->wanted = content_name(f);
	check_openssl(EVP_DigestInit_ex(state_->context.get(), large ? EVP_sha256() : EVP_sha1(), nullptr));
	if (large) return;
	const std::string front = fmt::format("blob {}", f.bytes); // header of a git object, with the terminating zero
	check_openssl(EVP_DigestUpdate(state_->context.get(), front.c_str(), front.size() + 1));
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
	check_openssl(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

bool Checksum::is_right() {
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	check_openssl(EVP_DigestFinal_ex(state_->context.get(), digest, &n));
	std::string hex;
	for (unsigned i = 0; i < n; ++i) hex += fmt::format("{:02x}", digest[i]);
	return hex == state_->wanted;
}

} // namespace kvrun
