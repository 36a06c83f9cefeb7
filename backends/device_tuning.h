// What `kvrun tune --kernels` measured on a device: which of several kernels or tile sizes is fastest there. One file
// per device in the cache folder; a file that fails any check is ignored.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {

struct Tunable {                     // one choice between designs that compute the same within tolerances
	std::string name, what;          // "matvec_rows", "weight rows per subgroup in decode steps"
	std::vector<std::string> values; // the first is kvrun's own
	std::string value;               // in use
};
using TunedValues = std::vector<std::pair<std::string, std::string>>; // name and value; absent: kvrun's own

// "matvec_rows 4, int8_attend off"; "kvrun's own choices" where none differs
std::string tuning_text(const TunedValues&);

// id: of the GPU, letters that a file name may have.
std::filesystem::path device_tuning_path(const std::filesystem::path& folder, const std::string& id);

struct DeviceTuning {
	bool measured = false;
	TunedValues values; // those that differ from kvrun's own
};
// key: of driver, settings and kernels; another one's file is ignored. `why`: why a file is ignored; empty if it is
// used or if there is none.
DeviceTuning read_device_tuning(const std::filesystem::path&, std::string_view key, std::string& why);
// Replaces the file. Throws Error{Io} if it cannot be written.
void write_device_tuning(const std::filesystem::path&, std::string_view key, const std::string& device,
                         const TunedValues&);

} // namespace kvrun
