// Shared memory of attention by integer dot products: rounded queries (K_DOT) and weights (V_DOT).
//
// For keys with a scale per channel, queries are rounded for each page of a tile, and the tile's weights then overwrite
// them; for other keys they are rounded once and stay. Both are uvec4 of 4 words of 4 bytes:
//   queries [page of the tile][word of codes][plane][step][query / 4]  words of 4 queries, lib/keys_dot.glsl
//           [page of the tile][query][Q8_PIECES]   words [word of codes][plane][step], unless BY_FOUR
//   weights [run of channels][quad][query / 4]     words of 4 queries, lib/values_dot.glsl
//           [query][run of channels][quads / 4]    words of 4 quads of tokens, unless BY_FOUR
// At the end, sums of lanes overwrite them: SUM() of lib/attend.glsl, two pieces for each lane and chunk.
// Uses LOCAL_X, HEAD_DIM, QUERIES, TILE_QUADS, TILE_PAGES, K_..., V_...
const uint K_STEPS = K_BITS == 4u ? 2u : K_BITS == 1u ? 8u : 4u; // words of bytes that a word of codes expands to
const uint K_PLANES = K_BITS == 4u ? 2u : 1u;                    // bytes of a rounded query's channel: high, low
const uint Q8_PIECES = (HEAD_DIM * (K_BITS == 3u ? 2u : K_BITS) + 31u) / 32u * K_STEPS * K_PLANES / 4u;
const uint V_RUNS = !V_BOOK && V_GROUP < HEAD_DIM ? HEAD_DIM / V_GROUP : 1u;
const uint ROUNDED_QUERIES = K_DOT ? QUERIES * Q8_PIECES * (K_CHANNEL ? TILE_PAGES : 1u) : 0u;
// 4 queries to a piece save registers, but not with loads ahead. In steps: glslang 12.
const bool ROOM = (FLAGS & ATTEND_LOAD_AHEAD) != 0u;
const uint FOURS = ROOM ? 1u : QUERIES % 4u; // 0: by four
const bool BY_FOUR = FOURS == 0u;
const uint PADDED = V_RUNS > 1u ? FOURS : 1u;
const uint RUN_QUADS = TILE_QUADS + (PADDED == 0u ? 1u : 0u); // padded, so that runs are in other banks
const uint ROUNDED_WEIGHTS = V_DOT ? QUERIES * V_RUNS * RUN_QUADS / 4u : 0u;
const uint WEIGHTS_AT = K_CHANNEL ? 0u : ROUNDED_QUERIES;
const uint ROUNDED = WEIGHTS_AT + ROUNDED_WEIGHTS > ROUNDED_QUERIES ? WEIGHTS_AT + ROUNDED_WEIGHTS : ROUNDED_QUERIES;
const uint LANE_SUMS = V_DOT ? 2u * LOCAL_X : 1u;
const uint SUMS_DOT = ROUNDED > LANE_SUMS ? ROUNDED : LANE_SUMS;
shared uvec4 dot_s[SUMS_DOT];
