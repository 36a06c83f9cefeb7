// The program's replay and eval as a user sees them: files and tables that they write, and refusals.
#include "engine/core/npy.h"
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const std::string kSmall = KVRUN_SOURCE_DIR "/tests/golden/replay/";
const std::string kModel = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";

std::vector<std::string> replay_args(const std::string& kv, const std::string& out) {
	return {"replay",
	        "--kv",
	        kv,
	        "--q",
	        kSmall + "q.npy",
	        "--k",
	        kSmall + "k.npy",
	        "--v",
	        kSmall + "v.npy",
	        "--dq",
	        kSmall + "dq.npy",
	        "--device",
	        "cpu",
	        "--out",
	        out};
}

void refused(const std::vector<std::string>& args, int code, const std::string& says) {
	const Ran r = run_program(args);
	CAPTURE(r.err);
	CHECK(r.code == code);
	CHECK(r.err.find(says) != std::string::npos);
	CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
	CHECK(r.out.empty());
}

} // namespace

TEST_CASE("replay writes what was stored, and a report") {
	const fs::path out = fs::temp_directory_path() / ("kvrun-cli-replay-" + std::to_string(getpid()));
	const Ran r = run_program(replay_args("zipcache,recent_keep=0", out.string()));
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(r.out.empty());
	const std::vector<uint64_t> tensor{2, 160, 2, 32}, tokens{2, 160, 2}, rows{3, 4, 32};
	CHECK(npy_read(out / "k_hat.npy").shape == tensor);
	CHECK(npy_read(out / "v_hat.npy").shape == tensor);
	CHECK(npy_read(out / "tier.npy").shape == tokens);
	CHECK(npy_read(out / "tier.npy").type == NpyType::U8);
	CHECK(npy_read(out / "score.npy").shape == tokens);
	CHECK(npy_read(out / "out.npy").shape == rows);
	std::ifstream file(out / "report.json");
	const nlohmann::json j = nlohmann::json::parse(file);
	size_t sum = 0;
	for (const char* part : {"f16", "codes", "k_params", "v_params", "slack", "tables", "live"})
		sum += j["bytes"].at(part).get<size_t>();
	CHECK(j["bytes"]["total"] == sum);
	CHECK(j["stored_bits_per_element"].get<double>() == doctest::Approx(double(sum) * 8 / (2.0 * 2 * 160 * 2 * 32)));
	CHECK(j["policy"] == "zipcache,recent_keep=0");
	CHECK(!j["device"]["name"].get<std::string>().empty());
	// A policy without scores removes the scores of an earlier run.
	CHECK(run_program(replay_args("kivi2,group=32", out.string())).code == 0);
	CHECK(!fs::exists(out / "score.npy"));
	fs::remove_all(out);
}

TEST_CASE("replay and eval refuse in one line") {
	const std::string out = (fs::temp_directory_path() / "kvrun-cli-none").string();
	refused(replay_args("kivi3", out), 2, "kivi3");
	refused(replay_args("kivi2,group=48", out), 2, "48");
	auto swapped = replay_args("kivi2,group=32", out);
	std::swap(swapped[4], swapped[6]); // q and k
	refused(swapped, 2, "kv heads");
	auto missing = replay_args("kivi2,group=32", out);
	missing[4] = "absent.npy";
	refused(missing, 3, "absent.npy");
	CHECK(!fs::exists(out)); // nothing was written
	refused({"eval", "-m", kModel, "--device", "cpu"}, 2, "--task");
	refused({"eval", "-m", kModel, "--device", "cpu", "--task", "sums"}, 2, "recall or needle");
	refused({"eval", "-m", kModel, "--device", "cpu", "--task", "recall", "--kv", "kivi3"}, 2, "kivi3");
	refused({"eval", "-m", kModel, "--device", "cpu", "--task", "recall", "--against", "kivi2"}, 2, "--against");
	const std::vector<std::string> text = {"eval", "-m", kModel, "--device", "cpu", "-f", kSmall + "q.npy"};
	for (const char* option : {"--lines", "--turns", "--sentences", "--samples"}) {
		std::vector<std::string> args = text;
		args.insert(args.end(), {option, "3"});
		refused(args, 2, std::string(option) + " is for questions (--task)");
	}
	for (const char* option : {"--score", "--chunks"})
		refused({"eval", "-m", kModel, "--device", "cpu", "--task", "recall", option, "3"}, 2, "is for texts (-f)");
	refused({"eval", "-m", kModel, "--device", "cpu", "--task", kModel}, 3, "not a JSON object");
	refused({"eval", "-m", kModel, "--device", "cpu", "-f", kSmall + "q.npy", "--against", "kivi3"}, 2, "kivi3");
}

TEST_CASE("tune writes into the cache folder where nothing can be written beside the model") {
	const TempFolder folder;
	const fs::path model = folder.path / "model.gguf", beside = model.string() + ".kv.json";
	fs::copy_file(KVRUN_SOURCE_DIR "/tests/golden/tiny/llama.gguf", model);
	const std::string cache = (folder.path / "cache").string();
	const auto run = [&](std::vector<std::string> args, const std::string& cached) {
		args.insert(args.begin() + 1, model.string());
		RunSpec spec{.args = std::move(args)};
		spec.env = {{"KVRUN_CACHE_DIR", cached}};
		return run_program(spec);
	};
	const std::vector<std::string> tune = {"tune", "--device", "cpu", "-c", "256", "--chunks", "1"};
	const std::vector<std::string> ask = {"run", "--device", "cpu", "-p", "x", "-n", "1", "--kv", "tuned:6"};
	const char* guess = "warning: tuned:6 is turbo";
	const Ran before = run(ask, cache);
	CAPTURE(before.err);
	CHECK(before.code == 0);
	CHECK(contains(before.err, guess));
	CHECK(contains(before.err, "'kvrun tune'"));
	fs::create_directory(beside); // no file can have this name, whoever writes it
	const Ran none = run(tune, "off");
	CHECK(none.code == 5);
	CHECK(contains(none.err, "-o FILE names another place"));
	const Ran tuned = run(tune, cache);
	CAPTURE(tuned.err);
	REQUIRE(tuned.code == 0);
	CHECK(contains(tuned.out, "written to " + cache + "/tuning/model-"));
	fs::remove(beside);
	CHECK(!contains(run(ask, cache).err, guess));
	CHECK(contains(run(ask, "off").err, guess));
	const std::vector<std::string> plan = {"plan", "--kv", "tuned:6", "-c", "200", "--memory", "1G"};
	CHECK(contains(run(plan, cache).err, "(measured)"));
	// Measured beside the model, it replaces the one in the cache folder.
	CHECK(contains(run(tune, cache).out, "written to " + beside.string()));
	CHECK(fs::is_empty(cache + "/tuning"));
	CHECK(!contains(run(ask, "off").err, guess));
}

TEST_CASE("tune writes what auto and tuned:BITS go by, and only for its own model") {
	const fs::path folder = fs::temp_directory_path() / ("kvrun-cli-tune-" + std::to_string(getpid()));
	fs::create_directories(folder);
	const std::string golden = KVRUN_SOURCE_DIR "/tests/golden/tiny/", model = (folder / "model.gguf").string(),
	                  tuning = model + ".kv.json";
	fs::copy_file(golden + "llama.gguf", model);
	const std::vector<std::string> plan = {"plan", "-m", model, "--kv", "tuned:6", "-c", "200", "--memory", "1G"};
	CHECK(run_program(plan).err.find("not measured on this model") != std::string::npos);
	const Ran r = run_program({"tune", model, "--device", "cpu", "-c", "256", "--chunks", "1"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(r.out.find("| 1     |   V |") != std::string::npos);
	check_mode(tuning);
	CHECK(r.out.find("tuned:2.00: at least") != std::string::npos); // heads of 8 channels
	std::ifstream file(tuning);
	const nlohmann::json j = nlohmann::json::parse(file);
	REQUIRE(j["layers"].size() == 2);
	const nlohmann::json& k = j["layers"][0]["k"];
	CHECK(k["codebook"].size() == 4);
	CHECK(k["uniform"].size() == 5);
	for (const char* kind : {"codebook", "uniform"}) CHECK(k[kind][0].get<double>() > k[kind][3].get<double>());
	CHECK(j["measured"].get<std::string>().find("1 chunks of 256 tokens") != std::string::npos);
	refused({"tune", model, "--device", "cpu", "-c", "128"}, 2, "give -c 256");
	refused({"tune", model, "--device", "cpu", "-c", "256", "-ub", "16"}, 2, "-ub 16");
	refused({"tune", model, "--device", "cpu", "-c", "256", "-f", kSmall + "none.txt"}, 3, "none.txt");
	refused({"tune", model, "--device", "cpu", "-c", "256", "--kv", "kivi2"}, 2, "--kv");
	const Ran no_cache = run_program(
	    {"tune", golden + "mamba.gguf", "--device", "cpu", "-c", "256", "-o", (folder / "none.json").string()});
	CHECK(no_cache.code == 3);
	CHECK(no_cache.err.find("error: no layer of this model attends") != std::string::npos);
	CHECK(!fs::exists(folder / "none.json"));
	const Ran no_place = run_program({"tune", model, "--device", "cpu", "-c", "256", "-o", "/nowhere/x.json", "-v"});
	CHECK(no_place.code == 3);
	CHECK(no_place.err.find("-o FILE names another place") != std::string::npos);
	// The policy of other commands does not stand in the way.
	fs::create_directories(folder / "kvrun");
	std::ofstream(folder / "kvrun" / "config.toml") << "[defaults]\nkv = \"kivi2\"\n";
	RunSpec set{.args = {"tune", model, "--device", "cpu", "-c", "256", "--chunks", "1"}};
	set.env = {{"XDG_CONFIG_HOME", folder.string()}};
	CHECK(run_program(set).code == 0);
	const Ran chosen = run_program(plan);
	CHECK(chosen.err.find("(measured)") != std::string::npos);
	CHECK(chosen.out.find("turbo") != std::string::npos);
	const Ran task = run_program({"eval", "-m", model, "--device", "cpu", "--task", "recall", "--samples", "1",
	                              "--lines", "4", "--kv", "tuned:6", "--json"});
	CAPTURE(task.err);
	REQUIRE(task.code == 0);
	CHECK(nlohmann::json::parse(task.out)["results"][0]["policy"] == "tuned:6");

	const auto with_plan_refused = [&](const std::string& text, const char* says) {
		std::ofstream(tuning) << text;
		refused(plan, 3, says);
	};
	with_plan_refused("{", "is not what kvrun tune writes");
	nlohmann::json bad = j;
	bad["layers"][1]["v"]["uniform"][2] = "much";
	with_plan_refused(bad.dump(), "layer 1 needs k and v");
	bad = j;
	bad["layers"].erase(1);
	with_plan_refused(bad.dump(), "expected costs of 2 layers");
	bad = j;
	bad["model"] = "0000000000000000";
	with_plan_refused(bad.dump(), "another model");
	fs::remove_all(folder);
}

TEST_CASE("eval: a table, and the same as JSON") {
	const std::vector<std::string> args = {
	    "eval",    "-m", kModel, "--device",           "cpu", "--task", "recall", "--samples", "2",
	    "--lines", "4",  "--kv", "fp16,kivi2,group=32"};
	const Ran table = run_program(args);
	CAPTURE(table.err);
	REQUIRE(table.code == 0);
	CHECK(table.out.find("| fp16 ") != std::string::npos);
	CHECK(table.out.find("| kivi2,group=32 ") != std::string::npos);
	CHECK(table.out.find("2 of 2") != std::string::npos);
	auto json = args;
	json.push_back("--json");
	const Ran r = run_program(json);
	REQUIRE(r.code == 0);
	const nlohmann::json j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 2);
	CHECK(j["results"][0]["right"] == 2);
	CHECK(j["results"][0]["answers"] == nlohmann::json({1, 1}));
	CHECK(j["results"][0]["losses"].size() == 2);
	CHECK(j["results"][0]["loss"].get<double>() > 0);
	CHECK(j["results"][0]["loss"].get<double>() < 0.5);
	CHECK(j["results"][1]["policy"] == "kivi2,group=32");

	const Ran text =
	    run_program({"eval", "-m", kModel, "--device", "cpu", "-f", KVRUN_SOURCE_DIR "/models/bundled/record40.txt",
	                 "-c", "96", "--score", "8", "--chunks", "1", "--kv", "rtn8", "--json"});
	CAPTURE(text.err);
	REQUIRE(text.code == 0);
	const nlohmann::json t = nlohmann::json::parse(text.out);
	REQUIRE(t["results"].size() == 2);
	CHECK(t["results"][0]["policy"] == "fp16");
	CHECK(t["results"][0]["kld_mean"] == 0);
	CHECK(t["results"][1]["tokens"] == 8);
	CHECK(t["results"][0]["f16_share"] > 0.9);
	CHECK(t["results"][1]["f16_share"] < 0.5);
	CHECK(text.err.find("still had") == std::string::npos);
	CHECK(table.err.find("kivi2,group=32 still had 100 %") != std::string::npos);
	CHECK(j["cancelled"] == false);
	CHECK(j["results"][1]["decode_tok_s"].get<double>() > 0);
	auto together = args;
	together.insert(together.end(), {"--ask", "later", "--together", "2"});
	const std::string rows = unaligned(run_program(together).out);
	CHECK(contains(rows, "| tok/s |"));
	size_t unmeasured = 0;
	for (size_t at = 0; (at = rows.find(" | - |\n", at)) != std::string::npos; ++at) ++unmeasured;
	CHECK(unmeasured == 2);
}

TEST_CASE("eval: a model without a cache has 16 bits under every policy, and numbers alone in its JSON") {
	const Ran r = run_program({"eval", "-m", KVRUN_SOURCE_DIR "/tests/golden/tiny/falcon_mamba.gguf", "--device", "cpu",
	                           "-f", KVRUN_SOURCE_DIR "/models/bundled/record40.txt", "-c", "96", "--score", "8",
	                           "--chunks", "2", "--kv", "rtn8", "--shard", "0/2", "--json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(!contains(r.out, "null"));
	CHECK(!contains(r.err, "longer chunks")); // which would change nothing
	const nlohmann::json j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 2);
	for (const nlohmann::json& x : j["results"]) {
		CHECK(x["stored_bits_per_element"] == 16);
		CHECK(x["ratio"] == 1);
		CHECK(x["f16_share"] == 1);
	}
}

TEST_CASE("eval: all texts are looked at before the first one is measured") {
	const fs::path brief = fs::temp_directory_path() / ("kvrun-cli-brief-" + std::to_string(getpid()) + ".txt");
	std::ofstream(brief) << "a short text";
	// The first text would run out of its cache's budget.
	const Ran r = run_program({"eval", kModel, "--device", "cpu", "-f", KVRUN_SOURCE_DIR "/models/bundled/record40.txt",
	                           "-f", brief.string(), "-c", "256", "--kv", "rtn8", "--kv-budget", "256K"});
	fs::remove(brief);
	CAPTURE(r.err);
	CHECK(r.code == 2);
	CHECK(contains(r.err, "error: " + brief.string() + ": the text has "));
}

TEST_CASE("eval: an f16 cache under both names has nothing to pack") {
	const Ran r = run_program({"eval", kModel, "--device", "cpu", "--task", "recall", "--lines", "4", "--samples", "1",
	                           "--kv", "f16,fp16,rtn4,recent=256"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(contains(r.err, "note: rtn4,recent=256 still had"));
	CHECK(!contains(r.err, "f16 still had"));
}

TEST_CASE("eval: Ctrl-C ends a prompt, and no results are announced where there are none") {
	Ran r;
	for (int wait_ms = 200; wait_ms <= 12800; wait_ms *= 2) { // until the prompt is under way, which takes minutes
		RunSpec spec{.args = {"eval", kModel, "--device", "cpu", "-c", "32k", "--task", "recall", "--lines", "1000",
		                      "--samples", "1", "--json"}};
		spec.signal = SIGINT, spec.signal_after_ms = wait_ms;
		r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 130);
		if (contains(r.err, "interrupted")) break;
	}
	CHECK(contains(r.err, "interrupted\n"));
	CHECK(r.out == "");
}

TEST_CASE("eval: several texts, beside a named policy") {
	const std::string a = KVRUN_SOURCE_DIR "/models/bundled/record40.txt", b = KVRUN_SOURCE_DIR "/README.md";
	std::vector<std::string> args = {"eval",
	                                 "-m",
	                                 kModel,
	                                 "--device",
	                                 "cpu",
	                                 "-f",
	                                 a,
	                                 "-f",
	                                 b,
	                                 "-c",
	                                 "160",
	                                 "--score",
	                                 "24",
	                                 "--chunks",
	                                 "1",
	                                 "--kv",
	                                 "rtn8,flush=1,rtn2,flush=1",
	                                 "--against",
	                                 "rtn4,flush=1"};
	const Ran table = run_program(args);
	CAPTURE(table.err);
	REQUIRE(table.code == 0);
	CHECK(table.out.find("record40.txt: 1 chunks of 160 tokens") != std::string::npos);
	CHECK(table.out.find("README.md: 1 chunks of 160 tokens") != std::string::npos);
	CHECK(table.out.find("less that of rtn4,flush=1") != std::string::npos);
	CHECK(table.err.find("still had") == std::string::npos);
	args.insert(args.end(), {"--json", "--together", "2"});
	const Ran r = run_program(args);
	REQUIRE(r.code == 0);
	const nlohmann::json j = nlohmann::json::parse(r.out);
	CHECK(j["chunks"] == 2);
	CHECK(j["against"] == "rtn4,flush=1");
	CHECK(j["cancelled"] == false);
	REQUIRE(j["texts"].size() == 2);
	REQUIRE(j["results"].size() == 4); // fp16, the two policies, and the one that they are compared with
	const nlohmann::json &more = j["results"][1], &less = j["results"][2], &base = j["results"][3];
	CHECK(more["difference"]["high"] < 0);
	CHECK(less["difference"]["low"] > 0);
	CHECK(base["difference"]["mean"] == 0);
	for (const nlohmann::json& x : j["results"]) {
		CHECK(x["tokens"] == 48);
		for (const char* speed : {"decode_tok_s", "prefill_tok_s"}) CHECK(x[speed].is_null()); // of several together
		CHECK(x["kld_low"] <= x["kld_mean"]);
		CHECK(x["kld_mean"] <= x["kld_high"]);
		CHECK(x["kld_p99"] <= x["kld_p999"]);
		CHECK(x["kld_p999"] <= x["kld_worst"]);
		CHECK(x["difference"]["mean"].get<double>() ==
		      doctest::Approx(x["kld_mean"].get<double>() - base["kld_mean"].get<double>()));
	}
	double sum = 0, worst = 0; // over the tokens of each text
	for (const nlohmann::json& text : j["texts"]) {
		CHECK(text["results"][2]["klds"].size() == 24);
		for (const double x : text["results"][2]["klds"]) sum += x, worst = std::max(worst, x);
	}
	CHECK(less["kld_mean"].get<double>() == doctest::Approx(sum / 48));
	CHECK(less["kld_worst"].get<double>() == doctest::Approx(worst));
}

TEST_CASE("eval: questions of a file") {
	const fs::path file = fs::temp_directory_path() / ("kvrun-cli-questions-" + std::to_string(getpid()) + ".jsonl");
	// The bundled model continues a pattern; none of its possible answers to the second question is right.
	std::ofstream(file) << R"({"context": "12 12 12 12 12 12", "question": "12 12", "answers": ["zebra", "12"]})"
	                    << "\n"
	                    << R"({"context": "12", "question": "12", "answers": ["zebra"]})"
	                    << "\n";
	const Ran r = run_program({"eval", "-m", kModel, "--device", "cpu", "--task", file.string(), "--json"});
	fs::remove(file);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const nlohmann::json j = nlohmann::json::parse(r.out);
	CHECK(j["samples"] == 2);
	CHECK(j["task"] == file.string());
	CHECK(j["results"][0]["answers"][1] == 0);
	CHECK(j["results"][0]["losses"].size() == 2);
}
