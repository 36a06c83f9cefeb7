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
	// cut: the answer did not come to its own end, so that the beginning of a marker or call is nothing to show.
	const kvrun_reply_part& finish(bool cut = false) {
		check_call(kvrun_reply_finish(reply_.get(), &part_));
		if (!cut || !part_.unfinished) return part_;
		rest_ = part_.content;
		rest_.resize(rest_.size() - part_.unfinished);
		part_.content = rest_.c_str();
		return part_;
	}

 private:
	ReplyHandle reply_;
	kvrun_reply_part part_ = KVRUN_REPLY_PART_INIT;
	std::string rest_; // content of the last part, if it was cut
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
