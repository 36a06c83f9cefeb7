// Options of every command that runs a model: file, device, context and cache; opening the model on the device.
#pragma once
#include "engine/run/draft_model.h"
#include "engine/run/session.h"
#include "tools/args_draft.h"
#include "tools/args_model.h"

namespace kvrun {

struct EngineArgs : ModelArgs {
	std::string kv;             // cache policy or policies, as parse_policy() reads them; empty: types, or fp16
	std::string type_k, type_v; // llama.cpp's way to say it: a type for keys, one for values
};

// With the options of llama.cpp that have no effect here. several_policies: --kv takes a list.
void add_engine_options(Command&, EngineArgs&, bool several_policies = false);
// What --kv, or -ctk and -ctv, ask for. Throws Error{Invalid} for both at once, and for several where one is meant.
std::vector<KvPolicy> cache_policies(const EngineArgs&);
KvPolicy cache_policy(const EngineArgs&);
// The environment's settings and what --device and --check add to them.
BackendOptions backend_options(const std::string& device, bool check);
WeightOptions weight_options(const WeightArgs&);
// Opens the model with a progress bar; the first line on stderr says so when the device is a CPU. max_rows: most
// sequences in a decode step.
std::unique_ptr<Engine> open_engine(const EngineArgs&, uint32_t max_rows = 1);
// The small model of --draft MODEL, to be opened before the model that it drafts for, so that this one's weights and
// cache have what is left; null for look-ups. It must end after all answers.
std::unique_ptr<DraftModel> open_draft_model(const EngineArgs&, const DraftArgs&);
SessionOptions session_options(const EngineArgs&, const KvPolicy&, uint64_t seed);

} // namespace kvrun
