#ifndef KVRUN_NO_TOKEN_GLSL
#define KVRUN_NO_TOKEN_GLSL
// The maximum score over no token. Finite, so that no driver's fast arithmetic can make a NaN of it.
const float NO_TOKEN = -1e30;
#endif
