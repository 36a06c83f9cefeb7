// Trie of the texts of all tokens.
#include "models/grammar/token_trie.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/grammar/automaton.h"
#include "models/tokenizer.h"
#include <algorithm>
#include <charconv>
#include <numeric>

namespace kvrun::grammar {
namespace {

std::vector<std::string> texts_of(const Tokenizer& t) {
	// what a token adds depends on whether a text begins with it: here it does not
	std::optional<uint32_t> before;
	for (uint32_t id = 0; id < t.vocab() && !before; ++id)
		if (t.kind(id) == TokenKind::Normal && t.decode_one({}, id) == "a") before = id;
	std::vector<std::string> out(t.vocab());
	for (uint32_t id = 0; id < t.vocab(); ++id) {
		if (t.kind(id) == TokenKind::Control)
			out[id] = control_bytes(t.text(id));
		else if (t.kind(id) != TokenKind::Unused && t.kind(id) != TokenKind::Unknown)
			out[id] = t.decode_one(before, id, /*special=*/true);
		// UTF-8 has no bytes from 0xf5 on; some of them mark control tokens here
		if (t.kind(id) != TokenKind::Control && std::ranges::any_of(out[id], [](char c) { return uint8_t(c) >= 0xf5; }))
			out[id].clear();
	}
	return out;
}

} // namespace

static std::string bytes_of(const Tokenizer& t, uint32_t id) {
	return t.kind(id) == TokenKind::Control ? control_bytes(t.text(id)) : t.decode_one(id, id, /*special=*/true);
}

std::string named_token(const Tokenizer& t, std::string_view name) {
	if (const auto id = t.find(name)) return bytes_of(t, *id);
	uint32_t id = 0;
	const std::string_view number = name.size() > 4 ? name.substr(2, name.size() - 4) : "";
	const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), id);
	if (name.starts_with("<[") && name.ends_with("]>") && error == std::errc() &&
	    end == number.data() + number.size() && id < t.vocab())
		return bytes_of(t, id);
	fail(Code::NotFound, "the grammar names the token {}, which the vocabulary does not have", one_line(name, 60));
}

std::string marker_bytes(const Tokenizer& t, std::string_view text) {
	std::string out;
	for (size_t at = 0; at < text.size();) {
		size_t n = text.size() - at;
		for (; n > 1; --n) { // finds the longest control token that begins here
			const auto id = t.find(text.substr(at, n));
			if (id && t.kind(*id) == TokenKind::Control) break;
		}
		if (n > 1)
			out += control_bytes(text.substr(at, n));
		else
			out += text[at];
		at += n;
	}
	return out;
}

TokenTrie::TokenTrie(const Tokenizer& t) : TokenTrie(texts_of(t), t.end_ids()) {}

TokenTrie::TokenTrie(std::span<const std::string> texts, std::vector<uint32_t> ends) : ends_(std::move(ends)) {
	std::ranges::sort(ends_);
	for (const std::string& t : texts) {
		begin_.push_back(uint32_t(bytes_.size()));
		if (t.size() <= UINT16_MAX) bytes_ += t;
		longest_ = std::max(longest_, t.size());
	}
	begin_.push_back(uint32_t(bytes_.size()));
	build();
}

bool TokenTrie::is_end(uint32_t token) const { return std::ranges::binary_search(ends_, token); }

void TokenTrie::build() {
	std::vector<uint32_t> order(vocab());
	std::iota(order.begin(), order.end(), 0u);
	std::erase_if(order, [&](uint32_t t) { return text(t).empty(); });
	std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
		const int c = text(a).compare(text(b)); // compares unsigned bytes
		return c ? c < 0 : a < b;
	});
	twins_.assign(vocab(), kNone);
	std::vector<uint32_t> open; // nodes on the path of the latest text
	std::string_view last;
	uint32_t last_token = kNone;
	for (const uint32_t t : order) {
		const std::string_view s = text(t);
		if (last_token != kNone && s == last) {
			twins_[t] = nodes_[open.back()].token; // linked list of tokens with this text; it begins at the node
			nodes_[open.back()].token = t;
			continue;
		}
		const size_t same = size_t(std::mismatch(s.begin(), s.end(), last.begin(), last.end()).first - s.begin());
		for (; open.size() > same; open.pop_back()) nodes_[open.back()].next = uint32_t(nodes_.size());
		for (size_t i = same; i < s.size(); ++i) {
			open.push_back(uint32_t(nodes_.size()));
			nodes_.push_back({uint8_t(s[i]), uint16_t(i + 1), 0, kNone});
		}
		nodes_[open.back()].token = t;
		last = s, last_token = t;
	}
	for (const uint32_t n : open) nodes_[n].next = uint32_t(nodes_.size());
}

} // namespace kvrun::grammar
