#ifndef KVRUN_NO_TOKEN_GLSL
#define KVRUN_NO_TOKEN_GLSL
// The maximum score over no tokens. Finite, so that a driver's fast arithmetic cannot turn it into a NaN.
const float NO_TOKEN = -1e30;
const uint MINUS_INF = 0xff800000u; // the bits of the logarithm of their sum
#endif
