// Embeddings: a vector for each text, in the form of OpenAI's API.
#include "tools/serve/embeddings.h"
#include <bit>
#include <cmath>

namespace kvrun::serve {

EmbeddingsRequest embeddings_request(const Json& body, uint32_t dim) {
	const Fields f(body);
	EmbeddingsRequest r;
	r.model = f.text("model").value_or("");
	r.inputs = text_prompts(f, "input", kMaxInputs);
	const std::string format = f.text("encoding_format").value_or("float");
	if (format != "float" && format != "base64")
		throw ApiError(400, "encoding_format is '" + format.substr(0, 40) + "', expected float or base64",
		               "encoding_format");
	r.base64 = format == "base64";
	if (const std::optional<int64_t> n = f.integer("dimensions", 1, UINT32_MAX); n && *n != dim)
		throw ApiError(400,
		               "dimensions is " + std::to_string(*n) + ", the model's vectors have " + std::to_string(dim) +
		                   ", which are not shortened",
		               "dimensions", "unsupported_parameter");
	f.refuse_unknown(harmless_fields());
	return r;
}

std::string base64_of(std::span<const float> values) {
	static_assert(std::endian::native == std::endian::little);
	constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const auto bytes = std::as_bytes(values);
	std::string out;
	for (size_t at = 0; at < bytes.size(); at += 3) {
		const size_t n = std::min<size_t>(3, bytes.size() - at);
		uint32_t bits = 0;
		for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < n ? uint32_t(bytes[at + i]) : 0);
		for (size_t i = 0; i < 4; ++i) out += i <= n ? digits[bits >> (18 - 6 * i) & 63] : '=';
	}
	return out;
}

static int stop_where_gone(double, double, void* out) { return static_cast<const Responder*>(out)->gone(); }

// The pooled last hidden state, normalized to length 1.
static std::vector<float> vector_of(const Model& model, const std::vector<uint32_t>& tokens,
                                    const std::function<void()>& make_room, Responder& out) {
	kvrun_session_options so = KVRUN_SESSION_OPTIONS_INIT;
	so.ctx = uint32_t(tokens.size());
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.on_prefill = stop_where_gone, o.payload = &out;
	std::vector<float> v(model.info().dim);
	const auto run = [&] {
		SessionHandle session;
		if (const kvrun_status s = create(session, kvrun_session_open, model.engine(), &so); s != KVRUN_OK) return s;
		return kvrun_embed(session.get(), tokens.data(), tokens.size(), KVRUN_POOL_MODEL, &o, v.data());
	};
	kvrun_status s = run();
	if (s == KVRUN_ENOMEM) {
		make_room();
		s = run();
	}
	if (s == KVRUN_EUSER) return {};
	if (s != KVRUN_OK) throw engine_error(s, kvrun_last_error(), "input");
	double sum = 0;
	for (const float x : v) sum += double(x) * x;
	if (sum > 0)
		for (float& x : v) x = float(x / std::sqrt(sum));
	return v;
}

void embed(const Model& model, const std::vector<std::vector<uint32_t>>& texts, bool base64,
           const std::function<void()>& make_room, Responder& out) {
	Json data = Json::array();
	size_t n_tokens = 0;
	for (const std::vector<uint32_t>& tokens : texts) {
		const std::vector<float> v = vector_of(model, tokens, make_room, out);
		if (out.gone()) return;
		data.push_back(
		    {{"object", "embedding"}, {"index", data.size()}, {"embedding", base64 ? Json(base64_of(v)) : Json(v)}});
		n_tokens += tokens.size();
	}
	out.note("texts=" + std::to_string(texts.size()) + " prompt=" + std::to_string(n_tokens));
	out.respond({200, dump({{"object", "list"},
	                        {"data", std::move(data)},
	                        {"model", model.id()},
	                        {"usage", {{"prompt_tokens", n_tokens}, {"total_tokens", n_tokens}}}})});
}

} // namespace kvrun::serve
