// A KV cache policy as plain data: which tokens are kept, at what precision, and where. No behaviour, no device.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {

// Where a cached token lives. Every live token of a (layer, kv head) is in exactly one tier, K and V together.
enum class Tier : uint8_t {
	F16,     // f16 pages: the window of the newest tokens, and tokens that a method keeps in full precision
	Salient, // packed, with higher precision
	Regular, // everything else; bits = 0 makes this tier "evicted"
};
constexpr int kTiers = 3;
constexpr Tier kAllTiers[kTiers] = {Tier::F16, Tier::Salient, Tier::Regular};

enum class Scale : uint8_t {
	PerChannel, // one (scale, zero) per channel and run of `group` tokens   (KIVI keys)
	PerToken,   // one (scale, zero) per token and run of `group` channels   (KIVI values)
	Codebook,   // one norm per token and kv head; codes are of a codebook for Gaussian values   (TurboQuant)
	            // at 8 bits, uniform codes in the same pages: keys PerChannel, values PerToken and head
};
enum class Prescale : uint8_t {
	None,
	SqrtMax, // x_c / sqrt(max|x_c|) before quantising                       (ZipCache, channel-separable; values only)
	Balance, // k_c * b_c, q_c / b_c with b_c = sqrt(max|q_c| / max|k_c|)    (MiKV; keys only)
};

// PerChannel: one run is all tokens that are compressed together. PerToken: all channels of all kv heads of a token.
constexpr uint16_t kGroupAll = 0xffff;
// PerToken, until a plan resolves them: one head, half a head.
constexpr uint16_t kGroupHead = 0xfffe, kGroupHalf = 0xfffd;

// eta until a plan resolves it: then 0.25 for 1 bit, 0.045 for 2 bits, else 0.
constexpr double kEtaByBits = -1;
constexpr double eta_of_bits(uint8_t bits) { return bits == 1 ? 0.25 : bits == 2 ? 0.045 : 0; }

struct Quant {         // how K, or V, is stored inside one tier
	uint8_t bits = 16; // 0 = not stored, 1|2|3|4|8 = packed codes, 16 = f16
	Scale scale = Scale::PerToken;
	uint16_t group =
	    32; // elements per (scale, zero); PerChannel: tokens, PerToken: channels; Codebook: tokens of a page
	Prescale prescale = Prescale::None;
	double eta = 0;          // XQuant eta in [0, .5): zero += eta*scale*(2^bits-1), scale *= 1-2*eta
	bool rotate = false;     // a randomised Hadamard transform first: shaders/shared/kv_page.h
	bool mean = false;       // keys, Scale::Codebook: the mean of each channel over a page is stored separately
	uint8_t param_bits = 16; // of a norm, a scale or a zero point; 16: f16, 8: relative to the largest of its page
	bool operator==(const Quant&) const = default;
};
// Bit mask of Quant's fields.
enum QuantField : uint8_t {
	kFieldBits = 1,
	kFieldGroup = 2,
	kFieldScale = 4,
	kFieldPrescale = 8,
	kFieldEta = 16,
	kFieldRotate = 32,
	kFieldMean = 64,
	kFieldParamBits = 128,
	kAllFields = 255,
};
// `to`, with the given fields from `from`.
Quant with_fields(Quant to, const Quant& from, uint8_t fields);
struct Format {
	Quant k, v;
	bool operator==(const Format&) const = default;
};

struct Window {           // which tokens a row sees
	uint32_t tokens = 0;  // 0: all
	bool chunked = false; // those since the last multiple of `tokens`; else its `tokens` latest, its own included
	explicit operator bool() const { return tokens != 0; }
	uint32_t first_seen(uint32_t token) const { // the first that the row of this token sees
		if (!tokens) return 0;
		return chunked ? token / tokens * tokens : token < tokens ? 0 : token - tokens + 1;
	}
	bool operator==(const Window&) const = default;
};

enum class Rank : uint8_t { // how tokens that leave the recent window are ranked
	None,                   // all Regular
	LogWindow,              // every 2nd stays, so older survivors halve with each flush    (LogQuant)
	ScoreSum,               // by the attention received so far                            (H2O, MiKV)
	ScoreMean,              // the same / number of scored rows that could see the token    (ZipCache)
	KeyLength,              // by the length of the key alone, read by one row per flush
};
constexpr bool ranks_by_score(Rank r) { return r == Rank::ScoreSum || r == Rank::ScoreMean || r == Rank::KeyLength; }
constexpr bool takes_mean(Rank r) { return r == Rank::ScoreMean || r == Rank::KeyLength; }

enum class KeyLength : uint8_t { // how the length of a token's key changes its score
	Ignored,
	Large, // times the length
	Small, // divided by it
};
struct Saliency {          // what a scored row adds to a token that it sees
	bool attention = true; // else 1
	KeyLength key_length = KeyLength::Ignored;
	bool operator==(const Saliency&) const = default;
};

// The token classifier. The window holds at most recent_keep + flush tokens; when the next one would not fit, the
// oldest `flush` are judged. LogWindow counts its survivors as part of the window: W = recent_keep, 2 W = flush. If
// ranked by score, a prompt is judged at once: if the window is over its limit at the end of a prompt, all but the
// newest recent_keep tokens are judged together.
struct Select {
	uint32_t sinks = 0;       // first tokens of the sequence; always f16
	uint32_t recent_keep = 0; // newest tokens that are never judged
	uint32_t flush = 32;      // tokens that leave the window together
	Rank rank = Rank::None;
	double ratio = 0;        // share of judged tokens that are Salient
	uint32_t budget = 0;     // by score: cap on f16 Salient tokens, without sinks; 0 = no cap
	double probe_recent = 1; // share of rows that feed the score: the newest of a prompt or flush ...
	double probe_random = 0; // ... and this share drawn from the others
	bool per_head = false;   // one token set per kv head, not per layer
	KeyLength key_length = KeyLength::Ignored;
	Saliency saliency() const { return {rank != Rank::KeyLength, key_length}; }
	bool operator==(const Select&) const = default;
};

struct LayerRule { // layers [first, last) store one side of one packed tier differently
	uint16_t first = 0, last = UINT16_MAX;
	Tier tier = Tier::Regular; // Salient or Regular
	bool is_k = true;          // K or V
	Quant quant = {};
	uint8_t fields = kAllFields; // fields of quant that the rule sets
	bool scales = true;          // scale with the depth of the model, if KvPolicy::depth is set
	bool operator==(const LayerRule&) const = default;
};
struct RopeRule { // layers [first, last) store rotated keys of latent attention with so many bits
	uint16_t first = 0, last = UINT16_MAX;
	uint8_t bits = 8;
	bool operator==(const RopeRule&) const = default;
};
struct Share { // layer l >= first reads the Regular codes of l - l % stride, with its own parameters
	uint16_t k_first = UINT16_MAX, v_first = UINT16_MAX;
	uint16_t stride = 2;
	bool operator==(const Share&) const = default;
};

struct KvPolicy {
	std::string name = "fp16";         // of its entry in the table
	std::string text = "fp16";         // as the user typed it
	std::string source = {};           // paper, arXiv id
	std::string summary = {};          // one line for --help
	Format salient = {}, regular = {}; // F16 is always f16; a 16-bit salient token stays in its slot there
	Select select = {};
	std::vector<LayerRule> layers = {}; // later rules win
	Share share = {};
	uint32_t fetch = 0;    // packed tokens per layer and kv head that a step reads in f16 from a copy on the host
	uint8_t rope_bits = 0; // of the rotated keys of latent attention, where latents are packed: 4, 8; 0: 8
	std::vector<RopeRule> rope_layers = {}; // other numbers of bits for some layers; later rules win
	bool fetch_sync = false;   // chosen by the step's own attention, which waits for them and is computed again
	uint16_t depth = 0;        // layer numbers above are for this many layers and scale with the model; 0: fixed
	bool fit_groups = true;    // groups of channels are defaults, and become one head if they do not fit
	uint16_t page = 0;         // tokens per page if the formats allow a choice: 32, 64, 128; 0 = by plan
	bool takes_layers = false; // "NAMEa/b" is a way to write NAME,kq=a,vq=b
	bool takes_bits = false;   // "NAMEa/b" is a way to write NAME,k.bits=a,v.bits=b
};

// The methods, in the order help texts list them.
const std::vector<KvPolicy>& all_policies();
// The entry with this name or short name (f16, q8, q4, q2, GGML's q8_0 and q4_0); null: none.
const KvPolicy* find_policy(std::string_view name);
// All policies, and some with options: together they have every kind of format that kernels are built for.
std::vector<KvPolicy> policy_samples();

// "name" or "name,key=value,...", with a name that find_policy() knows and keys of policy_options().
// Throws Error{Invalid} with one line that lists the valid values.
KvPolicy parse_policy(std::string_view text);

// "a,b,key=value,c": several policies in one argument; a part with '=' belongs to the policy before it.
std::vector<KvPolicy> parse_policies(std::string_view text);

// Throws Error{Invalid}, naming the policy `text`, for a format that no page can have.
void check_quant(std::string_view text, const Quant&, bool is_k);

// Separate K and V types (-ctk, -ctv): "f16", "q8", "q4", "q8_0", ...; round-to-nearest per token. Empty: f16. Where
// one is f16 and the other is not, 8 bits take its place. notice: one line on what differs from the types; may be null.
KvPolicy policy_from_types(std::string_view k_type, std::string_view v_type, std::string* notice = nullptr);

// Every key that parse_policy() accepts, with its meaning in one line.
std::vector<std::pair<std::string, std::string>> policy_options();

} // namespace kvrun
