// Answers that are one JSON object: which bytes may come next, and which tokens.
#pragma once
#include "tools/serve/model.h"
#include <memory>
#include <span>

namespace kvrun::serve {

// A JSON object as it comes, byte by byte (RFC 8259; strings are UTF-8).
class JsonReader {
 public:
	bool push(uint8_t byte); // false: no object goes on like this, and nothing has changed
	bool push(std::string_view bytes);
	bool done() const { return at_ == At::End; }

 private:
	enum class At : uint8_t {
		Begin,     // of the object
		KeyOrEnd,  // after {
		Key,       // after , in an object
		Colon,     // after a key
		Value,     // after : or ,
		ItemOrEnd, // after [
		Comma,     // after a value
		Text,      // inside a string
		Escape,    // after its backslash
		Hex,       // of \u
		Bytes,     // of a character
		Minus,     // a number: after its sign
		Zero,      // after a 0 that begins it
		Digits,    // of its integer part
		Point,     // after the point
		Fraction,  // digits after it
		E,         // after e
		Sign,      // after its sign
		Exponent,  // digits after it
		Word,      // inside true, false, null
		End,
	};
	bool structure(uint8_t byte);
	bool value(uint8_t byte);
	bool text(uint8_t byte);
	bool number(uint8_t byte);
	bool may_end_number() const;
	bool open(char kind);
	void close_value();

	static constexpr size_t kDeepest = 32;
	static constexpr uint8_t kMostSpace = 40; // bytes of white space in a row: a model must not write it without end
	At at_ = At::Begin;
	bool key_ = false;                 // the string is one
	uint8_t left_ = 0;                 // bytes of a character or hex digits to come
	uint8_t low_ = 0x80, high_ = 0xbf; // what the next byte of the character may be
	uint8_t space_ = 0;
	const char* word_ = ""; // rest of true, false, null
	std::string open_;      // { and [ that are open
};

// The bytes that each token adds to a text.
class TokenTexts {
 public:
	explicit TokenTexts(const Model&); // throws ApiError
	std::span<const std::string> all() const { return texts_; }

 private:
	std::vector<std::string> texts_; // by token; empty: control tokens
};

class JsonGrammar {
 public:
	explicit JsonGrammar(std::shared_ptr<const TokenTexts> texts) : texts_(std::move(texts)) {}
	// Rules out all tokens that no object goes on with. False: none is left.
	bool mask(std::span<float> logits) const;
	void accept(uint32_t token);
	bool done() const { return reader_.done(); }

 private:
	std::shared_ptr<const TokenTexts> texts_;
	JsonReader reader_;
};

} // namespace kvrun::serve
