// Parses and validates request bodies.
#include "tools/serve/requests.h"
#include "engine/core/json_reader.h"
#include "tools/serve/images.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

namespace kvrun::serve {
namespace {

constexpr size_t kMaxPolicy = 256;         // bytes of a policy's name and options
constexpr uint32_t kCompletionTokens = 16; // default max_tokens of a completion, as in OpenAI's API

// Fields of OpenAI's API and of other servers that would change the answer and are not supported, with the value
// that has no effect.
constexpr std::pair<const char*, const char*> kPlain[] = {
    {"audio", "null"},
    {"function_call", "\"auto\""},
    {"add_generation_prompt", "true"},
    {"continue_final_message", "false"},
    {"guided_regex", "\"\""},
    {"include_stop_str_in_output", "false"},
    {"max_tool_calls", "null"},
    {"min_keep", "0"},
    {"min_tokens", "0"},
    {"modalities", "[\"text\"]"},
    {"n_predict", "-1"},
    {"reasoning_effort", "null"},
    {"repetition_penalty", "1"},
    {"skip_special_tokens", "true"},
    {"tfs_z", "1"},
    {"top_a", "0"},
    {"use_beam_search", "false"},
    {"verbosity", "\"medium\""},
    {"web_search_options", "null"},
};

constexpr const char* kHarmless[] = {
    // OpenAI's API: accounts, billing, retention of requests, service tier
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
    "store", "user",
    // other servers: names, queue priority, extra output about an answer
    "id_slot", "keep_alive", "priority", "request_id", "return_progress", "return_tokens", "timings_per_token",
    // for beam search, which is refused
    "early_stopping", "length_penalty"};

std::string shown(const Json& value) {
	std::string text = dump(value);
	if (text.size() > 40) text = text.substr(0, 40) + "...";
	return text;
}

// Refuses a field that would change the answer and is not supported. `plain`: the value that has no effect.
void refuse_unless_plain(const Fields& f, const char* name, const Json& plain) {
	const Json* v = f.find(name);
	if (v && *v != plain)
		throw ApiError(400, std::string(name) + " is " + shown(*v) + ", which is not supported; leave it out", name,
		               "unsupported_parameter");
}

// A text or an array of texts; none if the field is absent.
std::vector<std::string> short_texts(const Fields& f, const char* name, size_t most) {
	const Json* given = f.find(name);
	if (!given) return {};
	const Json list = given->is_array() ? *given : Json::array({*given});
	if (list.size() > most)
		throw ApiError(400, std::string(name) + " has more than " + std::to_string(most) + " texts", name);
	std::vector<std::string> out;
	for (const Json& text : list) {
		const std::string* t = text.get_ptr<const std::string*>();
		if (!t || t->empty() || t->size() > kMaxStop || t->find('\0') != std::string::npos)
			throw ApiError(400,
			               std::string(name) + " is " + shown(text) + ", expected texts of 1 to " +
			                   std::to_string(kMaxStop) + " bytes, without a zero byte",
			               name);
		out.push_back(*t);
	}
	return out;
}

// Reads {"token": bias} in OpenAI's range; -100 practically bans a token.
void read_bias(const Fields& f, Sampling& s) {
	const Json* bias = f.find("logit_bias");
	if (!bias) return;
	if (!bias->is_object()) throw ApiError(400, "logit_bias is " + shown(*bias) + ", expected an object", "logit_bias");
	for (const auto& [name, value] : bias->items()) {
		uint32_t token = 0;
		const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), token);
		if (failed != std::errc() || end != name.data() + name.size() || name.empty())
			throw ApiError(400, "logit_bias has the key " + shown(name) + ", expected the number of a token",
			               "logit_bias");
		const double x = value.is_number() ? value.get<double>() : NAN;
		if (!(x >= -100 && x <= 100))
			throw ApiError(
			    400, "logit_bias of token " + name + " is " + shown(value) + ", expected a number from -100 to 100",
			    "logit_bias");
		s.bias.push_back({token, float(x)});
	}
}

// -1 means as many as fit the context, as in other servers.
std::optional<uint32_t> read_max_tokens(const Fields& f, const char* name) {
	const std::optional<int64_t> n = f.integer(name, -1, UINT32_MAX - 1);
	if (n == 0)
		throw ApiError(400, std::string(name) + " is 0, expected 1 or more, or -1: as many as there is room for", name);
	if (!n) return {};
	return *n < 0 ? UINT32_MAX : uint32_t(*n);
}

// Checks that a message's content is a string or an array of parts, texts and images.
void check_content(const Json& content, const std::string& where) {
	if (content.is_string() || content.is_null()) return;
	if (!content.is_array()) throw ApiError(400, where + " is not a text or an array of parts", "messages");
	for (const Json& part : content) {
		if (part.is_object() && part.value("type", Json()) == Json("image_url")) {
			check_image_part(part, where, "messages");
			continue;
		}
		const bool text = part.is_object() && part.value("type", Json()) == Json("text") && part.contains("text") &&
		                  part["text"].is_string();
		if (!text)
			throw ApiError(400,
			               where + " has a part that is neither {\"type\": \"text\", \"text\": ...} nor an image_url",
			               "messages");
	}
}

std::string read_messages(const Fields& f) {
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
	return dump(messages);
}

} // namespace

Json parse_body(const std::string& body, const Stop& stop) {
	Json j;
	std::string why;
	if (!read_json(body, {kMaxDepth, kMaxValues, kMaxKeys, stop}, j, why)) throw ApiError(400, "the body " + why);
	if (!j.is_object()) throw ApiError(400, "the body is not a JSON object");
	return j;
}

Json json_or_null(const std::string& text) {
	Json j;
	std::string why;
	return read_json(text, {}, j, why) ? j : Json();
}

std::span<const char* const> harmless_fields() { return kHarmless; }

const Json* Fields::find(const char* name) const {
	asked_.insert(name);
	const auto at = object_.find(name);
	return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::refuse(const char* name, const std::string& expected) const {
	throw ApiError(400, where_ + name + " is " + shown(object_[name]) + ", expected " + expected, where_ + name);
}

void Fields::refuse_unknown(std::span<const char* const> harmless) const {
	for (const auto& [name, value] : object_.items()) {
		if (value.is_null() || asked_.contains(name)) continue;
		if (std::ranges::any_of(harmless, [&name = name](const char* h) { return name == h; })) continue;
		const std::string plain = where_ + (name.size() > 80 ? name.substr(0, 80) + "..." : name);
		throw ApiError(400, plain + " is a field that this server does not know; leave it out", plain,
		               "unknown_parameter");
	}
}

std::optional<double> Fields::number(const char* name, double lowest, double highest) const {
	const Json* v = find(name);
	if (!v) return {};
	const double x = v->is_number() ? v->get<double>() : NAN;
	if (!(x >= lowest && x <= highest)) refuse(name, "a number from " + dump(lowest) + " to " + dump(highest));
	return x;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t lowest, int64_t highest) const {
	const Json* v = find(name);
	if (!v) return {};
	const bool fits = v->is_number_integer() && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(INT64_MAX));
	const int64_t x = fits ? v->get<int64_t>() : 0;
	if (!fits || x < lowest || x > highest)
		refuse(name, "an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
	return x;
}

std::optional<std::string> Fields::text(const char* name) const {
	const Json* v = find(name);
	if (!v) return {};
	if (!v->is_string()) refuse(name, "a text");
	return v->get<std::string>();
}

bool Fields::flag(const char* name, bool fallback) const {
	const Json* v = find(name);
	if (!v) return fallback;
	if (!v->is_boolean()) refuse(name, "true or false");
	return v->get<bool>();
}

std::vector<uint32_t> token_list(const Json& list, const char* name) {
	std::vector<uint32_t> out;
	for (const Json& t : list) {
		if (!t.is_number_unsigned() || t.get<uint64_t>() >= UINT32_MAX)
			throw ApiError(400, std::string(name) + " has an element that is not a token: " + shown(t), name);
		out.push_back(t.get<uint32_t>());
	}
	return out;
}

std::vector<TextPrompt> text_prompts(const Fields& f, const char* name, size_t most) {
	const Json* given = f.find(name);
	const auto is_tokens = [](const Json& j) { return j.is_array() && !j.empty() && j.front().is_number(); };
	const auto one = [&](const Json& j) -> TextPrompt {
		if (j.is_string()) return {j.get<std::string>(), {}};
		if (is_tokens(j)) return {{}, token_list(j, name)};
		throw ApiError(400, std::string(name) + " is not a text, an array of tokens, or an array of these", name);
	};
	if (!given || !given->is_array() || given->empty() || is_tokens(*given)) return {one(given ? *given : Json())};
	if (given->size() > most)
		throw ApiError(400,
		               std::string(name) + " has " + std::to_string(given->size()) + " elements, at most " +
		                   std::to_string(most) + " are taken at once",
		               name);
	std::vector<TextPrompt> out;
	for (const Json& j : *given) out.push_back(one(j));
	return out;
}

GenerationRequest common_fields(const Fields& f, const std::string& default_kv) {
	GenerationRequest r;
	Sampling& s = r.sampling;
	r.model = f.text("model").value_or("");
	r.kv = f.text("kv").value_or(default_kv);
	if (r.kv.empty() || r.kv.size() > kMaxPolicy || r.kv.find('\0') != std::string::npos)
		throw ApiError(400, "kv is not the name of a policy, like \"kivi2\"", "kv");
	r.session = f.text("session").value_or("");
	for (const SamplingOption& o : sampling_options()) {
		if (const auto* real = std::get_if<double kvrun::Sampling::*>(&o.at)) {
			double& to = s.**real;
			to = f.number(o.field, o.lowest, o.highest).value_or(to);
		} else {
			int64_t& to = s.*std::get<int64_t kvrun::Sampling::*>(o.at);
			to = f.integer(o.field, int64_t(o.lowest), int64_t(o.highest)).value_or(to);
		}
	}
	if (f.find("dry_sequence_breakers")) s.dry_breakers = short_texts(f, "dry_sequence_breakers", kMaxStops);
	s.ignore_eos = f.flag("ignore_eos", false);
	s.draft_max = uint32_t(f.integer("speculative.n_max", 0, UINT32_MAX).value_or(s.draft_max));
	const std::optional<int64_t> seed = f.integer("seed", INT64_MIN, INT64_MAX);
	s.seed = seed ? uint64_t(*seed) : std::random_device()();
	read_bias(f, s);
	s.stops = short_texts(f, "stop", kMaxStops);
	r.stream = f.flag("stream", false);
	r.reuse = f.flag("cache_prompt", true);
	if (const Json* o = f.find("stream_options")) {
		if (!o->is_object()) throw ApiError(400, "stream_options is not an object", "stream_options");
		if (!r.stream) throw ApiError(400, "stream_options is for requests with stream: true", "stream_options");
		const Fields options(*o, "stream_options.");
		r.include_usage = options.flag("include_usage", false);
		constexpr const char* padding[] = {"include_obfuscation"};
		options.refuse_unknown(padding);
	}
	r.n = uint32_t(f.integer("n", 1, kMaxChoices).value_or(1));
	if (r.n > 1 && !r.session.empty())
		throw ApiError(400, "n is " + std::to_string(r.n) + ", but a conversation with a name has one answer", "n");
	for (const auto& [name, plain] : kPlain) refuse_unless_plain(f, name, Json::parse(plain));
	return r;
}

ChatRequest chat_request(const Json& j, const std::string& default_kv) {
	const Fields f(j);
	ChatRequest r{common_fields(f, default_kv), {}};
	r.prompt.messages = read_messages(f);
	r.form = read_answer_form(f, /*chat=*/true);
	r.prompt.tools = read_tools(f, r.form);
	if (const Json* v = f.find("chat_template_kwargs")) {
		if (!v->is_object()) throw ApiError(400, "chat_template_kwargs is not an object", "chat_template_kwargs");
		r.prompt.variables = dump(*v);
	}
	const std::optional<uint32_t> newer = read_max_tokens(f, "max_completion_tokens");
	const std::optional<uint32_t> older = read_max_tokens(f, "max_tokens");
	r.sampling.max_tokens = newer.value_or(older.value_or(UINT32_MAX));
	const std::optional<int64_t> top = f.integer("top_logprobs", 0, kMostLogprobs);
	if (f.flag("logprobs", false))
		r.sampling.logprobs = uint32_t(top.value_or(0));
	else if (top)
		throw ApiError(400, "top_logprobs is for requests with logprobs: true", "top_logprobs");
	refuse_unless_plain(f, "functions", Json::array());
	f.refuse_unknown(kHarmless);
	return r;
}

CompletionRequest completion_request(const Json& j, const std::string& default_kv) {
	const Fields f(j);
	CompletionRequest r{common_fields(f, default_kv), {}, {}};
	r.form = read_answer_form(f, /*chat=*/false);
	refuse_unless_plain(f, "response_format", {{"type", "text"}});
	r.prompts = text_prompts(f, "prompt", kMaxChoices / r.n);
	if (r.prompts.size() > 1 && !r.session.empty())
		throw ApiError(400, "prompt has several elements, but a conversation with a name has one", "prompt");
	r.sampling.max_tokens = read_max_tokens(f, "max_tokens").value_or(kCompletionTokens);
	if (const std::optional<int64_t> top = f.integer("logprobs", 0, kMostLogprobs))
		r.sampling.logprobs = uint32_t(*top);
	refuse_unless_plain(f, "echo", false);
	r.suffix = f.text("suffix").value_or("");
	if (!r.suffix.empty() && std::ranges::any_of(r.prompts, [](const TextPrompt& p) { return p.tokens.has_value(); }))
		throw ApiError(400, "suffix is for prompts that are texts; leave it out", "suffix");
	refuse_unless_plain(f, "best_of", r.n); // exactly n are generated and returned
	f.refuse_unknown(kHarmless);
	return r;
}

} // namespace kvrun::serve
