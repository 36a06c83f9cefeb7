// Routes of Ollama's API, for programs that know no other.
#include "tools/serve/ollama.h"
#include "tools/serve/router.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

std::string count_text(uint64_t n) { // "8.0B", "135M"
	const bool billions = n >= 1'000'000'000;
	char text[32];
	std::snprintf(text, sizeof text, billions ? "%.1fB" : "%.0fM", double(n) / (billions ? 1e9 : 1e6));
	return text;
}

Json details(const Model& m) {
	const kvrun_engine_info i = m.info();
	return {{"parent_model", ""},
	        {"format", "gguf"},
	        {"family", i.architecture},
	        {"families", Json::array({i.architecture})},
	        {"parameter_size", count_text(i.n_params)},
	        {"quantization_level", ollama_quant(m.id())}};
}

Json entry(const Model& m) {
	const kvrun_engine_info i = m.info();
	return {{"name", m.id()},
	        {"model", m.id()},
	        {"modified_at", ollama_time(m.created())},
	        {"size", i.tensor_bytes},
	        {"size_vram", i.device_is_cpu ? 0 : i.weight_bytes},
	        {"context_length", m.ctx_train()},
	        {"digest", ""}, // that of a file in Ollama's own store
	        {"details", details(m)}};
}

} // namespace

void Router::ollama_version(const HttpRequest&, std::shared_ptr<Responder> out) {
	out->respond({200, dump({{"version", kvrun_version()}})});
}

void Router::ollama_tags(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array({entry(model_)});
	if (&embedder_model_ != &model_) list.push_back(entry(embedder_model_));
	out->respond({200, dump({{"models", std::move(list)}})});
}

void Router::ollama_show(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = body_of(request, *out);
	const Fields f(j);
	const std::string name = f.text("model").value_or(f.text("name").value_or(""));
	const Model& model = name == embedder_model_.id() ? embedder_model_ : model_;
	check_name(name, model);
	const kvrun_engine_info i = model.info();
	Json abilities = Json::array();
	if (i.vector_dim && i.encodes) abilities.push_back("embedding");
	if (!i.encodes) {
		abilities.push_back("completion");
		const kvrun_chat_features c =
		    model.can_chat() ? model.features({}) : kvrun_chat_features KVRUN_CHAT_FEATURES_INIT;
		if (c.tools) abilities.push_back("tools");
		if (c.reasoning) abilities.push_back("thinking");
		if (i.reads_images) abilities.push_back("vision");
		try {
			markers();
			abilities.push_back("insert");
		} catch (const ApiError&) {} // it does not fill in
	}
	const std::string architecture = i.architecture;
	out->respond({200, dump({{"modelfile", ""},
	                         {"parameters", ""},
	                         {"template", model.can_chat() ? model.template_text() : ""},
	                         {"details", details(model)},
	                         {"model_info",
	                          {{"general.architecture", architecture},
	                           {"general.parameter_count", i.n_params},
	                           {architecture + ".context_length", &model == &model_ ? options_.ctx : i.ctx_train},
	                           {architecture + ".embedding_length", i.dim},
	                           {architecture + ".block_count", i.n_layers}}},
	                         {"capabilities", std::move(abilities)},
	                         {"modified_at", ollama_time(model.created())}})});
}

void Router::ollama_chat(const HttpRequest& request, std::shared_ptr<Responder> out) {
	Json body = body_of(request, *out);
	if (ollama_loads(body)) return out->respond(ollama_loaded(model_.id(), /*chat=*/true));
	ChatRequest r = chat_request(ollama_chat_body(std::move(body), options_.ctx, defaults_), defaults_);
	check_chat(r);
	if (out->gone()) return;
	converse(request, r, conversation_tokens(r), [&](uint32_t) {
		return ollama_answer(out, model_.id(), /*chat=*/true, r.stream, model_.new_reply(r.prompt));
	});
}

void Router::ollama_generate(const HttpRequest& request, std::shared_ptr<Responder> out) {
	Json body = body_of(request, *out);
	if (ollama_loads(body)) return out->respond(ollama_loaded(model_.id(), /*chat=*/false));
	const OllamaPrompt p = ollama_prompt(std::move(body), model_.can_chat(), options_.ctx, defaults_);
	if (p.chat) {
		ChatRequest r = chat_request(p.body, defaults_);
		check_chat(r);
		if (out->gone()) return;
		return converse(request, r, conversation_tokens(r), [&](uint32_t) {
			return ollama_answer(out, model_.id(), /*chat=*/false, r.stream, model_.new_reply(r.prompt));
		});
	}
	CompletionRequest r = completion_request(p.body, defaults_);
	check_request(r);
	std::vector<Job> jobs;
	jobs.push_back(completion_job(request, r, r.prompts[0]));
	generate(std::move(jobs), r,
	         [&](uint32_t) { return ollama_answer(out, model_.id(), /*chat=*/false, r.stream, ReplyHandle()); });
}

void Router::ollama_embed(const HttpRequest& request, std::shared_ptr<Responder> out) {
	EmbeddingsRequest r = ollama_embeddings(body_of(request, *out), embedder_model_.vector_dim(), defaults_);
	post_vectors(request, std::move(out), std::move(r));
}

} // namespace kvrun::serve
