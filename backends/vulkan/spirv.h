// Reads bindings, push size, local size, specialization ids and shared memory out of a SPIR-V blob.
#pragma once
#include "backends/vulkan/vk.h"
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvrun::vk {

constexpr uint32_t kMaxBindings = 16; // one byte each in the push header, shaders/shared/push.h
constexpr uint32_t kMaxSpec = 32;     // ids of specialization constants are below this

struct Binding {
	std::string name; // of the block or the variable, for messages
	bool present = false;
	bool texel = false;   // a uniform texel buffer of 16-byte texels, not a storage buffer
	bool readable = true; // not declared writeonly
	bool writable = true; // not declared readonly
	uint32_t stride = 4;  // bytes of an element of the runtime array
	VkDescriptorType type() const {
		return texel ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
	}
};
struct Reflection {
	std::vector<Binding> bindings; // index = binding number, all in set 0
	uint32_t push_bytes = 0;
	uint32_t local_size[3] = {1, 1, 1}; // defaults
	int local_id[3] = {-1, -1, -1};     // specialization ids of the local size; -1: fixed
	uint32_t spec_ids = 0;              // bit i: id i exists
	bool subgroup_ops = false;          // uses subgroup instructions
};
struct SpecValue {
	uint32_t id, value;
	bool operator==(const SpecValue&) const = default;
};

// Throws Error{Format} for a blob that is not a compute shader by this project's rules (one set, <= 12 buffers).
Reflection reflect(std::span<const uint32_t> spirv, const std::string& name);
// Bytes of shared memory, and the local size, for given specialization constants.
struct Footprint {
	uint32_t local[3];
	uint32_t shared_bytes;
};
Footprint footprint(std::span<const uint32_t> spirv, const Reflection&, std::span<const SpecValue>);

} // namespace kvrun::vk
