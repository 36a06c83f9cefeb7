// A prediction layer as a drafter: the model's own (--draft mtp), or an EAGLE-3 layer (--draft FILE).
#pragma once
#include "engine/run/draft.h"
#include "engine/run/prediction_layer.h"
#include <deque>

namespace kvrun {

// What a prediction layer has read of a text. An entry belongs to a position and depends on the text up to the token
// behind it.
struct PredictionText {
	std::vector<uint32_t> tokens;
	std::vector<uint32_t> at;        // by entry of `seq`: its position
	std::unique_ptr<KvSequence> seq; // null: empty
	// Hidden states that have no entry yet: rows `used` .. of (n, state_width()), the first of them of position
	// waiting_at.
	uint32_t waiting_at = 0;
	size_t used = 0;
	std::vector<float> waiting;
};

// The texts of a model's answers under way, and of a few that have ended, so that a fork, or an answer that goes on
// with a conversation, need not begin anew.
class MtpModel {
 public:
	explicit MtpModel(std::unique_ptr<PredictionLayer> layer) : layer_(std::move(layer)) {}
	// Drafts one answer. The drafter must end before the model.
	std::unique_ptr<Drafter> drafter();
	PredictionLayer& layer() { return *layer_; }
	const PredictionLayer& layer() const { return *layer_; }

	// ---- for its drafters
	void begin(PredictionText&, uint32_t position); // entries before the position that another text has
	void add(PredictionText& t) { live_.push_back(&t); }
	void end(PredictionText&) noexcept; // keeps it
	bool forget();                      // an ended text; false if there is none

 private:
	static constexpr size_t kKept = 4; // texts
	std::unique_ptr<PredictionLayer> layer_;
	std::vector<PredictionText*> live_;
	std::deque<PredictionText> kept_;
};

} // namespace kvrun
