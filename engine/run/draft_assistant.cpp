// An assistant as a drafter.
#include "engine/run/draft_assistant.h"
#include "engine/core/log.h"

namespace kvrun {
namespace {

// Has no cache of its own: it needs the latest hidden state and token alone, so an answer's first step has no drafts.
class AssistantDrafter final : public Drafter {
 public:
	AssistantDrafter(Assistant& a, Session& s) : assistant_(a), session_(s) {}
	void accept(std::span<const uint32_t> tokens) override {
		if (!tokens.empty()) latest_ = tokens.back();
	}
	bool reads_states() const override { return !lost_; }
	void states(uint32_t position, std::span<const float> rows) override {
		const uint32_t dim = assistant_.config().target_dim;
		known_ = position + uint32_t(rows.size() / dim);
		state_.assign(rows.end() - dim, rows.end());
	}
	std::span<const uint32_t> draft(uint32_t most) override {
		drafted_.clear();
		if (lost_ || most == 0 || known_ == 0 || known_ != session_.n_tokens()) return drafted_;
		const uint32_t vocab = session_.engine().config().vocab; // a guess may be padding behind it
		if (latest_ >= vocab) return drafted_;                   // noise, or a row of an image
		try {
			Assistant::Round round(assistant_, session_, state_);
			for (uint32_t token = latest_; drafted_.size() < most; drafted_.push_back(token))
				if ((token = round.guess(token)) >= vocab) break;
		} catch (const Error& e) {
			drafted_.clear();
			lost_ = e.code != Code::OutOfMemory; // memory may become free again
			if (lost_) log_at(1, "the assistant drafts no further: {}", e.what());
		}
		return drafted_;
	}

 private:
	Assistant& assistant_;
	Session& session_;
	uint32_t latest_ = UINT32_MAX; // token that follows the session's
	uint32_t known_ = 0;           // tokens of the session at whose last one the state was made
	std::vector<float> state_;     // (target_dim)
	std::vector<uint32_t> drafted_;
	bool lost_ = false;
};

} // namespace

std::unique_ptr<Drafter> make_assistant_drafter(Assistant& a, Session& s) {
	return std::make_unique<AssistantDrafter>(a, s);
}

} // namespace kvrun
