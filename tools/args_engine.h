// Options of every command that runs a model: file, device, context and cache; opening the model on the device.
#pragma once
#include "engine/run/draft_model.h"
#include "engine/run/session.h"
#include "tools/args_draft.h"
#include "tools/args_model.h"

namespace kvrun {

struct EngineArgs : ModelArgs {
	std::string kv; // one or more cache policies, see parse_policy(); empty: fp16
};

// several_policies: --kv takes a list.
void add_engine_options(Command&, EngineArgs&, bool several_policies = false);
// Policies of --kv. Throws Error{Invalid}; cache_policy() also for a list.
std::vector<KvPolicy> cache_policies(const EngineArgs&);
KvPolicy cache_policy(const EngineArgs&);
// The environment's settings, overridden by --device and --check.
BackendOptions backend_options(const std::string& device, bool check);
BackendOptions backend_options(const ModelArgs&); // also --split
WeightOptions weight_options(const WeightArgs&);
// Opens the model with a progress bar; the first line on stderr says so when the device is a CPU. max_rows: most
// sequences in a decode step. draft: what the engine itself drafts by.
std::unique_ptr<Engine> open_engine(const EngineArgs&, uint32_t max_rows = 1, const DraftArgs& draft = {});
// Opens the small model of --draft MODEL. Must be opened before the large model, whose weights and
// cache get the remaining memory. Null without one. It must outlive all answers.
std::unique_ptr<DraftModel> open_draft_model(const EngineArgs&, const DraftArgs&);
void log_session(const Session&); // -v: policy, context and size of its cache
SessionOptions session_options(const EngineArgs&, const KvPolicy&, uint64_t seed);

} // namespace kvrun
