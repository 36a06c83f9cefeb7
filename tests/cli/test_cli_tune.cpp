// kvrun tune --kernels: what is measured is kept for this driver, shown, used and forgotten; other files are ignored.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string kTuneModel = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";

std::string lavapipe_file() {
	for (const auto& e : fs::directory_iterator("/usr/share/vulkan/icd.d"))
		if (e.path().filename().string().starts_with("lvp_icd")) return e.path().string();
	skip("no lavapipe (package mesa-vulkan-drivers)");
	return "";
}

struct Tuned { // lavapipe with the kernels of an NVIDIA GPU, which has more to choose
	TempFolder folder;
	std::string icd = lavapipe_file();
	Ran run(std::vector<std::string> args) const {
		RunSpec spec{.args = std::move(args)};
		spec.env = {{"VK_DRIVER_FILES", icd},
		            {"VK_ICD_FILENAMES", icd},
		            {"KVRUN_CACHE_DIR", (folder.path / "kvrun").string()},
		            {"KVRUN_TEST_CAPS", "texel_range=0,cpu=0,int_dot=2,vendor=4318,matrices=0"},
		            {"XDG_RUNTIME_DIR", "/tmp"}};
		return run_program(spec);
	}
	fs::path file() const {
		for (const auto& e : fs::directory_iterator(folder.path / "kvrun"))
			if (e.path().filename().string().starts_with("tuned-")) return e.path();
		return {};
	}
	json device() const {
		const Ran r = run({"devices", "--json"});
		REQUIRE(r.code == 0);
		return json::parse(r.out)["devices"][0];
	}
};

} // namespace

TEST_CASE("tune --kernels: the cpu backend has nothing to tune; wrong options are usage errors") {
	const Ran r = run_program({"tune", "--kernels", "--device", "cpu"});
	CHECK(r.code == 0);
	CHECK(contains(r.out, "there is nothing to tune"));
	CHECK(lines(r.out) == 1);
	const Ran as_json = run_program({"tune", "--kernels", "--device", "cpu", "--json"});
	CHECK(json::parse(as_json.out)["choices"].empty());
	check_error({"tune"}, 2, {"--model is required", "--kernels"});
	check_error({"tune", "--forget"}, 2, {"--kernels"});
	check_error({"tune", "--kernels", "--device", "0,1"}, 2, {"one device at a time"});
}

TEST_CASE("tune --kernels: choices are measured, kept, shown, used and forgotten" * doctest::test_suite("lavapipe")) {
	const Tuned t;
	if (t.icd.empty()) return;
	CHECK(t.device()["tuned"].is_null());
	const Ran r = t.run({"tune", "--kernels", "--json", "-m", kTuneModel});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const json j = json::parse(r.out);
	std::vector<std::string> names;
	for (const json& c : j["choices"]) {
		names.push_back(c["choice"]);
		CHECK(c["values"].size() > 1);
		CHECK_FALSE(c["values"][0]["loads"].empty()); // something measures it
		bool chosen = false;
		for (const json& v : c["values"]) {
			CHECK(v["agrees"] == true);
			chosen = chosen || v["value"] == c["chosen"];
			for (const json& load : v["loads"]) CHECK(load["ms"].get<double>() > 0);
		}
		CHECK(chosen);
	}
	CHECK(names == std::vector<std::string>{"project_int8", "attend_int8", "matvec_rows", "tile_fill", "pieces"});
	CHECK(t.device()["tuned"] == j["tuned"]);

	// A choice that changes no bit: the text stays the same.
	const std::vector<std::string> ask = {"run", "-m", kTuneModel, "-p", "Once", "-n", "6", "--temp", "0", "-q"};
	json kept = json::parse(std::ifstream(t.file()));
	kept["values"] = json::object();
	const auto keep = [&](const std::string& text) { std::ofstream(t.file()) << text; };
	keep(kept.dump());
	const Ran own = t.run(ask);
	REQUIRE(own.code == 0);
	kept["values"] = {{"matvec_rows", "4"}, {"tile_fill", "512"}};
	keep(kept.dump());
	CHECK(contains(t.run({"devices"}).out, "tuned: matvec_rows 4, tile_fill 512"));
	const Ran other = t.run(ask);
	CHECK(other.code == 0);
	CHECK(other.out == own.out);

	// Files that are ignored, with one line.
	const auto ignored = [&](const std::string& text, const char* why) {
		keep(text);
		const Ran now = t.run(ask);
		CAPTURE(text);
		CHECK(now.code == 0);
		CHECK(now.out == own.out);
		CHECK(contains(now.err, why));
		CHECK(contains(now.err, "ignored"));
		CHECK(lines(now.err) == 1);
		CHECK(t.device()["tuned"].is_null());
	};
	ignored("{", "damaged");
	ignored(std::string(70000, '['), "too large");
	ignored(std::string(5000, '['), "damaged");
	json bad = kept;
	bad["values"]["matvec_rows"] = "3";
	ignored(bad.dump(), "it has matvec_rows 3");
	bad["values"] = {{"no such\nchoice", "on"}};
	ignored(bad.dump(), "damaged");
	bad["values"] = json::array({1});
	ignored(bad.dump(), "damaged");
	bad = kept;
	bad["key"] = kept["key"].get<std::string>() + "1";
	ignored(bad.dump(), "another driver or version");
	keep(kept.dump());
	fs::permissions(t.file(), fs::perms::others_write, fs::perm_options::add);
	CHECK(t.device()["tuned"].is_null());

	CHECK(contains(t.run({"tune", "--kernels", "--forget"}).out, "forgotten"));
	CHECK(t.file().empty());
	CHECK(contains(t.run({"tune", "--kernels", "--forget"}).out, "is not tuned"));
}
