// The table of synthetic models: shapes of well-known models.
#include "models/synth/shape_rows.h"

namespace kvrun {
namespace {

constexpr SynthVocab kSpm = SynthVocab::Spm, kLlama3 = SynthVocab::Llama3, kQwen2 = SynthVocab::Qwen2;
constexpr Recurrent kDeltaNet = {.n_heads = 32, .n_key_heads = 16, .k_dim = 128, .v_dim = 128, .taps = 4};
constexpr Latent latent(uint32_t nope_dim, uint32_t v_dim, uint32_t q_rank) {
	return {.rank = 512, .rope_dim = 64, .nope_dim = nope_dim, .v_dim = v_dim, .q_rank = q_rank};
}
// clang-format off
constexpr SynthRow kRows[] = {
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
    {"command-r-35b", "command-r", 8192, 22528, 40, 64, 64, 128, 256000, 131072, 8e6f, 1e-5f, true, kLlama3,
     {.logit_scale = 0.0625f}},
    {"deepseek-v2-lite", "deepseek2", 2048, 10944, 27, 16, 1, 512, 102400, 163840, 1e4f, 1e-6f, false, kLlama3,
     {.experts = {.n = 64, .used = 6, .hidden_dim = 1408, .shared_dim = 2816}, .dense_layers = 1,
      .latent = latent(128, 128, 0)}},
    {"deepseek-r1", "deepseek2", 7168, 18432, 61, 128, 1, 512, 129280, 163840, 1e4f, 1e-6f, false, kLlama3,
     {.experts = {.n = 256, .used = 8, .hidden_dim = 2048, .gating = Gating::Sigmoid, .normalise = true,
      .scale = 2.5f, .n_groups = 8, .used_groups = 4, .choice_bias = true, .shared_dim = 2048}, .dense_layers = 3,
      .latent = latent(128, 128, 1536)}},
    {"ernie-4.5-0.3b", "ernie4_5", 1024, 3072, 18, 16, 2, 128, 103424, 131072, 5e5f, 1e-5f, true, kSpm},
    {"ernie-4.5-21b-a3b", "ernie4_5-moe", 2560, 12288, 28, 20, 4, 128, 103424, 131072, 5e5f, 1e-5f, true, kSpm,
     {.experts = {.n = 64, .used = 6, .hidden_dim = 1536, .choice_bias = true, .shared_dim = 3072},
      .dense_layers = 1}},
    {"exaone-4-1.2b", "exaone4", 2048, 4096, 30, 32, 8, 64, 102400, 65536, 1e6f, 1e-5f, true, kLlama3},
    {"gemma-7b", "gemma", 3072, 24576, 28, 16, 16, 256, 256000, 8192, 1e4f, 1e-6f, true, kSpm},
    {"gemma-2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256, 256000, 8192, 1e4f, 1e-6f, true, kSpm, {.window = 4096}},
    {"gemma-4-e4b", "gemma4", 2560, 10240, 42, 8, 2, 512, 262144, 131072, 1e6f, 1e-6f, true, kSpm,
     {.window = 512, .window_head_dim = 256, .shared_kv = 18, .layer_input_dim = 256}},
    {"gemma-4-26b-a4b", "gemma4", 2816, 2112, 30, 16, 2, 512, 262144, 262144, 1e6f, 1e-6f, true, kSpm,
     {.window = 1024, .window_kv_heads = 8, .window_head_dim = 256, .v_is_k = true, .experts = {.n = 128, .used = 8,
      .hidden_dim = 704, .fused_gate_up = true, .factors = true}}},
    {"gemma-4-31b", "gemma4", 5376, 21504, 60, 32, 4, 512, 262144, 262144, 1e6f, 1e-6f, true, kSpm,
     {.window = 1024, .window_kv_heads = 16, .window_head_dim = 256, .v_is_k = true}},
    {"glm-4-9b", "glm4", 4096, 13696, 40, 32, 2, 128, 151552, 32768, 1e4f, 1e-5f, false, kLlama3, {.rotary_dim = 64}},
    {"glm-4.5-air", "glm4moe", 4096, 10944, 46, 96, 8, 128, 151552, 131072, 1e6f, 1e-5f, false, kLlama3,
     {.rotary_dim = 64, .qkv_bias = true, .experts = {.n = 128, .used = 8, .hidden_dim = 1408, .normalise = true,
      .choice_bias = true, .shared_dim = 1408}, .dense_layers = 1}},
    {"glm-4.7-flash", "deepseek2", 2048, 10240, 47, 20, 1, 512, 154880, 202752, 1e6f, 1e-5f, false, kLlama3,
     {.experts = {.n = 64, .used = 4, .hidden_dim = 1536, .gating = Gating::Sigmoid, .normalise = true,
      .scale = 1.8f, .choice_bias = true, .shared_dim = 1536}, .dense_layers = 1, .latent = latent(192, 256, 768)}},
    {"granite-3.1-3b-a800m", "granitemoe", 1536, 512, 32, 24, 8, 64, 49155, 131072, 1e7f, 1e-6f, true, kLlama3,
     {.embedding_scale = 12, .residual_scale = 0.22f, .logit_scale = 1 / 6.f, .attention_scale = 1 / 64.f,
      .experts = {.n = 40, .used = 8, .hidden_dim = 512}}},
    {"gpt-oss-20b", "gpt-oss", 2880, 2880, 24, 64, 8, 64, 201088, 131072, 1.5e5f, 1e-5f, false, kLlama3,
     {.window = 128, .experts = {.n = 32, .used = 4, .hidden_dim = 2880}}},
    {"granite-3.3-8b", "granite", 4096, 12800, 40, 32, 8, 128, 49159, 131072, 1e7f, 1e-5f, true, kLlama3,
     {.embedding_scale = 12, .residual_scale = 0.22f, .logit_scale = 1 / 16.f, .attention_scale = 1 / 128.f}},
    {"hunyuan-7b", "hunyuan-dense", 4096, 14336, 32, 32, 8, 128, 128167, 262144, 11158840, 1e-5f, true, kLlama3},
    {"hunyuan-a13b", "hunyuan-moe", 4096, 3072, 32, 32, 8, 128, 128167, 262144, 11158840, 1e-5f, true, kLlama3,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 3072, .shared_dim = 3072}}},
    {"kimi-k2", "deepseek2", 7168, 18432, 61, 64, 1, 512, 163840, 131072, 5e4f, 1e-6f, false, kLlama3,
     {.experts = {.n = 384, .used = 8, .hidden_dim = 2048, .gating = Gating::Sigmoid, .normalise = true,
      .scale = 2.827f, .choice_bias = true, .shared_dim = 2048}, .dense_layers = 1, .latent = latent(128, 128,
      1536)}},
    {"minitron-4b", "nemotron", 3072, 9216, 32, 24, 8, 128, 256000, 4096, 1e4f, 1e-5f, false, kSpm, {.rotary_dim = 64}},
    {"mixtral-8x7b", "llama", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6f, 1e-5f, false, kSpm,
     {.experts = {.n = 8, .used = 2, .hidden_dim = 14336}}},
    {"olmo-2-7b", "olmo2", 4096, 11008, 32, 32, 32, 128, 100352, 4096, 5e5f, 1e-6f, false, kLlama3},
    {"olmoe-1b-7b", "olmoe", 2048, 1024, 16, 16, 16, 128, 50304, 4096, 1e4f, 1e-5f, false, kLlama3,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 1024}}},
    {"phi-2", "phi2", 2560, 10240, 32, 32, 32, 80, 51200, 2048, 1e4f, 1e-5f, false, kLlama3, {.rotary_dim = 32}},
    {"phi-3.5-moe", "phimoe", 4096, 6400, 32, 32, 8, 128, 32064, 131072, 1e4f, 1e-5f, false, kSpm,
     {.experts = {.n = 16, .used = 2, .hidden_dim = 6400}}},
    {"qwen2-57b-a14b", "qwen2moe", 3584, 18944, 28, 28, 4, 128, 151936, 32768, 1e6f, 1e-6f, false, kQwen2,
     {.experts = {.n = 64, .used = 8, .hidden_dim = 2560, .shared_dim = 20480, .shared_gate = true}}},
    {"qwen3-30b-a3b", "qwen3moe", 2048, 6144, 48, 32, 4, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2,
     {.experts = {.n = 128, .used = 8, .hidden_dim = 768}}},
    {"qwen3-next-80b-a3b", "qwen3next", 2048, 5120, 48, 16, 2, 256, 151936, 262144, 1e7f, 1e-6f, false, kQwen2,
     {.rotary_dim = 64, .experts = {.n = 512, .used = 10, .hidden_dim = 512, .shared_dim = 512, .shared_gate = true},
      .recurrent = kDeltaNet}},
    {"qwen3.5-9b", "qwen35", 4096, 12288, 32, 16, 4, 256, 248320, 262144, 1e7f, 1e-6f, false, kQwen2,
     {.rotary_dim = 64, .recurrent = kDeltaNet}},
    {"qwen3.5-35b-a3b", "qwen35moe", 2048, 512, 40, 16, 2, 256, 248320, 262144, 1e7f, 1e-6f, false, kQwen2,
     {.rotary_dim = 64, .experts = {.n = 256, .used = 8, .hidden_dim = 512, .shared_dim = 512, .shared_gate = true},
      .recurrent = kDeltaNet}},
    {"seed-oss-36b", "seed_oss", 5120, 27648, 64, 80, 8, 128, 155136, 524288, 1e7f, 1e-6f, false, kLlama3},
    {"smollm3-3b", "smollm3", 2048, 11008, 36, 16, 4, 128, 128256, 65536, 5e6f, 1e-6f, true, kLlama3},
    {"starcoder2-3b", "starcoder2", 3072, 12288, 30, 24, 2, 128, 49152, 16384, 1e6f, 1e-5f, true, kLlama3},
};
// clang-format on

} // namespace

std::span<const SynthRow> synth_rows() { return kRows; }

} // namespace kvrun
