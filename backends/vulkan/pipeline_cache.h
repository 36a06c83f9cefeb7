// The driver's pipeline cache, kept on disk between runs; one file per device. A file that fails any check is ignored.
#pragma once
#include "backends/vulkan/device.h"
#include <filesystem>

namespace kvrun::vk {

class PipelineCache {
 public:
	PipelineCache(Device&, const std::filesystem::path& folder); // empty: the cache is not saved
	~PipelineCache();
	PipelineCache(const PipelineCache&) = delete;
	VkPipelineCache handle() const { return cache_; }
	void save() noexcept;                                       // tmp file + rename; failures are logged, never thrown
	const std::filesystem::path& path() const { return path_; } // empty: not saved
	const std::string& rejected() const { return rejected_; }   // why the file was ignored; empty when it was not

 private:
	std::vector<std::byte> load();

	Device& dev_;
	std::filesystem::path path_;
	std::string rejected_;
	uint64_t loaded_hash_ = 0;
	VkPipelineCache cache_ = VK_NULL_HANDLE;
};

} // namespace kvrun::vk
