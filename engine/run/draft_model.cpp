// A small model that guesses the tokens of a larger one with the same vocabulary.
#include "engine/run/draft_model.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "engine/run/session.h"
#include <algorithm>
#include <optional>

namespace kvrun {
namespace {

constexpr uint32_t kMostPadding = 1024; // largest difference of the vocabularies' sizes: padding rows

// Keeps the text in a session of the small model: removes wrong drafts, reads new tokens, then drafts by greedy steps.
// If it cannot follow the text it gives up permanently, and the answer continues without drafts.
class ModelDrafter final : public Drafter {
 public:
	explicit ModelDrafter(std::unique_ptr<Session> s) : own_(std::move(s)), session_(*own_), engine_(own_->engine()) {}
	void accept(std::span<const uint32_t> tokens) override { text_.insert(text_.end(), tokens.begin(), tokens.end()); }
	std::span<const uint32_t> draft(uint32_t most) override {
		drafted_.clear();
		if (lost_ || text_.empty() || most == 0) return drafted_;
		try {
			if (!read_text()) return drafted_;
			for (;;) {
				drafted_.push_back(likeliest_);
				if (drafted_.size() == most || session_.n_tokens() >= session_.ctx()) return drafted_;
				if (session_.flush_due()) return drafted_; // a flush cannot be undone if the draft is wrong
				step({&drafted_.back(), 1});
			}
		} catch (const Error& e) { give_up(e.what()); }
		return drafted_;
	}

 private:
	void give_up(const char* why) {
		prefill_.reset();
		lost_ = true;
		log_at(1, "the draft model drafts no further: {}", why);
	}
	// Returns true once the session holds the whole text and likeliest_ is the token after it. False: more pieces of a
	// prompt are left, or the drafter has given up.
	bool read_text() {
		if (prefill_) return prompt_piece();
		const auto held = session_.history();
		const size_t common = size_t(std::ranges::mismatch(held, text_).in1 - held.begin());
		const uint32_t keep = uint32_t(std::min(common, text_.size() - 1));
		if (session_.exact_position(keep) != keep) return give_up("it cannot take tokens back"), false;
		session_.truncate(keep);
		const std::span<const uint32_t> rest = std::span(text_).subspan(keep);
		const uint32_t vocab = engine_.config().vocab;
		if (std::ranges::any_of(rest, [vocab](uint32_t t) { return t >= vocab; }))
			return give_up("a token is outside its vocabulary"), false;
		// Few tokens are read by one decode step, more as a prompt.
		if (keep && rest.size() <= engine_.max_rows() && session_.n_tokens() + rest.size() <= session_.ctx() &&
		    session_.step_tokens(uint32_t(rest.size())) == rest.size()) {
			step(rest);
			return true;
		}
		prefill_.emplace(session_, rest);
		return prompt_piece();
	}
	// A prompt is read in pieces between the steps of the large model; the text may grow meanwhile.
	bool prompt_piece() {
		if (!prefill_->step()) return false;
		likeliest_ = best(prefill_->logits());
		prefill_.reset();
		return session_.n_tokens() == text_.size() || read_text();
	}
	void step(std::span<const uint32_t> tokens) {
		const SessionRow row{&session_, tokens[0], 0, tokens.subspan(1)};
		const RowLogits logits = decode_step({&row, 1}).back();
		if (logits.fault) std::rethrow_exception(logits.fault);
		likeliest_ = best(logits.all);
	}
	static uint32_t best(std::span<const float> logits) {
		return uint32_t(std::ranges::max_element(logits) - logits.begin());
	}

	std::unique_ptr<Session> own_;
	Session& session_;
	Engine& engine_;
	std::optional<Prefill> prefill_;
	std::vector<uint32_t> text_, drafted_;
	uint32_t likeliest_ = 0;
	bool lost_ = false;
};

} // namespace

void check_same_vocabulary(const Tokenizer& draft, const Tokenizer& target, const std::string& file) {
	const uint32_t n = std::min(draft.vocab(), target.vocab()), most = std::max(draft.vocab(), target.vocab());
	const auto differs = [&](const std::string& how) {
		fail(Code::Invalid, "{}: a draft model needs the vocabulary of the model it drafts for: {}", file, how);
	};
	if (most - n > kMostPadding) differs(fmt::format("it has {} tokens, not {}", draft.vocab(), target.vocab()));
	for (uint32_t t = 0; t < n; ++t)
		if (draft.text(t) != target.text(t))
			differs(fmt::format("token {} is '{}', not '{}'", t, one_line(draft.text(t)), one_line(target.text(t))));
}

DraftModel::DraftModel(const EngineOptions& o, const Tokenizer& target, uint32_t ctx, const LoadProgress& progress) {
	check_same_vocabulary(open_model(o.model).tokenizer, target, o.model); // before weights are loaded
	engine_ = Engine::open(o, progress);
	if (const uint32_t trained = engine_->config().max_seq) ctx = std::min(ctx, trained);
	empty_ = std::make_unique<Session>(*engine_, SessionOptions{.kv = parse_policy("fp16"), .ctx = ctx});
	if (engine_->cache_layers().states().n_layers()) // its drafts are steps of one token, whose states are not kept
		fail(Code::Unsupported,
		     "{}: as a draft model it takes back what it guessed wrongly: a model with recurrent layers cannot go back "
		     "to an earlier token",
		     o.model);
	if (const std::string why = empty_->why_one_token(); !why.empty())
		fail(Code::Unsupported, "{}: as a draft model it takes back what it guessed wrongly: {}", o.model, why);
}

std::unique_ptr<Drafter> DraftModel::drafter() { return std::make_unique<ModelDrafter>(empty_->fork()); }

} // namespace kvrun
