// The table of methods; the only file that names papers. Entries differ only where the papers do.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/kv_host/policy.h"
#include <algorithm>

namespace kvrun {

static constexpr Quant kDrop = {.bits = 0};
// For policies that are not a paper's recipe. The first tokens get much of the attention, and packing them causes most
// of the loss of these policies: on SmolLM2 a half to three quarters of the KL divergence (engine/kv_host/README.md).
static constexpr uint32_t kSinks = 4;
static constexpr Quant per_channel(uint8_t bits, uint16_t group, double eta = 0) {
	return {.bits = bits, .scale = Scale::PerChannel, .group = group, .eta = eta};
}
static constexpr Quant per_token(uint8_t bits, uint16_t group, Prescale prescale = Prescale::None, double eta = 0) {
	return {.bits = bits, .scale = Scale::PerToken, .group = group, .prescale = prescale, .eta = eta};
}
// Rotated head, divided by its norm, codebook-quantised; keys also store channel means. Pages of 128 tokens. Layers
// with scale=channel or token use eta by bits.
static constexpr Quant rotated(uint8_t bits, bool is_k) {
	return {.bits = bits,
	        .scale = Scale::Codebook,
	        .group = 128,
	        .eta = kEtaByBits,
	        .rotate = true,
	        .mean = is_k,
	        .param_bits = 8};
}
// Round to nearest, K and V per token. Flushes of 32 tokens, so that packing is batched.
static KvPolicy rtn(const char* name, uint8_t bits, const char* summary) {
	return {.name = name,
	        .source = "round to nearest",
	        .summary = summary,
	        .regular = {per_token(bits, 32), per_token(bits, 32)}};
}
static KvPolicy kivi(const char* name, uint8_t bits, const char* summary) {
	return {.name = name,
	        .source = "KIVI, arXiv:2402.02750",
	        .summary = summary,
	        .regular = {per_channel(bits, 32), per_token(bits, 32)},
	        .select = {.recent_keep = 96, .flush = 32}};
}
// Beyond the paper: 8-bit parameters. With 1 bit, it is 10 times smaller than f16 only in groups of 64.
static KvPolicy specache(const char* name, uint8_t bits, uint16_t group, double eta, const char* summary) {
	Quant k = per_channel(bits, group, eta), v = per_token(bits, group, Prescale::None, eta);
	k.param_bits = v.param_bits = 8;
	return {.name = name,
	        .source = "SpeCache, arXiv:2503.16163",
	        .summary = summary,
	        .regular = {k, v},
	        .select = {.recent_keep = 64u - group, .flush = group}, // half of KIVI's: fetched tokens take as much
	        .fetch = 64};
}
static LayerRule first_layers(uint16_t n, bool is_k, Quant q) {
	return {.first = 0, .last = n, .tier = Tier::Regular, .is_k = is_k, .quant = q};
}

static std::vector<KvPolicy> table() {
	const double eta1 = 1.0 / 6, eta2 = 0.045;
	return {
	    {.name = "fp16", .source = "plain f16 cache", .summary = "16 bits, nothing leaves the f16 pages"},
	    rtn("rtn8", 8, "8 bits per token, groups of 32 channels (short: q8)"),
	    rtn("rtn4", 4, "4 bits per token, groups of 32 channels (short: q4)"),
	    rtn("rtn2", 2, "2 bits per token, groups of 32 channels (short: q2)"),
	    kivi("kivi4", 4, "4 bits, keys per channel, values per token, newest 128 in f16"),
	    kivi("kivi2", 2, "2 bits, keys per channel, values per token, newest 128 in f16"),
	    kivi("kivi1", 1, "1 bit, keys per channel, values per token, newest 128 in f16"),
	    specache("specache2", 2, 32, 0, "kivi2 and its f16 original on the host: 64 tokens fetched for each step"),
	    specache("specache1", 1, 64, 0.25, "the same with 1 bit in groups of 64, calibrated"),
	    {.name = "logquant",
	     .source = "LogQuant, arXiv:2503.19950",
	     .summary = "2 bits, f16 tokens thin out with age: at most 3 W",
	     .regular = {per_channel(2, 64), per_token(2, 64)},
	     .select = {.recent_keep = 42, .flush = 84, .rank = Rank::LogWindow}}, // W = 42: R = 128
	    {.name = "xquant",
	     .source = "XQuant, arXiv:2510.11236",
	     .summary = "2 and 1 bit by layer, calibrated; km=, vm=: from these layers on neighbours share codes",
	     // Groups, window and bits of the paper's experiments. Its sharing (vm=16 of 32 layers) saves 0.17 bits at
	     // 32768 tokens and multiplies the KL divergence; measure the model before using it.
	     .regular = {per_channel(1, 32, eta1), per_token(1, 32, Prescale::None, eta1)},
	     .select = {.recent_keep = 96, .flush = 32},
	     .layers = {first_layers(30, true, per_channel(2, 32, eta2)),
	                first_layers(2, false, per_token(2, 32, Prescale::None, eta2))},
	     .depth = 32},
	    {.name = "asymkv",
	     .source = "AsymKV, arXiv:2410.13212",
	     .summary = "keys 2 bits, values 1 bit; asymkvA/B: K, V 2 bits below layers A, B",
	     .regular = {per_channel(1, 32), per_token(1, 32)},
	     .select = {.recent_keep = 96, .flush = 32},
	     .layers = {first_layers(UINT16_MAX, true, per_channel(2, 32))},
	     .takes_layers = true},
	    {.name = "mixed",
	     .source = "keys more exact than values",
	     .summary =
	         "keys 4 bits, values 2; mixedK/V: bits of keys and values, calibrated by bits; first 4 tokens in f16",
	     .regular = {per_channel(4, 128, kEtaByBits), per_token(2, 64, Prescale::None, kEtaByBits)},
	     .select = {.sinks = kSinks, .recent_keep = 32, .flush = 128},
	     .takes_bits = true},
	    {.name = "turbo",
	     .source = "TurboQuant, arXiv:2504.19874",
	     .summary =
	         "rotated, codebooks: keys 3 bits, values 2; turboK/V: bits of keys and values, 1 to 4 or 8; first 4 "
	         "tokens in f16",
	     // Beyond the paper: means, 8-bit norms, norms that preserve the length of decoded vectors, and sinks. The
	     // paper's form is mean=off,param_bits=16,sinks=0.
	     .regular = {rotated(3, true), rotated(2, false)},
	     .select = {.sinks = kSinks, .recent_keep = 32, .flush = 128},
	     .takes_bits = true},
	    {.name = "streaming",
	     .source = "StreamingLLM, arXiv:2309.17453",
	     .summary = "4 sinks and the newest 1020 tokens in f16, the rest evicted",
	     .regular = {kDrop, kDrop},
	     .select = {.sinks = 4, .recent_keep = 1019, .flush = 1}},
	    {.name = "zipcache",
	     .source = "ZipCache, arXiv:2405.14256",
	     .summary = "4 bits for salient tokens (60 %), 2 for the rest, by probed attention",
	     .salient = {per_channel(4, kGroupAll), per_token(4, kGroupAll, Prescale::SqrtMax)},
	     .regular = {per_channel(2, kGroupAll), per_token(2, kGroupAll, Prescale::SqrtMax)},
	     .select = {.flush = 100, .rank = Rank::ScoreMean, .ratio = 0.6, .probe_recent = 0.05, .probe_random = 0.05}},
	    {.name = "mikv",
	     .source = "MiKV, arXiv:2402.18096",
	     .summary = "f16 for the most attended tokens (20 %), 2 bits for the rest, balanced keys",
	     .salient = {{.group = kGroupHalf}, {.group = kGroupHalf}},
	     .regular = {per_token(2, kGroupHalf, Prescale::Balance), per_token(2, kGroupHalf)},
	     .select = {.recent_keep = 32, .flush = 32, .rank = Rank::ScoreSum, .ratio = 0.2, .per_head = true}},
	    {.name = "h2o",
	     .source = "H2O, arXiv:2306.14048",
	     .summary = "256 most attended and 256 newest tokens in f16, the rest evicted",
	     .regular = {kDrop, kDrop},
	     .select = {.recent_keep = 224, .flush = 32, .rank = Rank::ScoreSum, .budget = 256, .per_head = true}},
	};
}

const std::vector<KvPolicy>& all_policies() {
	static const std::vector<KvPolicy> policies = [] {
		std::vector<KvPolicy> all = table();
		for (KvPolicy& p : all) p.text = p.name;
		return all;
	}();
	return policies;
}

// Short names, including names of GGML types.
struct Alias {
	const char* name;
	const char* means; // a policy of the table
};
static constexpr Alias kAliases[] = {{"f16", "fp16"}, {"q8", "rtn8"},   {"q8_0", "rtn8"},
                                     {"q4", "rtn4"},  {"q4_0", "rtn4"}, {"q2", "rtn2"}};

const KvPolicy* find_policy(std::string_view name) {
	for (const Alias& a : kAliases)
		if (name == a.name) name = a.means;
	for (const KvPolicy& p : all_policies())
		if (p.name == name) return &p;
	return nullptr;
}

// GGML's types of a cache, and how kvrun stores them.
struct TypeBits {
	std::string_view name;
	uint32_t bits;
	bool same; // else a notice says that the bits differ
};
static constexpr TypeBits kTypes[] = {{"f16", 16, true}, {"fp16", 16, true}, {"bf16", 16, false}, {"f32", 16, false},
                                      {"q8_0", 8, true}, {"q8", 8, true},    {"q5_0", 8, false},  {"q5_1", 8, false},
                                      {"q4_0", 4, true}, {"q4_1", 4, true},  {"q4", 4, true},     {"iq4_nl", 4, false},
                                      {"q2", 2, true},   {"q1", 1, true}};

// `says` gets what differs from the type.
static uint32_t bits_of_type(std::string_view option, std::string_view type, std::string& says) {
	if (type.empty()) return 16; // not given
	const auto* found = std::ranges::find(kTypes, type, &TypeBits::name);
	if (found == std::end(kTypes))
		fail(Code::Invalid, "{} is '{}': possible are f16, q8_0, q4_0, q2, q1; q5_0, q5_1, bf16 and f32 as the nearest",
		     option, one_line(type));
	if (!found->same)
		says += fmt::format("{}{} {} is stored as {}", says.empty() ? "" : "; ", option, type,
		                    found->bits == 16 ? "f16" : fmt::format("{} bits", found->bits));
	return found->bits;
}

KvPolicy policy_from_types(std::string_view k_type, std::string_view v_type, std::string* notice) {
	std::string says;
	const uint32_t k = bits_of_type("-ctk", k_type, says), v = bits_of_type("-ctv", v_type, says);
	// what is compressed leaves the f16 window as a whole token, so no side stays in f16 alone
	const bool one = (k == 16) != (v == 16);
	const uint32_t k_bits = one && k == 16 ? 8 : k, v_bits = one && v == 16 ? 8 : v;
	if (one) {
		if (!says.empty()) says += "; ";
		says +=
		    fmt::format("{} are stored at 8 bits: keys and values are packed together", k == 16 ? "keys" : "values");
	}
	if (notice) *notice = std::move(says);
	if (k_bits == 16) return parse_policy("fp16");
	if (k_bits == v_bits && k_bits > 1) return parse_policy(fmt::format("rtn{}", k_bits));
	return parse_policy(fmt::format("rtn4,k.bits={},v.bits={}", k_bits, v_bits));
}

std::vector<KvPolicy> policy_samples() {
	std::vector<KvPolicy> all = all_policies();
	for (const char* text : {"rtn4,k.bits=8",
	                         "rtn4,k.bits=16",
	                         "rtn4,v.bits=16",
	                         "rtn4,bits=1",
	                         "kivi2,bits=8",
	                         "asymkv1/1",
	                         "zipcache,salient.bits=8",
	                         "zipcache,bits=1",
	                         "mikv,bits=4",
	                         "mikv,bits=1",
	                         "mikv,salient.bits=4",
	                         "mixed4/1",
	                         "turbo1",
	                         "turbo2",
	                         "turbo4/3",
	                         "turbo3/2,param_bits=16,mean=off,group=32",
	                         "turbo3/2,rotate=off",
	                         "kivi2,bits=3",
	                         "rtn4,bits=3",
	                         "kivi2,param_bits=8",
	                         "specache1,param_bits=16",
	                         "specache2,param_bits=16",
	                         "xquant,km=2,vm=0",
	                         "xquant,group=128,flush=128,recent_keep=64,km=2,vm=0"})
		all.push_back(parse_policy(text));
	return all;
}

} // namespace kvrun
