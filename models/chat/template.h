// Chat templates: the model's Jinja template turns a conversation into the text that the model continues.
#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

using Json = nlohmann::ordered_json; // keeps the order of keys: the model sees it

// Input of a template, passed on unchanged; fit_input() handles differences between templates.
struct ChatInput {
	// Array of {"role": "user", "content": ...}: content is a string, null, or an array of parts such as
	// {"type": "text", "text": "..."}. Also tool_calls, tool_call_id, reasoning_content, name, if the template reads
	// them.
	Json messages;
	Json tools;     // array of {"type": "function", "function": {"name", "description", "parameters"}}; null: none
	Json documents; // array; null: none
	bool add_generation_prompt = true; // end with the beginning of an answer
	// Object; more variables, such as {"enable_thinking": false}; null: none. In templates that switch reasoning by
	// another variable, enable_thinking sets that one, too, unless it is given.
	Json variables;
	std::string bos_token, eos_token; // their texts; empty: none
	std::optional<std::tm> now;       // local time for strftime_now; none: the clock's
};

struct ChatLimits {
	uint64_t steps = 1'000'000; // of the template, plus 1000 per message; at most ten times this number
	size_t output_bytes = size_t(4) << 20;
	size_t value_bytes = size_t(128) << 20; // memory of one rendering
};

// A rendered conversation, in segments by the origin of the text. Only the template's own text may become control
// tokens.
struct Rendered {
	struct Segment {
		std::string text;
		bool from_template; // false: derived from the conversation
	};
	std::vector<Segment> segments; // not empty; neighbours differ in from_template
	std::string text() const;      // all segments
};

// `text` as a part of a message's content that counts as the template's own text: for markers that the engine writes.
// Nobody else can, because the marks around it have a number of this process.
std::string own_text(std::string_view text);

namespace jinja {
struct Program;
}

class ChatTemplate {
 public:
	// Throws Error{Format} "NAME, line N: what" if `text` is not a template.
	explicit ChatTemplate(std::string text, std::string name = "chat template");
	ChatTemplate(ChatTemplate&&) noexcept;
	ChatTemplate& operator=(ChatTemplate&&) noexcept;
	~ChatTemplate();

	// Throws Error{Invalid} if the template refuses the conversation (the message quotes it), fails on it, or exceeds
	// the limits; Error{Format} if it names an unknown filter, test or function.
	Rendered render(const ChatInput&, const ChatLimits& = {}) const;

	bool reads(std::string_view variable) const; // the template mentions it: "enable_thinking", "tools"
	bool switches_reasoning() const;             // enable_thinking has an effect
	const std::string& text() const;             // the template
	const std::string& name() const;             // for messages

 private:
	std::unique_ptr<const jinja::Program> program_;
};

} // namespace kvrun
