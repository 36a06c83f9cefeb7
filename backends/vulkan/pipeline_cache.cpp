// The driver's pipeline cache, kept on disk between runs.
//
// Drivers have crashed on damaged cache data, so nothing reaches them that is not exactly what this device's driver
// gave out: a header of our own names format, pointer size, device, driver version and UUID, and holds a hash of the
// data.
#include "backends/vulkan/pipeline_cache.h"
#include "engine/core/log.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

constexpr uint64_t kLargest = uint64_t(256) << 20; // bytes; a larger file is not ours

struct Header {             // little-endian, as everything kvrun runs on
	char magic[8];          // "KVRUNPC\0"
	uint32_t format;        // of this header
	uint32_t pointer_bytes; // caches of 32- and 64-bit drivers differ
	uint32_t vendor, device, driver_version, api;
	uint8_t uuid[VK_UUID_SIZE];
	uint64_t bytes; // of the data that follow
	uint64_t hash;  // XXH3 of the data
};
static_assert(sizeof(Header) == 64);

Header header_for(const Caps& c, uint64_t bytes, uint64_t hash) {
	Header h{{'K', 'V', 'R', 'U', 'N', 'P', 'C', 0},
	         1,
	         sizeof(void*),
	         c.vendor,
	         c.device,
	         c.driver_version,
	         c.api,
	         {},
	         bytes,
	         hash};
	std::memcpy(h.uuid, c.cache_uuid, VK_UUID_SIZE);
	return h;
}

struct File {
	int fd;
	explicit File(int f) : fd(f) {}
	~File() {
		if (fd >= 0) ::close(fd);
	}
	File(const File&) = delete;
};

bool read_all(int fd, void* to, size_t n) {
	auto* p = static_cast<char*>(to);
	while (n) {
		const ssize_t got = ::read(fd, p, n);
		if (got < 0 && errno == EINTR) continue;
		if (got <= 0) return false;
		p += got;
		n -= size_t(got);
	}
	return true;
}
bool write_all(int fd, const void* from, size_t n) {
	auto* p = static_cast<const char*>(from);
	while (n) {
		const ssize_t put = ::write(fd, p, n);
		if (put < 0 && errno == EINTR) continue;
		if (put <= 0) return false;
		p += put;
		n -= size_t(put);
	}
	return true;
}

} // namespace

std::vector<std::byte> PipelineCache::load() {
	const File f(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
	if (f.fd < 0) {
		if (errno != ENOENT) rejected_ = std::strerror(errno);
		return {};
	}
	struct stat st {};
	Header h{};
	if (::fstat(f.fd, &st) != 0 || !S_ISREG(st.st_mode))
		return rejected_ = "not a regular file", std::vector<std::byte>{};
	const uint64_t size = uint64_t(st.st_size);
	if (size < sizeof h) return rejected_ = "shorter than its header", std::vector<std::byte>{};
	if (size > kLargest) return rejected_ = "too large", std::vector<std::byte>{};
	if (!read_all(f.fd, &h, sizeof h)) return rejected_ = "cannot be read", std::vector<std::byte>{};
	const Header want = header_for(dev_.caps(), h.bytes, h.hash);
	if (std::memcmp(&h, &want, sizeof h) != 0)
		return rejected_ = "of another device, driver or version", std::vector<std::byte>{};
	if (h.bytes != size - sizeof h) return rejected_ = "truncated or extended", std::vector<std::byte>{};
	std::vector<std::byte> data(h.bytes);
	if (!read_all(f.fd, data.data(), data.size())) return rejected_ = "cannot be read", std::vector<std::byte>{};
	if (XXH3_64bits(data.data(), data.size()) != h.hash) return rejected_ = "damaged", std::vector<std::byte>{};
	loaded_hash_ = h.hash;
	return data;
}

PipelineCache::PipelineCache(Device& dev, const std::filesystem::path& folder) : dev_(dev) {
	const Caps& c = dev.caps();
	std::vector<std::byte> data;
	if (!folder.empty()) {
		std::string uuid;
		for (uint8_t b : c.cache_uuid) uuid += fmt::format("{:02x}", b);
		path_ = folder / fmt::format("pipelines-{:04x}-{:04x}-{}.bin", c.vendor, c.device, uuid);
		data = load();
		if (!rejected_.empty())
			log_at(1, "# pipeline cache {} is {}: starting with an empty one", path_.string(), rejected_);
	}
	VkPipelineCacheCreateInfo info = make<VkPipelineCacheCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO);
	info.initialDataSize = data.size();
	info.pInitialData = data.data();
	VkResult r = dev.fn.vkCreatePipelineCache(dev.handle(), &info, nullptr, &cache_);
	if (r != VK_SUCCESS && !data.empty()) { // the driver does not want its own data: rebuild
		rejected_ = "refused by the driver";
		::unlink(path_.c_str());
		loaded_hash_ = 0;
		info.initialDataSize = 0;
		r = dev.fn.vkCreatePipelineCache(dev.handle(), &info, nullptr, &cache_);
	}
	if (r < 0) fail_call(r, "vkCreatePipelineCache");
}

PipelineCache::~PipelineCache() {
	save();
	dev_.fn.vkDestroyPipelineCache(dev_.handle(), cache_, nullptr);
}

// Two processes may save at once: each writes its own temporary file, the last rename wins, readers see one or the
// other.
void PipelineCache::save() noexcept try {
	if (path_.empty()) return;
	size_t n = 0;
	if (dev_.fn.vkGetPipelineCacheData(dev_.handle(), cache_, &n, nullptr) != VK_SUCCESS || n == 0 ||
	    n > kLargest - sizeof(Header))
		return;
	std::vector<std::byte> data(n);
	if (dev_.fn.vkGetPipelineCacheData(dev_.handle(), cache_, &n, data.data()) != VK_SUCCESS) return;
	data.resize(n);
	const uint64_t hash = XXH3_64bits(data.data(), data.size());
	if (hash == loaded_hash_) return; // nothing new
	std::error_code ec;
	std::filesystem::create_directories(path_.parent_path(), ec);
	std::string tmp = path_.string() + ".XXXXXX";
	File f(::mkstemp(tmp.data()));
	if (f.fd < 0) {
		log_at(1, "# pipeline cache {}: {}", path_.string(), std::strerror(errno));
		return;
	}
	const Header h = header_for(dev_.caps(), n, hash);
	if (!write_all(f.fd, &h, sizeof h) || !write_all(f.fd, data.data(), n) ||
	    ::rename(tmp.c_str(), path_.c_str()) != 0) {
		log_at(1, "# pipeline cache {}: {}", path_.string(), std::strerror(errno));
		::unlink(tmp.c_str());
		return;
	}
	loaded_hash_ = hash;
} catch (const std::exception& e) {
	try {
		log_at(1, "# pipeline cache: {}", e.what());
	} catch (...) {}
}

} // namespace kvrun::vk
