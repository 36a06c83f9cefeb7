// Chat templates: a conversation to the text a model continues, by the Jinja template of the model.
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

using Json = nlohmann::ordered_json; // keeps the order of keys, which reaches the model

// What a template is given. Everything is passed on as it is; see fit_messages() for what templates differ in.
struct ChatInput {
	// Array of {"role": "user", "content": ...}: content is a string, null, or an array of parts such as
	// {"type": "text", "text": "..."}. Also tool_calls, tool_call_id, reasoning_content, name: what the template reads.
	Json messages;
	Json tools;     // array of {"type": "function", "function": {"name", "description", "parameters"}}; null: none
	Json documents; // array; null: none
	bool add_generation_prompt = true; // end with the beginning of an answer
	Json variables;                    // object; more variables, such as {"enable_thinking": false}; null: none
	std::string bos_token, eos_token;  // as they are written out; empty: none
	std::optional<std::tm> now;        // local time that strftime_now tells; none: the clock's
};

struct ChatLimits {
	uint64_t steps = 1'000'000; // of the template, and 1000 more for every message, up to ten times as many
	size_t output_bytes = size_t(4) << 20;
	size_t value_bytes = size_t(128) << 20; // memory of one rendering
};

// A rendered conversation, in pieces by where the text comes from. Only a template's own text may be control tokens.
struct Rendered {
	struct Segment {
		std::string text;
		bool from_template; // false: derived from the conversation
	};
	std::vector<Segment> segments; // none is empty, neighbours differ in from_template
	std::string text() const;      // all of them
};

namespace jinja {
struct Program;
}

class ChatTemplate {
 public:
	// Throws Error{Format} "NAME, line N: what" where `text` is no template.
	explicit ChatTemplate(std::string text, std::string name = "chat template");
	ChatTemplate(ChatTemplate&&) noexcept;
	ChatTemplate& operator=(ChatTemplate&&) noexcept;
	~ChatTemplate();

	// Throws Error{Invalid} where the template refuses the conversation (its own words are in the message), fails on
	// it, or needs more than the limits; Error{Format} where it names an unknown filter, test or function.
	Rendered render(const ChatInput&, const ChatLimits& = {}) const;

	bool reads(std::string_view variable) const; // the template mentions it: "enable_thinking", "tools"
	const std::string& text() const;             // the template
	const std::string& name() const;             // for messages

 private:
	std::unique_ptr<const jinja::Program> program_;
};

} // namespace kvrun
