// kvrun plan as a user sees it: JSON, the account of every byte, and refusals.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/temp_folder.h"
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

using namespace kvrun;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

json plan(std::vector<std::string> more, const std::string& memory = "8G") {
	std::vector<std::string> args = {"plan", "--json", "--memory", memory};
	args.insert(args.end(), more.begin(), more.end());
	const Ran r = run_program(args);
	CAPTURE(r.err);
	REQUIRE((r.code == 0 || r.code == 6)); // 6: does not fit, for example with policies that evict
	const json j = json::parse(r.out);
	if (j.is_object()) REQUIRE(j["fits"] == (r.code == 0));
	return j;
}
std::vector<std::string> mistral(const std::string& kv, int tokens) {
	return {"--kv", kv, "--shape", "32x8x128", "-c", std::to_string(tokens)};
}
void check_refused(std::vector<std::string> args, std::vector<std::string> parts) {
	args.insert(args.begin(), "plan");
	const Ran r = run_program(args);
	CAPTURE(r.err);
	CHECK(r.code == 2);
	CHECK(r.out == "");
	CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
	for (const std::string& p : parts) CHECK(r.err.find(p) != std::string::npos);
}

} // namespace

TEST_CASE("plan: all experts of a mixture are weights, those of a token are activations") {
	const json j = plan({"synth:qwen3-30b-a3b:q4_k", "--kv", "fp16", "-c", "32768"}, "24G");
	const size_t weights = j["memory"]["weight_bytes"];
	CHECK(weights > size_t(15) << 30); // 30.5 billion at 4.5 bits
	CHECK(weights < size_t(17) << 30);
	CHECK(j["f16_bytes"] == size_t(48) * 4 * 128 * 2 * 2 * 32768);
}

TEST_CASE("plan: the prediction layer of a file counts with --draft mtp alone, with a cache of its own") {
	const std::vector<std::string> asked = {"synth:qwen3.5-9b,mtp=1:q4_k", "--kv", "turbo4", "-c", "32k"};
	const auto memory = [&](std::vector<std::string> more) {
		more.insert(more.begin(), asked.begin(), asked.end());
		return plan(more)["memory"];
	};
	const json without = memory({}), with = memory({"--draft", "mtp"});
	CHECK(with["weight_bytes"] == without["weight_bytes"]);
	CHECK(without["weight_bytes"] ==
	      plan({"synth:qwen3.5-9b:q4_k", "--kv", "turbo4", "-c", "32k"})["memory"]["weight_bytes"]);
	CHECK_FALSE(without.contains("draft_bytes"));
	const double layer = without["prediction_bytes"], draft = with["draft_bytes"], cache = with["draft_cache_bytes"];
	CHECK_FALSE(with.contains("prediction_bytes"));
	CHECK(draft > layer);
	CHECK(draft < layer + double(64 << 20)); // activations of 32 rows, logits of 248320 tokens
	// one of 41 parts: 32 layers have 8 with tokens and 24 with states; and the prediction layer
	CHECK(with["bytes"].get<double>() == doctest::Approx(32 * cache).epsilon(1e-6));
	CHECK(with["bytes"] < without["bytes"]);
	double sum = 0;
	for (const char* part : {"weight_bytes", "activation_bytes", "window_bytes", "state_bytes", "prompt_bytes",
	                         "reserve_bytes", "bytes", "draft_bytes", "draft_cache_bytes"})
		sum += with[part].get<double>();
	CHECK(sum == with["total_bytes"].get<double>());
	const Ran text = run_program({"plan", asked[0], "--memory", "8G"});
	CHECK(text.out.find("not counted: the file's prediction layer of ") != std::string::npos);
	const std::string golden = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/";
	const std::string small = golden + "tiny/llama.gguf";
	check_refused({asked[0], "--draft", small}, {"--draft is '" + small, "mtp"});
	const Ran none = run_program({"plan", "synth:qwen3.5-9b:q4_k", "--memory", "8G", "--draft", "mtp"});
	CHECK(none.code == 3);
	CHECK(none.err.find("key qwen35.nextn_predict_layers is missing") != std::string::npos);
}

TEST_CASE("plan: an assistant counts with --draft, and has no cache") {
	const std::string golden = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/", model = golden + "tiny/gemma4.gguf",
	                  assistant = golden + "assistant/gemma4.gguf";
	const json without = plan({model, "--kv", "turbo4"})["memory"],
	           with = plan({model, "--kv", "turbo4", "--draft", assistant})["memory"];
	CHECK(with["draft_bytes"] > std::filesystem::file_size(assistant) / 2);
	CHECK(with["draft_cache_bytes"] == 0);
	CHECK(with["bytes"] < without["bytes"]);
	const Ran text = run_program({"plan", model, "--memory", "8G", "--draft", assistant});
	CHECK(text.out.find("  assistant   ") != std::string::npos);
	check_refused({golden + "tiny/gemma3.gguf", "--draft", assistant}, {"models of gemma4", "gemma3"});
}

TEST_CASE("plan: layers that draft from hidden states count with --draft, with caches of their own") {
	const std::string golden = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/", model = golden + "tiny/gpt_oss.gguf";
	const json without = plan({model, "--kv", "fp16"})["memory"];
	for (const auto& [file, layers] : {std::pair("eagle/gpt_oss.gguf", 1.0), {"dflash/gpt_oss.gguf", 2.0}}) {
		const json with = plan({model, "--kv", "fp16", "--draft", golden + file})["memory"];
		CHECK(with["draft_bytes"] > std::filesystem::file_size(golden + file) / 2);
		const double draft = with["draft_cache_bytes"], cache = with["bytes"];
		CHECK(draft / layers == doctest::Approx(cache / 4).epsilon(1e-3)); // of one of the model's four layers
		CHECK(with["bytes"] < without["bytes"]);
		const Ran text = run_program({"plan", model, "--memory", "8G", "--draft", golden + file});
		CHECK(text.out.find("  layers that draft") != std::string::npos);
		check_refused({golden + "tiny/qwen2.gguf", "--draft", golden + file}, {"take the file that was made for it"});
	}
}

TEST_CASE("plan: adapters and the vision encoder are counted") {
	const std::string golden = KVRUN_SOURCE_DIR "/tests/golden/", vision = golden + "vision/text.gguf";
	const auto memory = [](const std::string& model, std::vector<std::string> more) {
		more.insert(more.begin(), {model, "-c", "64"});
		return plan(more)["memory"];
	};
	const auto check = [](const json& without, const json& with, const char* part, uint64_t least, uint64_t most) {
		CHECK_FALSE(without.contains(part));
		const uint64_t bytes = with[part];
		CHECK(bytes >= least);
		CHECK(bytes <= most);
		CHECK(with["weight_bytes"] == without["weight_bytes"]);
		double sum = bytes + with.value("image_bytes", 0.);
		for (const char* p : {"weight_bytes", "activation_bytes", "window_bytes", "state_bytes", "prompt_bytes",
		                      "reserve_bytes", "bytes"})
			sum += with[p].get<double>();
		CHECK(sum == with["total_bytes"].get<double>());
	};
	const std::string encoder = golden + "vision/mlp.gguf";
	const uint64_t file = fs::file_size(encoder);
	check(memory(vision, {}), memory(vision, {"--mmproj", encoder}), "mmproj_bytes", file / 2, file);
	// 16 patches: 16 bytes per patch and channel, activations, and rooms for logits, which are no more for real
	// encoders
	const uint64_t image = memory(vision, {"--mmproj", encoder})["image_bytes"];
	CHECK(image > 16 * 16 * 24);
	CHECK(image < 1 << 20);
	const std::string lora = golden + "lora/llama.gguf", model = golden + "tiny/llama.gguf";
	check(memory(model, {}), memory(model, {"--lora", lora}), "lora_bytes", fs::file_size(lora) / 2,
	      fs::file_size(lora) * 8); // in f32, and ranks are padded
	check_refused({"--shape", "2x2x64", "--mmproj", encoder}, {"are of a model", "-m FILE"});
	const Ran other = run_program({"plan", golden + "tiny/llama_q4_0.gguf", "--mmproj", encoder});
	CHECK(other.code == 3);
	CHECK(other.err.find("take the mmproj file of this model") != std::string::npos);
}

TEST_CASE("plan: what of a model lies in host memory beside a described card, and what that costs") {
	const std::vector<std::string> card = {
	    "synth:qwen3-30b-a3b:q4_k", "-c", "16k", "--bus", "12G/s", "--bandwidth", "272GB/s"};
	const auto with = [&](std::vector<std::string> more) {
		more.insert(more.begin(), card.begin(), card.end());
		return plan(more);
	};
	const json f16 = with({}), kivi = with({"--kv", "kivi2"});
	CHECK(f16["fits"] == true);
	const json &w = f16["weights"], &k = kivi["weights"];
	CHECK(w["device_bytes"] == f16["memory"]["weight_bytes"]);
	CHECK(w["bytes"] == w["device_bytes"].get<uint64_t>() + w["host_bytes"].get<uint64_t>());
	CHECK(w["host"].get<std::string>().starts_with("embedding, experts of "));
	// 8 of 128 experts
	CHECK(w["bus_bytes_per_token"].get<double>() == doctest::Approx(w["host_bytes"].get<double>() / 16).epsilon(0.03));
	const double seconds = w["bus_bytes_per_token"].get<double>() / 12e9 +
	                       (w["device_bytes_per_token"].get<double>() + f16["bytes"].get<double>()) / 272e9;
	CHECK(w["tokens_per_s"].get<double>() == doctest::Approx(1 / seconds));
	CHECK(k["host_bytes"] < w["host_bytes"]);
	CHECK(k["trade"].get<std::string>().starts_with("kivi2 frees "));
	CHECK(k["trade"].get<std::string>().find(" more layer") != std::string::npos);
	CHECK(w["trade"] == "");
	CHECK(with({"--no-fit"})["fits"] == false);
	CHECK(with({"--cpu-moe"})["weights"]["host"] == "experts of 48 layers"); // then the embedding fits
	CHECK(plan({"synth:qwen3-30b-a3b:q4_k", "-c", "16k"})["fits"] == false); // no line about a bus
	CHECK(plan({"synth:qwen3-30b-a3b:q4_k", "-c", "16k", "-ngl", "40", "--no-fit"}, "24G")["weights"]["host"] ==
	      "embedding, experts of 8 layers, attention of 8 layers, output");
	// Several policies: that the weights alone are too large is said only where they stay on the card.
	const auto ranked = [&](std::vector<std::string> more) {
		more.insert(more.begin(), card.begin(), card.end());
		more.insert(more.begin(), "plan");
		more.insert(more.end(), {"--memory", "8G", "--kv", "fp16,kivi2"});
		return run_program(more).out;
	};
	const char* const no_cache = "the cache is not the problem";
	CHECK(ranked({}).starts_with("fits: 2 of 2 policies"));
	CHECK_FALSE(contains(ranked({}), no_cache));
	CHECK(contains(ranked({"--no-fit"}), no_cache));
	check_refused({"synth:qwen3-30b-a3b:q4_k", "--memory", "8G", "--bus", "fast"}, {"--bus is 'fast'", "12G/s"});
	check_refused({"synth:qwen3-30b-a3b:q4_k", "--memory", "8G", "--bus", "12G/s", "--weights-budget", "1M"},
	              {"a weights budget of 1048576 bytes"});
	check_refused({"synth:qwen3-30b-a3b:q4_k", "--memory", "8G", "-ngl", "-2"}, {"--gpu-layers is '-2'"});
}

TEST_CASE("plan: the parts add up, in bytes and in bits per element") {
	for (const char* kv :
	     {"fp16", "q8", "kivi2", "logquant", "xquant", "asymkv32/0", "streaming", "zipcache", "mikv", "h2o"}) {
		CAPTURE(kv);
		const json j = plan(mistral(kv, 3000));
		size_t bytes = 0;
		double bits = 0;
		for (const auto& p : j["parts"].items()) bytes += p.value().get<size_t>();
		for (const auto& p : j["bits_per_element"].items()) bits += p.value().get<double>();
		CHECK(bytes == j["bytes"]);
		CHECK(j["most_bytes"] >= j["bytes"]);
		CHECK(bits == doctest::Approx(j["stored_bits_per_element"].get<double>()).epsilon(1e-9));
		CHECK(j["ratio"].get<double>() == doctest::Approx(double(j["f16_bytes"]) / double(j["bytes"])).epsilon(1e-9));
		CHECK(j["f16_bytes"] == size_t(32) * 8 * 128 * 2 * 2 * 3000);
		CHECK(j["tokens"] == 3000);
		CHECK(j["layers"].size() == 32);
		const json& memory = j["memory"];
		CHECK(memory["bytes"].get<size_t>() + memory["reserve_bytes"].get<size_t>() == size_t(8) << 30);
		if (!j["evicts"])
			CHECK(memory["tokens_that_fit"].get<uint64_t>() >=
			      memory["bytes"].get<size_t>() / (32 * 8 * 128 * 4 + 4096));
	}
}

TEST_CASE("plan: the sizes the papers speak of") {
	json j = plan(mistral("kivi2,group=64", 4096));
	CHECK(j["stored_bits_per_element"].get<double>() - j["bits_per_element"]["f16"].get<double>() <= 2.75);
	CHECK(j["code_bits_per_element"] == 2.0);
	j = plan(mistral("xquant,group=128,flush=128,km=32,vm=16", 4096));
	CHECK(j["stored_bits_per_element"].get<double>() - j["bits_per_element"]["f16"].get<double>() <= 1.9);
	CHECK(j["code_bits_per_element"].get<double>() == doctest::Approx(1.38).epsilon(0.005));
	CHECK(j["layers"][17]["v_codes_of"] == 16);
	CHECK(j["layers"][17]["regular"]["page_bytes"] < j["layers"][16]["regular"]["page_bytes"]);
	struct Row { // of the paper's table of compression ratios
		const char* kv;
		int tokens;
		double salient, ratio;
	};
	for (const Row row : {Row{"zipcache,ratio=0.6", 840, 0.6, 4.98}, Row{"zipcache,ratio=80%", 3072, 0.8, 4.43}}) {
		const std::vector<std::string> asked = mistral(row.kv, row.tokens);
		j = plan(asked);
		CHECK(j["ratio"].get<double>() == doctest::Approx(row.ratio).epsilon(0.05));
		const double codes = j["code_bits_per_element"]; // salient 4, the others 2, no token in f16
		CHECK(codes == doctest::Approx(2 + 2 * row.salient));
		CHECK(j["bits_per_element"]["codes"].get<double>() == doctest::Approx(codes).epsilon(0.01));
		CHECK(j["parts"]["f16"] == 0);
		for (const char* part : {"k_params", "v_params", "slack", "tables", "live"}) {
			CHECK(j["bits_per_element"][part].get<double>() > 0);
			CHECK(j["bits_per_element"][part].get<double>() < 0.1);
		}
		std::vector<std::string> args = asked; // and as text
		args.insert(args.begin(), {"plan", "--memory", "8G"});
		const Ran r = run_program(args);
		const std::string last = fmt::format("{:.2f} times smaller than f16; codes alone {:.3g} bits per element",
		                                     j["ratio"].get<double>(), codes);
		CHECK_MESSAGE(r.out.find(last) != std::string::npos, r.out << " lacks " << last);
		for (const char* word : {"K parameters", "V parameters", "empty slots of pages", "page tables", "live masks"})
			CHECK_MESSAGE(r.out.find(word) != std::string::npos, word);
	}
}

TEST_CASE("plan: several policies, a model, and words for people") {
	const json j = plan(mistral("fp16,kivi2,group=64,mikv", 100));
	REQUIRE(j.size() == 3);
	CHECK(j[1]["policy"] == "kivi2,group=64");
	CHECK(j[1]["pages"]["regular"]["fill"] == "group");
	CHECK(j[2]["layers"][0]["regular"]["k"]["prescale"] == "balance");
	const json m = plan({"-m", std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf", "--kv", "kivi2"});
	CHECK(m["shape"]["n_layers"].get<int>() == int(m["layers"].size()));
	CHECK(m["tokens"].get<int>() > 0);
	CHECK(m["memory"]["bytes"].get<size_t>() < size_t(8) << 30); // weights included
	const Ran r = run_program({"plan", "--kv", "xquant,km=32,vm=16", "--shape", "32x8x128", "--memory", "8G"});
	CHECK(r.code == 0);
	for (const char* word :
	     {"codes", "K parameters", "stored", "layers 2-16, 18, 20", "of the layer below", "tokens that fit"})
		CHECK_MESSAGE(r.out.find(word) != std::string::npos, r.out << " lacks " << word);
	const Ran help = run_program({"plan", "--help"});
	for (const char* word : {"logquant", "recent_keep", "man kvrun-plan"})
		CHECK(help.out.find(word) != std::string::npos);
	CHECK(run_program({"help", "--man", "plan"}).out.find("stored_bits_per_element") != std::string::npos);
}

TEST_CASE("plan: the first line says whether a given context fits, and the exit code too") {
	const auto first_line = [](const Ran& r) { return r.out.substr(0, r.out.find('\n')); };
	// 4 GiB, of which a tenth is reserve: 32 * 8 * 128 * 4 bytes of fp16 and two tables per page of 128 tokens
	const double token = 32 * 8 * 128 * 4 + 32 * 32 / 128.0;
	const uint64_t fit = uint64_t(4.0 * (1 << 30) * 0.9 / token);
	const std::vector<std::string> base = {"plan", "--shape", "32x8x128", "--memory", "4GiB", "-c"};
	const auto judged = [&](const std::string& tokens) {
		std::vector<std::string> args = base;
		args.push_back(tokens);
		return run_program(args);
	};
	const json j = plan({"--shape", "32x8x128", "-c", "128k", "--kv", "fp16"}, "4G");
	const uint64_t most = j["memory"]["tokens_that_fit"];
	CHECK(double(most) == doctest::Approx(double(fit)).epsilon(0.01));
	CHECK(j["fits"] == false);
	CHECK(j["tokens"] == 131072);
	Ran r = judged("128k");
	CHECK(r.code == 6);
	CHECK(r.err == "");
	CHECK(first_line(r) == fmt::format("does NOT fit: 131072 tokens requested, {} fit", most));
	r = judged(std::to_string(most + 1));
	CHECK(r.code == 6);
	r = judged(std::to_string(most));
	CHECK(r.code == 0);
	CHECK(first_line(r) == fmt::format("fits: {} tokens requested, {} fit", most, most));
	// without -c: the answer is the same, the exit code is 0
	r = run_program({"plan", "--shape", "32x8x128", "--memory", "64M"});
	CHECK(r.code == 0);
	CHECK(first_line(r).starts_with("does NOT fit: 4096 tokens, "));
	r = run_program({"plan", "--shape", "32x8x128", "--memory", "24M", "--kv", "auto"}); // for as many as fit
	CHECK(r.code == 0);
	CHECK(first_line(r).starts_with("does NOT fit: 4096 tokens, "));
	CHECK(contains(r.err, " tokens take at most "));
	check_error({"plan", "--shape", "32x8x128", "--memory", "24M", "--kv", "auto", "-c", "4k"}, 6,
	            {"; take more memory, lower -c"}); // plan has no --kv-budget
	check_error({"plan", "synth:qwen3-8b:q4_k", "--memory", "1G", "--kv", "auto"}, 6, {"auto: weights ", "do not fit"});
}

TEST_CASE("plan: a model without a cache fits only where its weights do") {
	const std::vector<std::string> args = {"plan", "synth:falcon-mamba-7b:q4_k", "-c", "4k", "--memory"};
	const auto judged = [&](const char* memory, std::vector<std::string> more = {}) {
		more.insert(more.begin(), memory);
		more.insert(more.begin(), args.begin(), args.end());
		return run_program(more);
	};
	const Ran small = judged("1G"), large = judged("8G"), ranked = judged("1G", {"--kv", "fp16,kivi2"});
	CHECK(small.code == 6);
	CHECK(small.out.starts_with("does NOT fit: weights 3."));
	CHECK(contains(small.out.substr(0, small.out.find('\n')), " recurrent states + "));
	CHECK(large.code == 0);
	CHECK(large.out.starts_with("fits: 4096 tokens requested, "));
	CHECK(ranked.code == 6);
	CHECK(ranked.out.starts_with("does NOT fit: 0 of 2 policies hold 4096 tokens"));
	// over a bus, the card reads what does not fit
	const Ran bus = judged("1G", {"--bus", "12G/s"});
	CHECK(bus.code == 0);
	CHECK(contains(bus.out, "in host memory, read over the bus"));
}

TEST_CASE("cli: --kv auto in a small budget holds the longest context that fits, and says so") {
	const std::string model = test_root() + "/models/bundled/recall-4m-f16.gguf";
	const auto run = [&](std::vector<std::string> more) {
		more.insert(more.begin(), {"run", "-m", model, "--device", "cpu", "--kv", "auto", "--kv-budget", "512K", "-p",
		                           "a", "-n", "1", "--json"});
		return run_program(more);
	};
	const Ran r = run({});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const json j = json::parse(r.out);
	const uint64_t ctx = j["model"]["ctx"];
	CHECK(ctx < 2048); // what it was trained for
	CHECK(j["kv"]["policy"].get<std::string>().starts_with("turbo"));
	CHECK(contains(r.err, fmt::format("the context is {} tokens, the most that the cache budget of ", ctx)));
	CHECK(lines(r.err.substr(r.err.find("warning:"))) == 1);
	const Ran all = run({"-c", std::to_string(ctx)}), more = run({"-c", std::to_string(ctx + 256)});
	CHECK(all.code == 0);
	CHECK(json::parse(all.out)["kv"]["policy"] == j["kv"]["policy"]);
	CHECK(!contains(all.err, "warning:"));
	CHECK(more.code == 4); // what is asked for is not made smaller
}

TEST_CASE("plan: a model's memory is accounted for alike for a device and for --memory, to the byte") {
	const std::string model = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";
	const auto sum = [](const json& m) {
		size_t s = 0;
		for (const char* part : {"weight_bytes", "activation_bytes", "prompt_bytes", "reserve_bytes", "bytes"})
			s += m.at(part).get<size_t>();
		return s;
	};
	const Ran r = run_program({"plan", model, "--device", "cpu", "--json", "--kv", "kivi2"});
	CAPTURE(r.err);
	REQUIRE(r.code == 0);
	const json device = json::parse(r.out)["memory"];
	CHECK(sum(device) == device["total_bytes"]);
	const json given = plan({model, "--kv", "kivi2"}, std::to_string(device["total_bytes"].get<size_t>()));
	for (const auto& part : device.items())
		if (part.key() != "device") CHECK(given["memory"][part.key()] == part.value());
	CHECK(given["memory"]["weight_bytes"].get<size_t>() > 8'000'000);
	CHECK(run_program({"plan", model, "--device", "cpu:0"}).code == 0);
	CHECK(run_program({"plan", model, "--device", "999999"}).code == 4);
	CHECK(run_program({"plan", model, "--device", "no-such-device"}).code == 4);
	// the bytes that the engine allocates for a prompt
	const Ran run = run_program(
	    {"bench", model, "--device", "cpu", "-p", "256", "-n", "0", "-r", "1", "-o", "json", "--no-warmup"});
	REQUIRE(run.code == 0);
	const double allocated = json::parse(run.out)["prompt_bytes"];
	const json planned = plan({model, "-c", "256"});
	CHECK(planned["memory"]["prompt_bytes"].get<double>() == doctest::Approx(allocated).epsilon(0.02));
	// beyond the trained context the memory decides, and a note says so, as a run does
	const Ran beyond = run_program({"plan", model, "--memory", "1G", "-c", "4096"});
	CHECK(beyond.code == 0);
	CHECK(beyond.out.starts_with("fits: 4096 tokens requested, "));
	CHECK(beyond.out.find("trained for 2048, answers beyond them may be poor\n") != std::string::npos);
	const Ran large = run_program({"plan", model, "--memory", "64M", "-c", "1M", "--kv", "auto"});
	CHECK(large.code != 0);
	CHECK(run_program({"plan", model, "--memory", "1G", "-c", "4096", "--kv", "auto"}).code == 0);
	const Ran ranked = run_program({"plan", model, "--memory", "1G", "-c", "4096", "--kv", "all"});
	CHECK(ranked.code == 0);
	CHECK(ranked.out.find("note: the model was trained for 2048 tokens") != std::string::npos);
	CHECK(ranked.out.starts_with("fits: 20 of 22 policies hold 4096 tokens"));
}

TEST_CASE("plan: policies that evict say so and are never counted as holding what they forget") {
	for (const char* kv : {"streaming", "h2o", "mikv,balance=off,bits=0"}) {
		CAPTURE(kv);
		const json j = plan(mistral(kv, 20000));
		CHECK(j["evicts"] == true);
		CHECK(j["fits"] == false);
		CHECK(!j.contains("measured"));
		CHECK(j["tokens_kept"].get<int>() < 10000);
		CHECK(j["verdict"].get<std::string>().find("evicts the rest") != std::string::npos);
	}
	CHECK(plan(mistral("streaming", 20000))["tokens_kept"] == 1024);
	CHECK(plan(mistral("streaming", 20000))["memory"]["tokens_that_fit"] == 1024);
	CHECK(plan(mistral("streaming", 1000))["fits"] == true); // all tokens are kept
	const json packed = plan(mistral("mikv", 2000));
	CHECK(packed["evicts"] == false);
	CHECK(packed["tokens_kept"] == 2000);
	const Ran r = run_program({"plan", "--shape", "32x8x128", "--memory", "8G", "-c", "20000", "--kv", "streaming"});
	CHECK(r.code == 6);
	CHECK(r.out.starts_with("does NOT fit: 20000 tokens requested, streaming keeps 1024 and evicts the rest\n"));
}

TEST_CASE("plan: a policy that is named twice has one row; one for layers that the model has not is refused") {
	CHECK(plan({"--shape", "4x2x64", "--kv", "fp16,kivi2,fp16"}).size() == 2);
	const std::string kv = "kivi2,k.bits@0-99=4", says = "no layer 99; the model has layers 0 to 3";
	check_refused({"--shape", "4x2x64", "--kv", kv}, {says});
	const Ran r = run_program(
	    {"run", KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf", "--kv", kv, "-p", "x", "--device", "cpu", "-q"});
	CHECK(r.code == 2);
	CHECK(r.err.find(says) != std::string::npos);
}

TEST_CASE("plan: several policies give one table, what fits first, then quality, then size") {
	const std::vector<std::string> base = {"plan", "--shape", "32x8x128", "--memory", "8G", "-c", "65536", "--kv"};
	std::vector<std::string> args = base;
	args.push_back("streaming,fp16,kivi1,kivi4,kivi2,rtn4");
	const Ran r = run_program(args);
	CAPTURE(r.out);
	CHECK(r.code == 0);
	CHECK(r.out.starts_with("fits: 4 of 6 policies hold 65536 tokens in 8.0 GiB"));
	size_t at = 0;
	for (const char* row : {"| kivi4 ", "| rtn4 ", "| kivi2 ", "| kivi1 ", "| fp16 ", "| streaming "}) {
		CAPTURE(row);
		const size_t found = r.out.find(row, at);
		REQUIRE(found != std::string::npos);
		at = found;
	}
	args.back() = "all";
	const Ran all = run_program(args);
	CHECK(all.code == 0);
	for (const char* name : {"| fp16 ", "| zipcache ", "| h2o ", "keeps 480", "1024 (evicts)"})
		CHECK_MESSAGE(all.out.find(name) != std::string::npos, name);
	args = {"plan", "--shape", "32x8x128", "--memory", "64M", "-c", "65536", "--kv", "all"};
	CHECK(run_program(args).code == 6);
	for (const char* label : {"| GiB at most |", "| bits on average |"}) CHECK(contains(unaligned(all.out), label));
	for (const char* meaning : {"\nGiB at most: ", "\nbits on average: "}) CHECK(contains(all.out, meaning));
}

TEST_CASE("plan: measured quality is that of quality_smollm2.csv, with the model's name, and nothing else") {
	std::ifstream csv(KVRUN_SOURCE_DIR "/tools/dev/quality_smollm2.csv");
	std::string line;
	std::getline(csv, line);
	REQUIRE(line == "policy,stored_bits,stored_bits_32k,kld,kld_half,kld_p999,kld_worst,top1_percent");
	size_t n = 0;
	while (std::getline(csv, line)) {
		std::vector<std::string> last; // fields after the policy, which may be quoted and contain commas
		for (; last.size() < 7; line.resize(line.rfind(','))) last.push_back(line.substr(line.rfind(',') + 1));
		std::erase(line, '"');
		CAPTURE(line);
		if (line == "h2o" || line == "streaming") continue; // their divergence does not predict longer contexts
		const json j = plan({"--shape", "32x8x128", "--kv", line});
		++n;
		REQUIRE(j.contains("measured"));
		CHECK(j["measured"]["model"] == "SmolLM2-135M-Instruct");
		CHECK(j["measured"]["policy"] == line);
		CHECK(j["measured"]["kld"].get<double>() == doctest::Approx(std::stod(last[4])));
		CHECK(j["measured"]["half"].get<double>() == doctest::Approx(std::stod(last[3])));
	}
	CHECK(n >= 28);
	CHECK(!plan({"--shape", "32x8x128", "--kv", "kivi2,group=64"}).contains("measured"));
	CHECK(plan({"--shape", "32x8x128", "--kv", "q4"})["measured"]["policy"] == "rtn4");
	for (const char* kv : {"turbo", "turbo,k.bits=3", "turbo3/2,sinks=4"}) // other ways to write it
		CHECK(plan({"--shape", "32x8x128", "--kv", kv})["measured"]["policy"] == "turbo3/2");
	CHECK(plan({"--shape", "32x8x128", "-ctk", "q8_0"})["policy"] == "rtn8");
	const Ran all = run_program({"plan", "--shape", "30x3x64", "--memory", "8G", "-c", "4096", "--kv", "all"});
	for (const char* row : {"turbo4 ", "turbo3 ", "turbo3/2 ", "turbo2 ", "turbo2/1 "}) {
		const size_t at = all.out.find(std::string("| ") + row);
		REQUIRE(at != std::string::npos);
		CHECK(all.out.substr(at, all.out.find('\n', at) - at).find(" 0.0") != std::string::npos);
	}
	const Ran four = run_program({"plan", "--shape", "32x8x128", "--kv", "turbo4"});
	CHECK(four.out.find("]: rotated, codebooks: keys 4 bits, values 4; ") != std::string::npos);
	const Ran one = run_program({"plan", "--shape", "32x8x128", "--kv", "turbo2"});
	CHECK(one.out.find("on SmolLM2-135M-Instruct") != std::string::npos);
	CHECK(one.out.find("not measured for this model") != std::string::npos);
	const Ran own = run_program({"plan", "--shape", "32x8x128", "--kv", "turbo2,recent_keep=64"});
	CHECK(own.out.find("not measured with these options") != std::string::npos);
}

TEST_CASE("plan: --kv all has tuned:BITS of a model that was tuned, with what is expected of them") {
	const TempFolder folder;
	const std::string model = (folder.path / "m.gguf").string(), root = KVRUN_SOURCE_DIR "/models/bundled/";
	std::filesystem::copy_file(root + "recall-4m-f16.gguf", model);
	const std::vector<std::string> all = {"plan", model, "--memory", "1G", "--kv", "all"};
	const Ran before = run_program(all);
	CHECK(before.out.find("tuned:") == std::string::npos);
	const Ran tune =
	    run_program({"tune", model, "--device", "cpu", "-f", root + "record40.txt", "-c", "256", "--chunks", "1"});
	CAPTURE(tune.err);
	REQUIRE(tune.code == 0);
	const Ran after = run_program(all);
	CHECK(after.code == 0);
	for (const char* row : {"| tuned:4.24 ", "| tuned:1.74 ", " ~0.", "~: expected for this model"})
		CHECK_MESSAGE(after.out.find(row) != std::string::npos, row);
	CHECK(after.out.find("turbo4/") == std::string::npos); // they are listed by the name that was asked for
	const Ran one = run_program({"plan", model, "--memory", "1G", "--kv", "tuned:2.74"});
	CHECK(one.out.find("are expected, by 'kvrun tune'") != std::string::npos);
}

TEST_CASE("plan: what cannot be is refused in one line") {
	check_refused({"--kv", "kivi3", "--shape", "32x8x128"}, {"kivi3", "kivi4 kivi2 kivi1"});
	check_refused({"--kv", "kivi2,group=64", "--shape", "32x8x96"}, {"V group 64", "96 (one head)"});
	check_refused({"--kv", "xquant,kq=3,km=0", "--shape", "32x8x128"}, {"shared codes need equal bits"});
	check_refused({"--kv", "kivi2"}, {"-m FILE", "--shape"});
	check_refused({"--kv", "kivi2", "--shape", "32x8x128", "-m", "x.gguf"}, {"one of"});
	for (const char* shape :
	     {"32x8", "32x8x", "x8x128", "32x8x128x2", "0x8x128", "32X8X128", "-1x8x128", "99999999999x1x2", "a"})
		check_refused({"--kv", "kivi2", "--shape", shape}, {"--shape is", "32x8x128"});
	check_refused({"--kv", "kivi2", "--shape", "4294967295x1x64"}, {"layers at most 4096"});
	const Ran half = run_program({"plan", "--kv", "rtn4,k.bits=16", "--shape", "32x8x128"}); // sessions also refuse it
	CHECK(half.code == 3);
	CHECK(half.out == "");
	CHECK(half.err.find("keys stay in f16 while values are packed") != std::string::npos);
}
