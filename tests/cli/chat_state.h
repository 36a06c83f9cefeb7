// A folder for the chats of one test, and the program that talks in it with the bundled model.
#pragma once
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace kvrun {

inline const std::string kRoot = KVRUN_SOURCE_DIR;
inline const std::string kModel = kRoot + "/models/bundled/recall-4m-f16.gguf";
inline const std::vector<std::string> kGreedy = {"--temp", "0", "-n", "16"};
inline const std::vector<std::string> kWarm = {"--temp", "1.3", "--seed", "5", "-n", "16"}; // varying answers

class State { // a folder for chats of one test
	const TempFolder folder_;

 public:
	State() { unsetenv("XDG_STATE_HOME"); } // the program gets the one of RunSpec
	std::string file(const std::string& name) const { return path + "/kvrun/" + name; }
	nlohmann::json chat(const std::string& name) const {
		return nlohmann::json::parse(file_text(file("chats/" + name + ".json")), nullptr, false);
	}
	RunSpec spec(const std::vector<std::string>& more, std::string input = "") const {
		RunSpec s;
		s.args = {"chat", kModel, "--device", "cpu"};
		const auto is_template = [](const std::string& o) { return o.starts_with("--chat-template"); };
		if (std::ranges::none_of(more, is_template)) s.args.insert(s.args.end(), {"--chat-template", "chatml"});
		s.args.insert(s.args.end(), more.begin(), more.end());
		s.input = std::move(input);
		s.env = {{"XDG_STATE_HOME", path}};
		return s;
	}
	Ran run(const std::vector<std::string>& more, std::string input) const { return run_program(spec(more, input)); }
	// Runs it to its end without an error, and returns the answers.
	std::string answers(const std::vector<std::string>& more, std::string input) const {
		const Ran r = run(more, input);
		CAPTURE(input);
		CAPTURE(r.err);
		CHECK(r.code == 0);
		CHECK(!contains(r.err, "error:"));
		return r.out;
	}
	const std::string path = folder_.path;
};

inline std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
	a.insert(a.end(), b.begin(), b.end());
	return a;
}

} // namespace kvrun
