// What stands in for checksums where kvrun is built without libcrypto; nothing is fetched there.
#include "engine/core/error.h"
#include "tools/hub/checksum.h"
#include "tools/hub/http.h"

namespace kvrun {

struct Checksum::State {};
Checksum::Checksum(const HubFile&) { fail(Code::Unsupported, "{}", why_no_http()); }
Checksum::~Checksum() = default;
void Checksum::add(std::span<const std::byte>) {}
bool Checksum::is_right() { return false; }

} // namespace kvrun
