// Text <-> token ids: finds special tokens in a text, encodes the rest by the rules of the vocabulary.
#include "models/tokenizer.h"
#include "engine/core/utf8.h"
#include "models/bpe.h"
#include "models/families.h"
#include "models/longest.h"
#include "models/plamo_tokens.h"
#include "models/special_tokens.h"
#include "models/spm.h"
#include "models/spm_merges.h"
#include "models/ugm.h"
#include "models/wpm.h"
#include <algorithm>
#include <utility>

namespace kvrun {
namespace {

std::string with_marks(std::string_view text, bool prefix) {
	std::string out(prefix ? kSpaceMark : "");
	for (char c : text) {
		if (c == ' ')
			out += kSpaceMark;
		else
			out += c;
	}
	return out;
}

std::string without_marks(std::string_view text) {
	std::string out;
	for (size_t at = 0; at < text.size();) {
		if (text.substr(at, kSpaceMark.size()) == kSpaceMark) {
			out += ' ';
			at += kSpaceMark.size();
		} else {
			out += text[at++];
		}
	}
	return out;
}

} // namespace

struct Tokenizer::Model {
	Vocab vocab;
	SpecialTokens special;
	std::optional<Spm> spm; // exactly one of the six is set
	std::optional<SpmMerges> merges;
	std::optional<Bpe> bpe;
	std::optional<Wpm> wpm;
	std::optional<Ugm> ugm;
	std::optional<Longest> longest;
	std::optional<PlamoTokens> plamo;
	std::string chat_template;
	bool adds_bos = false, adds_eos = false, adds_sep = false;
	bool space_prefix = false;   // a space precedes text at the start and after a special token
	bool special_strips = false; // white space after a control token is dropped

	explicit Model(const Gguf& g) : vocab(g), special(vocab) {
		switch (vocab.model) {
		case VocabModel::Spm: spm.emplace(vocab); break;
		case VocabModel::SpmMerges: merges.emplace(g, vocab); break;
		case VocabModel::Bpe: bpe.emplace(g, vocab); break;
		case VocabModel::Wpm: wpm.emplace(g, vocab); break;
		case VocabModel::Ugm: ugm.emplace(g, vocab); break;
		case VocabModel::Longest: longest.emplace(vocab); break;
		case VocabModel::Plamo: plamo.emplace(vocab); break;
		}
		read_ends(g);
		space_prefix = vocab.has_marks() && g.flag("tokenizer.ggml.add_space_prefix", !ugm);
		// GGUF has no key for this
		const Family* family = g.find("general.architecture") ? find_family(g.text("general.architecture")) : nullptr;
		special_strips = (spm || merges) && family && family->strips_after_special;
		chat_template = g.text("tokenizer.chat_template", "");
	}

	uint32_t end() const { return wpm && vocab.sep != kNoToken ? vocab.sep : vocab.eos; } // of a text to embed

	void read_ends(const Gguf& g) {
		const bool bare = ugm || plamo || longest;
		adds_bos = g.flag("tokenizer.ggml.add_bos_token", bare ? false : bpe ? bpe->pre().adds_bos() : true);
		if (merges && vocab.bos != kNoToken) adds_bos = true; // files of Gemma 4 from before April 2026 say false
		if (adds_bos && vocab.bos == kNoToken) {
			if (g.find("tokenizer.ggml.add_bos_token"))
				fail(Code::Format,
				     "{}: key tokenizer.ggml.add_bos_token is set, but no BOS token is named; the file is damaged",
				     g.name());
			if (wpm)
				fail(Code::Format, "{}: no token is named CLS, with which texts begin; the file is damaged", g.name());
			adds_bos = false;
		}
		adds_eos = g.flag("tokenizer.ggml.add_eos_token", wpm || ugm);
		// of BERT's files some say only that a separator ends a text; others mean by false that none parts two texts
		adds_sep = g.flag("tokenizer.ggml.add_sep_token", bpe && bpe->pre().parts_pairs());
		if (wpm) adds_eos |= std::exchange(adds_sep, false);
		if (adds_eos && end() == kNoToken) {
			if (wpm || ugm)
				fail(Code::Format, "{}: no token is named {}, with which texts end; the file is damaged", g.name(),
				     wpm ? "SEP" : "EOS");
			adds_eos = false;
		}
	}

	void encode_words(std::string_view text, bool prefix, std::vector<uint32_t>& out) const {
		if (bpe) return bpe->encode(vocab, text, out);
		if (longest) return longest->encode(vocab, text, out);
		if (wpm) return wpm->encode(vocab, text, out);
		if (plamo) return plamo->encode(vocab, text, out);
		if (ugm) return ugm->encode(vocab, text, prefix && space_prefix, out);
		const std::string marked = with_marks(text, prefix && space_prefix);
		if (merges)
			merges->encode(vocab, marked, out);
		else
			spm->encode(vocab, marked, out);
	}

	// Where the text continues after special token `id`.
	size_t after(uint32_t id, std::string_view text, size_t at) const {
		if (!special_strips || vocab.kinds[id] != TokenKind::Control || vocab.texts[id] == "<s>" ||
		    vocab.texts[id] == "<|endoftext|>")
			return at;
		while (at < text.size() && std::string_view(" \t\n\v\f\r").find(text[at]) != std::string_view::npos) ++at;
		return at;
	}

	// WordPiece: words are parted by a space, except before what ends a sentence or a part of one.
	std::string decode_word(std::optional<uint32_t> prev, uint32_t id, bool special) const {
		const bool role = vocab.kinds[id] == TokenKind::Control || vocab.kinds[id] == TokenKind::Unknown;
		if (role && !special) return {};
		std::string_view t = vocab.texts[id];
		const bool begins = role || (t.starts_with(kSpaceMark) && t != kSpaceMark);
		if (begins && !role) t.remove_prefix(kSpaceMark.size());
		const bool first = !prev || (!special && *prev == vocab.bos);
		const bool attached = first || !begins || t == "." || t == "," || t == "!" || t == "?";
		return (attached ? "" : " ") + std::string(t);
	}

	void check(uint32_t id) const {
		if (id >= vocab.size())
			fail(Code::Invalid, "token {} does not exist, {} has {} tokens", id, vocab.file, vocab.size());
	}
};

Tokenizer::Tokenizer(const Gguf& g) : model_(std::make_unique<Model>(g)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<uint32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
	const Model& m = *model_;
	if (text.size() > kMaxText)
		fail(Code::Invalid, "the text has {} bytes, at most {} can be encoded at once", text.size(), kMaxText);
	std::vector<uint32_t> out;
	if (options.bos && m.adds_bos) out.push_back(m.vocab.bos);
	bool prefix = true;
	SpecialTokens::Finder special(m.special, text, options.special);
	for (size_t at = 0; at < text.size();) {
		const SpecialTokens::Hit hit = special.next(at);
		if (hit.at > at) {
			m.encode_words(text.substr(at, hit.at - at), prefix, out);
			prefix = false;
		}
		at = hit.at;
		if (hit.id == kNoToken) break;
		out.push_back(hit.id);
		at = m.after(hit.id, text, at + m.vocab.texts[hit.id].size());
		prefix = true;
	}
	if (options.eos && m.adds_eos) out.push_back(m.end());
	return out;
}

std::vector<uint32_t> Tokenizer::encode_ranges(std::string_view text, std::span<const TextRange> ranges,
                                               bool bos) const {
	using Hit = SpecialTokens::Hit;
	const Model& m = *model_;
	if (text.size() > kMaxText)
		fail(Code::Invalid, "the text has {} bytes, at most {} can be encoded at once", text.size(), kMaxText);
	SpecialTokens::Finder user_defined(m.special, text, /*control=*/false);
	std::optional<SpecialTokens::Finder> control; // in the text of ranges[range]
	size_t range = 0;                             // ranges before this one are done
	const auto next_in_ranges = [&](size_t from) -> Hit {
		for (; range < ranges.size(); ++range, control.reset()) {
			const auto [begin, end] = ranges[range];
			if (end <= from) continue;
			if (!control) control.emplace(m.special, text.substr(begin, end - begin), /*control=*/true);
			const Hit hit = control->next(std::max(begin, from) - begin);
			if (hit.id != kNoToken) return {begin + hit.at, hit.id};
		}
		return {text.size(), kNoToken};
	};
	const auto length = [&](const Hit& h) { return h.id == kNoToken ? 0 : m.vocab.texts[h.id].size(); };
	std::vector<uint32_t> out;
	if (bos && m.adds_bos) out.push_back(m.vocab.bos);
	Hit anywhere = user_defined.next(0), inside = next_in_ranges(0);
	bool prefix = true;
	for (size_t at = 0; at < text.size();) {
		if (anywhere.at < at) anywhere = user_defined.next(at);
		if (inside.at < at) inside = next_in_ranges(at);
		const bool first = inside.at < anywhere.at || (inside.at == anywhere.at && length(inside) >= length(anywhere));
		const Hit hit = first ? inside : anywhere; // the earlier hit; of two at one position the longer
		if (hit.at > at) {
			m.encode_words(text.substr(at, hit.at - at), prefix, out);
			prefix = false;
		}
		at = hit.at;
		if (hit.id == kNoToken) break;
		out.push_back(hit.id);
		at = m.after(hit.id, text, at + length(hit));
		prefix = true;
	}
	return out;
}

std::string Tokenizer::decode_one(std::optional<uint32_t> prev, uint32_t id, bool special) const {
	const Vocab& v = model_->vocab;
	model_->check(id);
	if (prev) model_->check(*prev);
	if (model_->wpm) return model_->decode_word(prev, id, special);
	const TokenKind kind = v.kinds[id];
	if (kind == TokenKind::Control || kind == TokenKind::Unknown)
		return special ? std::string(v.texts[id]) : std::string();
	if (kind == TokenKind::UserDefined) return std::string(v.texts[id]);
	if (v.model == VocabModel::Longest) return std::string(v.texts[id]);
	if (!v.has_bytes()) return Bpe::bytes_of(v.texts[id]);
	if (v.byte_values[id] < 0 && !v.has_marks()) return std::string(v.texts[id]);
	std::string out = v.byte_values[id] >= 0 ? std::string(1, char(v.byte_values[id])) : without_marks(v.texts[id]);
	const bool first = !prev || v.is_special(*prev); // encode() added a space before it
	if (first && model_->space_prefix && out.starts_with(' ')) out.erase(0, 1);
	return out;
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool special) const {
	std::string out;
	std::optional<uint32_t> prev;
	for (uint32_t id : ids) {
		out += decode_one(prev, id, special);
		prev = id;
	}
	return out;
}

uint32_t Tokenizer::vocab() const { return model_->vocab.size(); }
const char* Tokenizer::model() const {
	const Model& m = *model_;
	return m.bpe ? "bpe" : m.wpm ? "wpm" : m.ugm ? "ugm" : m.plamo ? "plamo2" : m.longest ? "rwkv" : "spm";
}
std::string_view Tokenizer::pre() const {
	return model_->bpe ? std::string_view(model_->bpe->pre_name()) : std::string_view();
}
std::string_view Tokenizer::text(uint32_t id) const {
	model_->check(id);
	return model_->vocab.texts[id];
}
TokenKind Tokenizer::kind(uint32_t id) const {
	model_->check(id);
	return model_->vocab.kinds[id];
}
std::optional<uint32_t> Tokenizer::find(std::string_view text) const {
	const uint32_t id = model_->vocab.find(text);
	return id == kNoToken ? std::nullopt : std::optional(id);
}
std::optional<uint32_t> Tokenizer::bos() const {
	return model_->vocab.bos == kNoToken ? std::nullopt : std::optional(model_->vocab.bos);
}
std::optional<uint32_t> Tokenizer::eos() const {
	return model_->vocab.eos == kNoToken ? std::nullopt : std::optional(model_->vocab.eos);
}
std::optional<uint32_t> Tokenizer::sep() const {
	return model_->vocab.sep == kNoToken ? std::nullopt : std::optional(model_->vocab.sep);
}
bool Tokenizer::adds_bos() const { return model_->adds_bos; }
std::optional<uint32_t> Tokenizer::text_end() const {
	return model_->adds_eos ? std::optional(model_->end()) : std::nullopt;
}
std::optional<uint32_t> Tokenizer::between_pairs() const {
	if (!model_->adds_sep) return std::nullopt;
	return sep() ? sep() : eos(); // files from before 2025 name EOS alone
}
std::span<const uint32_t> Tokenizer::suppressed() const { return model_->vocab.suppressed; }
bool Tokenizer::is_end(uint32_t id) const {
	return std::binary_search(model_->vocab.ends.begin(), model_->vocab.ends.end(), id);
}
std::vector<uint32_t> Tokenizer::end_ids() const { return model_->vocab.ends; }
std::string_view Tokenizer::chat_template() const { return model_->chat_template; }

// ---- Utf8Stream

namespace {

// Bytes at the end of s that begin a well-formed character but do not finish it.
size_t unfinished(std::string_view s) {
	for (size_t n = 1; n <= 3 && n <= s.size(); ++n) {
		std::string c(s.substr(s.size() - n));
		const uint8_t lead = uint8_t(c[0]);
		if ((lead & 0xc0) == 0x80) continue;
		// the smallest second byte that the lead byte allows; further bytes are free
		if (n == 1) c += lead == 0xe0 ? '\xa0' : lead == 0xf0 ? '\x90' : '\x80';
		const size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
		while (c.size() < want) c += '\x80';
		return want > n && utf8_char(c, 0) == want ? n : 0;
	}
	return 0;
}

} // namespace

std::string Utf8Stream::push(std::string_view bytes) {
	held_ += bytes;
	const size_t keep = unfinished(held_);
	std::string out = held_.substr(0, held_.size() - keep);
	held_.erase(0, out.size());
	return out;
}

std::string Utf8Stream::finish() { return std::exchange(held_, {}); }

} // namespace kvrun
