#ifndef KVRUN_NO_TOKEN_GLSL
#define KVRUN_NO_TOKEN_GLSL
// The maximum score over no tokens. Finite, so that a driver's fast arithmetic cannot turn it into a NaN.
const float NO_TOKEN = -1e30;
#endif
