// Splits text into the pieces byte-level BPE works on.
#include "models/pretokenize.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace kvrun {
namespace {

// White space as Unicode defines it, for use inside [ ]. PCRE's own \s has U+180E too.
#define SPACE "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+" // all but the last of the spaces before a word
#define LINES "[" SPACE "]*[\\r\\n]+"
#define CONTRACTION "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define SIGNS " ?[^" SPACE "\\p{L}\\p{N}]+"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" SPACES
#define LLAMA3 CONTRACTION "|" WORD "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINES "|" SPACES
#define QWEN2 CONTRACTION "|" WORD "|\\p{N}|" SIGNS "[\\r\\n]*|" LINES "|" SPACES
#define TEKKEN                                                                                                         \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}|" SIGNS              \
	"[\\r\\n/]*|" LINES "|" SPACES
#define GPT4O                                                                                                          \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+(?:" CONTRACTION ")?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER            \
	"*(?:" CONTRACTION ")?|\\p{N}{1,3}|" SIGNS "[\\r\\n/]*|" LINES "|" SPACES

struct Row {
	const char* name;           // tokenizer.ggml.pre
	const char* patterns[5];    // applied one after the other; nullptr ends the list
	bool whole_words, adds_bos; // as in PreTokenizer
};
constexpr Row kRows[] = {
    {"default", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {"gpt-2", {GPT2}, false, false},
    {"llama-bpe", {LLAMA3}, true, true},
    {"qwen2", {QWEN2}, false, false},
    {"deepseek-coder",
     {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+",
      "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", "\\p{N}"},
     false,
     false},
    {"smollm", {"\\p{N}", GPT2}, false, false},
    {"tekken", {TEKKEN}, true, true},
    {"gpt-4o", {GPT4O}, false, false},
    {"dbrx", {LLAMA3}, false, false},
};
// Other names files use for the same patterns.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"},     {"falcon3", "llama-bpe"}, {"smaug-bpe", "dbrx"},
    {"phi-2", "gpt-2"},      {"deepseek-r1-qwen", "qwen2"}, {"starcoder", "smollm"},  {"refact", "smollm"},
    {"llama4", "gpt-4o"},    {"megrez", "qwen2"},
};

const Row& find_row(std::string_view name, const std::string& file) {
	for (const auto& [alias, of] : kAliases)
		if (name == alias) name = of;
	std::string known;
	for (const Row& r : kRows) {
		if (name == r.name) return r;
		known += fmt::format("{}{}", known.empty() ? "" : " ", r.name);
	}
	fail(Code::Unsupported, "{}: pre-tokenizer is {}; kvrun knows {}", file, one_line(name), known);
}

template <class T, void (*Free)(T*)> struct Freer {
	void operator()(T* p) const { Free(p); }
};
template <class T, void (*Free)(T*)> using Owned = std::unique_ptr<T, Freer<T, Free>>;
using Code2 = Owned<pcre2_code, pcre2_code_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using JitStack = Owned<pcre2_jit_stack, pcre2_jit_stack_free>;

std::string pcre_text(int error) {
	char buffer[256] = "";
	pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
	return buffer;
}

} // namespace

struct PreTokenizer::Pattern {
	Code2 code;

	explicit Pattern(const char* pattern) {
		int error = 0;
		PCRE2_SIZE at = 0;
		code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
		                         &error, &at, nullptr));
		if (!code) fail(Code::Internal, "pattern {}: {} at {}", pattern, pcre_text(error), at);
		pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE); // where it cannot, pcre2_match() interprets
	}
};

namespace {

// What matching needs besides the pattern; one per split(), so that a tokenizer can be used by several threads.
class Matcher {
 public:
	Matcher()
	    : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)),
	      stack_(pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)) {
		if (!data_ || !context_) throw std::bad_alloc();
		// A piece is found in a number of steps linear in its length; these stop what is not.
		pcre2_set_match_limit(context_.get(), 1u << 31);
		pcre2_set_depth_limit(context_.get(), 1000);
		pcre2_set_heap_limit(context_.get(), 64 << 10); // KiB
		if (stack_) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
	}

	// Appends the matches of `code` in s, a run of well-formed UTF-8, and what lies between them.
	void split(const pcre2_code* code, std::string_view s, std::vector<std::string_view>& out) {
		const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data_.get());
		for (size_t at = 0; at < s.size();) {
			const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(s.data()), s.size(), at, PCRE2_NO_UTF_CHECK,
			                           data_.get(), context_.get());
			if (rc == PCRE2_ERROR_NOMATCH) {
				out.push_back(s.substr(at));
				return;
			}
			if (rc < 0) fail(Code::Invalid, "the text cannot be split into words: {} at byte {}", pcre_text(rc), at);
			if (match[0] > at) out.push_back(s.substr(at, match[0] - at));
			out.push_back(s.substr(match[0], match[1] - match[0])); // never empty: no pattern matches nothing
			at = match[1];
		}
	}

 private:
	MatchData data_;
	MatchContext context_;
	JitStack stack_;
};

} // namespace

PreTokenizer::PreTokenizer(std::string_view name, const std::string& file) {
	const Row& row = find_row(name, file);
	for (const char* p : row.patterns)
		if (p) patterns_.push_back(std::make_unique<Pattern>(p));
	whole_words_ = row.whole_words;
	adds_bos_ = row.adds_bos;
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
	Matcher matcher;
	std::vector<std::string_view> out, pieces, next;
	for (size_t begin = 0; begin < text.size();) {
		size_t end = begin;
		while (const size_t n = utf8_char(text, end)) end += n;
		if (end > begin) pieces.push_back(text.substr(begin, end - begin));
		for (const auto& p : patterns_) {
			next.clear();
			for (std::string_view piece : pieces) matcher.split(p->code.get(), piece, next);
			pieces.swap(next);
		}
		out.insert(out.end(), pieces.begin(), pieces.end());
		pieces.clear();
		for (begin = end; end < text.size() && utf8_char(text, end) == 0;) ++end;
		if (end > begin) out.push_back(text.substr(begin, end - begin));
		begin = end;
	}
	return out;
}

} // namespace kvrun
