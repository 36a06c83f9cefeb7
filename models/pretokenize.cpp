// Splits text into pieces for byte-level BPE.
#include "models/pretokenize.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/pre_patterns.h"
#include <cstdlib>
#include <memory>
#include <mutex>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

namespace kvrun {
namespace {

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
		pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE); // without JIT pcre2_match() interprets
	}
};

namespace {

// State of matching besides the pattern; threads that share a tokenizer use one each.
class Splitter {
 public:
	Splitter()
	    : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)),
	      stack_(pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)) {
		if (!data_ || !context_) throw std::bad_alloc();
		// Steps are linear in the length of a piece; these limits stop a match that would take more.
		pcre2_set_match_limit(context_.get(), 1u << 31);
		pcre2_set_depth_limit(context_.get(), 1000);
		pcre2_set_heap_limit(context_.get(), 64 << 10); // KiB
		if (stack_) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
	}

	// Appends the matches of `code` in s, a run of well-formed UTF-8, and the text between them.
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
			out.push_back(s.substr(match[0], match[1] - match[0])); // not empty: no pattern matches the empty text
			at = match[1];
		}
	}

 private:
	MatchData data_;
	MatchContext context_;
	JitStack stack_;
};

// Splitters are kept between calls: a text with many special tokens is split in as many calls. One for each thread
// would be simpler, but mingw-w64 frees the memory of thread_local objects before their destructors run (GCC bug
// 80816).
class Borrowed {
 public:
	Borrowed() {
		Kept& k = kept();
		{
			std::lock_guard lock(k.mutex);
			if (!k.free.empty()) splitter_ = std::move(k.free.back()), k.free.pop_back();
		}
		if (!splitter_) splitter_ = std::make_unique<Splitter>();
	}
	~Borrowed() {
		Kept& k = kept();
		std::lock_guard lock(k.mutex);
		try {
			k.free.push_back(std::move(splitter_));
		} catch (const std::bad_alloc&) {} // then it is made again
	}
	Borrowed(const Borrowed&) = delete;
	Borrowed& operator=(const Borrowed&) = delete;
	Splitter* operator->() { return splitter_.get(); }

 private:
	struct Kept {
		std::mutex mutex;
		std::vector<std::unique_ptr<Splitter>> free; // as many as were in use at once
	};
	static Kept& kept() {
		static Kept& all = *new Kept; // never destroyed: threads may outlive main()
		return all;
	}
	std::unique_ptr<Splitter> splitter_;
};

} // namespace

PreTokenizer::PreTokenizer(std::string_view name, const std::string& file) {
	const PrePatterns* row = find_pre_patterns(name);
	if (!row)
		fail(Code::Unsupported, "{}: pre-tokenizer is {}; kvrun knows {}", file, one_line(name), pre_pattern_names());
	for (const char* p : row->patterns)
		if (p) patterns_.push_back(std::make_unique<Pattern>(p));
	whole_words_ = row->whole_words;
	adds_bos_ = row->adds_bos;
	parts_pairs_ = row->parts_pairs;
	composes_ = row->composes;
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
	Borrowed splitter;
	std::vector<std::string_view> out, pieces, next;
	for (size_t begin = 0; begin < text.size();) {
		size_t end = begin;
		while (const size_t n = utf8_char(text, end)) end += n;
		if (end > begin) pieces.push_back(text.substr(begin, end - begin));
		for (const auto& p : patterns_) {
			next.clear();
			for (std::string_view piece : pieces) splitter->split(p->code.get(), piece, next);
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

std::string composed(std::string_view text) {
	const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
	utf8proc_uint8_t* made = nullptr;
	const utf8proc_ssize_t n = utf8proc_map(bytes, utf8proc_ssize_t(text.size()), &made,
	                                        utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
	const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> kept(made, &std::free);
	return n < 0 ? std::string(text) : std::string(reinterpret_cast<const char*>(made), size_t(n));
}

} // namespace kvrun
