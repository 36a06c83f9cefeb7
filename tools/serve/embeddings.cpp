// Vectors of texts, and scores of documents.
#include "tools/serve/embeddings.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace kvrun::serve {

EmbeddingsRequest embeddings_request(const Json& body, uint32_t dim, const Defaults& d) {
	const Fields f(body);
	EmbeddingsRequest r;
	r.model = f.text("model").value_or("");
	const bool native = f.find("content") && !f.find("input");
	if (native) r.form = EmbeddingsRequest::Form::Native;
	r.inputs = text_prompts(f, native ? "content" : "input", kMaxInputs);
	const std::string format = f.text("encoding_format").value_or("float");
	if (format != "float" && format != "base64")
		throw ApiError(400, "encoding_format is '" + format.substr(0, 40) + "', expected float or base64",
		               "encoding_format");
	r.base64 = format == "base64";
	r.dimensions = uint32_t(f.integer("dimensions", 1, dim).value_or(dim));
	f.check_unknown(harmless_fields(), d);
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

RerankRequest rerank_request(const Json& body, const Defaults& d) {
	const Fields f(body);
	RerankRequest r;
	r.model = f.text("model").value_or("");
	const std::optional<std::string> query = f.text("query");
	if (!query) throw ApiError(400, "query is missing, expected a text", "query");
	r.query = *query;
	r.plain = f.find("texts") != nullptr;
	const char* name = r.plain ? "texts" : "documents";
	const Json* list = f.find(name);
	if (!list || !list->is_array() || list->empty() || list->size() > kMaxInputs)
		throw ApiError(400, std::string(name) + " is not an array of 1 to " + std::to_string(kMaxInputs) + " texts",
		               name);
	for (const Json& j : *list) {
		const Json* text = j.is_object() && j.contains("text") ? &j["text"] : &j;
		if (!text->is_string()) throw ApiError(400, std::string(name) + " has an element that is no text", name);
		r.documents.push_back(text->get<std::string>());
	}
	r.top = size_t(f.integer("top_n", 1, INT64_MAX).value_or(INT64_MAX));
	r.most_tokens = size_t(f.integer("max_tokens_per_doc", 1, INT64_MAX).value_or(INT64_MAX));
	r.truncate = f.flag("truncate", false);
	f.find("raw_scores"); // they are the classifier's in any case
	r.with_documents = f.flag(r.plain ? "return_text" : "return_documents", false);
	f.check_unknown(harmless_fields(), d);
	return r;
}

namespace {

int stop_where_gone(double, double, void* out) { return static_cast<const Responder*>(out)->gone(); }

// Calls run(options), if memory is short again after make_room(). False: the client has gone.
template <class F> bool compute(const std::function<void()>& make_room, Responder& out, const char* field, F run) {
	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	o.on_prefill = stop_where_gone, o.payload = &out;
	kvrun_status s = run(o);
	if (s == KVRUN_ENOMEM) {
		make_room();
		s = run(o);
	}
	if (s == KVRUN_EUSER) return false;
	if (s != KVRUN_OK) throw engine_error(s, kvrun_last_error(), field);
	return true;
}

// The first n channels of a vector, as one of length 1.
std::vector<float> of_length_1(std::span<const float> v, uint32_t n) {
	double sum = 0;
	for (const float x : v.first(n)) sum += double(x) * x;
	std::vector<float> out(v.begin(), v.begin() + n);
	if (sum > 0)
		for (float& x : out) x = float(x / std::sqrt(sum));
	return out;
}

Json usage(size_t n_tokens) { return {{"prompt_tokens", n_tokens}, {"total_tokens", n_tokens}}; }

} // namespace

void embed(const Model& model, const EmbeddingsRequest& r, const std::vector<std::vector<uint32_t>>& texts,
           const std::function<void()>& make_room, Responder& out) {
	std::vector<uint32_t> tokens;
	std::vector<size_t> counts;
	for (const std::vector<uint32_t>& t : texts) {
		tokens.insert(tokens.end(), t.begin(), t.end());
		counts.push_back(t.size());
	}
	const size_t dim = model.vector_dim();
	std::vector<float> vectors(texts.size() * dim);
	if (!compute(make_room, out, "input", [&](const kvrun_generate_options& o) {
		    return kvrun_embed_texts(model.engine(), tokens.data(), counts.data(), counts.size(), KVRUN_POOL_MODEL, &o,
		                             vectors.data());
	    }))
		return;
	using Form = EmbeddingsRequest::Form;
	Json data = Json::array();
	for (size_t i = 0; i < texts.size(); ++i) {
		const std::vector<float> v = of_length_1(std::span(vectors).subspan(i * dim, dim), r.dimensions);
		if (r.form == Form::OpenAi)
			data.push_back(
			    {{"object", "embedding"}, {"index", i}, {"embedding", r.base64 ? Json(base64_of(v)) : Json(v)}});
		else if (r.form == Form::Native)
			data.push_back({{"index", i}, {"embedding", Json::array({v})}});
		else
			data.push_back(v);
	}
	out.note("texts=" + std::to_string(texts.size()) + " prompt=" + std::to_string(tokens.size()));
	const auto answer = [&]() -> Json {
		switch (r.form) {
		case Form::Native: return data;
		case Form::Ollama: return {{"model", model.id()}, {"embeddings", data}, {"prompt_eval_count", tokens.size()}};
		case Form::OllamaOne: return {{"embedding", data[0]}};
		case Form::OpenAi: break;
		}
		return {{"object", "list"}, {"data", data}, {"model", model.id()}, {"usage", usage(tokens.size())}};
	};
	out.respond({200, dump(answer())});
}

void rerank(const Model& model, const RerankRequest& r, const std::function<void()>& make_room, Responder& out) {
	std::vector<const char*> documents;
	for (const std::string& d : r.documents) documents.push_back(d.c_str());
	std::vector<float> scores(documents.size());
	size_t n_tokens = 0;
	if (!compute(make_room, out, r.plain ? "texts" : "documents", [&](const kvrun_generate_options& o) {
		    return kvrun_score_texts(model.engine(), r.query.c_str(), documents.data(), documents.size(), &o,
		                             scores.data(), &n_tokens);
	    }))
		return;
	std::vector<size_t> order(scores.size());
	std::iota(order.begin(), order.end(), size_t(0));
	std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return scores[i]; });
	Json results = Json::array();
	for (const size_t i : std::span(order).first(std::min(r.top, order.size()))) {
		Json one{{"index", i}, {r.plain ? "score" : "relevance_score", scores[i]}};
		if (r.with_documents && r.plain) one["text"] = r.documents[i];
		if (r.with_documents && !r.plain) one["document"] = {{"text", r.documents[i]}};
		results.push_back(std::move(one));
	}
	out.note("texts=" + std::to_string(documents.size()) + " prompt=" + std::to_string(n_tokens));
	if (r.plain) return out.respond({200, dump(results)});
	out.respond({200, dump({{"object", "list"},
	                        {"results", std::move(results)},
	                        {"model", model.id()},
	                        {"usage", usage(n_tokens)}})});
}

} // namespace kvrun::serve
