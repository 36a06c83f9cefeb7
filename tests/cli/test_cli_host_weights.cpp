// Weights in host memory as a user sees them, on a driver that tests describe as a card (KVRUN_TEST_CAPS): a model
// three times as large as the card, rows of bench with parts of the weights in host memory, and what is refused.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/temp_folder.h"
#include <cmath>
#include <cstdio>
#include <doctest/doctest.h>
#include <filesystem>
#include <nlohmann/json.hpp>

using namespace kvrun;
using nlohmann::json;

namespace {

const std::string kRecall = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";
const std::string kMixture = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/qwen3moe.gguf";
// 300 MB.
const std::string kLarge = "synth:llama-3.1-8b,layers=9,dim=1024,hidden=2048,vocab=4000:f16";
const std::string kRates = ",rate=300000000000,bus=25000000000"; // bytes per second of card and bus
const std::string kHost = "mapped=1073741824,transfer=2", kSmallCard = kHost + ",heap=134217728";

bool lavapipe_is_missing() {
	for (const auto& e : std::filesystem::directory_iterator("/usr/share/vulkan/icd.d"))
		if (e.path().filename().string().starts_with("lvp_icd")) return false;
	skip("no lavapipe (package mesa-vulkan-drivers)");
	return true;
}

Ran on_card(const std::string& caps, std::vector<std::string> args) {
	static const TempFolder cache;
	args.insert(args.end(), {"--device", "llvmpipe"});
	return run_program(RunSpec{
	    .args = std::move(args),
	    .env = {{"KVRUN_TEST_CAPS", caps}, {"KVRUN_CACHE_DIR", cache.path / "kvrun"}, {"XDG_RUNTIME_DIR", "/tmp"}}});
}

void check_card_refuses(const std::string& caps, const std::vector<std::string>& args, int code,
                        const std::vector<std::string>& parts) {
	const Ran r = on_card(caps, args);
	CAPTURE(r.err);
	CHECK(r.code == code);
	CHECK(r.out == "");
	CHECK(lines(r.err) == 1);
	CHECK(r.err.starts_with("error: "));
	for (const std::string& p : parts) CHECK(contains(r.err, p));
}

} // namespace

TEST_CASE("cli: bench --host-share measures with parts of the weights in host memory; bytes are those of the plan" *
          doctest::test_suite("lavapipe")) {
	if (lavapipe_is_missing()) return;
	for (const std::string& model : {kRecall, kMixture}) {
		CAPTURE(model);
		const std::vector<std::string> args = {"bench", model, "-p",          "200",          "-ub",
		                                       "32",    "-n",  "3",           "-r",           "1",
		                                       "-d",    "0",   "--no-warmup", "--host-share", "0,50,90"};
		std::vector<std::string> as_json = args;
		as_json.insert(as_json.end(), {"-o", "json"});
		const Ran r = on_card(kHost, as_json);
		CAPTURE(r.err);
		REQUIRE(r.code == 0);
		const json j = json::parse(r.out);
		REQUIRE(j["results"].size() == 6); // a prompt and an answer for each
		const double all = j["model"]["weight_bytes"];
		double before = -1;
		for (size_t i = 0; i < 6; ++i) {
			const json& t = j["results"][i];
			const double share = t["host_share"].get<double>() / 100, host = t["host_weight_bytes"];
			CHECK(host >= share * all * 0.99); // the sizes differ by the alignment of tensors
			CHECK((host > 0) == (share > 0));
			if (i % 2 == 0) continue;
			CHECK(t["bus_bytes_per_token"] == t["plan_bus_bytes_per_token"]);
			CHECK(t["bus_bytes_per_token"].get<double>() > before);
			CHECK((t["bus_bytes_per_token"] == 0) == (share == 0));
			before = t["bus_bytes_per_token"];
		}
		const Ran table = on_card(kHost, args);
		CHECK(table.code == 0);
		CHECK(contains(table.out, "weights in host memory"));
		CHECK(contains(table.out, "bus bytes per token"));
	}
}

TEST_CASE("cli: bench --host-share compares policies with the first one at the same share" *
          doctest::test_suite("lavapipe")) {
	if (lavapipe_is_missing()) return;
	const Ran r = on_card(kHost, {"bench", kRecall, "-p", "0", "-n", "3", "-r", "1", "--no-warmup", "--kv",
	                              "fp16,kivi2", "--host-share", "0,50,90"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const std::string table = unaligned(r.out.substr(0, r.out.find("\nThe cache's part")));
	CAPTURE(table);
	double first = 0;
	size_t rows = 0;
	for (size_t at = 0; (at = table.find("| tg3 |", at)) != table.npos; ++at, ++rows) {
		char kv[16] = "";
		double median = 0, ratio = 0;
		REQUIRE(std::sscanf(table.c_str() + at, "| tg3 | %15s | %lf | %*f | %*f | %lf |", kv, &median, &ratio) == 3);
		REQUIRE(std::string(kv) == (rows % 2 ? "kivi2" : "fp16"));
		if (rows % 2 == 0) first = median;
		CHECK(std::abs(ratio - median / first) < 0.0051 + 0.01 * (1 + ratio) / first); // both numbers are rounded
	}
	CHECK(rows == 6);
}

TEST_CASE("cli: bench --host-share is refused where no weights can leave the device, and for what is no percentage") {
	const std::vector<std::string> args = {"bench", kRecall, "--device", "cpu", "-p", "8", "-n", "0", "--host-share"};
	const auto with = [&](const std::string& shares) {
		std::vector<std::string> out = args;
		out.push_back(shares);
		return out;
	};
	const Ran r = run_program(with("50"));
	CAPTURE(r.err);
	CHECK(r.code == 3);
	CHECK(contains(r.err, "error: --host-share 50: "));
	CHECK(contains(r.err, "shares the host's memory"));
	check_error(with("0,101"), 2, {"--host-share", "101"});
	check_error(with("half"), 2, {"--host-share", "half"});
	CHECK(run_program(with("0")).code == 0);
}

TEST_CASE("cli: a model of three times the card answers as without the limit; auto says what its bits free" *
          doctest::test_suite("lavapipe")) {
	if (lavapipe_is_missing()) return;
	const std::vector<std::string> ask = {"run", kLarge, "-p", "Once upon a time", "-n", "4", "--temp",
	                                      "0",   "-c",   "64"};
	const Ran whole = on_card("", ask), card = on_card(kSmallCard, ask);
	CAPTURE(card.err);
	REQUIRE(whole.code == 0);
	REQUIRE(card.code == 0);
	CHECK(card.out == whole.out);
	CHECK(contains(card.err, "in host memory, read over the bus; prompts copy them through "));
	CHECK(contains(card.err, " tokens/s by ")); // measured
	const Ran given = on_card(kSmallCard + kRates, ask);
	CHECK(given.out == whole.out);
	CHECK(contains(given.err, " tokens/s by 25 GB/s of the bus and 300 GB/s of the device"));
	// a cache of 4k tokens in f16 would leave hardly any room for weights
	const Ran weighed = on_card(kHost + ",heap=268435456" + kRates,
	                            {"run", kLarge, "-p", "Once", "-n", "1", "-c", "4k", "--kv", "auto"});
	CAPTURE(weighed.err);
	CHECK(weighed.code == 0);
	CHECK(contains(weighed.err, " against fp16: "));
	CHECK(contains(weighed.err, " stay on the device, "));
}

TEST_CASE("cli: plan and run give the faster device of a split as many layers as fit it, and say the rates" *
          doctest::test_suite("lavapipe")) {
	if (lavapipe_is_missing()) return;
	const auto on_both = [](const std::string& caps, std::vector<std::string> args) {
		args.insert(args.end(), {"-c", "64", "--device", "llvmpipe,cpu"});
		return run_program(
		    RunSpec{.args = std::move(args), .env = {{"KVRUN_TEST_CAPS", caps}, {"KVRUN_CACHE_DIR", "off"}}});
	};
	const std::vector<std::string> plan = {"plan", kLarge}, ask = {"run", kLarge, "-p", "Once", "-n", "1"};
	const std::string fast = "rate0=300000000000,rate1=30000000000", slow = "rate0=30000000000,rate1=300000000000";
	for (const auto& args : {plan, ask}) {
		const Ran first = on_both(fast, args), second = on_both(slow, args);
		CAPTURE(first.err);
		CAPTURE(second.err);
		CHECK(contains(first.err, "layers: 8 on "));
		CHECK(contains(first.err, " (300 GB/s), 1 on "));
		CHECK(contains(second.err, "layers: 1 on "));
		CHECK(contains(second.err, " (30 GB/s), 8 on "));
	}
	const Ran card = on_both(fast + ",memory_budget=0,heap=134217728", plan); // a budget counts the whole system
	CAPTURE(card.err);
	CHECK(contains(card.err, "layers: 2 on ")); // 33 MiB each
}

TEST_CASE("cli: weights that fit neither the card nor host memory, and budgets below the least, end with one line" *
          doctest::test_suite("lavapipe")) {
	if (lavapipe_is_missing()) return;
	const auto run = [](const std::vector<std::string>& more) {
		std::vector<std::string> out = {"run", kLarge, "-p", "x", "-n", "1", "-c", "64"};
		out.insert(out.end(), more.begin(), more.end());
		return out;
	};
	check_card_refuses(kSmallCard, run({"--weights-budget", "1K"}), 2,
	                   {"a weights budget of 1024 bytes", "norms, biases and routers"});
	check_card_refuses(kSmallCard, run({"--no-fit"}), 4, {"MiB are free"});
	check_card_refuses("mapped=33554432,heap=134217728", run({}), 4, {"would lie in host memory, which has 32.0 MiB"});
}
