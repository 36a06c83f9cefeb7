// Layers that draft from a model's hidden states as a drafter: its own prediction layer (--draft mtp), or those of a
// file (--draft FILE).
#pragma once
#include "engine/run/draft.h"
#include "engine/run/draft_layers.h"
#include <deque>

namespace kvrun {

// What the layers have read of a text. An entry belongs to a position and depends on the text up to the token behind
// it.
struct DraftedText {
	std::vector<uint32_t> tokens;
	std::vector<uint32_t> at;        // by entry of `cache`: its position
	std::optional<DraftCache> cache; // empty at first
	FirstGuess guess;                // of the latest read
	// Hidden states that have no entry yet: rows `used` .. of (n, state_width()), the first of them of position
	// waiting_at.
	uint32_t waiting_at = 0;
	size_t used = 0;
	std::vector<float> waiting;
};

// The texts of a model's answers under way, and of a few that have ended, so that a fork, or an answer that goes on
// with a conversation, need not begin anew.
class StateDrafts final : public DraftGroup {
 public:
	explicit StateDrafts(std::unique_ptr<DraftLayers> layers) : layers_(std::move(layers)) {}
	// Drafts one answer. The drafter must end before the model.
	std::unique_ptr<Drafter> drafter();
	DraftLayers& layers() { return *layers_; }
	const DraftLayers& layers() const { return *layers_; }

	void draft(std::span<DraftRequest>) override;

	// ---- for its drafters
	void begin(DraftedText&, uint32_t position); // entries before the position that another text has
	void add(DraftedText& t) { live_.push_back(&t); }
	void end(DraftedText&) noexcept; // keeps it
	bool forget();                   // an ended text; false if there is none

 private:
	static constexpr size_t kKept = 4; // texts
	std::unique_ptr<DraftLayers> layers_;
	std::vector<DraftedText*> live_;
	std::deque<DraftedText> kept_;
};

} // namespace kvrun
