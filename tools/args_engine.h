// Options of every command that runs a model: file, device, context and cache; and opening what they name.
#pragma once
#include "engine/run/engine.h"
#include "tools/args.h"

namespace kvrun {

struct EngineArgs {
	std::string model, device; // file; index or part of a name, empty: best
	int64_t ctx = 0;           // tokens; 0: the engine's choice
	int64_t ubatch = 512;      // prompt tokens that go through a layer together
	std::string kv = "fp16";   // cache policy or policies, as parse_policy() reads them
	uint64_t kv_budget = 0;    // bytes; 0: what the device has free
	bool check = false;        // compare every op with the cpu backend
};

void add_engine_options(CLI::App&, EngineArgs&);
// Opens the model with a progress bar; the first line on stderr says so when the device is a CPU.
std::unique_ptr<Engine> open_engine(const EngineArgs&, const KvPolicy&, uint64_t seed);
// Bytes for people: 312 B, 3.1 MiB.
std::string human_bytes(double bytes);

} // namespace kvrun
