// An answer in the form of llama.cpp's own routes /completion and /infill, whole or as a stream of events.
#pragma once
#include "tools/serve/answers.h"

namespace kvrun::serve {

class NativeAnswer final : public Listener {
 public:
	// echo: the answer begins with the prompt.
	NativeAnswer(std::shared_ptr<Responder> out, const GenerationRequest&, const Model&,
	             const std::vector<uint32_t>& prompt, bool echo);
	bool gone() const override { return failed_ || out_.out().gone(); }
	void begin() override;
	void reading(double done, double left) override { out_.reading(done, left); }
	void chosen(uint32_t token) override;
	void token(Json) override;
	void piece(std::string_view text) override;
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 private:
	Json ids() { return std::exchange(ids_, Json::array()); }

	EventStream out_;
	const bool stream_;
	const std::vector<std::string> stops_;
	const NativeForm form_;
	const std::string model_, prompt_;
	const size_t n_prompt_; // tokens
	Json settings_;
	std::string text_;         // so far, behind the prompt if it is repeated; empty for a stream
	Json tokens_;              // of which the client has no log probabilities yet; null: none
	Json ids_ = Json::array(); // of tokens that the client does not have yet
	uint32_t n_tokens_ = 0;
	bool has_line_ = false; // the answer has a line break
	bool failed_ = false;
};

} // namespace kvrun::serve
