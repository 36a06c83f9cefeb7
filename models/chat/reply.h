// Parses a streamed answer into content, reasoning and calls of tools.
#pragma once
#include "models/chat/calls.h"
#include "models/chat/harmony.h"

namespace kvrun {

struct ToolCall {
	std::string id;        // nine letters and digits, or the model's own id
	std::string name;      // of the function
	std::string arguments; // a JSON object
	Json json() const;     // in OpenAI's form: {"id", "type": "function", "function": {"name", "arguments"}}
};

class ReplyParser {
 public:
	struct Options {
		ToolFormat tools = ToolFormat::None;
		std::string tool_begin, tool_end; // as in ChatFeatures
		bool tool_variant = false;
		CallShape shape;                        // the same
		Json definitions = nullptr;             // of tools; they say which arguments are strings if calls do not
		std::string think_begin, think_end;     // empty: reasoning is not separated
		std::string content_begin, content_end; // around the text; empty: none. Other text is not shown
		bool in_reasoning = false;              // the prompt ends inside the reasoning: opens_reasoning()
		uint32_t first_call = 0;                // number in the id of the first call, if the model gives no id
	};
	// A part of a call's arguments: the parts of all its deltas, concatenated, are the arguments.
	struct CallDelta {
		uint32_t index;       // of the call in this answer
		std::string id, name; // set in the first delta of a call
		std::string arguments;
		Json json() const; // in the form of OpenAI's streams
	};
	struct Part {
		std::string content, reasoning; // ready to be shown; without markers and calls
		std::vector<ToolCall> calls;    // finished calls
		std::vector<CallDelta> deltas;  // of finished calls and of the unfinished one
		size_t unfinished = 0;          // finish(): bytes at the end of content that begin a marker or a call
	};

	explicit ReplyParser(Options);
	// `text`: the next piece of the answer; it must contain the texts of control tokens if the markers of `tools` are
	// control tokens. Text that may become a marker or a call is kept.
	Part push(std::string_view text);
	// The answer has ended: returns the text that was kept. An unfinished call is content, unless deltas of it were
	// reported: that is so for functions in `definitions` once their arguments have begun. Such a call ends with
	// arguments that are not JSON.
	Part finish();

 private:
	enum class State : uint8_t { Content, Reasoning };
	bool step(Part&, bool last); // false: more text is needed
	bool may_lack_tags() const;
	bool holds_call() const; // the buffer is the beginning of a marker or of a call
	bool step_reasoning(Part&, bool last);
	bool step_reasoning_call(Part&, bool last);
	bool step_content(Part&, bool last);
	bool step_call(Part&, bool last);
	void enter(State);
	void show(Part&, std::string_view text);
	bool told_early(const FoundCall&) const;
	void tell(Part&, const FoundCall&, bool ended);
	void add_pieces(Part&, std::vector<HarmonyStream::Piece>);

	Options options_;
	CallForm form_;
	HarmonyStream harmony_;
	std::vector<std::string> opens_; // texts with which calls begin; empty: they begin at the start of the answer
	std::string buffer_;             // text whose meaning is still open
	std::string spaces_;             // white space after the shown text: dropped if a call follows
	State state_;
	bool waits_ = false;     // the buffer begins with an unfinished call
	size_t look_at_ = 0;     // size of the buffer at which such a call is parsed again
	size_t n_ended_ = 0;     // calls at the front of the buffer that were reported as finished
	size_t n_told_ = 0;      // bytes of the next call's arguments that were reported
	bool shown_ = false;     // some content has been shown
	bool ended_ = false;     // the marker behind the content has come
	bool thinks_on_ = false; // a call ended the reasoning, whose marker may still come
	bool trim_ = false;      // white space at the start of the next text is dropped
	uint32_t n_calls_ = 0;
};

} // namespace kvrun
