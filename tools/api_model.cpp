// Opens the model of a command that is built on the C API.
#include "tools/api_model.h"
#include "tools/api_device.h"
#include "tools/terminal.h"

namespace kvrun {
namespace {

int show_loading(double done, double seconds_left, void* payload) {
	Progress& bar = *static_cast<Progress*>(payload);
	if (done < 1)
		bar.show("loading", done, seconds_left);
	else
		bar.clear(); // so that later warnings begin on an empty line
	return 0;
}

kvrun_weight_options weight_options(const ModelArgs& a, const std::string& kv) {
	kvrun_weight_options o = KVRUN_WEIGHT_OPTIONS_INIT;
	o.no_fit = a.weights.no_fit;
	o.budget_bytes = a.weights.budget;
	o.gpu_layers = a.weights.layers().value_or(KVRUN_ALL_LAYERS);
	o.cpu_moe_layers = a.weights.moe_layers();
	o.ctx = uint32_t(a.ctx);
	o.kv = or_null(kv);
	return o;
}

} // namespace

kvrun_status open_model(const ModelArgs& a, const DraftArgs& draft, const std::string& kv, uint32_t answers,
                        kvrun_canceller* canceller, bool show, EngineHandle& out) {
	ApiDevice device(a.device, a.split);
	device.options.check |= a.check;
	const kvrun_weight_options weights = weight_options(a, kv);
	Progress bar;
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = a.model.c_str();
	o.device = &device.options;
	o.kv_budget_bytes = a.kv_budget;
	o.weights = &weights;
	o.ubatch = a.ubatch_within_ctx();
	o.max_rows = draft.rows(answers);
	if (draft.given() && !draft.looks_up()) o.draft_model = draft.predicts() ? KVRUN_DRAFT_MTP : draft.what.c_str();
	const std::string loras = lora_text(a.loras);
	o.loras = or_null(loras);
	o.mmproj = or_null(a.vision.mmproj);
	o.image_min_tokens = a.vision.rows().least, o.image_max_tokens = a.vision.rows().most;
	o.canceller = canceller;
	if (show) o.progress = show_loading;
	o.payload = &bar;
	const kvrun_status s = create(out, kvrun_engine_open, &o);
	return s != KVRUN_OK ? s : set_host_memory(out.get(), a.host_budget, a.offload_dir);
}

} // namespace kvrun
