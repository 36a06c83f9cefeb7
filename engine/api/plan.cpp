// The memory plan of the C API: what fits, from a model's header alone.
#include "engine/kv/plan.h"
#include "engine/api/objects.h"

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_plan_memory(kvrun_plan* out, const kvrun_plan_options* options) {
	return guard([&] {
		check_pointer(options, "options");
		constexpr kvrun_plan_options defaults = KVRUN_PLAN_OPTIONS_INIT;
		const kvrun_plan_options o = read_options(options, defaults, "kvrun_plan_options");
		check_pointer(o.model_path, "model_path");
		const Gguf file = Gguf::open(o.model_path);
		const Config c = read_config(file);
		const KvPlan plan = make_plan(parse_policy(o.kv ? o.kv : "fp16"), {c.n_layers, c.n_kv_heads, c.head_dim});
		kvrun_plan p = KVRUN_PLAN_INIT;
		p.ctx_train = std::max(c.max_seq, 1u);
		p.ctx = o.ctx ? o.ctx : p.ctx_train;
		p.weight_bytes = file.tensor_bytes();
		p.memory_bytes = o.memory_bytes;
		if (!p.memory_bytes) p.memory_bytes = find_device(backend_options(o.device)).info.free_bytes;
		const uint64_t for_cache = cache_room(p.memory_bytes - std::min(p.memory_bytes, p.weight_bytes));
		p.most_tokens = tokens_that_fit(plan, for_cache, p.ctx_train);
		p.fits = tokens_that_fit(plan, for_cache, p.ctx) >= p.ctx;
		p.kv_bytes = bytes_at(plan, p.ctx).total();
		p.kv_f16_bytes = plan.f16_bytes(p.ctx);
		p.stored_bits = stored_bits(plan, p.ctx);
		p.evicts = !plan.keeps_all && plan.fill[int(Tier::Regular)] == Fill::None;
		write_result(out, p, "kvrun_plan");
	});
}
