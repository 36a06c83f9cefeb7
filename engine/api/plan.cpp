// Policies and the memory plan of the C API: the list of policies, and what fits, computed from a model's header alone.
#include "backends/split_devices.h"
#include "backends/weight_rows.h"
#include "engine/api/objects.h"
#include "engine/api/weight_options.h"
#include "engine/core/limits.h"
#include "engine/kv_host/counts.h"
#include "engine/run/engine.h"
#include "engine/run/memory_plan.h"
#include "engine/run/tuning_file.h"
#include "engine/run/weight_fit.h"
#include "models/prediction.h"

using namespace kvrun;
using namespace kvrun::api;

namespace {

// The memory that is planned for. Where its size is all that is known, the device may not be able to read host memory,
// and the default is to keep all weights on it.
DeviceRoom room_of_plan(const kvrun_plan_options& o, uint32_t n_layers) {
	if (!o.memory_bytes) return room_of(find_devices(backend_options(o.device), n_layers).together);
	DeviceRoom room{"a device of that memory", o.memory_bytes};
	if (!o.weights) room.mapped_bytes = 0;
	return room;
}

} // namespace

size_t kvrun_policy_count(void) {
	size_t n = 0;
	quietly([&] { n = all_policies().size(); });
	return n;
}

kvrun_status kvrun_policy_get(size_t index, kvrun_policy_info* out) {
	return guard([&] {
		const std::vector<KvPolicy>& all = all_policies();
		if (index >= all.size()) refuse(KVRUN_EINVALID, "policy {} of {}", index, all.size());
		kvrun_policy_info i = KVRUN_POLICY_INFO_INIT;
		i.name = all[index].name.c_str();
		i.summary = all[index].summary.c_str();
		i.source = all[index].source.c_str();
		write_result(out, i, "kvrun_policy_info");
	});
}

kvrun_status kvrun_plan_memory(kvrun_plan* out, const kvrun_plan_options* options) {
	return guard([&] {
		check_pointer(options, "options");
		constexpr kvrun_plan_options defaults = KVRUN_PLAN_OPTIONS_INIT;
		const kvrun_plan_options o =
		    read_options(options, defaults, "kvrun_plan_options", offsetof(kvrun_plan_options, weights));
		check_pointer(o.model_path, "model_path");
		check_ctx(o.ctx);
		check_ubatch(o.ubatch);
		Gguf file = Gguf::open(o.model_path);
		file.set_cache_folder(backend_options(o.device).cache_dir);
		const Config c = read_config(file);
		if (c.encodes) fail_encoder(file.name());
		const DeviceRoom room = room_of_plan(o, c.n_layers);
		const uint64_t memory = room.free_bytes;
		kvrun_plan p = KVRUN_PLAN_INIT;
		p.ctx_train = std::max(c.max_seq, 1u);
		p.ctx = o.ctx ? o.ctx : std::min(p.ctx_train, kMaxContext);
		const KvPolicy asked = parse_policy(o.kv ? o.kv : "fp16");
		const WeightPlan weights =
		    place_weights(file, c, device_row_bytes, placement_of(read_weight_options(o.weights)),
		                  {{asked}, o.ctx, 0, o.ubatch}, room);
		p.host_weight_bytes = weights.host_bytes();
		p.host_token_bytes = weights.host_token_bytes(), p.device_token_bytes = weights.device_token_bytes();
		const ModelMemory model =
		    p.host_weight_bytes ? model_memory(c, weights, o.ubatch)
		                        : model_memory(c, file.tensor_bytes() - prediction_tensor_bytes(file, c), o.ubatch);
		const MemoryAccount account = memory_account(model, memory, p.ctx);
		const CacheLayers layers(c);
		const uint64_t index = index_bytes(layers, p.ctx);
		const Choice choice = choose_policy(asked, layers.policy_shape(), file, p.ctx / layers.policy_block(),
		                                    account.cache - std::min(account.cache, index), /*or_fewer=*/!o.ctx);
		const KvPlan plan = plan_of_model(layers, choice.policy, p.ctx);
		p.memory_bytes = account.total;
		p.weight_bytes = account.weights;
		p.activation_bytes = account.activations;
		p.prompt_bytes = account.prompt;
		p.reserve_bytes = account.reserve;
		p.cache_bytes = account.exceeded ? 0 : account.cache + account.window + account.states;
		p.kv_bytes = most_bytes(plan, p.ctx) + account.window + account.states;
		p.kv_f16_bytes = kv_f16_bytes(c) * p.ctx;
		p.fits = p.kv_bytes <= p.cache_bytes && (!c.text_input.positions || p.ctx <= c.text_input.positions);
		p.most_tokens = capacity(plan, model, memory).by_memory;
		p.kept_tokens = tokens_kept(plan, p.ctx);
		p.evicts = evicts(plan);
		p.stored_bits = stored_bits(plan, p.ctx);
		write_result(out, p, "kvrun_plan", offsetof(kvrun_plan, host_weight_bytes));
	});
}
