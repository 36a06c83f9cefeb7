// An answer in the form of llama.cpp's own routes /completion and /infill, whole or as a stream of events.
#pragma once
#include "tools/serve/answers.h"

namespace kvrun::serve {

class NativeAnswer final : public Listener {
 public:
	NativeAnswer(std::shared_ptr<Responder> out, const GenerationRequest& r, std::string model, std::string prompt)
	    : out_(std::move(out), r.ping_s), stream_(r.stream), stops_(r.sampling.stops), model_(std::move(model)),
	      text_(std::move(prompt)) {}
	bool gone() const override { return failed_ || out_.out().gone(); }
	void begin() override;
	void reading(double done, double left) override { out_.reading(done, left); }
	void token(Json) override;
	void piece(std::string_view text) override;
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 private:
	EventStream out_;
	const bool stream_;
	const std::vector<std::string> stops_;
	const std::string model_;
	std::string text_; // so far, behind the prompt if it is repeated; empty for a stream
	Json tokens_;      // of which the client has no log probabilities yet; null: none
	bool failed_ = false;
};

} // namespace kvrun::serve
