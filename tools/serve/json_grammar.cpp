// Answers that are one JSON object: which bytes may come next, and which tokens.
#include "tools/serve/json_grammar.h"
#include <bitset>
#include <limits>

namespace kvrun::serve {
namespace {

bool is_space(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }
bool is_hex(uint8_t c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

} // namespace

bool JsonReader::push(std::string_view bytes) {
	for (const char c : bytes)
		if (!push(uint8_t(c))) return false;
	return true;
}

bool JsonReader::push(uint8_t c) {
	if (at_ >= At::Text && at_ <= At::Bytes) return text(c);
	if (at_ >= At::Minus && at_ <= At::Exponent) {
		if (number(c)) return true;
		if (!may_end_number()) return false;
		const At before = at_;
		at_ = At::Comma;
		if (structure(c)) return true;
		at_ = before;
		return false;
	}
	if (at_ == At::Word) {
		if (*word_ != char(c)) return false;
		if (!*++word_) close_value();
		return true;
	}
	return structure(c);
}

void JsonReader::close_value() { at_ = open_.empty() ? At::End : At::Comma; }

bool JsonReader::open(char kind) {
	if (open_.size() >= kDeepest) return false;
	open_ += kind;
	at_ = kind == '{' ? At::KeyOrEnd : At::ItemOrEnd;
	return true;
}

// Between values.
bool JsonReader::structure(uint8_t c) {
	if (is_space(c)) {
		if (done() || space_ >= kMostSpace) return false;
		++space_;
		return true;
	}
	const auto moved = [this] { return space_ = 0, true; };
	const bool closes = (c == '}' || c == ']') && !open_.empty() && open_.back() == (c == '}' ? '{' : '[');
	switch (at_) {
	case At::Begin: return c == '{' && open('{') && moved();
	case At::KeyOrEnd:
	case At::Key:
		if (c == '"') return at_ = At::Text, key_ = true, moved();
		if (at_ == At::Key || !closes) return false;
		break;
	case At::Colon: return c == ':' ? (at_ = At::Value, moved()) : false;
	case At::Value: return value(c) && moved();
	case At::ItemOrEnd:
		if (!closes) return value(c) && moved();
		break;
	case At::Comma:
		if (c == ',') return at_ = open_.back() == '{' ? At::Key : At::Value, moved();
		if (!closes) return false;
		break;
	default: return false;
	}
	open_.pop_back();
	close_value();
	return moved();
}

bool JsonReader::value(uint8_t c) {
	switch (c) {
	case '{':
	case '[': return open(char(c));
	case '"': return at_ = At::Text, key_ = false, true;
	case '-': return at_ = At::Minus, true;
	case '0': return at_ = At::Zero, true;
	case 't': return at_ = At::Word, word_ = "rue", true;
	case 'f': return at_ = At::Word, word_ = "alse", true;
	case 'n': return at_ = At::Word, word_ = "ull", true;
	default: return is_digit(c) ? (at_ = At::Digits, true) : false;
	}
}

bool JsonReader::text(uint8_t c) {
	switch (at_) {
	case At::Escape:
		if (c == 'u') return at_ = At::Hex, left_ = 4, true;
		if (std::string_view("\"\\/bfnrt").find(char(c)) == std::string_view::npos) return false;
		return at_ = At::Text, true;
	case At::Hex: // no surrogates, which would have to come in pairs: the character itself says as much
		if (!is_hex(c) || (left_ == 4 && (c == 'd' || c == 'D'))) return false;
		if (--left_ == 0) at_ = At::Text;
		return true;
	case At::Bytes:
		if (c < low_ || c > high_) return false;
		low_ = 0x80, high_ = 0xbf;
		if (--left_ == 0) at_ = At::Text;
		return true;
	default: break;
	}
	if (c == '"') {
		if (key_)
			at_ = At::Colon;
		else
			close_value();
		return true;
	}
	if (c == '\\') return at_ = At::Escape, true;
	if (c < 0x20 || (c >= 0x80 && c < 0xc2) || c > 0xf4) return false;
	if (c < 0x80) return true;
	left_ = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
	low_ = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80; // no overlong forms, surrogates, or code points beyond the last
	high_ = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
	at_ = At::Bytes;
	return true;
}

bool JsonReader::may_end_number() const {
	return at_ == At::Zero || at_ == At::Digits || at_ == At::Fraction || at_ == At::Exponent;
}

bool JsonReader::number(uint8_t c) {
	const bool e = c == 'e' || c == 'E';
	switch (at_) {
	case At::Minus: return is_digit(c) ? (at_ = c == '0' ? At::Zero : At::Digits, true) : false;
	case At::Zero:
	case At::Digits:
		if (is_digit(c)) return at_ == At::Digits;
		if (c == '.') return at_ = At::Point, true;
		return e ? (at_ = At::E, true) : false;
	case At::Point:
	case At::Fraction:
		if (is_digit(c)) return at_ = At::Fraction, true;
		return e && at_ == At::Fraction ? (at_ = At::E, true) : false;
	case At::E:
		if (c == '+' || c == '-') return at_ = At::Sign, true;
		[[fallthrough]];
	default: return is_digit(c) ? (at_ = At::Exponent, true) : false;
	}
}

TokenTexts::TokenTexts(const Model& model) : texts_(model.info().vocab) {
	for (uint32_t t = 0; t < texts_.size(); ++t) texts_[t] = model.token_text(t, /*special=*/false);
}

bool JsonGrammar::mask(std::span<float> logits) const {
	std::bitset<256> first; // most tokens are ruled out by their first byte
	for (size_t c = 0; c < 256; ++c) first[c] = JsonReader(reader_).push(uint8_t(c));
	bool any = false;
	for (size_t t = 0; t < logits.size(); ++t) {
		const std::string& text = texts_->all()[t];
		const bool good = !text.empty() && first[uint8_t(text[0])] && JsonReader(reader_).push(text);
		if (!good) logits[t] = -std::numeric_limits<float>::infinity();
		any |= good && logits[t] > -std::numeric_limits<float>::infinity();
	}
	return any;
}

void JsonGrammar::accept(uint32_t token) {
	if (token < texts_->all().size()) reader_.push(texts_->all()[token]);
}

} // namespace kvrun::serve
