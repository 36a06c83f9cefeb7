// SentencePiece-style tokens that a list of merges makes.
#include "models/spm_merges.h"
#include "engine/core/utf8.h"
#include "models/merge_list.h"
#include "models/spm.h"
#include <algorithm>
#include <unordered_map>

namespace kvrun {

// Bytes of the character at `at`, or 1 if none begins there.
static uint32_t character(std::string_view s, size_t at) { return uint32_t(std::max<size_t>(utf8_char(s, at), 1)); }

// Up to 4 bytes as a number.
static uint32_t bytes_of(std::string_view character) {
	uint32_t n = 0;
	for (const char c : character) n = n << 8 | uint8_t(c);
	return n;
}

SpmMerges::SpmMerges(const Gguf& g, const Vocab& v) {
	std::unordered_map<std::string, uint32_t, TextHash> symbols; // not all are tokens: some are steps towards one
	const auto symbol = [&](std::string text) {
		const auto [i, is_new] = symbols.emplace(std::move(text), uint32_t(symbol_tokens_.size()));
		if (is_new) symbol_tokens_.push_back(v.find_word(i->first));
		return i->second;
	};
	each_merge(g, v.file, [&](uint32_t rank, std::string_view left, std::string_view right) {
		const uint32_t a = symbol(std::string(left)), b = symbol(std::string(right));
		merges_.insert(a, b, {rank, symbol(std::string(left) + std::string(right))});
	});
	for (const auto& [text, id] : symbols)
		if (character(text, 0) == text.size()) characters_.insert(bytes_of(text), uint32_t(text.size()), id);
}

void SpmMerges::run(const Vocab& v, std::string_view run, std::vector<Symbol>& s, std::vector<uint32_t>& out) const {
	s.clear();
	for (size_t at = 0; at < run.size();) {
		const uint32_t n = character(run, at), i = uint32_t(s.size());
		const uint32_t* id = characters_.find(bytes_of(run.substr(at, n)), n);
		s.push_back({uint32_t(at), n, id ? *id : Symbol::kEnd, i - 1, i + 1}); // i - 1 wraps to kEnd for the first
		at += n;
	}
	s.back().next = Symbol::kEnd;
	join_symbols(s, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
		if (left.id == Symbol::kEnd || right.id == Symbol::kEnd) return {};
		const Join* j = merges_.find(left.id, right.id);
		return j ? std::optional(*j) : std::nullopt;
	});
	for (uint32_t i = 0; i != Symbol::kEnd; i = s[i].next) {
		const std::string_view text = run.substr(s[i].at, s[i].n);
		const uint32_t id = s[i].id == Symbol::kEnd ? v.find_word(text) : symbol_tokens_[s[i].id];
		if (id != kNoToken)
			out.push_back(id);
		else
			push_byte_tokens(v, text, out);
	}
}

// Line breaks are joined only with line breaks.
void SpmMerges::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	std::vector<Symbol> symbols;
	for (size_t at = 0; at < text.size();) {
		const size_t other = text[at] == '\n' ? text.find_first_not_of('\n', at) : text.find('\n', at);
		const size_t end = std::min(other, text.size());
		run(v, text.substr(at, end - at), symbols, out);
		at = end;
	}
}

} // namespace kvrun
