// Parses and validates request bodies.
#include "tools/serve/requests.h"
#include "tools/serve/media.h"
#include "tools/serve/old_functions.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

namespace kvrun::serve {
namespace {

constexpr size_t kMaxPolicy = 256;         // bytes of a policy's name and options
constexpr size_t kMaxFields = 256;         // response_fields
constexpr uint32_t kCompletionTokens = 16; // default max_tokens of a completion, as in OpenAI's API

// Fields of OpenAI's API and of other servers that would change the answer and are not supported, with the value
// that has no effect.
constexpr std::pair<const char*, const char*> kPlain[] = {
    {"audio", "null"},
    {"guided_regex", "\"\""},
    {"include_stop_str_in_output", "false"},
    {"min_tokens", "0"},
    {"modalities", "[\"text\"]"},
    {"post_sampling_probs", "false"},
    {"use_beam_search", "false"},
};

// Refuses a field that would change the answer and is not supported. `plain`: the value that has no effect.
void refuse_unless_plain(const Fields& f, const char* name, const Json& plain) {
	const Json* v = f.find(name);
	if (v && *v != plain)
		throw ApiError(400, std::string(name) + " is " + shown(*v) + ", which is not supported; leave it out", name,
		               "unsupported_parameter");
}

// A text or an array of texts; none if the field is absent.
std::vector<std::string> short_texts(const Fields& f, const char* name, size_t most, bool skip_empty = false) {
	const Json* given = f.find(name);
	if (!given) return {};
	const Json list = given->is_array() ? *given : Json::array({*given});
	if (list.size() > most)
		throw ApiError(400, std::string(name) + " has more than " + std::to_string(most) + " texts", name);
	std::vector<std::string> out;
	for (const Json& text : list) {
		const std::string* t = text.get_ptr<const std::string*>();
		if (skip_empty && t && t->empty()) continue;
		if (!t || t->empty() || t->size() > kMaxStop || t->find('\0') != std::string::npos)
			throw ApiError(400,
			               std::string(name) + " is " + shown(text) + ", expected texts of 1 to " +
			                   std::to_string(kMaxStop) + " bytes, without a zero byte",
			               name);
		out.push_back(*t);
	}
	return out;
}

// Reads {"token": bias} in OpenAI's range, or [[token, bias]]; -100 and false practically ban a token. A key that is
// not a number is a text, whose tokens are meant.
void read_bias(const Fields& f, GenerationRequest& r) {
	const Json* bias = f.find("logit_bias");
	if (!bias) return;
	const auto add = [&](const Json& token, const Json& value) {
		const double x = value.is_number() ? value.get<double>() : value == Json(false) ? -100 : NAN;
		if (!(x >= -100 && x <= 100))
			throw ApiError(400,
			               "logit_bias of token " + shown(token) + " is " + shown(value) +
			                   ", expected a number from -100 to 100",
			               "logit_bias");
		uint32_t id = 0;
		const std::string text = token.is_string() ? token.get<std::string>() : dump(token);
		const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), id);
		if (failed == std::errc() && end == text.data() + text.size())
			r.sampling.bias.push_back({id, float(x)});
		else if (token.is_string() && !text.empty() && text.size() <= kMaxStop)
			r.text_bias.emplace_back(text, float(x));
		else
			throw ApiError(400, "logit_bias has " + shown(token) + ", expected the number or the text of a token",
			               "logit_bias");
	};
	if (bias->is_object())
		for (const auto& [token, value] : bias->items()) add(token, value);
	else if (!bias->is_array())
		throw ApiError(400, "logit_bias is " + shown(*bias) + ", expected an object or an array", "logit_bias");
	else
		for (const Json& pair : *bias) {
			if (!pair.is_array() || pair.size() != 2)
				throw ApiError(400, "logit_bias has " + shown(pair) + ", expected a token and its bias", "logit_bias");
			add(pair[0], pair[1]);
		}
}

// Checks that a message's content is a string or an array of parts: texts, images and sounds.
void check_content(const Json& content, const std::string& where) {
	if (content.is_string() || content.is_null()) return;
	if (!content.is_array()) throw ApiError(400, where + " is not a text or an array of parts", "messages");
	for (const Json& part : content) {
		if (is_media_part(part, where, "messages")) continue;
		const bool text = part.is_object() && part.value("type", Json()) == Json("text") && part.contains("text") &&
		                  part["text"].is_string();
		if (!text)
			throw ApiError(
			    400,
			    where +
			        " has a part that is neither {\"type\": \"text\", \"text\": ...} nor an image_url or input_audio",
			    "messages");
	}
}

Json read_messages(const Fields& f) {
	const Json* given = f.find("messages");
	if (!given || !given->is_array() || given->empty())
		throw ApiError(400, "messages is not an array of at least one message", "messages");
	Json messages = *given;
	for (size_t i = 0; i < messages.size(); ++i) {
		const std::string where = "messages[" + std::to_string(i) + "]";
		Json& m = messages[i];
		if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
			throw ApiError(400, where + " is not an object with a role", "messages");
		const std::string role = m["role"].get<std::string>();
		if (role == "developer") m["role"] = "system";
		if (role != "system" && role != "developer" && role != "user" && role != "assistant" && role != "tool")
			throw ApiError(400, where + ".role is " + shown(m["role"]) + ", expected system, user, assistant or tool",
			               "messages");
		if (m.contains("content")) check_content(m["content"], where + ".content");
	}
	return messages;
}

} // namespace

static uint32_t token_of(const Json& t, const char* name) {
	if (!t.is_number_unsigned() || t.get<uint64_t>() >= UINT32_MAX)
		throw ApiError(400, std::string(name) + " has an element that is not a token: " + shown(t), name);
	return t.get<uint32_t>();
}

std::vector<uint32_t> token_list(const Json& list, const char* name) {
	std::vector<uint32_t> out;
	for (const Json& t : list) out.push_back(token_of(t, name));
	return out;
}

std::vector<TextPrompt> text_prompts(const Fields& f, const char* name, size_t most) {
	const Json* given = f.find(name);
	const auto has_number = [](const Json& j) {
		return j.is_array() && std::any_of(j.begin(), j.end(), [](const Json& e) { return e.is_number(); });
	};
	const auto one = [&](const Json& j) -> TextPrompt {
		if (j.is_string()) return {j.get<std::string>()};
		TextPrompt out;
		if (j.is_array())
			for (const Json& e : j) {
				if (e.is_string()) {
					out.emplace_back(e.get<std::string>());
					continue;
				}
				if (out.empty() || out.back().index() == 0) out.emplace_back(std::vector<uint32_t>());
				std::get<1>(out.back()).push_back(token_of(e, name));
			}
		if (out.empty())
			throw ApiError(400, std::string(name) + " is not a text, an array of tokens, or an array of these", name);
		return out;
	};
	if (!given || !given->is_array() || given->empty() || has_number(*given)) return {one(given ? *given : Json())};
	if (given->size() > most)
		throw ApiError(400,
		               std::string(name) + " has " + std::to_string(given->size()) + " elements, at most " +
		                   std::to_string(most) + " are taken at once",
		               name);
	std::vector<TextPrompt> out;
	for (const Json& j : *given) out.push_back(one(j));
	return out;
}

// -1 means as many as fit the context, as in other servers.
void read_max_tokens(const Fields& f, std::initializer_list<const char*> names, uint32_t otherwise,
                     GenerationRequest& r) {
	std::optional<int64_t> n;
	for (const char* name : names)
		if (const std::optional<int64_t> given = f.integer(name, -1, UINT32_MAX - 1); given && !n) n = given;
	r.mute = n == 0;
	r.sampling.max_tokens = !n ? otherwise : *n < 0 ? UINT32_MAX : std::max(uint32_t(*n), 1u);
}

namespace {

// Values with which other servers turn a sampler off, as the one that does it here.
double lowest_of(const SamplingOption& o) {
	const std::string_view field = o.field;
	return field == "top_k" || field == "repeat_last_n" ? -1 : field == "temperature" ? -1e6 : o.lowest;
}

// The samplers that the request names are used, in the order that they have here.
void read_samplers(const Fields& f, Sampling& s, const Rules& rules) {
	const Json* list = f.find("samplers");
	if (!list) return;
	const auto named = [](const Json& word, const SamplingStep& k) {
		return word.is_string() && k.is_called(word.get_ref<const std::string&>());
	};
	if (!list->is_array() || list->empty())
		return rules.ignored("samplers is " + shown(*list) + ", which is ignored: it is no array of names");
	for (const Json& word : *list)
		if (std::ranges::none_of(sampling_steps(), [&](const SamplingStep& k) { return named(word, k); }))
			rules.ignored("samplers has " + shown(word) + ", which is ignored: there is no such sampler here");
	for (const SamplingStep& k : sampling_steps())
		if (std::none_of(list->begin(), list->end(), [&](const Json& word) { return named(word, k); })) k.off(s);
}

void read_sampling(const Fields& f, Sampling& s, const Rules& rules) {
	for (const SamplingOption& o : sampling_options()) {
		if (const auto* real = std::get_if<double kvrun::Sampling::*>(&o.at)) {
			double& to = s.**real;
			to = std::max(o.lowest, f.number(o.field, lowest_of(o), o.highest, o.lowest).value_or(to));
		} else {
			int64_t& to = s.*std::get<int64_t kvrun::Sampling::*>(o.at);
			const std::optional<int64_t> given = f.integer(o.field, int64_t(lowest_of(o)), int64_t(o.highest));
			if (given) to = *given < int64_t(o.lowest) && &to == &s.repeat_last ? int64_t(o.highest) : *given;
			to = std::max(int64_t(o.lowest), to);
		}
	}
	if (const std::optional<double> other = f.number("repetition_penalty", 0.01, 100)) s.repeat_penalty = *other;
	if (f.find("dry_sequence_breakers")) s.dry_breakers = short_texts(f, "dry_sequence_breakers", kMaxStops);
	read_samplers(f, s, rules);
}

} // namespace

Scales adapter_scales(const Json& scales, const Defaults& d) {
	Scales out(d.n_adapters);
	if (!scales.is_array()) throw ApiError(400, "the scales of adapters are not an array", "lora");
	for (const Json& one : scales) {
		if (!one.is_object()) throw ApiError(400, "an adapter is not an object with an id and a scale", "lora");
		const Fields f(one, "lora.");
		const std::optional<int64_t> id = f.integer("id", 0, INT64_MAX);
		const std::optional<double> scale = f.number("scale", -1e6, 1e6);
		if (!id || !scale) throw ApiError(400, "an adapter has no id or no scale", "lora");
		if (size_t(*id) >= out.size())
			throw ApiError(400, "there is no adapter " + std::to_string(*id) + "; GET /lora-adapters lists them",
			               "lora");
		out[size_t(*id)] = float(*scale);
	}
	return out;
}

NativeForm native_form(const Fields& f) {
	return {f.flag("return_tokens", false), short_texts(f, "response_fields", kMaxFields)};
}

Json sampling_json(const Sampling& s) {
	Json out = Json::object();
	for (const SamplingOption& o : sampling_options()) std::visit([&](auto at) { out[o.field] = s.*at; }, o.at);
	out["dry_sequence_breakers"] = s.dry_breakers;
	out["n_predict"] = s.max_tokens == UINT32_MAX ? int64_t(-1) : int64_t(s.max_tokens);
	return out;
}

GenerationRequest common_fields(const Fields& f, const Defaults& d) {
	GenerationRequest r;
	Sampling& s = r.sampling = d.sampling;
	r.model = f.text("model").value_or("");
	r.kv = f.text("kv").value_or(d.kv);
	if (r.kv.empty() || r.kv.size() > kMaxPolicy || r.kv.find('\0') != std::string::npos)
		throw ApiError(400, "kv is not the name of a policy, like \"kivi2\"", "kv");
	r.session = f.text("session").value_or("");
	read_sampling(f, s, d);
	s.ignore_eos = f.flag("ignore_eos", false);
	s.draft_max = uint32_t(f.integer("speculative.n_max", 0, UINT32_MAX).value_or(s.draft_max));
	const Json* number = f.find("seed");
	std::optional<uint64_t> seed; // all 64 bits, which some clients choose from
	if (number && number->is_number_unsigned())
		seed = number->get<uint64_t>();
	else if (number)
		seed = uint64_t(*f.integer("seed", INT64_MIN, INT64_MAX));
	const bool any = seed == UINT64_MAX || seed == UINT32_MAX; // -1, and llama.cpp's word: a random one
	s.seed = seed && !any ? *seed : !any && d.seed ? *d.seed : std::random_device()();
	s.indent = uint32_t(f.integer("n_indent", 0, UINT32_MAX).value_or(0));
	s.most_ms = double(f.integer("t_max_predict_ms", -1, INT64_MAX).value_or(0));
	if (const Json* scales = f.find("lora"); scales && !scales->empty()) r.adapters = adapter_scales(*scales, d);
	if (const Json* slot = f.find("id_slot"); slot && *slot != Json(-1)) // -1: any
		d.ignored(
		    "id_slot is ignored: prompts that begin alike share their cache in any case; a session (a name) keeps "
		    "the cache of a conversation");
	read_bias(f, r);
	s.stops = short_texts(f, "stop", kMaxStops, /*skip_empty=*/true); // clients send "" for none, as llama.cpp allows
	r.stream = f.flag("stream", false);
	r.reuse = f.flag("cache_prompt", true);
	r.progress = f.flag("return_progress", false), r.live_timings = f.flag("timings_per_token", false);
	if (const Json* o = f.find("stream_options")) {
		if (!o->is_object()) throw ApiError(400, "stream_options is not an object", "stream_options");
		const Fields options(*o, "stream_options.");
		r.include_usage = options.flag("include_usage", false);
		constexpr const char* padding[] = {"include_obfuscation"};
		options.check_unknown(padding, d);
	}
	r.n = uint32_t(f.integer("n", 1, kMaxChoices).value_or(1));
	if (r.n > 1 && !r.session.empty())
		throw ApiError(400, "n is " + std::to_string(r.n) + ", but a conversation with a name has one answer", "n");
	for (const auto& [name, plain] : kPlain) refuse_unless_plain(f, name, Json::parse(plain));
	return r;
}

namespace {

// What the template gets besides the conversation: the server's variables, the request's own, the effort of reasoning.
std::string template_variables(const Fields& f, const Defaults& d) {
	Json all = d.template_variables;
	if (const Json* effort = f.find("reasoning_effort"); effort && effort->is_string()) {
		all["reasoning_effort"] = *effort;
		if (*effort == Json("none")) all["enable_thinking"] = false;
	}
	if (const Json* v = f.find("chat_template_kwargs")) {
		if (!v->is_object()) throw ApiError(400, "chat_template_kwargs is not an object", "chat_template_kwargs");
		all.update(*v);
	}
	return all.empty() ? "" : dump(all);
}

// A last message of the assistant is the beginning of the answer, unless the request says otherwise.
void read_end(const Fields& f, const Json& messages, ChatPrompt& p) {
	const Json& last = messages.back();
	const Json content = last.value("content", Json());
	const bool text = content.is_string() || (content.is_array() && !content.empty());
	const bool begun =
	    last["role"] == Json("assistant") && text && (!last.contains("tool_calls") || last["tool_calls"].empty());
	const Json* given = f.find("continue_final_message");
	const bool turn = f.flag("add_generation_prompt", !begun || (given && *given == Json(false))),
	           goes_on = f.flag("continue_final_message", !turn && begun);
	if (goes_on && !begun)
		throw ApiError(400, "continue_final_message is true, but the last message is not a text of the assistant",
		               "continue_final_message");
	p.goes_on = goes_on;
	p.no_answer = !goes_on && !turn;
}

// By llama.cpp's names. With tools the text is parsed in any case.
bool read_reasoning_format(const Fields& f, const ChatRequest& r, const Defaults& d) {
	const std::optional<std::string> format = f.text("reasoning_format");
	if (!format || *format == "auto") return r.prompt.tools.empty() && d.raw_reasoning;
	if (*format == "deepseek") return false;
	if (*format != "none")
		throw ApiError(400, "reasoning_format is " + shown(*format) + ", expected none, deepseek or auto",
		               "reasoning_format");
	if (!r.prompt.tools.empty())
		throw ApiError(400, "reasoning_format is none, which is not supported with tools; leave it out",
		               "reasoning_format", "unsupported_parameter");
	return true;
}

void read_chat_logprobs(const Fields& f, Sampling& s) {
	const std::optional<int64_t> top = f.integer("top_logprobs", 0, kMostLogprobs);
	const std::optional<int64_t> other = f.integer("n_probs", 0, UINT32_MAX); // llama.cpp's name
	if (f.flag("logprobs", other.value_or(0) > 0))
		s.logprobs = uint32_t(top.value_or(std::min<int64_t>(other.value_or(0), kMostLogprobs)));
	else if (top.value_or(0) > 0)
		throw ApiError(400, "top_logprobs is for requests with logprobs: true", "top_logprobs");
}

} // namespace

static ChatRequest read_chat(const Json& j, const Defaults& d) {
	const Fields f(j);
	ChatRequest r{common_fields(f, d), {}};
	const Json messages = read_messages(f);
	r.form = read_answer_form(f, /*chat=*/true, d);
	r.prompt.tools = read_tools(f, r.form, d);
	r.prompt.variables = template_variables(f, d);
	r.raw_reasoning = read_reasoning_format(f, r, d);
	read_end(f, messages, r.prompt);
	r.prompt.messages = dump(messages);
	read_max_tokens(f, {"max_completion_tokens", "max_tokens", "n_predict"}, d.sampling.max_tokens, r);
	read_chat_logprobs(f, r.sampling);
	f.check_unknown(harmless_fields(), d);
	return r;
}

ChatRequest chat_request(const Json& j, const Defaults& d) {
	try {
		const std::optional<Json> other = with_tools(j);
		if (!other) return read_chat(j, d);
		ChatRequest r = read_chat(*other, d);
		r.old_functions = j.contains("functions");
		return r;
	} catch (const ApiError& e) {
		if (!j.contains("functions") && !j.contains("function_call")) throw;
		throw of_functions(e);
	}
}

static void read_completion_logprobs(const Fields& f, Sampling& s) {
	const std::optional<int64_t> top = f.integer("logprobs", 0, kMostLogprobs), n = f.integer("n_probs", 0, UINT32_MAX);
	if (top || n.value_or(0) > 0) s.logprobs = uint32_t(top.value_or(std::min<int64_t>(n.value_or(0), kMostLogprobs)));
}

static void read_prompts(const Fields& f, CompletionRequest& r) {
	r.prompts = text_prompts(f, "prompt", kMaxChoices / r.n);
	if (r.prompts.size() > 1 && !r.session.empty())
		throw ApiError(400, "prompt has several elements, but a conversation with a name has one", "prompt");
}

CompletionRequest completion_request(const Json& j, const Defaults& d) {
	const Fields f(j);
	CompletionRequest r{common_fields(f, d), {}, {}};
	r.form = read_answer_form(f, /*chat=*/false, d);
	refuse_unless_plain(f, "response_format", {{"type", "text"}});
	read_prompts(f, r);
	read_max_tokens(f, {"max_tokens", "n_predict"},
	                d.sampling.max_tokens == UINT32_MAX ? kCompletionTokens : d.sampling.max_tokens, r);
	read_completion_logprobs(f, r.sampling);
	r.echo = f.flag("echo", false);
	if (r.echo && r.sampling.logprobs)
		throw ApiError(400, "echo with logprobs is not supported: the prompt's probabilities are not kept", "echo",
		               "unsupported_parameter");
	r.suffix = f.text("suffix").value_or("");
	const auto is_text = [](const TextPrompt& p) { return p.size() == 1 && p[0].index() == 0; };
	if (!r.suffix.empty() && !std::ranges::all_of(r.prompts, is_text))
		throw ApiError(400, "suffix is for prompts that are texts; leave it out", "suffix");
	refuse_unless_plain(f, "best_of", r.n); // exactly n are generated and returned
	f.check_unknown(harmless_fields(), d);
	return r;
}

CompletionRequest native_request(const Json& j, const Defaults& d) {
	const Fields f(j);
	CompletionRequest r{common_fields(f, d), {}, {}};
	r.form = read_answer_form(f, /*chat=*/false, d);
	read_prompts(f, r);
	read_max_tokens(f, {"n_predict", "max_tokens"}, d.sampling.max_tokens, r);
	read_completion_logprobs(f, r.sampling);
	r.echo = f.flag("echo", false);
	r.native = native_form(f);
	f.check_unknown(harmless_fields(), d);
	return r;
}

} // namespace kvrun::serve
