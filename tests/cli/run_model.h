// `kvrun run` with the bundled model.
#pragma once
#include "tests/cli/program.h"
#include <doctest/doctest.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvrun {

inline const std::string kRoot = KVRUN_SOURCE_DIR;
inline const std::string kModel = kRoot + "/models/bundled/recall-4m-f16.gguf";
inline const std::string kRecord = kRoot + "/models/bundled/record40.txt";

// `kvrun run` with the bundled model, the cpu backend, and greedy sampling.
inline RunSpec run_spec(std::vector<std::string> more, std::string input = "") {
	std::vector<std::string> args = {"run", "-m", kModel, "--device", "cpu", "--temp", "0"};
	args.insert(args.end(), more.begin(), more.end());
	return {.args = args, .input = input};
}
inline Ran run_model(std::vector<std::string> more, std::string input = "") {
	return run_program(run_spec(more, input));
}

class TempFile {
 public:
	explicit TempFile(const std::string& content) {
		char name[] = "/tmp/kvrun-test-XXXXXX";
		const int fd = mkstemp(name);
		REQUIRE(fd >= 0);
		path = name;
		REQUIRE(write(fd, content.data(), content.size()) == ssize_t(content.size()));
		close(fd);
	}
	~TempFile() { unlink(path.c_str()); }
	std::string path;
};

} // namespace kvrun
