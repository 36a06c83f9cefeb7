// Trie of the texts of all tokens: tokens with a common prefix are checked together.
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

	// texts: what each token adds to a text; tokens with an empty text are never allowed. ends: tokens that end an
	// answer.
	TokenTrie(std::span<const std::string> texts, std::vector<uint32_t> ends);
	explicit TokenTrie(const Tokenizer&); // control tokens as control_bytes()

	uint32_t vocab() const { return uint32_t(begin_.size() - 1); }
	std::string_view text(uint32_t token) const {
		return std::string_view(bytes_).substr(begin_[token], begin_[token + 1] - begin_[token]);
	}
	std::span<const uint32_t> ends() const { return ends_; }
	bool is_end(uint32_t token) const;

	// Nodes in order of their texts: each precedes its descendants.
	struct Node {
		uint8_t byte;   // last byte of its text
		uint16_t depth; // bytes of its text, at least 1
		uint32_t next;  // first node after its descendants
		uint32_t token; // a token with this text, or kNone
	};
	std::span<const Node> nodes() const { return nodes_; }
	uint32_t twin(uint32_t token) const { return twins_[token]; } // another token with the same text, or kNone
	size_t longest() const { return longest_; }                   // bytes of the longest text

 private:
	void build();
	std::string bytes_;
	std::vector<uint32_t> begin_, ends_, twins_;
	std::vector<Node> nodes_;
	size_t longest_ = 0;
};

// Bytes of a token named in a grammar: "<|call|>", or "<[1234]>" by its number. Throws Error{NotFound}.
std::string named_token(const Tokenizer&, std::string_view name);
// Bytes of a text in which control tokens of the vocabulary become control_bytes().
std::string marker_bytes(const Tokenizer&, std::string_view text);

} // namespace kvrun::grammar
