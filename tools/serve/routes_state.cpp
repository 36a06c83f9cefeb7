// Routes that say what the server is and does: health, models, properties, counters, kept conversations.
#include "tools/serve/page/page.h"
#include "tools/serve/router.h"
#include "tools/shortest.h"

namespace kvrun::serve {

void Router::page(const HttpRequest&, std::shared_ptr<Responder> out) { out->respond(page_response()); }

void Router::health(const HttpRequest&, std::shared_ptr<Responder> out) {
	const char* states[] = {"loaded", "unloaded", "loading"}; // Residency::State
	out->respond({200, dump({{"status", "ok"}, {"model", states[size_t(model_.residency().state())]}})});
}

Json Router::model_json(const Model& model) const {
	const kvrun_engine_info i = model.info();
	return {{"id", model.id()},
	        {"object", "model"},
	        {"created", model.created()},
	        {"owned_by", "kvrun"},
	        {"meta",
	         {{"architecture", i.architecture},
	          {"n_params", i.n_params},
	          {"size", i.tensor_bytes},
	          {"n_ctx", &model == &model_ ? options_.ctx : i.ctx_train},
	          {"n_ctx_train", i.ctx_train},
	          {"n_vocab", i.vocab},
	          {"n_embd", i.dim},
	          {"weight_bytes", i.weight_bytes},
	          {"device", i.device_name},
	          {"reads_images", bool(i.reads_images)},
	          {"reads_audio", i.audio_rate != 0},
	          {"encodes", bool(i.encodes)},
	          {"loaded", model.residency().state() == Residency::State::Loaded},
	          {"kv", defaults_.kv}}}};
}

void Router::models(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array({model_json(model_)});
	if (&embedder_model_ != &model_) list.push_back(model_json(embedder_model_));
	out->respond({200, dump({{"object", "list"}, {"data", std::move(list)}})});
}

void Router::model(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const std::string name = request.path.substr(std::string_view(kModelPath).size());
	const Model& model = name == embedder_model_.id() ? embedder_model_ : model_;
	check_name(name, model);
	out->respond({200, dump(model_json(model))});
}

void Router::metrics(const HttpRequest&, std::shared_ptr<Responder> out) {
	out->respond({200, metrics_text(counts_, generator_.stats(), model_.info(), server_),
	              "text/plain; version=0.0.4; charset=utf-8"});
}

static Json fetch_json(const kvrun_fetch_info& f) {
	return {{"tokens", f.fetch},
	        {"steps", f.steps},
	        {"attention_in_f16", f.f16_share},
	        {"bytes", f.fetched_bytes},
	        {"hidden_s", f.hidden_seconds},
	        {"open_s", f.open_seconds},
	        {"host_bytes", f.host_bytes},
	        {"file_bytes", f.file_bytes}};
}

// As llama.cpp's server has them, where it asks for things that exist here; without the folder of the model's file.
void Router::props(const HttpRequest&, std::shared_ptr<Responder> out) {
	const kvrun_engine_info i = model_.info();
	Json sampling = sampling_json(defaults_.sampling);
	if (defaults_.seed) sampling["seed"] = *defaults_.seed;
	out->respond(
	    {200, dump({{"default_generation_settings", {{"n_ctx", options_.ctx}, {"params", std::move(sampling)}}},
	                {"total_slots", options_.parallel},
	                {"model_alias", model_.id()},
	                {"model_path", options_.file},
	                {"modalities", {{"vision", bool(i.reads_images)}, {"audio", i.audio_rate != 0}}},
	                {"chat_template", model_.template_text()},
	                {"bos_token", model_.marker("tokenizer.ggml.bos_token_id")},
	                {"eos_token", model_.marker("tokenizer.ggml.eos_token_id")},
	                {"build_info", std::string("kvrun ") + kvrun_version()}})});
}

void Router::adapters(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array();
	const Scales scales = model_.adapters().usual();
	for (const AdapterFacts& a : model_.adapters().files())
		list.push_back({{"id", list.size()}, {"path", a.file}, {"scale", shortest(scales[list.size()])}});
	out->respond({200, dump(list)});
}

void Router::set_adapters(const HttpRequest& request, std::shared_ptr<Responder> out) {
	model_.adapters().set_usual(adapter_scales(json_or_null(request.body), defaults_));
	out->respond({200, dump({{"success", true}})});
}

static Json slot_json(const SlotInfo& s) {
	Json one{{"state", s.saving          ? "saving"
	                   : s.answer_tokens ? "answering"
	                                     : "reading"},
	         {"prompt_tokens", s.prompt_tokens},
	         {"cached_tokens", s.cached_tokens},
	         {"answer_tokens", s.answer_tokens},
	         {"kv", kv_json(s.policy, s.kv)}};
	if (!s.session.empty()) one["session"] = s.session;
	if (s.fetch.fetch) one["fetch"] = fetch_json(s.fetch);
	return one;
}

// Places of --parallel: answers under way, then free ones.
void Router::slots(const HttpRequest&, std::shared_ptr<Responder> out) {
	const std::vector<SlotInfo> slots = generator_.stats().slots;
	Json list = Json::array();
	for (size_t i = 0; i < std::max<size_t>(slots.size(), options_.parallel); ++i) {
		Json one{{"id", i}, {"n_ctx", options_.ctx}, {"is_processing", i < slots.size()}};
		one.update(i < slots.size() ? slot_json(slots[i]) : Json{{"state", "idle"}});
		list.push_back(std::move(one));
	}
	out->respond({200, dump(list)});
}

// llama.cpp's ?action=save, restore and erase.
void Router::slot_action(const HttpRequest&, std::shared_ptr<Responder>) {
	throw ApiError(
	    400,
	    "places have no caches of their own that could be saved or erased; a request with a session (a name) "
	    "is kept in the folder of --sessions, and DELETE /sessions/NAME removes it",
	    "", "unsupported_parameter");
}

void Router::sessions(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array();
	for (const SessionStore::Kept& k : store_.list())
		list.push_back({{"id", k.name}, {"bytes", k.bytes}, {"modified", k.modified}, {"pinned", k.pinned}});
	out->respond({200, dump({{"object", "list"}, {"data", list}})});
}

static std::string name_in(const HttpRequest& r) { return r.path.substr(std::string_view(kSessionPath).size()); }

void Router::session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json note = json_or_null(store_.note(name_in(request)));
	Json one{{"id", name_in(request)}, {"messages", Json::array()}};
	if (note.is_object() && note.contains("messages")) one["messages"] = note["messages"];
	out->respond({200, dump(one)});
}

void Router::pin_session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = parse_body(request.body);
	const Fields f(j);
	if (!f.find("pinned")) throw ApiError(400, "pinned is missing, expected true or false", "pinned");
	const bool pinned = f.flag("pinned", false);
	store_.pin(name_in(request), pinned);
	out->respond({200, dump({{"id", name_in(request)}, {"pinned", pinned}})});
}

void Router::remove_session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	store_.remove(name_in(request));
	out->respond({200, dump({{"id", name_in(request)}, {"deleted", true}})});
}

} // namespace kvrun::serve
