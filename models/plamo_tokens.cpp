// PLaMo's unigram tokens.
#include "models/plamo_tokens.h"
#include "engine/core/utf8.h"
#include "models/spm.h"
#include "models/ugm.h"
#include <cmath>

namespace kvrun {
namespace {

constexpr double kScoreSteps = 1e4; // of a file's score
constexpr int64_t kUnknownScore = -10'000'000, kLeastScore = -20'000'000;

// Bytes of the first character; 1 of what is no UTF-8.
size_t character(std::string_view text) { return std::max<size_t>(utf8_char(text, 0), 1); }

} // namespace

PlamoTokens::PlamoTokens(const Vocab& v) : trie_(unigrams_of(v)) {
	for (const float s : v.scores) scores_.push_back(int64_t(std::round(std::clamp(s * kScoreSteps, -1e12, 1e12))));
}

void PlamoTokens::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	// Where no token reaches over a place, the ways on both sides are independent: memory is that of a word.
	size_t begin = 0, reach = 0;
	for (size_t at = 0, n = 0; at < text.size(); at += n) {
		if (at >= reach && at > begin) encode_part(v, text.substr(begin, at - begin), out), begin = at;
		const std::string_view rest = text.substr(at);
		n = character(rest);
		reach = std::max(reach, at + n);
		trie_.each_prefix(rest, [&](size_t bytes, uint32_t) { reach = std::max(reach, at + bytes); });
	}
	if (begin < text.size()) encode_part(v, text.substr(begin), out);
}

// From the end to the beginning: of ways with equal sums the one whose first token is longest counts.
void PlamoTokens::encode_part(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	struct Best { // the best way from a place to the end
		int64_t score;
		uint32_t bytes; // of its first token; 0: inside a character
		uint32_t id;    // or kNoToken: a character without a token
	};
	std::vector<size_t> places; // where characters begin
	for (size_t at = 0; at < text.size(); at += character(text.substr(at))) places.push_back(at);
	std::vector<Best> best(text.size() + 1, {0, 0, kNoToken});
	for (size_t i = places.size(); i-- > 0;) {
		const size_t at = places[i];
		const std::string_view rest = text.substr(at);
		const size_t n = character(rest);
		Best b{best[at + n].score + kUnknownScore, uint32_t(n), kNoToken};
		trie_.each_prefix(rest, [&](size_t bytes, uint32_t id) {
			if (at + bytes < text.size() && !best[at + bytes].bytes) return; // ends inside a character
			const int64_t score = best[at + bytes].score + scores_[id];
			if (scores_[id] > kLeastScore && score >= b.score) b = {score, uint32_t(bytes), id};
		});
		best[at] = b;
	}
	for (size_t at = 0; at < text.size(); at += best[at].bytes) {
		if (best[at].id != kNoToken)
			out.push_back(best[at].id);
		else
			push_byte_tokens(v, text.substr(at, best[at].bytes), out);
	}
}

} // namespace kvrun
