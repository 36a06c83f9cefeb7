// Routes whose answers are generated: conversations in the forms of three APIs, completions, fill in the middle.
#include "tools/serve/messages.h"
#include "tools/serve/mute.h"
#include "tools/serve/native_answer.h"
#include "tools/serve/responses.h"
#include "tools/serve/router.h"
#include "tools/serve/transcription.h"

namespace kvrun::serve {

void Router::check_name(const std::string& name, const Model& model) const {
	if (options_.strict_model && !name.empty() && name != model.id())
		throw ApiError(404, "there is no such model; this server has '" + model.id() + "'", "model", "model_not_found");
}

void Router::check_request(GenerationRequest& r) const {
	check_name(r.model, model_);
	for (const auto& [text, bias] : r.text_bias)
		for (const uint32_t token : model_.tokens(text, KVRUN_TOKENS_NO_BOS | KVRUN_TOKENS_SPECIAL))
			r.sampling.bias.push_back({token, bias});
	const uint32_t vocab = r.sampling.bias.empty() ? 0 : model_.info().vocab;
	for (const kvrun_logit_bias& b : r.sampling.bias)
		if (b.token >= vocab)
			throw ApiError(400,
			               "logit_bias has token " + std::to_string(b.token) + ", the vocabulary has " +
			                   std::to_string(vocab),
			               "logit_bias");
	r.ping_s = options_.ping_s;
}

bool Router::has_channels() {
	std::call_once(channels_known_, [this] {
		try {
			channels_ = model_.features({}).special_markers > 1;
		} catch (const ApiError&) {} // no template
	});
	return channels_;
}

const InfillMarkers& Router::markers() {
	std::call_once(markers_known_, [this] { markers_ = infill_markers(model_); });
	return markers_;
}

void Router::name_conversation(Job& job, const GenerationRequest& r) const {
	if (r.session.empty()) return;
	job.named = std::make_shared<SessionStore::Hold>(store_, r.session);
	store_.check_room(*job.named);
	job.note = [](std::string_view) { return std::string("{}"); };
}

void Router::generate(std::vector<Job> jobs, const GenerationRequest& r, const NewListener& listener) {
	generator_.check_room(jobs.size(), r.n); // before listeners are created, because each one parses the conversation
	uint32_t number = 0;
	const auto next_listener = [&]() -> std::shared_ptr<Listener> {
		std::shared_ptr<Listener> to = listener(number++);
		if (!r.mute) return to;
		return std::make_shared<Mute>(std::move(to));
	};
	const Scales scales = r.adapters ? *r.adapters : model_.adapters().usual();
	for (Job& job : jobs) {
		job.use = model_.residency().use();
		job.scales = scales;
		job.listener = next_listener();
		for (uint32_t i = 1; i < r.n; ++i) {
			if (job.listener->gone()) return;
			Job fork;
			fork.use = job.use, fork.prompt = job.prompt, fork.sampling = job.sampling, fork.kv = job.kv;
			fork.scales = scales, fork.listener = next_listener(), fork.reuse = job.reuse;
			fork.sampling.seed += i;
			fork.grammar = job.grammar;
			job.forks.push_back(std::move(fork));
		}
	}
	generator_.add(std::move(jobs));
}

void Router::check_chat(ChatRequest& r) {
	check_request(r);
	r.sampling.special = has_channels();
	if (r.raw_reasoning) r.sampling.special |= model_.features(r.prompt).special_markers != 0;
	model_.take_media(r.prompt);
	if (r.prompt.tools.empty()) return;
	const kvrun_chat_features f = model_.features(r.prompt);
	if (!f.tools) {
		if (!r.form.tool_choice.empty() && r.form.tool_choice != "auto")
			throw ApiError(400, "the chat template takes no conversation with tools; leave them out", "tools");
		defaults_.ignored("tools are ignored: the model's chat template takes no conversation with them");
		r.prompt.tools.clear();
		r.form.strict_tools = r.form.one_call = false;
		return;
	}
	if (f.tools == 2)
		defaults_.ignored("the model's chat template has no place for tools: they are described in the system message");
	r.sampling.special |= f.special_markers != 0;
}

std::vector<uint32_t> Router::conversation_tokens(const ChatRequest& r) const {
	if (r.prompt.messages.size() > kShortBody) check_length(model_.chat_text(r.prompt).size(), room());
	std::vector<uint32_t> tokens = model_.chat_tokens(r.prompt);
	check_tokens(tokens, room());
	return tokens;
}

void Router::converse(const HttpRequest& request, const ChatRequest& r, std::vector<uint32_t> tokens,
                      const NewListener& listener) {
	Job job;
	job.prompt = std::move(tokens), job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse;
	job.body = request.held;
	job.grammar = grammars_.get(r.form, &r.prompt);
	name_conversation(job, r);
	if (job.named)
		job.note = [&model = model_, prompt = r.prompt, mute = r.mute](std::string_view answer) {
			if (mute) return dump({{"messages", json_or_null(prompt.messages)}}); // the token is not shown, nor kept
			Json messages = json_or_null(prompt.messages), said = answer_message(model.new_reply(prompt), answer);
			if (prompt.goes_on && messages.back()["content"].is_string() && said["content"].is_string()) {
				said["content"] = messages.back()["content"].get<std::string>() + said["content"].get<std::string>();
				messages.erase(messages.size() - 1);
			}
			messages.push_back(std::move(said));
			return dump({{"messages", std::move(messages)}});
		};
	std::vector<Job> jobs;
	jobs.push_back(std::move(job));
	generate(std::move(jobs), r, listener);
}

CountTokens Router::counter() const {
	return [&model = model_](const std::string& text) { return model.tokens(text, KVRUN_TOKENS_NO_BOS).size(); };
}

void Router::chat(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ChatRequest r = chat_request(body_of(request, *out), defaults_);
	check_chat(r);
	const auto all = std::make_shared<Choices>(out, r, model_.id(), kChatObject);
	if (all->gone()) return;
	converse(request, r, conversation_tokens(r), [&](uint32_t i) {
		ReplyHandle reply = r.raw_reasoning ? ReplyHandle() : model_.new_reply(r.prompt);
		return std::make_shared<ChatAnswer>(all, i, std::move(reply), counter(), r.old_functions);
	});
}

void Router::responses(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ResponseRequest r = response_request(body_of(request, *out), defaults_);
	check_chat(r.chat);
	if (out->gone()) return;
	converse(request, r.chat, conversation_tokens(r.chat), [&](uint32_t) {
		return response_answer(out, r, model_.id(), model_.new_reply(r.chat.prompt), counter());
	});
}

void Router::messages(const HttpRequest& request, std::shared_ptr<Responder> out) {
	MessagesRequest r = messages_request(body_of(request, *out), defaults_, /*counting=*/false);
	check_chat(r.chat);
	if (out->gone()) return;
	std::vector<uint32_t> tokens = conversation_tokens(r.chat);
	const uint32_t n = uint32_t(tokens.size());
	converse(request, r.chat, std::move(tokens),
	         [&](uint32_t) { return messages_answer(out, r, model_.id(), model_.new_reply(r.chat.prompt), n); });
}

void Router::transcribe(const HttpRequest& request, std::shared_ptr<Responder> out) {
	TranscriptionRequest r = transcription_request(request.content_type, request.body, defaults_);
	const std::string sound = model_.add_sound(r.file, "file");
	r.add_sound(sound);
	check_chat(r.chat);
	if (out->gone()) return;
	converse(request, r.chat, conversation_tokens(r.chat), [&](uint32_t) {
		return std::make_shared<TranscriptionAnswer>(out, r, model_.new_reply(r.chat.prompt),
		                                             model_.sound_tokens(sound));
	});
}

void Router::count_tokens(const HttpRequest& request, std::shared_ptr<Responder> out) {
	MessagesRequest r = messages_request(body_of(request, *out), defaults_, /*counting=*/true);
	check_chat(r.chat);
	out->respond({200, dump({{"input_tokens", conversation_tokens(r.chat).size()}})});
}

void Router::apply_template(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ChatRequest r = chat_request(body_of(request, *out), defaults_);
	check_chat(r);
	out->respond({200, dump({{"prompt", model_.chat_text(r.prompt)}})});
}

static Json token_count(size_t n) { return {{"object", "response.input_tokens"}, {"input_tokens", n}}; }

void Router::chat_tokens(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ChatRequest r = chat_request(body_of(request, *out), defaults_);
	check_chat(r);
	out->respond({200, dump(token_count(conversation_tokens(r).size()))});
}

void Router::response_tokens(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ResponseRequest r = response_request(body_of(request, *out), defaults_);
	check_chat(r.chat);
	out->respond({200, dump(token_count(conversation_tokens(r.chat).size()))});
}

// What an empty prompt becomes: the token that texts begin with, else the one that ends them; none if there is neither.
static std::vector<uint32_t> nothing_said(const Model& model) {
	for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"})
		if (const std::optional<uint32_t> id = model.marker_id(key)) return {*id};
	return {};
}

Job Router::completion_job(const HttpRequest& request, const CompletionRequest& r, const TextPrompt& p) {
	Job job;
	if (r.suffix.empty()) {
		job.prompt = prompt_tokens(room(), p, KVRUN_TOKENS_SPECIAL); // as other servers read it
	} else {
		check_length(std::get<std::string>(p[0]).size() + r.suffix.size(), room());
		job.prompt = infill_tokens(model_, markers(), {std::get<std::string>(p[0]), r.suffix, {}}, SIZE_MAX);
	}
	if (job.prompt.empty()) job.prompt = nothing_said(model_);
	if (job.prompt.empty()) throw ApiError(400, "the prompt has no tokens; give it some text", "prompt");
	check_tokens(job.prompt, room());
	job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse;
	job.body = request.held;
	job.grammar = grammars_.get(r.form, nullptr);
	name_conversation(job, r);
	return job;
}

void Router::completion(const HttpRequest& request, std::shared_ptr<Responder> out) {
	CompletionRequest r = completion_request(body_of(request, *out), defaults_);
	check_request(r);
	std::vector<Job> jobs;
	std::vector<std::string> said; // the prompts, if the answers begin with them
	for (const TextPrompt& p : r.prompts) {
		jobs.push_back(completion_job(request, r, p));
		if (r.echo) said.push_back(model_.text(jobs.back().prompt, 0));
		if (out->gone()) return;
	}
	const auto all = std::make_shared<Choices>(std::move(out), r, model_.id(), kCompletionObject, jobs.size());
	generate(std::move(jobs), r,
	         [&](uint32_t i) { return std::make_shared<CompletionAnswer>(all, i, r.echo ? said[i / r.n] : ""); });
}

void Router::native_completion(const HttpRequest& request, std::shared_ptr<Responder> out) {
	CompletionRequest r = native_request(body_of(request, *out), defaults_);
	check_request(r);
	std::vector<Job> jobs;
	std::vector<std::vector<uint32_t>> prompts;
	for (const TextPrompt& p : r.prompts) {
		jobs.push_back(completion_job(request, r, p));
		prompts.push_back(jobs.back().prompt);
		if (out->gone()) return;
	}
	const auto all = std::make_shared<NativeAnswers>(out, r.ping_s, jobs.size() * r.n);
	generate(std::move(jobs), r,
	         [&](uint32_t i) { return std::make_shared<NativeAnswer>(all, i, r, model_, prompts[i / r.n], r.echo); });
}

void Router::infill(const HttpRequest& request, std::shared_ptr<Responder> out) {
	InfillRequest r = infill_request(body_of(request, *out), defaults_);
	check_request(r);
	const size_t most = generator_.longest_context();
	std::vector<Job> jobs(1);
	Job& job = jobs[0];
	job.prompt = infill_tokens(model_, markers(), r.text, most - std::min<size_t>(most / 4, r.sampling.max_tokens));
	if (out->gone()) return;
	job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse, job.body = request.held;
	name_conversation(job, r);
	const std::vector<uint32_t> prompt = job.prompt;
	const auto all = std::make_shared<NativeAnswers>(out, r.ping_s, 1);
	generate(std::move(jobs), r,
	         [&](uint32_t) { return std::make_shared<NativeAnswer>(all, 0, r, model_, prompt, false); });
}

} // namespace kvrun::serve
