// Synthetic models: shapes of well-known models, and the parser of the text that names one.
#include "models/synth/shape.h"
#include "engine/core/utf8.h"
#include "models/families.h"
#include "models/recurrent.h"
#include "shared/experts.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvrun {
namespace {

struct Traits {              // traits of few families
	uint32_t rotary_dim = 0; // 0: head_dim
	float embedding_scale = 0, residual_scale = 1, logit_scale = 1,
	      attention_scale = 0; // as in Config; 0: the family's
	uint32_t window = 0;
	uint32_t window_kv_heads = 0, window_head_dim = 0; // of layers with a window; 0: as in other layers
	uint32_t shared_kv = 0;                            // so many last layers use keys and values of earlier ones
	uint32_t layer_input_dim = 0;                      // as in Config
	bool v_is_k = false;                               // in layers without a window
	bool qkv_bias = false;
	Experts experts = {};      // sizes; the rest is the family's
	uint32_t dense_layers = 0; // layers before the first mixture
	Recurrent recurrent = {};  // in all layers except every fourth
	Latent latent = {};        // in all layers; kv_heads is 1 and head_dim the rank
};
struct Row { // values from the models' own files
	const char *name, *arch;
	uint32_t dim, hidden, layers, heads, kv_heads, head_dim, vocab, ctx;
	float theta, eps;
	bool tied; // the output projection is the embedding
	SynthVocab tokenizer;
	Traits more = {};
};
constexpr SynthVocab kSpm = SynthVocab::Spm, kLlama3 = SynthVocab::Llama3, kQwen2 = SynthVocab::Qwen2;
constexpr Recurrent kDeltaNet = {.n_heads = 32, .n_key_heads = 16, .k_dim = 128, .v_dim = 128, .taps = 4};
constexpr Latent latent(uint32_t nope_dim, uint32_t v_dim, uint32_t q_rank) {
	return {.rank = 512, .rope_dim = 64, .nope_dim = nope_dim, .v_dim = v_dim, .q_rank = q_rank};
}
constexpr Row kRows[] = {
    {"llama-2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e4f, 1e-5f, false, kSpm},
    {"llama-3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5f, 1e-5f, true, kLlama3},
    {"llama-3.2-3b", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5f, 1e-5f, true, kLlama3},
    {"llama-3.1-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5f, 1e-5f, false, kLlama3},
    {"llama-3.1-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 131072, 5e5f, 1e-5f, false, kLlama3},
    {"mistral-7b", "llama", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6f, 1e-5f, false, kSpm},
    {"tinyllama-1.1b", "llama", 2048, 5632, 22, 32, 4, 64, 32000, 2048, 1e4f, 1e-5f, false, kSpm},
    {"smollm2-135m", "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5f, 1e-5f, true, kLlama3},
    {"qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e6f, 1e-6f, true, kQwen2},
    {"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 32768, 1e6f, 1e-6f, true, kQwen2},
    {"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen2.5-14b", "qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6f, 1e-6f, true, kQwen2},
    {"qwen3-4b", "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f, true, kQwen2},
    {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-14b", "qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"phi-3-mini", "phi3", 3072, 8192, 32, 32, 32, 96, 32064, 4096, 1e4f, 1e-5f, false, kSpm},
    {"command-r-35b",
     "command-r",
     8192,
     22528,
     40,
     64,
     64,
     128,
     256000,
     131072,
     8e6f,
     1e-5f,
     true,
     kLlama3,
     {.logit_scale = 0.0625f}},
    {"deepseek-v2-lite",
     "deepseek2",
     2048,
     10944,
     27,
     16,
     1,
     512,
     102400,
     163840,
     1e4f,
     1e-6f,
     false,
     kLlama3,
     {.experts = {.n = 64, .used = 6, .hidden_dim = 1408, .shared_dim = 2816},
      .dense_layers = 1,
      .latent = latent(128, 128, 0)}},
    {"deepseek-r1",
     "deepseek2",
     7168,
     18432,
     61,
     128,
     1,
     512,
     129280,
     163840,
     1e4f,
     1e-6f,
     false,
     kLlama3,
     {.experts = {.n = 256,
                  .used = 8,
                  .hidden_dim = 2048,
                  .gating = Gating::Sigmoid,
                  .normalise = true,
                  .scale = 2.5f,
                  .n_groups = 8,
                  .used_groups = 4,
                  .choice_bias = true,
                  .shared_dim = 2048},
      .dense_layers = 3,
      .latent = latent(128, 128, 1536)}},
    {"ernie-4.5-0.3b", "ernie4_5", 1024, 3072, 18, 16, 2, 128, 103424, 131072, 5e5f, 1e-5f, true, kSpm},
    {"ernie-4.5-21b-a3b",
     "ernie4_5-moe",
     2560,
     12288,
     28,
     20,
     4,
     128,
     103424,
     131072,
     5e5f,
     1e-5f,
     true,
     kSpm,
     {.experts = {.n = 64, .used = 6, .hidden_dim = 1536, .choice_bias = true, .shared_dim = 3072}, .dense_layers = 1}},
    {"exaone-4-1.2b", "exaone4", 2048, 4096, 30, 32, 8, 64, 102400, 65536, 1e6f, 1e-5f, true, kLlama3},
    {"gemma-7b", "gemma", 3072, 24576, 28, 16, 16, 256, 256000, 8192, 1e4f, 1e-6f, true, kSpm},
    {"gemma-2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256, 256000, 8192, 1e4f, 1e-6f, true, kSpm, {.window = 4096}},
    {"gemma-4-e4b",
     "gemma4",
     2560,
     10240,
     42,
     8,
     2,
     512,
     262144,
     131072,
     1e6f,
     1e-6f,
     true,
     kSpm,
     {.window = 512, .window_head_dim = 256, .shared_kv = 18, .layer_input_dim = 256}},
    {"gemma-4-26b-a4b",
     "gemma4",
     2816,
     2112,
     30,
     16,
     2,
     512,
     262144,
     262144,
     1e6f,
     1e-6f,
     true,
     kSpm,
     {.window = 1024,
      .window_kv_heads = 8,
      .window_head_dim = 256,
      .v_is_k = true,
      .experts = {.n = 128, .used = 8, .hidden_dim = 704, .fused_gate_up = true, .factors = true}}},
    {"gemma-4-31b",
     "gemma4",
     5376,
     21504,
     60,
     32,
     4,
     512,
     262144,
     262144,
     1e6f,
     1e-6f,
     true,
     kSpm,
     {.window = 1024, .window_kv_heads = 16, .window_head_dim = 256, .v_is_k = true}},
    {"glm-4-9b", "glm4", 4096, 13696, 40, 32, 2, 128, 151552, 32768, 1e4f, 1e-5f, false, kLlama3, {.rotary_dim = 64}},
    {"glm-4.5-air",
     "glm4moe",
     4096,
     10944,
     46,
     96,
     8,
     128,
     151552,
     131072,
     1e6f,
     1e-5f,
     false,
     kLlama3,
     {.rotary_dim = 64,
      .qkv_bias = true,
      .experts = {.n = 128, .used = 8, .hidden_dim = 1408, .normalise = true, .choice_bias = true, .shared_dim = 1408},
      .dense_layers = 1}},
    {"glm-4.7-flash",
     "deepseek2",
     2048,
     10240,
     47,
     20,
     1,
     512,
     154880,
     202752,
     1e6f,
     1e-5f,
     false,
     kLlama3,
     {.experts = {.n = 64,
                  .used = 4,
                  .hidden_dim = 1536,
                  .gating = Gating::Sigmoid,
                  .normalise = true,
                  .scale = 1.8f,
                  .choice_bias = true,
                  .shared_dim = 1536},
      .dense_layers = 1,
      .latent = latent(192, 256, 768)}},
    {"granite-3.1-3b-a800m",
     "granitemoe",
     1536,
     512,
     32,
     24,
     8,
     64,
     49155,
     131072,
     1e7f,
     1e-6f,
     true,
     kLlama3,
     {.embedding_scale = 12,
      .residual_scale = 0.22f,
      .logit_scale = 1 / 6.f,
      .attention_scale = 1 / 64.f,
      .experts = {.n = 40, .used = 8, .hidden_dim = 512}}},
    {"gpt-oss-20b",
     "gpt-oss",
     2880,
     2880,
     24,
     64,
     8,
     64,
     201088,
     131072,
     1.5e5f,
     1e-5f,
     false,
     kLlama3,
     {.window = 128, .experts = {.n = 32, .used = 4, .hidden_dim = 2880}}},
    {"granite-3.3-8b",
     "granite",
     4096,
     12800,
     40,
     32,
     8,
     128,
     49159,
     131072,
     1e7f,
     1e-5f,
     true,
     kLlama3,
     {.embedding_scale = 12, .residual_scale = 0.22f, .logit_scale = 1 / 16.f, .attention_scale = 1 / 128.f}},
    {"hunyuan-7b", "hunyuan-dense", 4096, 14336, 32, 32, 8, 128, 128167, 262144, 11158840, 1e-5f, true, kLlama3},
    {"hunyuan-a13b",
     "hunyuan-moe",
     4096,
     3072,
     32,
     32,
     8,
     128,
     128167,
     262144,
     11158840,
     1e-5f,
     true,
     kLlama3,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 3072, .shared_dim = 3072}}},
    {"kimi-k2",
     "deepseek2",
     7168,
     18432,
     61,
     64,
     1,
     512,
     163840,
     131072,
     5e4f,
     1e-6f,
     false,
     kLlama3,
     {.experts = {.n = 384,
                  .used = 8,
                  .hidden_dim = 2048,
                  .gating = Gating::Sigmoid,
                  .normalise = true,
                  .scale = 2.827f,
                  .choice_bias = true,
                  .shared_dim = 2048},
      .dense_layers = 1,
      .latent = latent(128, 128, 1536)}},
    {"minitron-4b", "nemotron", 3072, 9216, 32, 24, 8, 128, 256000, 4096, 1e4f, 1e-5f, false, kSpm, {.rotary_dim = 64}},
    {"mixtral-8x7b",
     "llama",
     4096,
     14336,
     32,
     32,
     8,
     128,
     32000,
     32768,
     1e6f,
     1e-5f,
     false,
     kSpm,
     {.experts = {.n = 8, .used = 2, .hidden_dim = 14336}}},
    {"olmo-2-7b", "olmo2", 4096, 11008, 32, 32, 32, 128, 100352, 4096, 5e5f, 1e-6f, false, kLlama3},
    {"olmoe-1b-7b",
     "olmoe",
     2048,
     1024,
     16,
     16,
     16,
     128,
     50304,
     4096,
     1e4f,
     1e-5f,
     false,
     kLlama3,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 1024}}},
    {"phi-2", "phi2", 2560, 10240, 32, 32, 32, 80, 51200, 2048, 1e4f, 1e-5f, false, kLlama3, {.rotary_dim = 32}},
    {"phi-3.5-moe",
     "phimoe",
     4096,
     6400,
     32,
     32,
     8,
     128,
     32064,
     131072,
     1e4f,
     1e-5f,
     false,
     kSpm,
     {.experts = {.n = 16, .used = 2, .hidden_dim = 6400}}},
    {"qwen2-57b-a14b",
     "qwen2moe",
     3584,
     18944,
     28,
     28,
     4,
     128,
     151936,
     32768,
     1e6f,
     1e-6f,
     false,
     kQwen2,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 2560, .shared_dim = 20480, .shared_gate = true}}},
    {"qwen3-30b-a3b",
     "qwen3moe",
     2048,
     6144,
     48,
     32,
     4,
     128,
     151936,
     40960,
     1e6f,
     1e-6f,
     false,
     kQwen2,
     {.experts = {.n = 128, .used = 8, .hidden_dim = 768}}},
    {"qwen3-next-80b-a3b",
     "qwen3next",
     2048,
     5120,
     48,
     16,
     2,
     256,
     151936,
     262144,
     1e7f,
     1e-6f,
     false,
     kQwen2,
     {.rotary_dim = 64,
      .experts = {.n = 512, .used = 10, .hidden_dim = 512, .shared_dim = 512, .shared_gate = true},
      .recurrent = kDeltaNet}},
    {"qwen3.5-9b",
     "qwen35",
     4096,
     12288,
     32,
     16,
     4,
     256,
     248320,
     262144,
     1e7f,
     1e-6f,
     false,
     kQwen2,
     {.rotary_dim = 64, .recurrent = kDeltaNet}},
    {"qwen3.5-35b-a3b",
     "qwen35moe",
     2048,
     512,
     40,
     16,
     2,
     256,
     248320,
     262144,
     1e7f,
     1e-6f,
     false,
     kQwen2,
     {.rotary_dim = 64,
      .experts = {.n = 256, .used = 8, .hidden_dim = 512, .shared_dim = 512, .shared_gate = true},
      .recurrent = kDeltaNet}},
    {"seed-oss-36b", "seed_oss", 5120, 27648, 64, 80, 8, 128, 155136, 524288, 1e7f, 1e-6f, false, kLlama3},
    {"smollm3-3b", "smollm3", 2048, 11008, 36, 16, 4, 128, 128256, 65536, 5e6f, 1e-6f, true, kLlama3},
    {"starcoder2-3b", "starcoder2", 3072, 12288, 30, 24, 2, 128, 49152, 16384, 1e6f, 1e-5f, true, kLlama3},
};
std::string lower_name(DType t) {
	std::string s = dtype_info(t).name;
	for (char& c : s) c = char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
	return s;
}

std::string joined(const std::vector<std::string>& words) {
	std::string s;
	for (const std::string& w : words) s += (s.empty() ? "" : " ") + w;
	return s;
}

std::vector<std::string_view> split(std::string_view s, char at) {
	std::vector<std::string_view> out;
	for (size_t begin = 0; begin <= s.size();) {
		const size_t end = std::min(s.find(at, begin), s.size());
		out.push_back(s.substr(begin, end - begin));
		begin = end + 1;
	}
	return out;
}

uint64_t number(std::string_view what, std::string_view text, uint64_t lowest, uint64_t highest) {
	uint64_t n = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
	if (error != std::errc() || end != text.data() + text.size() || n < lowest || n > highest)
		fail(Code::Invalid, "{} of a synthetic model is '{}', expected a number from {} to {}", what,
		     one_line(text, 40), lowest, highest);
	return n;
}

void set_key(SynthSpec& s, std::string_view item) {
	const size_t at = item.find('=');
	const std::string_view key = item.substr(0, at), value = at == item.npos ? "" : item.substr(at + 1);
	Config& c = s.config;
	struct Key {
		std::string_view name;
		uint32_t* value;
		uint32_t lowest, highest;
	};
	Experts& e = s.mixture.experts;
	const Key keys[] = {{"dim", &c.dim, 32, 65536},
	                    {"hidden", &c.hidden_dim, 32, 262144},
	                    {"layers", &c.n_layers, 1, 512},
	                    {"heads", &c.n_heads, 1, 1024},
	                    {"kv_heads", &c.n_kv_heads, 1, 1024},
	                    {"head_dim", &c.head_dim, 8, 512},
	                    {"vocab", &c.vocab, 1024, 262144},
	                    {"ctx", &c.max_seq, 16, 1u << 24},
	                    {"experts", &e.n, 1, KV_MOST_EXPERTS},
	                    {"used", &e.used, 1, KV_MOST_USED},
	                    {"expert_hidden", &e.hidden_dim, 32, 65536},
	                    {"shared", &e.shared_dim, 32, 65536}};
	for (const Key& k : keys)
		if (k.name == key) {
			*k.value = uint32_t(number(key, value, k.lowest, k.highest));
			return;
		}
	if (key == "arch") {
		const Family* f = find_family(value);
		if (!f)
			fail(Code::Invalid, "arch of a synthetic model is '{}', expected one of {}", one_line(value),
			     family_names());
		c.arch = f->arch;
		return;
	}
	fail(
	    Code::Invalid,
	    "a synthetic model has no key '{}'; there are arch dim hidden layers heads kv_heads head_dim vocab ctx, and of "
	    "mixtures experts used expert_hidden shared",
	    one_line(key, 40));
}

// Completes the experts after keys have changed them; they are chosen as in the family.
void complete_mixture(SynthSpec& s, const Family& family) {
	Experts& e = s.mixture.experts;
	if (!e.n && !e.used && !e.hidden_dim && !e.shared_dim) return;
	if (!family.mixture)
		fail(Code::Invalid, "{} has no experts; keys experts used expert_hidden shared are for mixtures", family.arch);
	if (!e.n || !e.used || !e.hidden_dim)
		fail(Code::Invalid, "a mixture needs keys experts, used and expert_hidden, all of them");
	if (e.used > e.n) fail(Code::Invalid, "a synthetic model cannot use {} of {} experts", e.used, e.n);
	if (e.hidden_dim % 32 != 0 || e.shared_dim % 32 != 0)
		fail(Code::Invalid, "expert_hidden {} and shared {} of a synthetic model must be multiples of 32", e.hidden_dim,
		     e.shared_dim);
	const Experts& own = family.layer.experts;
	if (e.gating == Gating::Softmax) e.gating = own.gating;
	e.normalise |= own.normalise, e.clamped = own.clamped;
	e.router_bias |= own.router_bias, e.bias |= own.bias, e.beside_mlp = own.beside_mlp;
	s.mixture.first = std::min(s.mixture.first, s.config.n_layers - 1);
	place_experts(s.config, s.mixture);
}

// Every fourth layer and the last one attend.
void complete_recurrent(SynthSpec& s, const Family& family, Recurrent shape) {
	if (!shape.n_heads)
		fail(Code::Invalid, "{} has recurrent layers, which the shape has not; begin with qwen3.5-9b", family.arch);
	shape.tiled = family.recurrent_shape.tiled, shape.fused_gates = family.recurrent_shape.fused_gates;
	RecurrentLayers r{shape, {}};
	for (uint32_t l = 1; l <= s.config.n_layers; ++l) r.layers.push_back(l % 4 != 0 && l < s.config.n_layers);
	place_recurrent(s.config, r);
}

// Sizes of layers with a window, if keys have not changed those of other layers.
LayerSizes layer_sizes(const Config& c, const Family& family, const Row& r) {
	LayerSizes sizes;
	sizes.shared_kv = c.n_layers == r.layers ? r.more.shared_kv : 0;
	if (r.more.window_head_dim && c.head_dim == r.head_dim)
		sizes.window_head_dim = sizes.window_rope_dim = r.more.window_head_dim;
	for (uint32_t l = 0; l < c.n_layers && r.more.window_kv_heads && c.n_kv_heads == r.kv_heads; ++l)
		sizes.n_kv_heads.push_back(has_window(family, {.tokens = r.more.window}, l) ? r.more.window_kv_heads
		                                                                            : c.n_kv_heads);
	return sizes;
}

// Sets dependent values, and checks the limits that read_config() would report only after the file has been made.
void complete(SynthSpec& s, const Row& r) {
	Config& c = s.config;
	const Family& family = *find_family(c.arch);
	Layer layer = family.layer;
	c.norm = family.norm, c.output_bias = family.output_bias;
	c.embedding_scale = r.more.embedding_scale    ? r.more.embedding_scale
	                    : family.scales_embedding ? std::sqrt(float(c.dim))
	                                              : 1;
	c.logit_scale = r.more.logit_scale, layer.residual_scale = r.more.residual_scale;
	if (r.more.attention_scale != 0) layer.attention_scale = r.more.attention_scale;
	layer.score_softcap = family.score_softcap, c.logit_softcap = family.logit_softcap;
	c.ropes[0].dim = r.more.rotary_dim && c.head_dim == r.head_dim ? r.more.rotary_dim : c.head_dim;
	c.ropes[0].neox = family.neox;
	layer.qkv_bias |= r.more.qkv_bias;
	if (family.latent) {
		layer.latent = r.more.latent;
		if (!layer.latent.rank)
			fail(Code::Invalid, "{} has latent attention, which the shape has not; begin with deepseek-v2-lite",
			     c.arch);
		c.head_dim = layer.latent.rank, c.n_kv_heads = 1, c.ropes[0].dim = layer.latent.rope_dim;
	}
	describe_layers(c, family, layer, {.tokens = r.more.window}, layer_sizes(c, family, r));
	for (Layer& l : c.layers) l.v_is_k = r.more.v_is_k && !l.window;
	c.layer_input_dim = r.more.layer_input_dim;
	complete_mixture(s, family);
	if (family.recurrent) complete_recurrent(s, family, r.more.recurrent);
	if (c.n_heads % c.n_kv_heads != 0)
		fail(Code::Invalid, "{} heads of a synthetic model do not divide into {} kv_heads", c.n_heads, c.n_kv_heads);
	if (c.head_dim % 8 != 0)
		fail(Code::Invalid, "head_dim of a synthetic model is {}, not a multiple of 8", c.head_dim);
	if (c.dim % 32 != 0 || c.hidden_dim % 32 != 0)
		fail(Code::Invalid, "dim {} and hidden {} of a synthetic model must be multiples of 32", c.dim, c.hidden_dim);
}

const Row& find_row(std::string_view name) {
	for (const Row& r : kRows)
		if (name == r.name) return r;
	fail(Code::Invalid, "there is no shape of the name '{}'; there are {}", one_line(name, 60), joined(synth_names()));
}

} // namespace

std::vector<std::string> synth_names() {
	std::vector<std::string> out;
	for (const Row& r : kRows) out.push_back(r.name);
	return out;
}

std::vector<std::string> synth_types() {
	std::vector<std::string> out;
	for (const DType t : kTensorTypes) out.push_back(lower_name(t));
	return out;
}

DType parse_synth_type(std::string_view name) {
	for (const DType t : kTensorTypes)
		if (name == lower_name(t)) return t;
	fail(Code::Invalid, "the type of a synthetic model is '{}', expected one of {}", one_line(name, 40),
	     joined(synth_types()));
}

SynthSpec parse_synth(std::string_view text) {
	const std::vector<std::string_view> parts = split(text, ':');
	if (parts.size() < 2 || parts.size() > 3)
		fail(Code::Invalid, "'{}' is no synthetic model; write NAME[,key=value,...]:TYPE[:SEED], as llama-3.1-8b:q4_k",
		     one_line(text, 80));
	const std::vector<std::string_view> items = split(parts[0], ',');
	const Row& r = find_row(items[0]);
	SynthSpec s;
	s.name = parts[0];
	Config& c = s.config;
	c.arch = r.arch, c.name = fmt::format("{} of random weights", parts[0]);
	c.dim = r.dim, c.hidden_dim = r.hidden, c.n_layers = r.layers, c.n_heads = r.heads, c.n_kv_heads = r.kv_heads;
	c.head_dim = r.head_dim, c.vocab = r.vocab, c.max_seq = r.ctx;
	c.ropes = {{.theta = r.theta}}, c.norm_eps = r.eps, c.tied_embedding = r.tied;
	s.tokenizer = r.tokenizer;
	s.mixture.experts = r.more.experts, s.mixture.first = r.more.dense_layers;
	for (size_t i = 1; i < items.size(); ++i) set_key(s, items[i]);
	complete(s, r);
	s.type = parse_synth_type(parts[1]);
	if (parts.size() == 3) s.seed = number("seed", parts[2], 0, UINT64_MAX);
	return s;
}

} // namespace kvrun
