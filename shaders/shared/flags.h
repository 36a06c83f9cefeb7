// Bits of SPEC_FLAGS, by kernel. Read by GLSL and C++.
#ifndef KVRUN_FLAGS_H
#define KVRUN_FLAGS_H

// matmul and matvec kernels; the two lowest bits are one of the epilogues MATMUL_* of push.h
#define MATMUL_EPILOGUE 3u
#define MATMUL_TAIL 4u          // cols is no multiple of 32
#define MATMUL_NORM 8u          // matvec: x is normalised
#define MATMUL_CLAMPED 16u      // SwiGLU is the clamped one of experts.h
#define MATMUL_BY_SLOT 32u      // texel_expert_matmul: one token, whose expert ids say
#define MATMUL_RESIDENT 64u     // matvec_int8: workgroups loop over rows while x stays in shared memory
#define MATMUL_ROUNDED 128u     // matvec_int8: x is the output of round_vec.comp
#define KV_RESIDENT_BLOCKS 512u // most blocks of 32 columns with MATMUL_RESIDENT

// route
#define ROUTE_SIGMOID 1u    // weights are sigmoids of logits, else their softmax
#define ROUTE_NORMALISED 2u // a row's weights are divided by their sum
#define ROUTE_BIAS 4u
#define ROUTE_NEAR 8u          // weights are softmaxes over near logits (KV_NEAR of experts.h)
#define ROUTE_EXPERT_SCALE 16u // experts have factors
#define ROUTE_SOFTPLUS 32u     // weights are roots of softplus of logits
#define ROUTE_BY_TOKEN 64u     // a table names a row's experts

// rope_store
#define ROPE_NEOX 1u       // pairs are (i, i + rotary_dim / 2), else (2i, 2i + 1)
#define ROPE_NORM_Q 2u     // RMS norm of each query head
#define ROPE_NORM_K 4u     // of each key head
#define ROPE_OF_VALUES 16u // v is rotated, and k is stored as it is, with a width of its own
#define ROPE_WEIGH_LAST 8u // the norm's weights multiply after the rotation, else before
#define ROPE_BACK 32u      // by the negative angles

// attend kernels over pages, and weigh
#define ATTEND_K_PER_CHANNEL 1u   // K has its parameters per channel
#define ATTEND_V_FACTORS 2u       // V has channel factors
#define ATTEND_BALANCE 4u         // queries are divided by the balancer
#define ATTEND_K_CODEBOOK 8u      // K has norms, and codes of a codebook
#define ATTEND_V_CODEBOOK 16u     // V
#define ATTEND_K_ROTATED 32u      // K is rotated
#define ATTEND_V_ROTATED 64u      // V
#define ATTEND_K_BYTES 128u       // K's parameters are bytes
#define ATTEND_V_BYTES 256u       // V's
#define ATTEND_K_MEANS 512u       // K has means
#define ATTEND_K_DOT 1024u        // INT8: integer dot products of K
#define ATTEND_V_DOT 2048u        // of V
#define ATTEND_SLOW_CONVERT 4096u // INT8: a conversion to float costs more than an addition
#define ATTEND_LOAD_AHEAD 8192u   // registers suffice to load keys ahead
#define ATTEND_SOFTCAP 16384u     // scores have a cap
#define ATTEND_SINKS 32768u       // heads have sinks, which a kernel that merges adds
#define ATTEND_GATHER 65536u      // few tokens are live: tiles consist of the quads that have some
#define ATTEND_SKIP 131072u       // few tokens are live: tiles without any are skipped

// short_conv
#define CONV_SILU 1u  // of the sums
#define CONV_BIAS 2u  // there is a bias
#define CONV_GATES 4u // gates weigh the rows
#define CONV_MIXES 8u // each row is mixed with the one before it, in several ways

// pool_blocks
#define POOL_OVERLAP 1u // blocks overlap

// delta_rule
#define DELTA_BY_CHANNEL 1u // each channel of keys has a decay of its own, else each head
#define DELTA_BOUNDED 2u    // decays have a bound

// activate
#define ACTIVATE_FUNCTION 15u // these bits are one of the following
#define ACTIVATE_SILU 1u
#define ACTIVATE_GELU_TANH 2u
#define ACTIVATE_RELU2 3u
#define ACTIVATE_SIGMOID 4u
#define ACTIVATE_XIELU 5u
#define ACTIVATE_GELU_QUICK 6u
#define ACTIVATE_CLAMP 7u
#define ACTIVATE_SOFTPLUS 8u
#define ACTIVATE_RELU 9u
#define ACTIVATE_GELU 10u
#define ACTIVATE_TIMES 16u // y is a factor
#define ACTIVATE_CAP 32u   // there is a cap
#define ACTIVATE_ADD 64u   // out += v, else out = v
#define ACTIVATE_EACH 128u // an element of x belongs to several of out

#define LAYER_NORM_BIAS 1u // layer_norm: there is b

// join_heads
#define JOIN_OUT_HALVES 1u // out is f16, else f32
#define JOIN_A_HALVES 2u
#define JOIN_B_HALVES 4u
#define JOIN_B 8u // there is b

// attend_prompt kernels
#define PROMPT_STATE 1u    // the state goes to the row's last part, instead of the result to out
#define PROMPT_LSE 2u      // lse is written
#define PROMPT_WINDOW 4u   // a row sees only its latest `window` tokens
#define PROMPT_SOFTCAP 8u  // scores have a cap
#define PROMPT_SINKS 16u   // heads have sinks; without PROMPT_STATE
#define PROMPT_CHUNKS 32u  // with PROMPT_WINDOW: a row sees the tokens since the last multiple of `window`
#define PROMPT_SEEN 64u    // of its tokens a row sees those whose bits are set
#define PROMPT_SLOPES 128u // scores fall with the distance of row and token; without PROMPT_SINKS, PROMPT_SOFTCAP

#define MERGE_LSE 1u   // attend_merge: lse is written
#define MERGE_SINKS 2u // heads have sinks

// score kernels
#define SCORE_COUNT 1u     // a row gives 1 instead of attention
#define SCORE_KEY_LARGE 2u // weighted by the length of the token's key
#define SCORE_KEY_SMALL 4u // divided by it
#define SCORE_SOFTCAP 8u   // scores have a cap
#define SCORE_SEEN 16u     // of its tokens a row sees those whose bits are set; score_prompt

#define INDEX_WEIGHTS 1u // index_score: heads have weights
#define INDEX_POOL 2u    // scores are of `pool` keys; one head, without weights

// kv_pack_channels, kv_block
#define PACK_K_BLOCK 1u   // parameters are already in the block
#define PACK_K_BALANCE 2u // keys are multiplied by the balancer
#define PACK_K_BYTES 4u   // parameters are bytes

// kv_pack_tokens
#define PACK_T_VALUES 1u  // values, else keys
#define PACK_T_BALANCE 2u // keys are multiplied by the balancer
#define PACK_T_FACTORS 4u // values are divided by channel factors

// kv_pack_pages
#define PACK_P_VALUES 1u // values, else keys
#define PACK_P_MEANS 2u  // the mean of each channel over the page is stored
#define PACK_P_ROTATE 4u // heads are rotated
#define PACK_P_BYTES 8u  // norms are bytes
#endif
