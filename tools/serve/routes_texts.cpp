// Routes on texts, without an answer: vectors, ranks, tokens.
#include "tools/serve/embeddings.h"
#include "tools/serve/router.h"
#include "tools/text.h"

namespace kvrun::serve {

Json body_of(const HttpRequest& request, const Responder& out) {
	return parse_body(request.body, [&out] { return out.gone(); });
}

Router::Room Router::room() const { return {model_, generator_.longest_context(), "raise -c or shorten it"}; }

Router::Room Router::embedder_room() const {
	if (&embedder_model_ == &model_) return room();
	return {embedder_model_, embedder_model_.ctx_train(), "shorten or divide it"};
}

// Agents shorten a conversation when they read the words of OpenAI's or Anthropic's API, so both are in the message.
static ApiError too_long(const std::string& how_long, size_t most, const char* advice) {
	return {400,
	        "prompt is too long: " + how_long + "; this model's maximum context length is " + std::to_string(most) +
	            " tokens here: " + advice,
	        "", "context_length_exceeded"};
}

void Router::check_length(size_t bytes, const Room& room) {
	if (bytes <= room.tokens) return; // fast path: a token has at least one byte
	if (bytes / room.model.longest_token() <= room.tokens) return;
	throw too_long(std::to_string(bytes) + " bytes, more than " + std::to_string(room.tokens) + " tokens can hold",
	               room.tokens, room.advice);
}

void Router::check_tokens(const std::vector<uint32_t>& tokens, const Room& room) {
	if (tokens.size() <= room.tokens) return;
	const std::string most = std::to_string(room.tokens);
	throw too_long(std::to_string(tokens.size()) + " tokens > " + most + " maximum", room.tokens, room.advice);
}

std::vector<uint32_t> Router::prompt_tokens(const Room& room, const TextPrompt& p, uint32_t flags) {
	std::vector<uint32_t> out;
	size_t bytes = 0;
	for (const PromptPiece& piece : p)
		if (const auto* text = std::get_if<std::string>(&piece)) check_length(bytes += text->size(), room);
	for (size_t i = 0; i < p.size(); ++i) {
		uint32_t own = flags;
		if (i > 0) own |= KVRUN_TOKENS_NO_BOS;
		if (i + 1 < p.size()) own &= ~uint32_t(KVRUN_TOKENS_END);
		const auto* text = std::get_if<std::string>(&p[i]);
		const std::vector<uint32_t> more = text ? room.model.tokens(*text, own) : std::get<1>(p[i]);
		out.insert(out.end(), more.begin(), more.end());
	}
	check_tokens(out, room);
	return out;
}

void Router::embeddings(const HttpRequest& request, std::shared_ptr<Responder> out) {
	EmbeddingsRequest r = embeddings_request(body_of(request, *out), embedder_model_.vector_dim(), defaults_);
	if (request.path == "/embedding") r.form = EmbeddingsRequest::Form::Native;
	post_vectors(request, std::move(out), std::move(r));
}

void Router::post_vectors(const HttpRequest& request, std::shared_ptr<Responder> out, EmbeddingsRequest r) {
	check_name(r.model, embedder_model_);
	std::vector<std::vector<uint32_t>> texts;
	for (const TextPrompt& p : r.inputs) {
		texts.push_back(prompt_tokens(embedder_room(), p, KVRUN_TOKENS_END));
		if (texts.back().empty()) throw ApiError(400, "input has a text without tokens; give it some text", "input");
		if (out->gone()) return;
	}
	post_embedding(request, out, [this, out, r = std::move(r), texts = std::move(texts)] {
		embed(
		    embedder_model_, r, texts, [this] { generator_.drop_idle(); }, *out);
	});
}

// Cuts documents off that are longer than the request wants, or than the model has room for beside the query.
static void shorten(RerankRequest& r, const Model& model) {
	constexpr size_t kFrame = 16; // tokens around a query and a document, at most
	size_t most = r.most_tokens;
	if (r.truncate) {
		const size_t query = model.tokens(r.query, KVRUN_TOKENS_NO_BOS).size() + kFrame, room = model.ctx_train();
		most = std::min(most, room - std::min(room, query));
	}
	if (most == SIZE_MAX) return;
	for (std::string& d : r.documents) {
		std::vector<uint32_t> tokens = model.tokens(d, KVRUN_TOKENS_NO_BOS);
		if (tokens.size() <= most) continue;
		tokens.resize(most);
		d = model.text(tokens, 0);
	}
}

void Router::rerank(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Model& model = embedder_model_;
	if (!model.n_scores())
		throw ApiError(400, "the model has no classifier, so it does not score documents; serve a reranker", "model");
	RerankRequest r = rerank_request(body_of(request, *out), defaults_);
	check_name(r.model, model);
	shorten(r, model);
	for (const std::string& d : r.documents) check_length(r.query.size() + d.size(), embedder_room());
	post_embedding(request, out, [this, out, r = std::move(r)] {
		serve::rerank(
		    embedder_model_, r, [this] { generator_.drop_idle(); }, *out);
	});
}

void Router::post_embedding(const HttpRequest& request, std::shared_ptr<Responder> out, std::function<void()> compute) {
	if (embedding_ >= options_.embeddings)
		throw ApiError(429, "the queue is full: other embeddings are under way; try again later", "", "queue_full");
	++embedding_;
	const std::shared_ptr<void> counted(nullptr, [this](void*) { --embedding_; });
	auto run = [this, out, counted, compute = std::move(compute), held = request.held,
	            use = embedder_model_.residency().use()] {
		try {
			Adapters& adapters = embedder_model_.adapters();
			const auto scales = adapters.use(adapters.usual(), [&] { return out->gone(); });
			if (scales) compute();
		} catch (const ApiError& e) { out->respond(error_response(e)); } catch (const std::exception& e) {
			out->respond(error_response(ApiError(500, e.what())));
		}
	};
	embedder_.post(std::move(run), [out] { return out->gone(); });
}

// Pieces of a text as llama.cpp's server shows them: a text, or its bytes if it is a part of a character.
static Json piece_json(const std::string& piece) {
	if (well_formed(piece) == piece) return piece;
	Json bytes = Json::array();
	for (const char c : piece) bytes.push_back(uint8_t(c));
	return bytes;
}

void Router::tokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = body_of(request, *out);
	const Fields f(j);
	const Json* content = f.find("content");
	if (!content || !(content->is_string() || content->is_array()) || dump(*content).size() > kMaxTokenText)
		throw ApiError(400,
		               "content is not a text, or an array of texts and tokens, of at most " +
		                   std::to_string(kMaxTokenText) + " bytes",
		               "content");
	const bool whole = f.flag("add_special", false);
	uint32_t flags = whole ? 0 : uint32_t(KVRUN_TOKENS_NO_BOS);
	if (f.flag("parse_special", true)) flags |= KVRUN_TOKENS_SPECIAL;
	const Json pieces = content->is_array() ? *content : Json::array({*content});
	std::vector<uint32_t> tokens;
	for (const Json& piece : pieces) {
		if (whole && &piece == &pieces.back()) flags |= KVRUN_TOKENS_END;
		const std::vector<uint32_t> more = piece.is_string() ? model_.tokens(piece.get<std::string>(), flags)
		                                                     : token_list(Json::array({piece}), "content");
		tokens.insert(tokens.end(), more.begin(), more.end());
		flags |= KVRUN_TOKENS_NO_BOS;
	}
	if (!f.flag("with_pieces", false)) return out->respond({200, dump({{"tokens", tokens}})});
	Json list = Json::array();
	for (const uint32_t t : tokens)
		list.push_back({{"id", t}, {"piece", piece_json(model_.token_text(t, /*special=*/true))}});
	out->respond({200, dump({{"tokens", list}})});
}

void Router::detokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = body_of(request, *out);
	const Json* list = Fields(j).find("tokens");
	if (!list || !list->is_array() || list->size() > kMaxTokenText)
		throw ApiError(400, "tokens is not an array of at most " + std::to_string(kMaxTokenText) + " tokens", "tokens");
	const std::vector<uint32_t> tokens = token_list(*list, "tokens");
	const uint32_t vocab = model_.info().vocab;
	for (const uint32_t t : tokens)
		if (t >= vocab)
			throw ApiError(400,
			               "tokens has " + std::to_string(t) + "; the vocabulary of '" + model_.id() + "' has " +
			                   std::to_string(vocab),
			               "tokens");
	out->respond({200, dump({{"content", model_.text(tokens, KVRUN_TOKENS_SPECIAL)}})});
}

} // namespace kvrun::serve
