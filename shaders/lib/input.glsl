// Read-only inputs of 16-byte elements: storage buffers; in builds with TEXELS texel buffers, for software drivers,
// whose loads of storage buffers are an order of magnitude slower.
//
//   INPUT(5, restrict readonly, Table, table);   declares vec4 table[] at binding 5
//   VEC4_AT(table, i)                            reads element i of it
//   INPUT_WORDS(1, Q, q); WORDS_AT(q, i)         the same with uvec4
#ifdef TEXELS
#define INPUT(at, qualifiers, block, name) layout(set = 0, binding = at) uniform utextureBuffer name
#define INPUT_WORDS(at, block, name) INPUT(at, , block, name)
#define VEC4_AT(name, i) uintBitsToFloat(WORDS_AT(name, i))
#define WORDS_AT(name, i) texelFetch(name, int(i))
#else
#define INPUT(at, qualifiers, block, name) layout(set = 0, binding = at) qualifiers buffer block { vec4 name[]; }
#define INPUT_WORDS(at, block, name) layout(set = 0, binding = at) restrict readonly buffer block { uvec4 name[]; }
#define VEC4_AT(name, i) name[i]
#define WORDS_AT(name, i) name[i]
#endif
