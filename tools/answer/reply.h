// The text of an answer, split while it is generated into what is shown, reasoning and calls of tools.
#pragma once
#include "tools/answer/callbacks.h"
#include "tools/api_call.h"

namespace kvrun {

class Reply {
 public:
	explicit Reply(ReplyHandle reply) : reply_(std::move(reply)) {}
	// The new parts; their texts are valid until the next call. Throws StatusError.
	const kvrun_reply_part& push(std::string_view text) {
		check_call(kvrun_reply_push(reply_.get(), text.data(), text.size(), &part_));
		return part_;
	}
	const kvrun_reply_part& finish() {
		check_call(kvrun_reply_finish(reply_.get(), &part_));
		return part_;
	}

 private:
	ReplyHandle reply_;
	kvrun_reply_part part_ = KVRUN_REPLY_PART_INIT;
};

// An answer that is shown while it is generated.
class ShownAnswer : public AnswerCallbacks {
 public:
	explicit ShownAnswer(ReplyHandle reply) : reply_(std::move(reply)) {}

 protected:
	virtual void show(const kvrun_reply_part&) = 0;
	void show_rest() { show(reply_.finish()); } // what was held back; call after the answer has ended

 private:
	bool token(uint32_t, std::string_view text) final {
		show(reply_.push(text));
		return true;
	}
	Reply reply_;
};

} // namespace kvrun
