// Scores of attention from products of queries and keys.
//
// The including file defines the constant SOFTCAP, and has p.scale and p.softcap.
#ifndef KVRUN_SOFTCAP_GLSL
#define KVRUN_SOFTCAP_GLSL

// cap * tanh(score / cap) = cap - 2 cap / (exp(2 score / cap) + 1). Drivers may compute tanh() as sinh() / cosh(),
// which is NaN where those overflow. The error near 0 is 2^-23 of the cap, too small to change a weight.
vec4 scores(vec4 products) {
	const vec4 s = products * p.scale;
	if (!SOFTCAP) return s;
	return p.softcap - 2.0 * p.softcap / (exp(s * (2.0 / p.softcap)) + 1.0);
}
float score_of(float product) {
	const float s = product * p.scale;
	if (!SOFTCAP) return s;
	return p.softcap - 2.0 * p.softcap / (exp(s * (2.0 / p.softcap)) + 1.0);
}

#endif
