// The table of pre-tokenizers. The patterns match what the models were trained with, in time linear in the text. Where
// a model's own pattern would scan the same run of characters again from each position, it is rewritten so that one
// scan fails for all positions.
#include "models/pre_patterns.h"
#include <algorithm>

namespace kvrun {
namespace {

// White space as Unicode defines it, for use inside [ ]. PCRE's own \s has U+180E too.
#define INLINE_SPACE                                                                                                   \
	"\\x09\\x0b\\x0c\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE INLINE_SPACE "\\r\\n"
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+" // all spaces before a word except the last
#define LINES "[" SPACE "]*[\\r\\n]+"
#define CONTRACTION "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define SIGNS " ?[^" SPACE "\\p{L}\\p{N}]+"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?" // a space or a sign belongs to the word that follows
#define WORD LEAD "\\p{L}+"
#define TAIL SIGNS "[\\r\\n]*|" LINES "|" SPACES // whatever is not a word, in Llama 3 and many others

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" SPACES
#define LLAMA3 CONTRACTION "|" WORD "|\\p{N}{1,3}|" TAIL
#define QWEN2 CONTRACTION "|" WORD "|\\p{N}|" TAIL

// A word ends where a capital follows a small letter; marks and letters without case belong to both classes.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(upper, lower, ending) LEAD upper "*" lower "+" ending "|" LEAD upper "+" lower "*" ending
#define PATH_TAIL SIGNS "[\\r\\n/]*|" LINES "|" SPACES
#define GPT4O CASED(UPPER, LOWER, "(?:" CONTRACTION ")?") "|\\p{N}{1,3}|" PATH_TAIL
// The same classes without Han characters, written as complements of the other categories.
#define UPPER_NOT_HAN "[^\\p{sc:Han}\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"
#define LOWER_NOT_HAN "[^\\p{sc:Han}\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"

// An ASCII sign and the letters after it, words with their marks, runs of signs.
#define DEEPSEEK3 "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define CJK_OF_DEEPSEEK3 "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define CJK_OF_DEEPSEEK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
// Letters with case: most of Latin, Greek, Cyrillic, Armenian capitals, Georgian, Cherokee, Coptic and their like.
#define CASED_LETTERS                                                                                                  \
	"A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"   \
	"\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"     \
	"\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"       \
	"\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                  \
	"\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"                  \
	"\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}"          \
	"\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"         \
	"\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"          \
	"\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                    \
	"\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"          \
	"\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                   \
	"\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}"                  \
	"\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"          \
	"\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

#define BLOOM " ?[^" SPACE "(|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

// Groups of three digits, counted from the end of a number. The first group looks ahead to that end once; each other
// group begins where the previous one ended. `end`: what must follow the number; `more`: quantifier of the groups after
// the first.
#define GROUPS(digit, more, end)                                                                                       \
	"(?<!" digit ")" digit "{1,3}(?=(?:" digit "{3})" more end ")|\\G(?<=" digit ")" digit "{3}"

constexpr PrePatterns kPatterns[] = {
    {"default", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {"gpt-2 mpt olmo jais trillion granite-docling phi-2 gigachat a.x-4.0 mellum exaone4 jina-v2-de jina-v2-es jina-de "
     "jina-es",
     {GPT2},
     false,
     false},
    {"roberta-bpe jina-v1-en jina-v2-code", {GPT2}, false, false, false, true},
    {"modern-bert", {GPT2}, false, false, true},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", {LLAMA3}, true, true},
    {"dbrx smaug-bpe smollm3 chatglm-bpe", {LLAMA3}, false, false},
    {"glm4 glm5", {LLAMA3}, true, false},
    {"qwen2 stablelm2 hunyuan solar-open deepseek-r1-qwen kormo megrez grok-2 f2llmv2", {QWEN2}, false, false},
    {"qwen35", // marks belong to the word
     {CONTRACTION "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES "|" SPACES},
     false,
     false},
    {"deepseek-llm",
     {"[\\r\\n]", "[" SPACE "]?[" CASED_LETTERS "]+",
      "[" SPACE "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
      "(?<![" SPACE "])[" SPACE "]+$", CJK_OF_DEEPSEEK, "\\p{N}+"},
     false,
     false},
    {"deepseek-coder",
     {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+", CJK_OF_DEEPSEEK, "\\p{N}"},
     false,
     false},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     {"\\p{N}{1,3}", CJK_OF_DEEPSEEK3, DEEPSEEK3 "[\\r\\n]*|" LINES "|" SPACES},
     false,
     false},
    {"spark2_5", {"\\p{N}{1,3}", CJK_OF_DEEPSEEK3, DEEPSEEK3 "|[\\r\\n]|" SPACES, "\\p{N}"}, false, false},
    {"youtu",
     {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{"
      "ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|" CJK_OF_DEEPSEEK3,
      CASED(UPPER, LOWER, "(?:" CONTRACTION ")?") "|\\p{N}|" PATH_TAIL},
     true,
     false},
    {"falcon", {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", {"\\p{N}", GPT2}, false, false},
    {"bloom poro-chat gpt3-finnish", {BLOOM}, false, false},
    {"viking", {BLOOM, "\\p{N}"}, false, false},
    {"tekken", {CASED(UPPER, LOWER, "") "|\\p{N}|" PATH_TAIL}, true, true},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {GPT4O}, false, false},
    {"granite-embed-multi-97m", {GPT4O}, true, false},
    {"tiny_aya cohere2moe", {GROUPS("\\d", "*+", "\\b"), GPT4O}, false, false},
    {"kimi-k2",
     {"\\p{sc:Han}+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN, "(?:" CONTRACTION ")?") "|\\p{N}{1,3}|" TAIL},
     false,
     false},
    {"k2-horizon", {CONTRACTION "|" LEAD "[\\p{L}\\p{M}\\x{200c}\\x{200d}]+|\\p{N}{1,3}|" TAIL}, false, false},
    {"chameleon",
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     false,
     true},
    {"superbpe", {"\\p{N}+", GROUPS("\\d", "++", "(?!\\d)")}, false, false}, // tokens may span several words
    {"bailingmoe bailingmoe2 llada-moe",
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|" WORD "|\\p{N}|" SIGNS "[\\r\\n]*|[" SPACE "]*[\\r\\n]|" SPACES},
     false,
     false},
    {"seed-coder", {CONTRACTION "|" WORD "|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}]+|" LINES "|" SPACES}, false, false},
    {"ufakzeka", {WORD "|\\p{N}|" TAIL}, false, false}, // Turkish suffixes stay with their apostrophe
    {"laguna", {"\\n+", QWEN2}, false, false},
    {"minicpm5", {"\\p{N}{1,3}", CONTRACTION "|" WORD "|\\p{N}+|" TAIL}, true, false},
    {"exaone-moe", // words of a line are one piece
     {CONTRACTION "|" LEAD "\\p{L}(?:[\\p{L}\\p{M}]| \\p{L})*+|\\p{N}|" SIGNS "[\\r\\n/]?|[" SPACE
                  "]*[\\r\\n]|" SPACES},
     false,
     false},
    {"afmoe",
     {GROUPS("\\p{N}", "*+", "(?!\\p{N})"),
      "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{8c48}-\\x{faff}\\x{3040}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{"
      "2fdf}"
      "\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}"
      "\\x{1100}-\\x{11ff}]+",
      DEEPSEEK3 "[\\r\\n]*|" LINES "|" SPACES},
     false,
     false},
    {"jais-2", // spaces in runs whose length is a power of two; one scan tells whether a run contains a line end
     {CONTRACTION "|" WORD "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|(?<![" INLINE_SPACE "])" LINES "|[" SPACE
                  "]{512}(?![^" SPACE "])|[" SPACE "]{256}(?![^" SPACE "])|[" SPACE "]{128}(?![^" SPACE "])|[" SPACE
                  "]{64}(?![^" SPACE "])|[" SPACE "]{32}(?![^" SPACE "])|[" SPACE "]{16}(?![^" SPACE "])|[" SPACE
                  "]{8}(?![^" SPACE "])|[" SPACE "]{4}(?![^" SPACE "])|[" SPACE "]{1,2}(?![^" SPACE "])|[" SPACE "]"},
     false,
     false},
};

template <class F> void each_name(std::string_view names, F&& f) {
	for (size_t at = 0; at < names.size();) {
		const size_t end = std::min(names.find(' ', at), names.size());
		f(names.substr(at, end - at));
		at = end + 1;
	}
}

} // namespace

const PrePatterns* find_pre_patterns(std::string_view name) {
	const PrePatterns* found = nullptr;
	for (const PrePatterns& r : kPatterns)
		each_name(r.names, [&](std::string_view n) {
			if (n == name) found = &r;
		});
	return found;
}

std::string pre_pattern_names() {
	std::string all;
	for (const PrePatterns& r : kPatterns) (all += all.empty() ? "" : " ") += r.names;
	return all;
}

} // namespace kvrun
