// kvrun compare and synth as a user sees them: agreement, a faulty shader, resumed runs, baselines, merging.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

const std::string kModel =
    "synth:tinyllama-1.1b,dim=128,hidden=256,layers=2,heads=4,kv_heads=2,head_dim=32,vocab=1024,ctx=1024:f16";

RunSpec compare_args(const fs::path& out, std::vector<std::string> more = {}) {
	RunSpec s;
	s.args = {"compare", "-m",         kModel,     "--quick", "--device", "llvmpipe,cpu",
	          "--kv",    "fp16,kivi2", "--tokens", "8",       "-o",       out.string()};
	s.args.insert(s.args.end(), more.begin(), more.end());
	s.timeout_s = 600;
	return s;
}

std::string text_of(const fs::path& file) {
	std::ifstream in(file, std::ios::binary);
	return {std::istreambuf_iterator<char>(in), {}};
}
Json run_of(const fs::path& folder) { return Json::parse(text_of(folder / "run.json")); }

bool no_lavapipe() {
	const Ran r = run_program({"devices"});
	if (r.out.find("llvmpipe") != std::string::npos) return false;
	skip("no lavapipe (package mesa-vulkan-drivers)");
	return true;
}

// A folder with the program's shaders, where the first multiplication of one of them is changed to an addition.
void make_faulty_shaders(const fs::path& folder, const std::string& name) {
	for (const auto& e : fs::directory_iterator(KVRUN_SPIRV_FOLDER))
		if (e.path().extension() == ".spv") fs::copy_file(e.path(), folder / e.path().filename());
	std::string bytes = text_of(folder / name);
	constexpr uint32_t kMul = 133 | 5 << 16, kAdd = 129 | 5 << 16; // OpFMul, OpFAdd, of five words each
	for (size_t at = 20; at + 4 <= bytes.size();) {                // after the header
		uint32_t word = 0;
		std::memcpy(&word, &bytes[at], 4);
		if (word == kMul) {
			std::memcpy(&bytes[at], &kAdd, 4);
			std::ofstream(folder / name, std::ios::binary) << bytes;
			return;
		}
		REQUIRE((word >> 16) > 0);
		at += (word >> 16) * 4;
	}
	FAIL("no multiplication in " << name);
}

} // namespace

TEST_CASE("compare: lavapipe and cpu agree; a second start measures nothing again; one file is the report" *
          doctest::test_suite("lavapipe")) {
	if (no_lavapipe()) return;
	const TempFolder folder;
	const Ran r = run_program(compare_args(folder.path, {"--anonymous"}));
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(r.out.starts_with("the devices agree\n"));
	const Json run = run_of(folder.path);
	CHECK(run["schema"] == 1);
	CHECK(run["machine"]["name"] == "machine");
	REQUIRE(run["devices"].size() == 2);
	for (const Json& d : run["devices"])
		for (const char* stage : {"ops", "codes", "tokens", "speed", "quality", "stability"})
			CHECK_MESSAGE(!d["stages"].at(stage).contains("error"), stage);
	CHECK(run["devices"][0]["stages"]["ops"]["ops"].size() >= 10);
	CHECK(fs::exists(folder.path / "tokens" / "llvmpipe.kivi2.txt"));
	for (const char* file : {"report.html", "run.json", "tokens/llvmpipe.kivi2.txt"}) check_mode(folder.path / file);
	const std::string html = text_of(folder.path / "report.html");
	CHECK(html.size() < 1'000'000);
	CHECK(html.find("<svg") != std::string::npos);
	CHECK(html.find("class=bad>") == std::string::npos);
	for (const char* outside : {"<script", "src=", "@import", "<link"}) CHECK(html.find(outside) == std::string::npos);
	CHECK(text_of(folder.path / "results.csv").find("\nllvmpipe,speed,kivi2,") != std::string::npos);

	const Ran again = run_program(compare_args(folder.path, {"--anonymous"}));
	CHECK(again.code == 0);
	CHECK(again.err.find("ops.") == std::string::npos);
	for (size_t i = 0; i < 2; ++i) CHECK(run_of(folder.path)["devices"][i]["stages"] == run["devices"][i]["stages"]);

	// against a baseline that was three times faster
	const TempFolder before;
	Json faster = run;
	for (Json& d : faster["devices"])
		for (Json& t : d["stages"]["speed"]["results"])
			for (const char* key : {"tok_s_median", "tok_s_min", "tok_s_max"}) t[key] = 30 * t[key].get<double>();
	std::ofstream(before.path / "run.json") << faster.dump();
	const Ran slower = run_program(compare_args(folder.path, {"--anonymous", "--baseline", before.path.string()}));
	CAPTURE(slower.err);
	CHECK(slower.code == 8);
	CHECK(slower.out.starts_with("slower than the baseline\n"));

	// with itself, but not with another model
	const TempFolder both;
	const auto merge = [&] {
		return run_program({"compare", "merge", folder.path.string(), before.path.string(), "--base", "cpu", "-o",
		                    both.path.string()});
	};
	CHECK(merge().code == 0);
	CHECK(run_of(both.path)["devices"].size() == 4);
	const TempFolder all; // a merged run is merged with another
	CHECK(run_program({"compare", "merge", both.path.string(), folder.path.string(), "-o", all.path.string()}).code ==
	      0);
	CHECK(run_of(all.path)["devices"].size() == 6);
	CHECK(run_of(all.path)["machines"].size() == 3);
	faster["version"] = "0.0.0";
	std::ofstream(before.path / "run.json") << faster.dump();
	CHECK(merge().code == 0);
	CHECK(text_of(both.path / "report.md").find("was measured with version 0.0.0") != std::string::npos);
	faster["model"]["fingerprint"] = "0";
	std::ofstream(before.path / "run.json") << faster.dump();
	const Ran other = merge();
	CHECK(other.code == 2);
	CHECK(other.err.find("was measured with another model") != std::string::npos);
}

TEST_CASE("compare: a fault in one shader turns its operation red, and the exit code is 7" *
          doctest::test_suite("lavapipe")) {
	if (no_lavapipe()) return;
	const TempFolder folder, shaders;
	make_faulty_shaders(shaders.path, "texel_rmsnorm.spv"); // used by software drivers
	RunSpec s = compare_args(folder.path, {"--stages", "ops,tokens"});
	s.env = {{"KVRUN_SHADERS", shaders.path.string()}};
	const Ran r = run_program(s);
	CAPTURE(r.err);
	CHECK(r.code == 7);
	CHECK(r.out.starts_with("wrong results\n"));
	const Json run = run_of(folder.path);
	for (const Json& d : run["devices"])
		for (const Json& op : d["stages"]["ops"]["ops"])
			CHECK_MESSAGE((op["bad"] > 0) == (op["op"] == "rmsnorm" && d["label"] == "llvmpipe"), op.dump());
	const std::string html = text_of(folder.path / "report.html");
	const size_t row = html.find("<td>rmsnorm</td>");
	REQUIRE(row != std::string::npos);
	CHECK(html.substr(row, 40).find("class=bad") != std::string::npos);
}

// An executable shell script.
void write_script(const fs::path& file, const std::string& text) {
	std::ofstream(file) << "#!/bin/sh\n" << text;
	fs::permissions(file, fs::perms::owner_all);
}

TEST_CASE("compare: columns of compilers and of llama.cpp, from programs that print what those do") {
	const TempFolder folder;
	const fs::path drivers = folder.path / "drivers";
	fs::create_directory(drivers);
	// Two uses of one kernel: an Intel chip has no waves, an NVIDIA chip spills, the third does not start.
	write_script(drivers / "run", R"(use() {
	echo "{\"kernel\":\"attend\",\"use\":\"$1\",\"vector_registers\":$2,\"waves\":$3,\"lanes\":$4,"
	echo "\"instructions\":$5,\"code_bytes\":64,\"spills\":$6}"
}
case $1 in
dg2) echo "a loader's remark"; echo "[{\"device\":\"D\",\"kernels\":["; use a 60 0 16 500 0; echo ,; use b 90 0 8 700 0 ;;
ga102) echo "[{\"device\":\"N\",\"kernels\":["; use a 40 48 32 500 0; echo ,; use b 64 32 32 800 3 ;;
*) exit 3 ;;
esac
echo "]}]"
)");
	const fs::path peer = folder.path / "llama-bench";
	write_script(peer, R"(cd /
while [ "$1" != -m ]; do shift; done
[ -e "$2" ] || exit 4
echo '[{"n_prompt": 0, "n_gen": 4, "n_depth": 256, "gpu_info": "G", "avg_ts": 12.5, "samples_ts": [12, 13]}]'
)");
	fs::copy_file(KVRUN_SOURCE_DIR "/tests/golden/tiny/llama_q8_0.gguf", folder.path / "m.gguf");
	const fs::path out = folder.path / "out";
	RunSpec s;
	s.args = {"compare",
	          "-m",
	          fs::relative(folder.path / "m.gguf").string(),
	          "--device",
	          "cpu",
	          "--stages",
	          "codes",
	          "--quick",
	          "--peer",
	          peer.string(),
	          "-o",
	          out.string(),
	          "--vendor-drivers",
	          drivers.string() + ":dg2,ga102,none"};
	const Ran r = run_program(s);
	CAPTURE(r.err);
	const std::string report = text_of(out / "report.md"), html = text_of(out / "report.html");
	CAPTURE(report);
	CHECK(report.find("| attend | 90, SIMD8, 700 | 64, 32, 800 | failed |") != std::string::npos);
	CHECK(html.find("exit code 3") != std::string::npos);
	CHECK(r.code == 4); // a compiler that fails is a failed stage
	CHECK(r.err.find("failed: none: static: ") != std::string::npos);
	CHECK(html.find("class=bad title=\"2 uses, 1 spill\"") != std::string::npos);
	CHECK(report.find("| G | tg4 | 256 | q4_0 | 12.50 | 2 |") != std::string::npos);

	// A synthetic model is written to a file, over that of an earlier run.
	for (const char* n : {"2", "3"}) {
		const Ran synth = run_program({"compare", "-m", kModel, "--device", "cpu", "--stages", "codes", "--quick", "-n",
		                               n, "--peer", peer.string(), "-o", (folder.path / "synth").string()});
		CAPTURE(synth.err);
		CHECK(synth.code == 0);
		CHECK(run_of(folder.path / "synth")["peer"]["results"].size() == 2);
	}
}

TEST_CASE("compare: operations of a large model run on a few layers of its shape, one of each kind") {
	const auto ops = [](const char* model) {
		const TempFolder folder;
		const Ran r = run_program({"compare", "-m", model, "--device", "cpu", "--stages", "ops", "--quick", "--kv",
		                           "kivi2", "-o", folder.path.string()});
		CAPTURE(r.err);
		REQUIRE(r.code == 0);
		const Json j = run_of(folder.path)["devices"][0]["stages"]["ops"];
		std::string names = j["model"].get<std::string>() + ":";
		for (const Json& op : j["ops"]) names += " " + op["op"].get<std::string>() + " ";
		return names;
	};
	// latent attention, and a mixture with some of its 64 experts
	const std::string mixture = ops("synth:deepseek-v2-lite:q4_k");
	CHECK(contains(mixture, ",experts=12,used=6,expert_hidden=1408,shared=2816,layers=1:q4_k:"));
	for (const char* op : {" expert_matmul ", " expert_matvec ", " route ", " attend ", " kv_pack "})
		CHECK_MESSAGE(contains(mixture, op), mixture);
	const std::string convolution = ops("synth:lfm2-1.2b:q4_k"); // most layers do not attend
	for (const char* op : {" short_conv ", " attend ", " kv_pack "})
		CHECK_MESSAGE(contains(convolution, op), convolution);
	const std::string state = ops("synth:mamba-2.8b:q4_k"); // none does
	CHECK_MESSAGE(contains(state, " selective_scan "), state);
}

TEST_CASE("compare: --quick shortens what was not given; stages do not read the settings file") {
	const TempFolder folder, home;
	fs::create_directory(home.path / "kvrun");
	std::ofstream(home.path / "kvrun" / "config.toml") << "[defaults]\nctx-size = 256\n";
	RunSpec s;
	s.args = {"compare", "-m",   kModel, "--device", "cpu",      "--stages", "speed", "--quick",
	          "--kv",    "fp16", "-n",   "32",       "--depths", "0,512",    "-o",    folder.path.string()};
	s.env = {{"XDG_CONFIG_HOME", home.path.string()}};
	const Ran r = run_program(s);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const Json run = run_of(folder.path);
	CHECK(run["options"]["generate"] == 32); // also where it equals the default
	CHECK(run["options"]["prompt"] == 16);
	CHECK(run["devices"][0]["stages"]["speed"]["results"].size() == 4);
}

TEST_CASE("compare: the table marks the stored codes that are found wrong") {
	const TempFolder folder, merged;
	const Ran r = run_program({"compare", "-m", kModel, "--device", "cpu", "--stages", "codes", "--quick", "--kv",
	                           "kivi2", "-o", folder.path.string()});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	Json run = run_of(folder.path);
	Json& codes = run["devices"][0]["stages"]["codes"]["policies"]["kivi2"];
	const uint64_t n = codes["elements"];
	const auto with = [&](uint64_t k, uint64_t v) {
		codes["k_differs"] = k, codes["v_differs"] = v;
		std::ofstream(folder.path / "run.json") << run.dump();
		const int code = run_program({"compare", "merge", folder.path.string(), "-o", merged.path.string()}).code;
		return std::pair(code, text_of(merged.path / "report.html").find("class=bad") != std::string::npos);
	};
	CHECK(with(n * 7 / 1000, 0) == std::pair(7, true));
	CHECK(with(n * 4 / 1000, n * 4 / 1000) == std::pair(0, false));
}

TEST_CASE("compare: what is wrong on the command line is said before anything is measured") {
	const TempFolder folder;
	const auto says = [&](std::vector<std::string> args, int code, const char* text) {
		args.insert(args.begin(), {"compare", "-o", folder.path.string()});
		const Ran r = run_program(args);
		CAPTURE(r.err);
		CHECK(r.code == code);
		CHECK(r.err.find(text) != std::string::npos);
	};
	says({"-m", kModel, "--stages", "opps", "--device", "cpu"}, 2, "--stages has no 'opps'");
	says({"-m", kModel, "--device", "no such device"}, 4, "no usable device");
	says({"-m", kModel, "--device", "cpu,nosuch"}, 4, "--device nosuch: no usable device");
	says({"-m", kModel, "--icd", "/nowhere.json"}, 3, "/nowhere.json: no such file");
	says({"-m", kModel, "--kv", "nothing"}, 2, "nothing");
	says({"-m", kModel, "--baseline", "/nowhere"}, 3, "/nowhere/run.json: cannot be read");
	says({}, 2, "-m names no model");
	const TempFolder before;
	for (const char* model : {R"({"fingerprint": "00"})", "{}"}) {
		std::ofstream(before.path / "run.json") << R"({"schema": 1, "devices": [], "model": )" << model << "}";
		says({"-m", kModel, "--device", "cpu", "--quick", "--baseline", before.path.string()}, 2,
		     "was measured with another model");
	}
	for (const auto& part : fs::directory_iterator(folder.path / "parts")) CHECK(part.path().stem() == "devices");
	CHECK(!fs::exists(folder.path / "run.json"));
	const std::string other = R"({"model": {"file": "other.gguf", "fingerprint": "00"}})";
	std::ofstream(folder.path / "run.json") << other;
	says({"-m", kModel, "--device", "cpu"}, 2, "has the results of other.gguf; name another folder");
	CHECK(fs::file_size(folder.path / "run.json") == other.size());
}

TEST_CASE("compare merge: help, and what it does not take") {
	const TempFolder folder;
	const auto says = [&](std::vector<std::string> args, int code, const char* text) {
		args.insert(args.begin(), {"compare", "merge"});
		const Ran r = run_program(args);
		CAPTURE(r.err);
		CHECK(r.code == code);
		CHECK((code ? r.err : r.out).find(text) != std::string::npos);
	};
	const std::string out = (folder.path / "out").string();
	says({"--help"}, 0, "Usage: kvrun compare merge [OPTIONS]");
	says({"--help"}, 0, "kvrun compare merge amd nvidia");
	says({"-o", out}, 2, "folder");
	says({folder.path.string()}, 2, "--output");
	says({folder.path.string(), "-o", out}, 3, "run.json: cannot be read");
	std::ofstream(folder.path / "run.json") << "{}";
	says({folder.path.string(), "-o", out}, 3, "run.json");
	CHECK(!fs::exists(out)); // files that cannot be merged give no output
}

TEST_CASE("synth writes the file that synth: names, and nothing when it cannot") {
	const TempFolder folder;
	const std::string file = (folder.path / "m.gguf").string();
	const std::string shape = "dim=128,hidden=256,layers=2,heads=4,kv_heads=2,head_dim=32,vocab=1024";
	const Ran r =
	    run_program({"synth", "--like", "qwen3-0.6b", "--shape", shape, "--type", "q4_k", "-s", "7", "-o", file});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	check_mode(file);
	const auto text = [](const std::string& model) {
		return run_program({"run", model, "-p", "some words", "-n", "8", "--temp", "0", "--device", "cpu"}).out;
	};
	CHECK(!text(file).empty());
	CHECK(text(file) == text("synth:qwen3-0.6b," + shape + ":q4_k:7"));
	CHECK(text(file) != text("synth:qwen3-0.6b," + shape + ":q4_k:8"));
	CHECK(run_program({"synth", "--like", "llama-9", "-o", file}).code == 2);
	CHECK(run_program({"synth", "--like", "qwen3-8b", "-o", (folder.path / "none" / "m.gguf").string()}).code == 3);
}
