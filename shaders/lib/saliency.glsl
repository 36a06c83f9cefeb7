// What a scored row gives to a token that it sees. FLAGS: SCORE_*.
#ifndef KVRUN_SALIENCY_GLSL
#define KVRUN_SALIENCY_GLSL
const bool SOFTCAP = (FLAGS & SCORE_SOFTCAP) != 0u, SEEN = (FLAGS & SCORE_SEEN) != 0u;
#include "lib/softcap.glsl"

const bool BY_ATTENTION = (FLAGS & SCORE_COUNT) == 0u, BY_NORM = (FLAGS & (SCORE_KEY_LARGE | SCORE_KEY_SMALL)) != 0u;

// The weight of a key; `squares`: the sum of the squares of its channels.
vec4 key_weight(vec4 squares) {
	return (FLAGS & SCORE_KEY_LARGE) != 0u ? sqrt(squares) : 1.0 / max(sqrt(squares), vec4(1e-6));
}

#endif
