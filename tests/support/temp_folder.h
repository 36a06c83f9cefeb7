// A folder that lives as long as a test.
#pragma once
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>

namespace kvrun {

struct TempFolder {
	TempFolder() {
		std::string name = (std::filesystem::temp_directory_path() / "kvrun-test-XXXXXX").string();
		REQUIRE(mkdtemp(name.data()));
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
