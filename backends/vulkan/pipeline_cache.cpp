// The driver's pipeline cache, kept on disk between runs.
//
// Drivers have crashed on damaged cache data, so they only get exactly the data that this device's driver wrote: our
// own header names format, pointer size, device, driver version and UUID, and holds a hash of the data.
#include "backends/vulkan/pipeline_cache.h"
#include "engine/core/log.h"
#include "engine/core/private_file.h"
#include "engine/core/system/files.h"
#include <cstring>
#include <xxhash.h>

namespace kvrun::vk {
namespace {

constexpr uint64_t kLargest = uint64_t(256) << 20; // bytes; larger files are ignored

struct Header {             // little-endian, like every platform of kvrun
	char magic[8];          // "KVRUNPC\0"
	uint32_t format;        // of this header
	uint32_t pointer_bytes; // caches of 32- and 64-bit drivers differ
	uint32_t vendor, device, driver_version, api;
	uint8_t uuid[VK_UUID_SIZE];
	uint64_t bytes; // of the data after the header
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

} // namespace

std::vector<std::byte> PipelineCache::load() {
	std::vector<std::byte> data = read_private_file(path_, kLargest, rejected_);
	const auto reject = [&](const char* why) {
		rejected_ = why;
		return std::vector<std::byte>();
	};
	sys::FileInfo file;
	if (!rejected_.empty() || (data.empty() && !sys::stat_file(path_.string(), /*follow_link=*/false, file))) return {};
	Header h{};
	if (data.size() < sizeof h) return reject("shorter than its header");
	std::memcpy(&h, data.data(), sizeof h);
	const Header want = header_for(dev_.caps(), h.bytes, h.hash);
	if (std::memcmp(&h, &want, sizeof h) != 0) return reject("of another device, driver or version");
	if (h.bytes != data.size() - sizeof h) return reject("truncated or extended");
	data.erase(data.begin(), data.begin() + sizeof h);
	if (XXH3_64bits(data.data(), data.size()) != h.hash) return reject("damaged");
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
	if (r != VK_SUCCESS && !data.empty()) { // the driver refuses its own data: start with an empty cache
		rejected_ = "refused by the driver";
		sys::remove_file(path_.string());
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

// Two processes may save at the same time: each writes its own temporary file, the last rename wins, and readers see
// one or the other.
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
	if (hash == loaded_hash_) return; // unchanged
	const Header h = header_for(dev_.caps(), n, hash);
	std::string why;
	switch (write_private_file(path_, {std::as_bytes(std::span(&h, 1)), data}, why)) {
	case Written::Yes: loaded_hash_ = hash; break;
	case Written::NoPlace: log_at(1, "# pipeline cache {}: {}", path_.string(), why); break;
	case Written::Cut: warn_once(fmt::format("pipeline cache {}: {}; it is not kept", path_.string(), why)); break;
	}
} catch (...) {} // no memory: the next run compiles again

} // namespace kvrun::vk
