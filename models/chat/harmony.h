// Answers of gpt-oss: messages on channels, between control tokens.
#pragma once
#include "models/chat/features.h"
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

// <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f
// <|constrain|>json<|message|>{...}<|call|>
class HarmonyStream {
 public:
	struct Piece {
		enum class Kind : uint8_t { Content, Reasoning, Call } kind;
		std::string text; // arguments, if the piece is a call
		std::string name; // of the called function
	};
	// Adds the next text; returns what is certain. Text that may become a marker is kept.
	std::vector<Piece> push(std::string_view text);
	std::vector<Piece> finish();
	// The unfinished call: its function, and the arguments received so far.
	bool in_call() const { return !in_header_ && kind_ == Piece::Kind::Call; }
	bool holds_call() const { return in_call() || (in_header_ && !begun_ && header_.find(kTo) != header_.npos); }
	const std::string& recipient() const { return recipient_; }
	const std::string& arguments() const { return arguments_; }

 private:
	static constexpr std::string_view kTo = "to=";
	void step(std::vector<Piece>&, bool last);
	bool may_be_recipient() const;
	void add_text(std::vector<Piece>&, const std::string& text);
	void show_header(std::vector<Piece>&);
	void show(std::vector<Piece>&, std::string_view text);
	void end_message(std::vector<Piece>&);
	void read_header();

	std::string buffer_, header_, arguments_, recipient_;
	bool in_header_ = true, begun_ = false;
	Piece::Kind kind_ = Piece::Kind::Content;
};

} // namespace kvrun
