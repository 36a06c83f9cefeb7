// Mixtures of experts. Row t chooses `used` of n_experts; slot t * used + j is its choice number j. Read by C++, nvcc
// and GLSL.
#ifndef KVRUN_EXPERTS_H
#define KVRUN_EXPERTS_H
#define KV_MOST_EXPERTS 512u // of a layer
#define KV_MOST_USED 32u     // of a row
#define KV_MOST_GROUPS 64u   // of experts

// The slots of a prompt by expert, in tiles of one expert each. A tile is the expert's number, then up to
// KV_EXPERT_TILE slots in ascending order, then KV_NO_SLOT. A tile without slots is all KV_NO_SLOT.
#define KV_EXPERT_TILE 64u
#define KV_TILE_WORDS (1u + KV_EXPERT_TILE)
#define KV_NO_SLOT 0xffffffffu

// Clamped SwiGLU (gpt-oss): with g = min(gate, limit), g * sigmoid(alpha * g) * (clamp(up, -limit, limit) + 1).
#define KV_GLU_ALPHA 1.702f
#define KV_GLU_LIMIT 7.0f

// A logit s is near the logit `top` of a chosen expert if (top - s) / max(|s|, top) <= KV_NEAR; arXiv:2409.12136.
#define KV_NEAR 0.02f
#endif
