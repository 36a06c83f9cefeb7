// Byte-level BPE.
#include "models/bpe.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "models/merge_list.h"

namespace kvrun {
namespace {

// The alphabet of byte-level BPE: a byte that is a visible Latin-1 character is written as that character; the other 68
// bytes are written, in order, as U+0100 and up.
struct Alphabet {
	std::string of_byte[256];  // UTF-8 of the character that a byte is written as
	int16_t of_code[256 + 68]; // byte that a character stands for, or -1
	Alphabet() {
		uint32_t next = 256;
		for (int16_t& b : of_code) b = -1;
		for (uint32_t b = 0; b < 256; ++b) {
			const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
			const uint32_t code = visible ? b : next++;
			of_code[code] = int16_t(b);
			of_byte[b] =
			    code < 128 ? std::string(1, char(code)) : std::string{char(0xc0 | code >> 6), char(0x80 | (code & 63))};
		}
	}
};
const Alphabet& alphabet() {
	static const Alphabet a;
	return a;
}

std::string as_characters(std::string_view bytes) {
	std::string out;
	for (char c : bytes) out += alphabet().of_byte[uint8_t(c)];
	return out;
}

// The token of bytes that are written as characters of the alphabet. The text of a user-defined token is not written in
// that alphabet: such a token matches only where its text is the same in both.
uint32_t token_of(const Vocab& v, const std::string& characters) {
	const uint32_t id = v.find_word(characters);
	if (id == kNoToken || v.kinds[id] != TokenKind::UserDefined) return id;
	return Bpe::bytes_of(characters) == characters ? id : kNoToken;
}

std::string read_pre(const Gguf& g) {
	const char* key = "tokenizer.ggml.pre";
	if (!g.find(key))
		warn_once(fmt::format("{}: key {} is missing, taking 'default'; numbers and signs may be split wrongly",
		                      g.name(), key));
	return std::string(g.text(key, "default"));
}

} // namespace

Bpe::Bpe(const Gguf& g, const Vocab& v) : pre_name_(read_pre(g)), pre_(pre_name_, g.name()) { read_merges(g, v); }

void Bpe::read_merges(const Gguf& g, const Vocab& v) {
	// Symbols are numbered by text. A symbol that is not a token can still be a step towards one.
	std::unordered_map<std::string, uint32_t, TextHash> symbols;
	auto symbol = [&](std::string text) {
		const auto [i, is_new] = symbols.emplace(std::move(text), uint32_t(symbol_tokens_.size()));
		if (!is_new) return i->second;
		symbol_tokens_.push_back(token_of(v, i->first));
		return i->second;
	};
	for (const std::string& c : alphabet().of_byte) symbol(c);
	each_merge(g, v.file, [&](uint32_t rank, std::string_view first, std::string_view second) {
		const std::string left(first), right(second);
		const uint32_t a = symbol(left), b = symbol(right);
		merges_.insert(a, b, {rank, symbol(left + right)});
	});
}

void Bpe::push_symbol(const Vocab& v, uint32_t symbol, std::string_view bytes, std::vector<uint32_t>& out) const {
	if (symbol_tokens_[symbol] != kNoToken) {
		out.push_back(symbol_tokens_[symbol]);
		return;
	}
	for (char c : bytes) {
		const uint32_t id = symbol_tokens_[uint8_t(c)];
		if (id == kNoToken)
			fail(Code::Invalid, "{}: the vocabulary has no token for byte 0x{:02X}; is the text UTF-8?", v.file,
			     uint8_t(c));
		out.push_back(id);
	}
}

void Bpe::piece(const Vocab& v, std::string_view piece, std::vector<Symbol>& s, std::vector<uint32_t>& out) const {
	if (pre_.whole_words()) {
		const uint32_t id = token_of(v, as_characters(piece));
		if (id != kNoToken) {
			out.push_back(id);
			return;
		}
	}
	s.clear();
	for (uint32_t i = 0; i < piece.size(); ++i)
		s.push_back({i, 1, uint8_t(piece[i]), i - 1, i + 1}); // i - 1 wraps to kEnd for the first
	s.back().next = Symbol::kEnd;
	join_symbols(s, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
		const Join* j = merges_.find(left.id, right.id);
		return j ? std::optional(*j) : std::nullopt;
	});
	for (uint32_t i = 0; i != Symbol::kEnd; i = s[i].next) push_symbol(v, s[i].id, piece.substr(s[i].at, s[i].n), out);
}

void Bpe::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	std::vector<Symbol> symbols;
	std::string kept;
	if (pre_.composes()) text = kept = composed(text);
	for (std::string_view p : pre_.split(text)) piece(v, p, symbols, out);
}

std::string Bpe::bytes_of(std::string_view t) {
	std::string out;
	for (size_t at = 0; at < t.size();) {
		const size_t n = utf8_char(t, at);
		const uint32_t code = n == 1   ? uint8_t(t[at])
		                      : n == 2 ? (uint8_t(t[at]) & 31u) << 6 | (uint8_t(t[at + 1]) & 63u)
		                               : UINT32_MAX;
		const int byte = code < std::size(alphabet().of_code) ? alphabet().of_code[code] : -1;
		if (byte >= 0)
			out += char(byte);
		else
			out.append(t, at, n ? n : 1);
		at += n ? n : 1;
	}
	return out;
}

} // namespace kvrun
