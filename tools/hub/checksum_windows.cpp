// Checksums by Windows' own library (CNG).
#include "engine/core/error.h"
#include "engine/core/system/wide.h"
#include "tools/hub/checksum.h"
#include <bcrypt.h>

namespace kvrun {

struct Checksum::State {
	BCRYPT_ALG_HANDLE algorithm = nullptr;
	BCRYPT_HASH_HANDLE hash = nullptr;
	ULONG bytes = 0; // of a digest
	std::string wanted;
	~State() {
		if (hash) BCryptDestroyHash(hash);
		if (algorithm) BCryptCloseAlgorithmProvider(algorithm, 0);
	}
};

static void check_bcrypt(NTSTATUS status) {
	if (status != 0) fail(Code::Internal, "Windows refused to compute a checksum (0x{:08x})", uint32_t(status));
}

Checksum::Checksum(const HubFile& f) : state_(std::make_unique<State>()) {
	const bool large = !f.sha256.empty();
	state_->wanted = content_name(f);
	state_->bytes = large ? 32 : 20;
	check_bcrypt(BCryptOpenAlgorithmProvider(&state_->algorithm,
	                                         large ? BCRYPT_SHA256_ALGORITHM : BCRYPT_SHA1_ALGORITHM, nullptr, 0));
	check_bcrypt(BCryptCreateHash(state_->algorithm, &state_->hash, nullptr, 0, nullptr, 0, 0));
	if (large) return;
	const std::string front = fmt::format("blob {}", f.bytes); // header of a git object, with the terminating zero
	add(std::as_bytes(std::span(front.c_str(), front.size() + 1)));
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
	while (!bytes.empty()) {
		const auto part = bytes.first(std::min<size_t>(bytes.size(), size_t(1) << 30));
		const auto* data = reinterpret_cast<const UCHAR*>(part.data());
		check_bcrypt(BCryptHashData(state_->hash, const_cast<UCHAR*>(data), ULONG(part.size()), 0));
		bytes = bytes.subspan(part.size());
	}
}

bool Checksum::is_right() {
	unsigned char digest[32];
	check_bcrypt(BCryptFinishHash(state_->hash, digest, state_->bytes, 0));
	std::string hex;
	for (ULONG i = 0; i < state_->bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
	return hex == state_->wanted;
}

} // namespace kvrun
