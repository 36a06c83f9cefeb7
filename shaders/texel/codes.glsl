// lib/codes.glsl for software drivers, where a shift and a mask per code cost least.
#define CODE(w, bits, i) (((w) >> ((i) * (bits))) & ((1u << (bits)) - 1u))
#define CODE_VEC4(u) vec4(ivec4(u)) // small numbers convert faster as signed integers
