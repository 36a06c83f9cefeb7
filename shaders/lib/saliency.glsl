// What a scored row gives a token it sees. FLAGS: 1 one, instead of attention; 2 times the length of the token's key; 4 over
// it.
#ifndef KVRUN_SALIENCY_GLSL
#define KVRUN_SALIENCY_GLSL

const bool BY_ATTENTION = (FLAGS & 1u) == 0u, BY_NORM = (FLAGS & 6u) != 0u;

// For keys whose squares add up to so much.
vec4 key_weight(vec4 squares) {
	return (FLAGS & 2u) != 0u ? sqrt(squares) : 1.0 / max(sqrt(squares), vec4(1e-6));
}

#endif
