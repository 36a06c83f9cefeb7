// Parts of layers that several families have (models/families.cpp).
#pragma once
#include "models/families.h"

namespace kvrun {

constexpr Experts kSigmoid = {.gating = Gating::Sigmoid};
constexpr Experts kSigmoidShares = {.gating = Gating::Sigmoid, .normalise = true};

constexpr Layer kGatedAttention = {
    .qk_norm = QkNorm::Head, .output_gate = true, .mlp_norm_name = "post_attention_norm"};
// Of encoders: norms come behind attention and MLP, of the residual stream itself.
constexpr Layer kGatedPostNorm = {
    .attn_norm = false, .attn_out_norm = true, .mlp_input = MlpInput::Raw, .mlp_out_norm = true, .norms_sum = true};
constexpr Layer plain(Layer l) {
	l.mlp = MlpKind::Plain, l.activation = Activation::Gelu;
	return l;
}
constexpr Layer kPostNorm = plain(kGatedPostNorm);
constexpr Layer with_alibi(Layer l) {
	l.alibi = true, l.activation = Activation::Gelu;
	return l;
}
constexpr Layer kAlibi = with_alibi(kGatedPostNorm);
constexpr Layer kBiased = {
    .qkv_bias = true, .out_bias = true, .mlp = MlpKind::Plain, .activation = Activation::GeluTanh, .mlp_bias = true};
constexpr Layer fused(Layer l) {
	l.fused_qkv = true;
	return l;
}
constexpr Layer normed_behind(QkNorm heads) {
	Layer l = kGatedPostNorm;
	l.qk_norm = heads, l.norms_sum = false;
	return l;
}
// A gate log2(1 + 2^x): softplus of x ln 2, divided by ln 2.
constexpr float kLn2 = 0.69314718f;
constexpr Layer kSoftGate = {.output_gate = true,
                             .gate_apart = true,
                             .gate_function = Activation::Softplus,
                             .gate_scale = kLn2,
                             .experts = kSigmoid,
                             .attn_gain = 1 / kLn2};
constexpr Layer with_experts(Layer l, Experts e) {
	l.experts = e;
	return l;
}
constexpr Layer kGemma3 = {
    .qk_norm = QkNorm::Head, .attn_out_norm = true, .activation = Activation::GeluTanh, .mlp_out_norm = true};
constexpr Layer with_normed_values(Layer l) {
	l.attention_scale = 1, l.v_norm = true;
	return l;
}
constexpr Layer kGemma4 = with_normed_values(kGemma3);

} // namespace kvrun
