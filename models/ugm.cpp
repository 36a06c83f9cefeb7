// SentencePiece's unigram tokens.
#include "models/ugm.h"
#include "engine/core/utf8.h"
#include "models/spm.h"
#include <limits>

namespace kvrun {
namespace {

// A token begins in at most this many places before each byte, which bounds the time; real ones have at most a hundred.
constexpr size_t kMaxPieceBytes = 512;
// Of a normalized text. A few characters become ten others.
constexpr size_t kMaxNormalized = 4 * Tokenizer::kMaxText;
constexpr double kUnknownPenalty = 10; // below the lowest score; SentencePiece's

bool is_unigram(const Vocab& v, uint32_t id) {
	return v.kinds[id] == TokenKind::Normal || v.kinds[id] == TokenKind::UserDefined;
}

} // namespace

std::vector<PieceTrie::Piece> unigrams_of(const Vocab& v) {
	std::vector<PieceTrie::Piece> out;
	for (uint32_t id = 0; id < v.size(); ++id) {
		if (!is_unigram(v, id)) continue;
		if (v.texts[id].size() > kMaxPieceBytes)
			fail(Code::Format,
			     "{}: key tokenizer.ggml.tokens: token {}, '{}', has {} bytes, at most {} are accepted "
			     "in a unigram vocabulary; the file is damaged",
			     v.file, id, one_line(v.texts[id], 40), v.texts[id].size(), kMaxPieceBytes);
		out.push_back({v.texts[id], id});
	}
	return out;
}

Ugm::Ugm(const Gguf& g, const Vocab& v) : charsmap_(g), trie_(unigrams_of(v)) {
	strips_ = g.flag("tokenizer.ggml.remove_extra_whitespaces", false);
	double lowest = std::numeric_limits<double>::max(), highest = std::numeric_limits<double>::lowest();
	for (uint32_t id = 0; id < v.size(); ++id) {
		if (v.kinds[id] != TokenKind::Normal) continue;
		lowest = std::min(lowest, double(v.scores[id]));
		highest = std::max(highest, double(v.scores[id]));
	}
	if (lowest > highest) lowest = highest = 0; // there are no words
	unknown_score_ = lowest - kUnknownPenalty;
	scores_.assign(v.scores.begin(), v.scores.end());
	// SentencePiece's rule, by which the token wins against any tokens for the same text
	for (uint32_t id = 0; id < v.size(); ++id)
		if (v.kinds[id] == TokenKind::UserDefined) scores_[id] = double(v.texts[id].size()) * highest - 0.1;
}

// The first character or sequence of `text`, and what the normalizer makes of it.
Charsmap::Hit Ugm::step(std::string_view text) const {
	const Charsmap::Hit hit = charsmap_.longest(text);
	if (hit.bytes > 0) return hit;
	const size_t n = utf8_char(text, 0);
	return n > 0 ? Charsmap::Hit{n, text.substr(0, n)} : Charsmap::Hit{1, "\xef\xbf\xbd"};
}

std::string Ugm::normalized(const Vocab& v, std::string_view text, bool space_prefix) const {
	size_t at = 0;
	while (strips_ && at < text.size()) {
		const Charsmap::Hit s = step(text.substr(at));
		if (s.text != " ") break;
		at += s.bytes;
	}
	std::string out;
	if (at == text.size()) return out;
	out.reserve(text.size() + text.size() / 4);
	if (space_prefix) out += kSpaceMark;
	bool after_space = strips_;
	while (at < text.size()) {
		Charsmap::Hit s = step(text.substr(at));
		at += s.bytes;
		while (after_space && s.text.starts_with(' ')) s.text.remove_prefix(1);
		if (s.text.empty()) continue;
		for (char c : s.text) {
			if (c == ' ')
				out += kSpaceMark;
			else
				out += c;
		}
		after_space = strips_ && s.text.ends_with(' ');
		if (out.size() > kMaxNormalized)
			fail(Code::Invalid, "{}: normalized, the text has more than {} bytes; give it in parts", v.file,
			     kMaxNormalized);
	}
	while (strips_ && out.ends_with(kSpaceMark)) out.resize(out.size() - kSpaceMark.size());
	return out;
}

// Turns the best ways through successive parts of a text into tokens.
class Ugm::Path {
 public:
	Path(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) : v_(v), text_(text), out_(out) {
		for (uint32_t byte : v.byte_tokens) has_bytes_ |= byte != kNoToken;
	}
	// best: of the bytes [begin, begin + best.size() - 1)
	void take(size_t begin, const std::vector<Best>& best) {
		steps_.clear();
		for (size_t n = best.size() - 1; n > 0; n -= best[n].bytes) steps_.push_back(best[n]);
		for (size_t i = steps_.size(); i-- > 0; begin += steps_[i].bytes) {
			if (steps_[i].id != kNoToken)
				out_.push_back(steps_[i].id);
			else
				unknown(text_.substr(begin, steps_[i].bytes));
			after_unknown_ = steps_[i].id == kNoToken;
		}
	}

 private:
	void unknown(std::string_view bytes) {
		if (has_bytes_) return push_byte_tokens(v_, bytes, out_);
		if (v_.unknown == kNoToken)
			fail(Code::Invalid, "{}: the vocabulary has no token for '{}', and no unknown token", v_.file,
			     one_line(bytes));
		if (!after_unknown_) out_.push_back(v_.unknown); // one for all neighbours
	}
	const Vocab& v_;
	const std::string_view text_;
	std::vector<uint32_t>& out_;
	std::vector<Best> steps_;
	bool has_bytes_ = false, after_unknown_ = false;
};

// Viterbi's algorithm. Where no token reaches over a place, the best way leads through it, so that the text up to there
// is done: sums stay short and exact, and memory is that of a word.
void Ugm::encode(const Vocab& v, std::string_view raw, bool space_prefix, std::vector<uint32_t>& out) const {
	const std::string text = normalized(v, raw, space_prefix);
	const Best none{-std::numeric_limits<double>::infinity(), 0, kNoToken};
	std::vector<Best> best = {{0, 0, kNoToken}}; // of the places from `begin` on
	size_t begin = 0;
	Path path(v, text, out);
	for (size_t at = 0, n = 0; at < text.size(); at += n) {
		if (at > begin && at - begin == best.size() - 1) {
			path.take(begin, best);
			begin = at;
			best.assign(1, {0, 0, kNoToken});
		}
		const std::string_view rest = std::string_view(text).substr(at);
		// replacements of a damaged file may be no UTF-8
		n = std::min(std::max<size_t>(utf8_lead(uint8_t(rest[0])), 1), rest.size());
		const size_t place = at - begin;
		const double score = best[place].score;
		const auto offer = [&](size_t bytes, uint32_t id, double of_token) {
			if (best.size() <= place + bytes) best.resize(place + bytes + 1, none);
			Best& b = best[place + bytes];
			if (score + of_token > b.score) b = {score + of_token, uint32_t(bytes), id};
		};
		bool known = false; // the character is a token
		trie_.each_prefix(rest, [&](size_t bytes, uint32_t id) {
			known |= bytes == n;
			offer(bytes, id, scores_[id]);
		});
		if (!known) offer(n, kNoToken, unknown_score_);
	}
	if (!text.empty()) path.take(begin, best);
}

} // namespace kvrun
