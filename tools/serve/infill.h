// Fill in the middle: the text between a prefix and a suffix, as editors ask for it, in the form of llama.cpp's /infill
// and as `suffix` of OpenAI's completions. For models that were trained for it, such as Qwen2.5-Coder.
#pragma once
#include "tools/serve/answers.h"
#include "tools/serve/model.h"

namespace kvrun::serve {

struct InfillFile { // of the project that the text belongs to
	std::string name, text;
};
struct InfillText {
	std::string prefix, suffix;
	std::vector<InfillFile> files; // in the order of the prompt
};
struct InfillRequest : GenerationRequest {
	InfillText text;
	bool warm = false; // n_predict is 0: the prompt is read, and nothing is shown
};
// The body of /infill. Throws ApiError 400 that names the field.
InfillRequest infill_request(Json body, const std::string& default_kv);

struct InfillMarkers { // tokens in front of the parts of a prompt, by the model's metadata or by their texts
	std::optional<uint32_t> prefix, suffix, middle, repository, file;
};
InfillMarkers infill_markers(const Model&);

// The tokens of [repository name, files,] prefix, suffix, each behind its marker, and the marker of the middle. If they
// are more than `most`, the oldest files go first, then the beginning of the prefix and the end of the suffix, of which
// a quarter of `most` stays. Throws ApiError 400 if the model has no marker of prefix, suffix or middle.
std::vector<uint32_t> infill_tokens(const Model&, const InfillMarkers&, const InfillText&, size_t most);

// The answer in the form of llama.cpp's /infill, whole or as a stream of events.
class InfillAnswer final : public Listener {
 public:
	InfillAnswer(std::shared_ptr<Responder> out, const InfillRequest& r, std::string model)
	    : out_(std::move(out), r.ping_s), stream_(r.stream), warm_(r.warm), model_(std::move(model)) {}
	bool gone() const override { return failed_ || out_.out().gone(); }
	void begin() override;
	void reading(double done, double left) override { out_.reading(done, left); }
	void piece(std::string_view text) override;
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 private:
	EventStream out_;
	const bool stream_, warm_;
	const std::string model_;
	std::string text_; // so far; empty for a stream
	bool failed_ = false;
};

} // namespace kvrun::serve
