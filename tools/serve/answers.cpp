// Answers in the form of OpenAI's API, whole or as a stream of events.
#include "tools/serve/answers.h"
#include "tools/serve/old_functions.h"
#include "tools/text.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvrun::serve {

Json kv_json(const std::string& policy, const SessionBytes& b) {
	return {{"policy", policy},
	        {"f16_bytes", b.f16},
	        {"code_bytes", b.codes},
	        {"param_bytes", b.params},
	        {"overhead_bytes", b.overhead}};
}

Json timings_json(const Ended& e) {
	const kvrun_generate_result& r = e.result;
	const auto per_second = [](uint32_t n, double s) { return s > 0 ? n / s : 0; };
	const auto per_token = [](uint32_t n, double s) { return n > 0 ? s * 1e3 / n : 0; };
	const uint32_t steps = std::max(r.answer_tokens, 1u) - 1; // the first token is the prompt's
	Json j{{"cache_n", e.reused},
	       {"prompt_n", r.prompt_tokens},
	       {"prompt_ms", r.prefill_seconds * 1e3},
	       {"prompt_per_token_ms", per_token(r.prompt_tokens, r.prefill_seconds)},
	       {"prompt_per_second", per_second(r.prompt_tokens, r.prefill_seconds)},
	       {"predicted_n", r.answer_tokens},
	       {"predicted_ms", r.decode_seconds * 1e3},
	       {"predicted_per_token_ms", per_token(steps, r.decode_seconds)},
	       {"predicted_per_second", per_second(steps, r.decode_seconds)}};
	if (e.drafts) j["draft_n"] = r.drafted, j["draft_n_accepted"] = r.drafts_accepted;
	return j;
}

void Pace::start(uint32_t prompt, uint32_t cached) {
	prompt_ = prompt, cached_ = std::min(cached, prompt);
	began_ = first_ = Clock::now();
	told_.reset();
}

void Pace::token() {
	if (++tokens_ == 1) first_ = Clock::now();
}

Json Pace::timings() const {
	const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
	Ended e;
	e.reused = cached_, e.result.prompt_tokens = prompt_ - cached_, e.result.answer_tokens = tokens_;
	e.result.prefill_seconds = seconds(first_ - began_), e.result.decode_seconds = seconds(Clock::now() - first_);
	return timings_json(e);
}

Json Pace::progress(double done) {
	const uint32_t read = cached_ + uint32_t(std::lround((prompt_ - cached_) * std::clamp(done, 0., 1.)));
	if (std::exchange(told_, read) == read) return {};
	const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_).count();
	return {{"total", prompt_}, {"cache", cached_}, {"processed", read}, {"time_ms", ms}};
}

Json kv_json(const Ended& e) {
	Json j = kv_json(e.policy, e.kv);
	if (e.session.empty()) return j;
	j["session"] = e.session;
	j["kept"] = e.not_kept.empty();
	if (!e.not_kept.empty()) j["not_kept"] = e.not_kept;
	return j;
}

std::string answer_note(const std::string& policy, uint32_t prompt, uint32_t reused, uint32_t answer) {
	return "kv=" + policy + " prompt=" + std::to_string(prompt) + " reused=" + std::to_string(reused) +
	       " answer=" + std::to_string(answer);
}

std::string answer_note(const Ended& e) {
	return answer_note(e.policy, e.reused + e.result.prompt_tokens, e.reused, e.result.answer_tokens);
}

// ---- the choices of a request

Choices::Choices(std::shared_ptr<Responder> out, const GenerationRequest& r, const std::string& model,
                 const ObjectNames& names, size_t prompts)
    : out_(std::move(out), r.ping_s), stream_(r.stream), include_usage_(r.include_usage), progress_(r.progress),
      live_timings_(r.live_timings), model_(model), id_(new_id(names.id_prefix)), names_(names), created_(unix_time()),
      choices_(r.n * prompts), left_(choices_.size()), prompts_(prompts) {}

Json Choices::head(bool chunk) const {
	return {{"id", id_}, {"object", chunk ? names_.chunk : names_.whole}, {"created", created_}, {"model", model_}};
}

void Choices::send(const Json& choices, const Json& usage, const Json& more) {
	Json j = head(/*chunk=*/true);
	j["choices"] = choices;
	if (include_usage_) j["usage"] = usage;
	j.update(more);
	out_.data(j);
}
void Choices::event(const Json& choice, const Json& more) {
	if (!failed_) send(Json::array({choice}), nullptr, more);
}

void Choices::begin() {
	if (stream_ && !failed_) out_.begin();
}

uint32_t Choices::prompt_tokens() const {
	return std::accumulate(prompts_.begin(), prompts_.end(), 0u,
	                       [](uint32_t n, const Prompt& p) { return n + p.tokens; });
}
uint32_t Choices::cached_tokens() const {
	return std::accumulate(prompts_.begin(), prompts_.end(), 0u,
	                       [](uint32_t n, const Prompt& p) { return n + p.cached; });
}

// A prompt is counted once, however many choices answer it.
Json Choices::usage_json() const {
	Json j{{"prompt_tokens", prompt_tokens()},
	       {"completion_tokens", answer_tokens_},
	       {"total_tokens", prompt_tokens() + answer_tokens_},
	       {"prompt_tokens_details", {{"cached_tokens", cached_tokens()}}}};
	if (reasoning_tokens_) j["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens_}};
	return j;
}

void Choices::end(size_t index, const Json& choice, const Ended& e, size_t reasoning) {
	if (failed_) return;
	Prompt& prompt = prompts_[index / (choices_.size() / prompts_.size())];
	prompt.tokens = e.reused + e.result.prompt_tokens;
	prompt.cached = std::min(prompt.cached, e.reused);
	answer_tokens_ += e.result.answer_tokens;
	reasoning_tokens_ += uint32_t(std::min<size_t>(reasoning, e.result.answer_tokens)); // counted as a text of its own
	--left_;
	const Json timings = timings_json(e);
	if (stream_) send(Json::array({choice}), nullptr, {{"kv", kv_json(e)}, {"timings", timings}});
	choices_[index] = choice;
	if (choices_.size() > 1) {
		choices_[index]["kv"] = kv_json(e);
		choices_[index]["timings"] = timings;
	}
	if (left_) return;
	out_.out().note(answer_note(e.policy, prompt_tokens(), cached_tokens(), answer_tokens_) +
	                (choices_.size() > 1 ? " n=" + std::to_string(choices_.size()) : ""));
	if (stream_) {
		if (include_usage_) send(Json::array(), usage_json());
		out_.done();
		return out_.end();
	}
	Json j = head(/*chunk=*/false);
	j["choices"] = choices_;
	j["usage"] = usage_json();
	if (choices_.size() == 1) {
		j["kv"] = kv_json(e);
		j["timings"] = timings;
	}
	out_.out().respond({200, dump(j)});
}

void Choices::fail(const ApiError& e) {
	if (!std::exchange(failed_, true)) out_.fail(e);
}

// ---- one choice

void Answer::begin() {
	if (!stream_ || begun_) return;
	begun_ = true;
	all_->begin();
	start_stream();
	if (all_->shows_progress() && pace_.reads()) show_progress(0);
}

void Answer::reading(double done, double left) {
	if (all_->shows_progress())
		show_progress(done);
	else
		all_->reading(done, left);
}

void Answer::show_progress(double done) {
	if (const Json p = pace_.progress(done); !p.is_null()) all_->event(no_news(), {{"prompt_progress", p}});
}

void Answer::event(const Json& choice) {
	all_->event(choice, all_->live_timings() && pace_.answers() ? Json{{"timings", pace_.timings()}} : Json::object());
}

void Answer::token(Json t) {
	if (tokens_.is_null()) tokens_ = Json::array();
	tokens_.push_back(std::move(t));
}

Json Answer::take_logprobs() {
	const Json tokens = std::exchange(tokens_, Json());
	return tokens.is_null() ? Json() : logprobs_json(tokens);
}

const char* Answer::finish_reason() const { return was_cut(reason_) ? "length" : "stop"; }

void Answer::end(const Ended& e) {
	reason_ = e.result.reason;
	show_rest();
	all_->end(index_, stream_ ? last_choice() : whole_choice(), e, reasoning_tokens());
}

// ---- chat

void ChatAnswer::start_stream() {
	event({{"index", index_}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"finish_reason", nullptr}});
}

void ChatAnswer::show(std::string_view text) {
	if (!raw_) return take(reply_.push(text));
	const std::string own(text);
	take({sizeof(kvrun_reply_part), own.c_str(), "", "[]", "[]", 0});
}

void ChatAnswer::take(const kvrun_reply_part& part) {
	const auto delta = [&](const char* name, Json value) {
		event({{"index", index_},
		       {"delta", {{name, std::move(value)}}},
		       {"logprobs", take_logprobs()},
		       {"finish_reason", nullptr}});
	};
	reasoning_ += part.reasoning;
	if (!stream_) content_ += part.content;
	if (stream_ && *part.reasoning) delta("reasoning_content", part.reasoning);
	if (stream_ && *part.content) delta("content", part.content);
	if (stream_)
		for (Json call : Json::parse(part.call_deltas)) {
			if (call.contains("id")) call["id"] = ids_.of(call["index"], call["id"]);
			if (!old_functions_)
				delta("tool_calls", Json::array({std::move(call)}));
			else if (call["index"] == 0)
				delta("function_call", std::move(call["function"]));
		}
	for (Json call : Json::parse(part.calls)) {
		call["id"] = ids_.of(calls_.size(), call["id"]);
		calls_.push_back(std::move(call));
	}
}

// If the token limit cut off a tool call, its arguments must not be used: the reason is then not "tool_calls".
const char* ChatAnswer::finish_reason() const {
	const char* reason = Answer::finish_reason();
	if (calls_.empty() || reason == std::string_view("length")) return reason;
	return old_functions_ ? "function_call" : "tool_calls";
}

Json ChatAnswer::logprobs_json(const Json& tokens) { return {{"content", tokens}, {"refusal", nullptr}}; }

static Json message_json(const std::string& content, const std::string& reasoning, const Json& calls) {
	Json message{{"role", "assistant"}, {"content", !calls.empty() && content.empty() ? Json() : Json(content)}};
	if (!reasoning.empty()) message["reasoning_content"] = reasoning;
	if (!calls.empty()) message["tool_calls"] = calls;
	return message;
}

Json ChatAnswer::whole_choice() {
	Json message = message_json(content_, reasoning_, calls_);
	if (old_functions_) message = with_function_call(std::move(message));
	return {{"index", index_},
	        {"message", std::move(message)},
	        {"logprobs", take_logprobs()},
	        {"finish_reason", finish_reason()}};
}

Json answer_message(ReplyHandle reply, std::string_view text) {
	Reply split(std::move(reply));
	std::string content, reasoning;
	Json calls = Json::array();
	const auto take = [&](const kvrun_reply_part& part) {
		content += part.content, reasoning += part.reasoning;
		for (Json call : Json::parse(part.calls)) calls.push_back(std::move(call));
	};
	take(split.push(text));
	take(split.finish());
	return message_json(content, reasoning, calls);
}

Json ChatAnswer::last_choice() {
	return {{"index", index_},
	        {"delta", Json::object()},
	        {"logprobs", take_logprobs()},
	        {"finish_reason", finish_reason()}};
}

Json ChatAnswer::no_news() const { return {{"index", index_}, {"delta", Json::object()}, {"finish_reason", nullptr}}; }

// ---- completions

void CompletionAnswer::start_stream() {
	if (!text_.empty()) show(std::exchange(text_, {}));
}

void CompletionAnswer::show(std::string_view text) {
	if (stream_)
		event({{"text", std::string(text)},
		       {"index", index_},
		       {"logprobs", take_logprobs()},
		       {"finish_reason", nullptr}});
	else
		text_ += text;
}

// The text of a token, which may be a part of a character: then its bytes, as in OpenAI's API.
static std::string token_name(const Json& token) {
	const std::string& text = token["token"].get_ref<const std::string&>();
	if (well_formed(text) == text) return text;
	constexpr const char* digits = "0123456789abcdef";
	std::string bytes = "bytes:";
	for (const char c : text) bytes += {'\\', 'x', digits[uint8_t(c) >> 4], digits[uint8_t(c) & 15]};
	return bytes;
}

// Parallel arrays with one entry per token.
Json CompletionAnswer::logprobs_json(const Json& tokens) {
	Json texts = Json::array(), own = Json::array(), top = Json::array(), offsets = Json::array();
	for (const Json& t : tokens) {
		const std::string name = token_name(t);
		texts.push_back(name), own.push_back(t["logprob"]), offsets.push_back(offset_);
		Json others = Json::object();
		for (const Json& o : t["top_logprobs"])
			others.emplace(token_name(o), Json(o["logprob"])); // the likelier of equal texts
		others.emplace(name, Json(t["logprob"]));
		top.push_back(std::move(others));
		for (const Json& byte : t["bytes"]) offset_ += (byte.get<unsigned>() & 0xc0) != 0x80; // begins a character
	}
	return {{"tokens", texts}, {"token_logprobs", own}, {"top_logprobs", top}, {"text_offset", offsets}};
}

Json CompletionAnswer::whole_choice() {
	return {{"text", text_}, {"index", index_}, {"logprobs", take_logprobs()}, {"finish_reason", finish_reason()}};
}

Json CompletionAnswer::last_choice() { return whole_choice(); }

Json CompletionAnswer::no_news() const {
	return {{"text", ""}, {"index", index_}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
}

} // namespace kvrun::serve
