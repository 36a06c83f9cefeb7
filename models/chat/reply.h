// A model's answer as it comes: what of it is shown, what is reasoning, and which tools it calls.
#pragma once
#include "models/chat/calls.h"
#include "models/chat/harmony.h"

namespace kvrun {

struct ToolCall {
	std::string id;        // nine letters and digits, or what the model gave
	std::string name;      // of the function
	std::string arguments; // a JSON object
	Json json() const;     // as OpenAI's API has it: {"id", "type": "function", "function": {"name", "arguments"}}
};

class ReplyParser {
 public:
	struct Options {
		ToolFormat tools = ToolFormat::None;
		std::string tool_begin, tool_end; // as ChatFeatures has them
		bool tool_variant = false;
		Json definitions = nullptr;         // of tools, which say what is a text where calls do not
		std::string think_begin, think_end; // empty: reasoning is not told from the rest
		bool in_reasoning = false;          // the prompt has opened it: opens_reasoning()
		uint32_t first_call = 0;            // number in the id of the first call, where the model gives no id
	};
	// More of a call's arguments: those of all deltas of a call are its arguments.
	struct CallDelta {
		uint32_t index;       // of the call in this answer
		std::string id, name; // empty: as before
		std::string arguments;
		Json json() const; // as OpenAI's API streams it
	};
	struct Part {
		std::string content, reasoning; // may be shown now; markers and calls are in neither
		std::vector<ToolCall> calls;    // that have ended
		std::vector<CallDelta> deltas;  // of those that have ended and of the one that has not
	};

	explicit ReplyParser(Options);
	// `text`: the next piece of the answer, decoded with control tokens written out where the markers of `tools` are
	// control tokens. What may yet become a marker or a call is held back.
	Part push(std::string_view text);
	// The answer has ended: what was held back. A call that is not whole is text, unless it was told already: calls of
	// a function that `definitions` have are, from the beginning of their arguments on. Such a call ends with
	// arguments that are no JSON.
	Part finish();

 private:
	enum class State : uint8_t { Content, Reasoning };
	bool step(Part&, bool last); // false: more text is needed
	bool step_reasoning(Part&, bool last);
	bool step_content(Part&, bool last);
	bool step_call(Part&, bool last);
	void show(Part&, std::string_view text);
	bool told_early(const FoundCall&) const;
	void tell(Part&, const FoundCall&, bool ended);
	void add_pieces(Part&, std::vector<HarmonyStream::Piece>);

	Options options_;
	CallForm form_;
	HarmonyStream harmony_;
	std::string open_;   // marker at which calls begin; empty: at the front of the answer
	std::string buffer_; // text that is not decided yet
	std::string spaces_; // white space at the end of what was shown: dropped if a call follows
	State state_;
	bool waits_ = false; // the buffer begins with a call that is not complete
	size_t look_at_ = 0; // bytes of the buffer at which such a call is looked at again
	size_t n_ended_ = 0; // calls at the front of the buffer that were told as ended
	size_t n_told_ = 0;  // bytes of the arguments of the next one that were told
	bool shown_ = false; // some content has been shown
	bool trim_ = false;  // white space at the front of what follows is dropped
	uint32_t n_calls_ = 0;
};

} // namespace kvrun
