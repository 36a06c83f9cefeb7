// kvrun bench as a user sees it: tables and JSON, the cost of a long cache, Ctrl-C.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <map>
#include <nlohmann/json.hpp>

using namespace kvrun;

namespace {

const std::string kModel = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";

} // namespace

TEST_CASE("cli: bench writes the same numbers as a table and as JSON with documented keys") {
	const std::vector<std::string> base = {"bench", "-m", kModel, "--device", "cpu", "-p", "8",
	                                       "-n",    "2",  "-d",   "0,16",     "-r",  "3"};
	Ran r = run_program(base);
	CAPTURE(r.err);
	CHECK(r.code == 0);
	for (const char* test : {"| pp8 |", "| tg2 |", "| pp8 @ d16 |", "| tg2 @ d16 |"})
		CHECK(contains(unaligned(r.out), test));
	std::vector<std::string> args = base;
	args.insert(args.end(), {"-o", "json", "--ops"});
	r = run_program(args);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 4);
	for (const auto& t : j["results"]) {
		CHECK(t["tok_s"].size() == 3);
		CHECK(t["tok_s_min"].get<double>() <= t["tok_s_median"].get<double>());
		CHECK(t["tok_s_median"].get<double>() <= t["tok_s_max"].get<double>());
		CHECK(t["tok_s_min"].get<double>() > 0);
	}
	check_error({"bench", "-m", kModel, "--device", "cpu", "-c", "16", "-p", "32", "-n", "0"}, 6, {"32 tokens", "16"});
}

TEST_CASE("cli: bench records what was measured where, and warm-up apart") {
	const Ran r = run_program({"bench", kModel, "--device", "cpu", "-p", "8", "-n", "0", "-r", "2", "-o", "json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	CHECK(contains(r.err, "warm-up runs took "));
	const auto j = nlohmann::json::parse(r.out);
	for (const char* key : {"version", "commit", "time"}) CHECK(!j[key].get<std::string>().empty());
	CHECK(j["time"].get<std::string>().size() == 20); // 2026-01-31T12:00:00Z
	CHECK(!j["host"]["name"].get<std::string>().empty());
	CHECK(j["host"]["threads"].get<int>() > 0);
	CHECK(!j["os"]["kernel"].get<std::string>().empty());
	CHECK(!j["device"]["driver"].get<std::string>().empty());
	CHECK(j["cancelled"] == false);
	CHECK(j["load_s"].get<double>() > 0);
	CHECK(j["results"][0]["warmup_s"].get<double>() > 0);
	CHECK(j["results"][0]["tok_s"].size() == 2);
	const Ran cold =
	    run_program({"bench", kModel, "--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "-o", "json", "--no-warmup"});
	REQUIRE(cold.code == 0);
	CHECK(nlohmann::json::parse(cold.out)["results"][0]["warmup_s"] == 0);
}

TEST_CASE("T77 cli: Ctrl-C during bench keeps the runs that were finished and ends with 130") {
	Ran r;
	for (int wait_ms = 200; wait_ms <= 25600; wait_ms *= 2) { // until the first test is done
		RunSpec spec{.args = {"bench", kModel, "--device", "cpu", "-p", "0", "-n", "4,1000", "-r", "50", "-o", "json"}};
		spec.signal = SIGINT;
		spec.signal_after_ms = wait_ms;
		r = run_program(spec);
		CAPTURE(r.err);
		REQUIRE(r.code == 130);
		if (!r.out.empty() && !nlohmann::json::parse(r.out)["results"].empty()) break;
	}
	const auto j = nlohmann::json::parse(r.out);
	CHECK(j["cancelled"] == true);
	REQUIRE(j["results"].size() >= 1);
	CHECK(j["results"][0]["test"] == "tg4");
	CHECK(j["results"][0]["tok_s_median"].get<double>() > 0);
	CHECK(contains(r.err, "interrupted"));
}

TEST_CASE("cli: bench keeps the tests that were finished when a later one fails, and says why") {
	const std::vector<std::string> failing = {"bench", kModel, "--device", "cpu", "-p",     "0",           "-n",
	                                          "2",     "-r",   "1",        "-d",  "0,4000", "--kv-budget", "2M"};
	const Ran table = run_program(failing);
	CAPTURE(table.err);
	CHECK(table.code == 4);
	CHECK(contains(unaligned(table.out), "| tg2 |"));
	CHECK(contains(table.err, "error: "));
	std::vector<std::string> args = failing;
	args.insert(args.end(), {"-o", "json"});
	const Ran r = run_program(args);
	CHECK(r.code == 4);
	const auto j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 1);
	CHECK(j["results"][0]["test"] == "tg2");
	CHECK(j["cancelled"] == false);
	CHECK(contains(r.err, "error: " + j["error"].get<std::string>() + "\n"));
	args[11] = "4000"; // nothing is finished
	const Ran none = run_program(args);
	CHECK(none.code == 4);
	CHECK(none.out == "");

	// No engine is left: of the second share no weights can leave the device.
	const Ran share = run_program(
	    {"bench", kModel, "--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "--host-share", "0,50", "-o", "json"});
	CAPTURE(share.err);
	CHECK(share.code == 3);
	const auto s = nlohmann::json::parse(share.out);
	CHECK(s["results"].size() == 1);
	CHECK(s["model"]["file"] == kModel);
	CHECK(contains(s["error"].get<std::string>(), "--host-share 50"));
}

TEST_CASE("cli: bench --fill: a long context without its prompt, in memory that fits it") {
	std::map<std::string, double> device;
	const Ran r = run_program({"bench", "-m",     kModel, "--device",        "cpu", "-p",    "0",
	                           "-n",    "2",      "-d",   "32000",           "-c",  "32768", "-r",
	                           "1",     "--fill", "--kv", "fp16,kivi2,mikv", "-o",  "json"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 3);
	CHECK(j["prompt_bytes"].get<double>() > 0);
	for (const auto& t : j["results"]) {
		const double bytes = t["kv_bytes"], allocated = device[t["kv"]] = t["kv_device_bytes"];
		CHECK(t["n_depth"] == 32000);
		CHECK(allocated >= bytes * 0.99);                // without padding of pages
		CHECK(allocated < std::max(bytes * 1.1, 8.5e6)); // the first piece has 8 MiB
	}
	CHECK(device["kivi2"] < device["fp16"] / 4);
}

TEST_CASE("cli: bench with several policies says what the cache costs each") {
	std::vector<std::string> args = {"bench", "-m", kModel, "--device",          "cpu", "-p", "200", "-n", "0",
	                                 "-r",    "1",  "--kv", "fp16,zipcache,mikv"};
	Ran r = run_program(args);
	CAPTURE(r.err);
	CHECK(r.code == 0);
	for (const char* words : {"| of the first |", "| pp200 | zipcache |", "attend ms", "| saliency + packing |"})
		CHECK(contains(unaligned(r.out), words));
	args.insert(args.end(), {"-o", "json"});
	r = run_program(args);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto j = nlohmann::json::parse(r.out);
	REQUIRE(j["results"].size() == 3);
	for (const auto& t : j["results"]) {
		CHECK(t["tok_s"].size() == 1);
		const bool ranks = t["kv"] != "fp16";
		CHECK((t["saliency"]["ms"].get<double>() > 0) == ranks);
		CHECK(t["packing"]["ms"].get<double>() > 0);
		CHECK(t["attend"]["ms"].get<double>() > 0);
		const double parts =
		    t["attend"]["ms"].get<double>() + t["saliency"]["ms"].get<double>() + t["packing"]["ms"].get<double>();
		CHECK(parts < t["device_ms"].get<double>());
		CHECK(t["kv_device_bytes"].get<double>() > 0);
		CHECK(!t.contains("ops"));
		CHECK(t["attend"]["of_peak"].is_null()); // the cpu backend does not know its memory's bandwidth
	}
	args.insert(args.end(), {"--peak", "50"});
	r = run_program(args);
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const auto told = nlohmann::json::parse(r.out);
	CHECK(told["device"]["peak_bytes_per_s"] == 50e9);
	for (const auto& t : told["results"])
		CHECK(t["attend"]["of_peak"].get<double>() == doctest::Approx(t["attend"]["bytes_per_s"].get<double>() / 50e9));
}
