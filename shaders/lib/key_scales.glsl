// How queries meet keys with a scale per channel in tiles of pages: for attend.comp and weigh.comp, before
// lib/queries.glsl; lib/keys.glsl has the functions. Uses LOCAL_X, QUAD_LANES, PAGE, HEAD_DIM, QUERIES, K_CHANNEL,
// K_DOT (lib/keys_dot.glsl then stages the scales); work_s must have SCALES pieces.
#define KEY_SCALES
const uint PAGE_QUADS = PAGE / 4, TILE_QUADS = LOCAL_X / QUAD_LANES;
const uint TILE_PAGES = TILE_QUADS > PAGE_QUADS ? TILE_QUADS / PAGE_QUADS : 1;
// Shared memory holds queries times scales where they need no more memory than weights (QUERIES * TILE_QUADS pieces),
// else the scales of the keys.
const uint PAGE_SCALES = TILE_PAGES * (HEAD_DIM / 4); // 16-byte pieces
const bool KEYS_SCALED = K_CHANNEL && !K_DOT && PAGE_SCALES > TILE_QUADS;
const bool QUERIES_SCALED = K_CHANNEL && !K_DOT && PAGE_SCALES <= TILE_QUADS;
const uint SCALES = KEYS_SCALED ? PAGE_SCALES : QUERIES_SCALED ? PAGE_SCALES * QUERIES : 0;
vec4 query_fit(vec4 x, uint c);
vec4 key_scale(uint step, uint i);
vec4 query(uint j, uint step, uint i);
