// The bytes of all tokens of a vocabulary as one tree, so that tokens that begin alike are looked at once.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {
class Tokenizer;
}

namespace kvrun::grammar {

class TokenTrie {
 public:
	static constexpr uint32_t kNone = UINT32_MAX;

	// texts: what each token adds to a text; empty: it is never chosen. ends: tokens that end an answer.
	TokenTrie(std::span<const std::string> texts, std::vector<uint32_t> ends);
	explicit TokenTrie(const Tokenizer&); // control tokens as control_bytes() has them

	uint32_t vocab() const { return uint32_t(begin_.size() - 1); }
	std::string_view text(uint32_t token) const {
		return std::string_view(bytes_).substr(begin_[token], begin_[token + 1] - begin_[token]);
	}
	std::span<const uint32_t> ends() const { return ends_; }
	bool is_end(uint32_t token) const;

	// Nodes in the order of their texts, each before those that go on from it.
	struct Node {
		uint8_t byte;   // the last one of its text
		uint16_t depth; // bytes of its text, at least 1
		uint32_t next;  // node behind those that go on from it
		uint32_t token; // of this text; kNone: no token has it
	};
	std::span<const Node> nodes() const { return nodes_; }
	uint32_t twin(uint32_t token) const { return twins_[token]; } // another token of the same text, or kNone
	size_t longest() const { return longest_; }                   // bytes of a text

 private:
	void build();
	std::string bytes_;
	std::vector<uint32_t> begin_, ends_, twins_;
	std::vector<Node> nodes_;
	size_t longest_ = 0;
};

// A token that a grammar names: "<|call|>", or "<[1234]>" by its number. Throws Error{NotFound}.
std::string named_token(const Tokenizer&, std::string_view name);
// A text that may have control tokens in it, as the vocabulary has them: they become control_bytes().
std::string marker_bytes(const Tokenizer&, std::string_view text);

} // namespace kvrun::grammar
