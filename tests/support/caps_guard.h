// Capabilities that a test removes from the Vulkan devices it opens, so that they use other kernels.
#pragma once
#include <cstdlib>
#include <span>
#include <string>

namespace kvrun {

// Values that make a Vulkan device use other kernels: no texel buffers, then also no subgroup operations, or no integer
// dot products.
inline constexpr const char* kCaps[] = {"", "texel_range=0", "texel_range=0,subgroup_ops=0", "texel_range=0,int_dot=2"};

inline constexpr const char* kCapsVariable = "KVRUN_TEST_CAPS";

// Whether the environment chooses capabilities. Tests that set others leave them to the entries where it does not.
inline bool has_own_caps() { return std::getenv(kCapsVariable) != nullptr; }

// Those that a device runs. Drivers of this system have all kernels.
inline std::span<const char* const> caps_of(const std::string& device) {
	const bool all = !has_own_caps() && (device == "lavapipe" || device == "swiftshader");
	return std::span(kCaps).first(all ? std::size(kCaps) : 1);
}

class CapsGuard { // sets KVRUN_TEST_CAPS for devices opened during its lifetime
 public:
	explicit CapsGuard(const char* caps) {
		if (const char* old = std::getenv(kCapsVariable)) before_ = old;
		if (*caps) setenv(kCapsVariable, caps, 1);
	}
	~CapsGuard() { before_.empty() ? unsetenv(kCapsVariable) : setenv(kCapsVariable, before_.c_str(), 1); }
	CapsGuard(const CapsGuard&) = delete;

 private:
	std::string before_;
};

} // namespace kvrun
