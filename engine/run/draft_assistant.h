// An assistant as a drafter (--draft FILE).
#pragma once
#include "engine/run/assistant.h"
#include "engine/run/draft.h"

namespace kvrun {

// Drafts answers of several sessions of a model together.
class AssistantDrafts final : public DraftGroup {
 public:
	explicit AssistantDrafts(Assistant& a) : assistant_(a) {}
	// Drafts one answer of the session. Session and group must outlive the drafter.
	std::unique_ptr<Drafter> drafter(Session&);
	void draft(std::span<DraftRequest>) override;
	Assistant& assistant() { return assistant_; }

 private:
	Assistant& assistant_;
};

} // namespace kvrun
