// Choices between kernels and tile sizes that `kvrun tune --kernels` measures. kernel_choice*.cpp reads their values
// in Caps.
#pragma once
#include "backends/device_tuning.h"
#include <array>
#include <cstdint>

namespace kvrun {
struct DeviceInfo;
}
namespace kvrun::vk {
struct Caps;

enum class Knob : uint8_t {
	Texels,         // software drivers: kernels of shaders/texel; 0: those of GPUs
	Matrices,       // prompts are multiplied by cooperative matrices, where the device has them; 0: off
	AttendMatrices, // attention of prompts uses them, too
	RegisterScores, // its scores stay in registers instead of shared memory
	SharedQueries,  // its queries stay in shared memory instead of registers
	PromptQueries,  // queries that one of its workgroups takes
	ProjectInt8,    // decode rows are rounded to int8, where the device has fast products of bytes
	AttendInt8,     // attention over packed tokens uses products of bytes
	MatvecRows,     // weight rows per subgroup in decode steps; 0: by the number of rows
	TileFill,       // least number of workgroups for which large tiles of prompts are used
	TileBuffers,    // of prompts by matrices in shared memory
	Pieces,         // of attention in decode steps, in percent of kvrun's own
};
constexpr size_t kKnobs = 12;

class Knobs { // values of all
 public:
	uint32_t operator[](Knob k) const { return values_[size_t(k)]; }
	uint32_t& operator[](Knob k) { return values_[size_t(k)]; }

 private:
	std::array<uint32_t, kKnobs> values_{1, 1, 1, 0, 0, 64, 1, 1, 0, 128, 1, 100};
};

// What there is to choose on this device, in the order in which it is measured. It depends on earlier choices.
std::vector<Tunable> tunables(const Caps&);
// Sets a choice by name. Returns false if there is no such choice or value.
bool set_knob(Knobs&, std::string_view name, std::string_view value);
// Sets what callers see of the choices: precisions, how attention is cut.
void describe_choices(const Caps&, DeviceInfo&);

// Reads a device's measured choices into Caps::knobs. id: of the GPU; folder: the cache's. Returns them; a file that
// is ignored is a warning.
DeviceTuning read_knobs(Caps&, const std::string& folder, const std::string& id, const std::string& key,
                        const std::string& device);

} // namespace kvrun::vk
