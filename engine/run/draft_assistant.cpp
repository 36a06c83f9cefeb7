// An assistant as a drafter.
#include "engine/run/draft_assistant.h"
#include "engine/core/log.h"
#include "engine/run/engine.h"
#include <algorithm>

namespace kvrun {
namespace {

// Has no cache of its own: it needs the latest hidden state and token alone, so an answer's first step has no drafts.
class AssistantDrafter final : public Drafter {
 public:
	AssistantDrafter(AssistantDrafts& g, Session& s) : group_(g), session_(s) {}
	void accept(std::span<const uint32_t> tokens) override {
		if (!tokens.empty()) latest_ = tokens.back();
	}
	bool reads_states() const override { return !lost_; }
	void states(uint32_t position, std::span<const float> rows) override {
		const uint32_t dim = group_.assistant().config().target_dim;
		known_ = position + uint32_t(rows.size() / dim);
		state_.assign(rows.end() - dim, rows.end());
	}
	std::span<const uint32_t> draft(uint32_t most) override {
		request_ = {this, most};
		group_.draft({&request_, 1});
		return request_.tokens;
	}
	DraftGroup* group() override { return &group_; }

	// Whether there is something to guess from.
	bool ready() const {
		return !lost_ && known_ && known_ == session_.n_tokens() &&
		       latest_ < session_.engine().config().vocab; // else noise, or a row of an image
	}
	Assistant::Text text() const { return {&session_, state_}; }
	uint32_t latest() const { return latest_; }
	void failed(const Error& e) {
		lost_ = e.code != Code::OutOfMemory; // memory may become free again
		if (lost_) log_at(1, "drafting has stopped: {}", e.what());
	}

 private:
	AssistantDrafts& group_;
	Session& session_;
	DraftRequest request_ = {};
	uint32_t latest_ = UINT32_MAX; // token that follows the session's
	uint32_t known_ = 0;           // tokens of the session at whose last one the state was made
	std::vector<float> state_;     // (target_dim)
	bool lost_ = false;
};

AssistantDrafter& of(const DraftRequest* r) { return *static_cast<AssistantDrafter*>(r->drafter); }

// At most Assistant::kRows requests, which are ready; those that want the most guesses are first. Throws Error.
void guess(Assistant& a, std::span<DraftRequest* const> requests) {
	std::vector<Assistant::Text> texts;
	std::vector<uint32_t> tokens;
	for (const DraftRequest* r : requests) texts.push_back(of(r).text()), tokens.push_back(of(r).latest());
	std::vector<std::vector<uint32_t>> out(requests.size());
	Assistant::Round round(a, texts);
	for (uint32_t i = 0; i < requests[0]->most; ++i) {
		while (requests[tokens.size() - 1]->most <= i) tokens.pop_back();
		tokens = round.guess(tokens);
		for (size_t t = 0; t < tokens.size(); ++t) out[t].push_back(tokens[t]);
	}
	const uint32_t vocab = texts[0].session->engine().config().vocab; // a guess may be padding behind it
	for (size_t t = 0; t < requests.size(); ++t) {
		out[t].erase(std::ranges::find_if(out[t], [vocab](uint32_t id) { return id >= vocab; }), out[t].end());
		requests[t]->tokens = std::move(out[t]);
	}
}

} // namespace

std::unique_ptr<Drafter> AssistantDrafts::drafter(Session& s) { return std::make_unique<AssistantDrafter>(*this, s); }

void AssistantDrafts::draft(std::span<DraftRequest> requests) {
	std::vector<DraftRequest*> ready;
	for (DraftRequest& r : requests) {
		r.tokens.clear();
		if (r.most && of(&r).ready()) ready.push_back(&r);
	}
	std::ranges::stable_sort(ready, std::greater(), [](const DraftRequest* r) { return r->most; });
	for (size_t at = 0; at < ready.size(); at += Assistant::kRows) {
		const auto part = std::span(ready).subspan(at, std::min<size_t>(Assistant::kRows, ready.size() - at));
		try {
			guess(assistant_, part);
			continue;
		} catch (const Error& e) {
			if (part.size() == 1) of(part[0]).failed(e);
		}
		for (DraftRequest* const& r : part) // each alone
			if (part.size() > 1) try {
					guess(assistant_, {&r, 1});
				} catch (const Error& e) { of(r).failed(e); }
	}
}

} // namespace kvrun
