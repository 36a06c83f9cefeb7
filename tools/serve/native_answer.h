// An answer in the form of llama.cpp's own routes /completion and /infill, whole or as a stream of events.
#pragma once
#include "tools/serve/answers.h"

namespace kvrun::serve {

// What the answers of one request share: an array, if there are several, or one stream.
struct NativeAnswers {
	NativeAnswers(std::shared_ptr<Responder> to, double ping_s, size_t n)
	    : out(std::move(to), ping_s), whole(n), left(n) {}
	EventStream out;
	std::vector<Json> whole;
	size_t left; // that have not ended
	bool failed = false;
};

class NativeAnswer final : public Listener {
 public:
	// echo: the answer begins with the prompt.
	NativeAnswer(std::shared_ptr<NativeAnswers>, size_t index, const GenerationRequest&, const Model&,
	             const std::vector<uint32_t>& prompt, bool echo);
	bool gone() const override { return all_->failed || all_->out.out().gone(); }
	void start(uint32_t prompt, uint32_t cached) override { pace_.start(prompt, cached); }
	void begin() override;
	void reading(double done, double left) override;
	void chosen(uint32_t token) override;
	void token(Json) override;
	void piece(std::string_view text) override;
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 private:
	Json ids() { return std::exchange(ids_, Json::array()); }
	Json part(std::string_view text); // of the answer, as an event
	void show_progress(double done);

	const std::shared_ptr<NativeAnswers> all_;
	const size_t index_;
	const bool stream_, progress_, live_timings_;
	const std::vector<std::string> stops_;
	const NativeForm form_;
	const std::string model_, prompt_;
	const size_t n_prompt_; // tokens
	Json settings_;
	std::string text_;         // so far, behind the prompt if it is repeated; empty for a stream
	Json tokens_;              // of which the client has no log probabilities yet; null: none
	Json ids_ = Json::array(); // of tokens that the client does not have yet
	uint32_t n_tokens_ = 0;
	Pace pace_;
	bool begun_ = false, has_line_ = false; // the stream has begun; the answer has a line break
};

} // namespace kvrun::serve
