// OpenAI's transcriptions: a form with a sound becomes a conversation that asks for its text.
#pragma once
#include "tools/answer/reply.h"
#include "tools/serve/events.h"
#include "tools/serve/multipart.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct TranscriptionRequest {
	ChatRequest chat;      // its message has the instruction alone
	std::string_view file; // of the body
	bool plain = false;    // the answer is the text alone, not JSON
	// Puts the sound in front of the instruction. id: of the engine.
	void add_sound(const std::string& id);
};
// Throws ApiError 400. The request points into the body.
TranscriptionRequest transcription_request(std::string_view content_type, std::string_view body, const Defaults&);

class TranscriptionAnswer final : public Listener {
 public:
	// sound: tokens of the prompt that are of the sound.
	TranscriptionAnswer(std::shared_ptr<Responder> out, const TranscriptionRequest&, ReplyHandle, size_t sound);
	bool gone() const override { return out_.out().gone(); }
	void begin() override {
		if (stream_) out_.begin();
	}
	void reading(double done, double left) override { out_.reading(done, left); }
	void piece(std::string_view text) override { take(reply_.push(text)); }
	void end(const Ended&) override;
	void fail(const ApiError& e) override { out_.fail(e); }

 private:
	void take(const kvrun_reply_part&);
	EventStream out_;
	const bool stream_, plain_;
	Reply reply_;
	const size_t sound_;
	std::string text_;
};

} // namespace kvrun::serve
