// What a decode step costs the host: time, ops and bytes written per token, on a backend that computes nothing.
//   kvrun_host_cost [--model synth:...] [--depth 32768] [--steps 256] [--kv fp16,kivi2,zipcache]
#include "engine/core/error.h"
#include "engine/run/session.h"
#include "tests/bench/counting_backend.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

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
