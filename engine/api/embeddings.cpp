// Vectors and scores of texts: kvrun_embed, kvrun_embed_texts, kvrun_score_texts.
#include "engine/api/prompt.h"
#include "models/chat/rank.h"
#include "models/text_encoder.h"

namespace kvrun::api {
namespace {

Pooling pooling_of(const Engine& e, kvrun_pooling given) {
	if (given < KVRUN_POOL_MODEL || given > KVRUN_POOL_LAST)
		refuse(KVRUN_EINVALID, "pooling is {}, expected a kvrun_pooling", int(given));
	return given == KVRUN_POOL_MODEL ? e.config().text_head.pooling : Pooling(given);
}

// The pooled states of a prompt that is appended to a session: (dim).
std::vector<float> pooled_prompt(InUse& s, std::span<const uint32_t> prompt, Pooling how,
                                 const kvrun_generate_options* options) {
	const size_t dim = s.engine().engine->config().dim;
	std::vector<double> sum(dim);
	PrefillHooks hooks;
	hooks.all_states = [&](uint32_t first, uint32_t n, std::span<const float> states) {
		for (size_t i = 0; i < n; ++i) {
			const size_t at = first + i;
			if ((how == Pooling::First && at > 0) || (how == Pooling::Last && at + 1 < prompt.size())) continue;
			for (size_t d = 0; d < dim; ++d) sum[d] += states[i * dim + d];
		}
	};
	read_prompt(s, prompt, options, std::move(hooks));
	const double n = how == Pooling::Mean ? double(prompt.size()) : 1;
	std::vector<float> out(dim);
	for (size_t d = 0; d < dim; ++d) out[d] = float(sum[d] / n);
	return out;
}

// The adapters' scales while vectors of one call are computed: another thread may change them in between.
class SameScales {
 public:
	explicit SameScales(const Engine& e) : engine_(e), scales_(e.lora_scales()) { e.check_scales(); }
	void check() const {
		if (engine_.lora_scales() != scales_)
			refuse(KVRUN_EINVALID, "the scales of the adapters were changed while texts were read; read them again");
	}

 private:
	const Engine& engine_;
	const std::vector<float> scales_;
};

// Tells a caller how much of the work on all texts of a call is done.
class TextsProgress {
 public:
	explicit TextsProgress(const kvrun_generate_options& o) : options_(o) {}
	bool stops(double share) const { // whether the caller wants the call to stop
		const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
		const double left = share > 0 ? spent * (1 - share) / share : 0;
		return options_.on_prefill && options_.on_prefill(share, left, options_.payload);
	}
	const kvrun_generate_options& options() const { return options_; }

 private:
	const kvrun_generate_options options_;
	const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
constexpr const char* kStopped = "a callback stopped the texts";

// Progress of the prompt of one text, as that of all texts. It remembers a stop: a prompt that ends in the step in
// which it is stopped is complete, but the texts behind it are not to be read.
struct TextProgress {
	const TextsProgress& together;
	double all = 0, before = 0, own = 0; // tokens: of all texts, of those that are read, of this one
	bool stopped = false;
	static int tell(double done, double, void* payload) {
		TextProgress& t = *static_cast<TextProgress*>(payload);
		return t.stopped = t.together.stops((t.before + done * t.own) / t.all);
	}
};

// The same of texts on their own, with a model that generates: each gets a session of its own.
std::vector<float> pooled_prompts(const std::shared_ptr<EngineObject>& e, std::span<const EncoderText> texts,
                                  Pooling how, const kvrun_generate_options* options) {
	const TextsProgress together(read_generate_options(options));
	TextProgress progress{together};
	for (const EncoderText& t : texts) progress.all += double(t.tokens.size());
	kvrun_generate_options own = together.options();
	own.on_prefill = TextProgress::tell, own.payload = &progress;
	std::vector<float> out;
	std::optional<SameScales> scales;
	for (const EncoderText& t : texts) {
		if (progress.stopped) refuse(KVRUN_EUSER, kStopped);
		if (t.tokens.empty()) refuse(KVRUN_EINVALID, "a text has no tokens");
		progress.own = double(t.tokens.size());
		auto session = std::make_shared<SessionObject>(e);
		{
			std::lock_guard turn(e->turn);
			if (!scales) scales.emplace(*e->engine);
			scales->check();
			session->session = std::make_unique<Session>(*e->engine, SessionOptions{.ctx = uint32_t(t.tokens.size())});
		}
		InUse used(std::move(session));
		const std::vector<float> pooled = pooled_prompt(used, t.tokens, how, &own);
		out.insert(out.end(), pooled.begin(), pooled.end());
		progress.before += progress.own;
	}
	return out;
}

// The same with a model that encodes.
std::vector<float> encode(EngineObject& e, std::span<const EncoderText> texts, Pooling how,
                          const kvrun_generate_options* options) {
	const TextsProgress progress(read_generate_options(options));
	std::unique_lock turn(e.turn);
	const SameScales scales(*e.engine);
	const auto go_on = [&](double share) {
		turn.unlock(); // others get theirs between two layers, as between pieces of a prompt
		const bool stopped = progress.stops(share);
		turn.lock(); // what an error frees is freed during this thread's turn
		if (kvrun_canceller_is_set(progress.options().canceller)) refuse(KVRUN_ECANCELLED, "the texts were cancelled");
		if (stopped) refuse(KVRUN_EUSER, kStopped);
		scales.check();
		return true;
	};
	return e.engine->text_encoder()->encode(texts, how, go_on);
}

std::vector<float> pooled(const std::shared_ptr<EngineObject>& e, std::span<const EncoderText> texts, Pooling how,
                          const kvrun_generate_options* options) {
	return e->engine->text_encoder() ? encode(*e, texts, how, options) : pooled_prompts(e, texts, how, options);
}

template <class F> auto in_turn(EngineObject& e, F make) {
	std::lock_guard turn(e.turn);
	return make(e.engine->pooled_head());
}

} // namespace
} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_embed(kvrun_session* session, const uint32_t* prompt, size_t count, kvrun_pooling pooling,
                         const kvrun_generate_options* options, float* out) {
	return guard([&] {
		check_pointer(out, "out");
		InUse s(session);
		const Pooling how = pooling_of(*s.engine().engine, pooling);
		std::vector<float> states = pooled_prompt(s, prompt_span(prompt, count), how, options);
		std::ranges::copy(in_turn(s.engine(), [&](const PooledHead& h) { return h.vectors(std::move(states)); }), out);
	});
}

kvrun_status kvrun_embed_texts(kvrun_engine* engine, const uint32_t* tokens, const size_t* counts, size_t n_texts,
                               kvrun_pooling pooling, const kvrun_generate_options* options, float* out) {
	return guard([&] {
		if (!n_texts) return;
		check_pointer(tokens, "tokens");
		check_pointer(counts, "counts");
		check_pointer(out, "out");
		const auto e = engines().get(engine);
		std::vector<EncoderText> texts;
		for (const size_t n : std::span(counts, n_texts)) texts.push_back({{tokens, n}}), tokens += n;
		std::vector<float> states = pooled(e, texts, pooling_of(*e->engine, pooling), options);
		std::ranges::copy(in_turn(*e, [&](const PooledHead& h) { return h.vectors(std::move(states)); }), out);
	});
}

kvrun_status kvrun_score_texts(kvrun_engine* engine, const char* query, const char* const* documents,
                               size_t n_documents, const kvrun_generate_options* options, float* out,
                               size_t* out_tokens) {
	return guard([&] {
		const auto e = engines().get(engine);
		const Engine& model = *e->engine;
		const TextHead& head = model.config().text_head;
		if (!head.labels)
			refuse(KVRUN_EUNSUPPORTED, "{}: has no classifier, so it does not score pairs of texts; rerankers have one",
			       model.file().name());
		check_pointer(query, "query");
		if (n_documents) check_pointer(documents, "documents"), check_pointer(out, "out");
		const RankPrompt prompt(model.file());
		std::vector<TextPair> pairs;
		std::vector<EncoderText> texts;
		size_t n_tokens = 0;
		for (const char* document : std::span(documents, n_documents)) {
			check_pointer(document, "a document");
			pairs.push_back(prompt.encode(model.tokenizer(), query, document));
			n_tokens += pairs.back().tokens.size();
		}
		for (const TextPair& p : pairs) texts.push_back({p.tokens, p.second});
		if (out_tokens) *out_tokens = n_tokens;
		if (texts.empty()) return;
		std::vector<float> states = pooled(e, texts, head.label_pooling, options);
		const std::vector<float> scores = in_turn(*e, [&](const PooledHead& h) { return h.scores(std::move(states)); });
		for (size_t i = 0; i < texts.size(); ++i) out[i] = scores[i * head.labels]; // the first: "relevant", or "yes"
	});
}
