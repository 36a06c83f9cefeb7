// A folder that exists as long as the test runs.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace kvrun {

struct TempFolder {
	TempFolder() {
		std::string name = (std::filesystem::temp_directory_path() / "kvrun-test-XXXXXX").string();
		if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder can be made");
		path = name;
	}
	~TempFolder() {
		std::error_code ec;
		std::filesystem::remove_all(path, ec);
	}
	TempFolder(const TempFolder&) = delete;
	std::filesystem::path path;
};

} // namespace kvrun
