// What a decode step costs the host: time, ops and bytes written per token, on a backend that computes nothing; then
// what it costs to choose a token.
//   kvrun_host_cost [--model synth:...] [--depth 32768] [--steps 256] [--kv fp16,kivi2,zipcache]
#include "engine/core/error.h"
#include "engine/run/sampler.h"
#include "engine/run/session.h"
#include "tests/bench/counting_backend.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

namespace {
using namespace kvrun;

struct Options {
	// 32 layers of 8 KV heads of 128; the rest is as small as it may be, for the host does not see it
	std::string model = "synth:llama-3.1-8b,dim=256,hidden=256,vocab=2048:q8_0";
	std::vector<std::string> kv = {"fp16", "kivi2", "zipcache", "mikv", "logquant"};
	uint32_t depth = 32768, steps = 256;
};

class CountingDevices final : public DeviceSet {
 public:
	CountingDevices() {
		DeviceReport r;
		r.backend = "counting", r.info = CountingBackend().info();
		reports_ = {r};
	}
	std::unique_ptr<Backend> open(size_t) override { return std::make_unique<CountingBackend>(); }
};

void measure(Engine& e, const std::string& kv, const Options& opt) {
	Session s(e, {.kv = parse_policy(kv), .ctx = opt.depth + opt.steps + 1});
	s.prefill(std::vector<uint32_t>(opt.depth, 300));
	s.decode(300);
	CountingBackend::take();
	std::vector<double> us;
	for (uint32_t i = 0; i < opt.steps; ++i) {
		const auto start = std::chrono::steady_clock::now();
		s.decode(300 + i % 100);
		us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
	}
	const Counted c = CountingBackend::take();
	double sum = 0;
	for (const double t : us) sum += t;
	std::ranges::sort(us);
	std::printf("| %s | %.0f | %.0f | %.0f | %.0f | %.1f | %.1f | %.0f | %.1f |\n", kv.c_str(), us[us.size() / 2],
	            us[0], us.back(), sum / double(us.size()), double(c.ops) / opt.steps, double(c.writes) / opt.steps,
	            double(c.bytes) / opt.steps, double(c.submits) / opt.steps);
	std::fflush(stdout);
}

// listed: from what a device lists of them.
void measure_sampling(const char* name, const SamplerOptions& options, const std::vector<std::vector<float>>& logits,
                      bool listed = false) {
	Sampler s(options);
	for (uint32_t t = 0; t < 64; ++t) s.accept(t * 7);
	std::vector<double> us;
	for (const std::vector<float>& x : logits) {
		std::vector<Logit> top;
		if (listed) {
			LogitBlocks blocks;
			blocks.scan(x);
			blocks.at_least(blocks.bound(s.wanted()), [&](size_t i, float v) { top.push_back({uint32_t(i), v}); });
		}
		const auto start = std::chrono::steady_clock::now();
		if (listed)
			s.sample(RowLogits{.all = {}, .top = top});
		else
			s.sample(x);
		us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
	}
	std::ranges::sort(us);
	std::printf("| %s | %.0f | %.0f |\n", name, us[us.size() / 2], us[0]);
}

void sampling() {
	constexpr size_t kVocab = 128256;
	std::mt19937 random(1);
	std::normal_distribution<float> normal(0, 2.5f);
	std::vector<std::vector<float>> logits(40, std::vector<float>(kVocab));
	for (std::vector<float>& x : logits)
		for (float& v : x) v = normal(random);
	std::printf("\nThe next of %zu tokens\n\n| sampling | us, median | least |\n|---|---:|---:|\n", kVocab);
	measure_sampling("defaults", {}, logits);
	measure_sampling("defaults, of candidates that the device lists", {}, logits, /*listed=*/true);
	measure_sampling("greedy", {.temperature = 0}, logits);
	measure_sampling("repeat penalty", {.repeat_penalty = 1.1}, logits);
	measure_sampling("top-k 0", {.top_k = 0}, logits);
	measure_sampling("top-k 0, min-p 0", {.top_k = 0, .min_p = 0}, logits);
	measure_sampling("top-k 0, top-p 1, min-p 0", {.top_k = 0, .top_p = 1, .min_p = 0}, logits);
}

void run(const Options& opt) {
	add_backend({"counting", /*automatic=*/false, [](const BackendOptions&) -> std::unique_ptr<DeviceSet> {
		             return std::make_unique<CountingDevices>();
	             }});
	EngineOptions eo;
	eo.model = opt.model, eo.backend.device = "counting", eo.backend.backend = "counting";
	const std::unique_ptr<Engine> e = Engine::open(eo);
	std::printf("%s, %u tokens, %u steps\n\n"
	            "| policy | us, median | least | most | mean | ops | writes | bytes written | submissions |\n"
	            "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
	            opt.model.c_str(), opt.depth, opt.steps);
	for (const std::string& kv : opt.kv) measure(*e, kv, opt);
	sampling();
}

} // namespace

int main(int argc, char** argv) {
	Options opt;
	CLI::App app("What a decode step costs the host, on a backend that computes nothing.");
	app.add_option("--model", opt.model, "model, of which only the shapes matter")->capture_default_str();
	app.add_option("--kv", opt.kv, "policies")->delimiter(',')->capture_default_str();
	app.add_option("--depth", opt.depth, "tokens of the prompt")->capture_default_str();
	app.add_option("--steps", opt.steps, "tokens decoded")->capture_default_str()->check(CLI::PositiveNumber);
	CLI11_PARSE(app, argc, argv);
	try {
		run(opt);
	} catch (const kvrun::Error& e) {
		std::fprintf(stderr, "kvrun_host_cost: %s\n", e.what());
		return 1;
	}
}
