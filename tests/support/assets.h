// Where the tests find golden data and the bundled model, and the shared assets (models, vocabularies, texts) that are
// not part of the repository.
#pragma once
#include "tests/support/skip.h"
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

// The folder that holds tests/golden and models/bundled: the source tree, or KVRUN_TEST_ROOT if that is set.
inline std::string test_root() {
	const char* env = std::getenv("KVRUN_TEST_ROOT");
	return env && *env ? env : KVRUN_SOURCE_DIR;
}

// Path of a shared file ("reference/golden"), in KVRUN_SHARED or in ../shared beside the project. Empty, and counted as
// skipped, if it does not exist.
inline std::string shared_file(const std::string& name) {
	const char* env = std::getenv("KVRUN_SHARED");
	const std::string root = env && *env ? env : test_root() + "/../shared";
	const std::string path = root + "/" + name;
	if (std::filesystem::exists(path)) return path;
	skip(path + " is not there (set KVRUN_SHARED); the parts that need it are left out");
	return {};
}
// The same for an asset ("models/stories260K.gguf").
inline std::string shared_asset(const std::string& name) { return shared_file("assets/" + name); }

inline std::string file_text(const std::string& path) {
	std::ifstream in(path, std::ios::binary);
	return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::vector<std::byte> file_bytes(const std::string& path) {
	const std::string text = file_text(path);
	const auto bytes = std::as_bytes(std::span(text));
	return {bytes.begin(), bytes.end()};
}

} // namespace kvrun
