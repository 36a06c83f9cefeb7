// The largest logits of a row: constants shared by the kernels that find them, the cpu backend and the reader of the
// list. Read by GLSL and C++.
#ifndef KVRUN_CANDIDATES_H
#define KVRUN_CANDIDATES_H
#define KV_LOGIT_BLOCK 128 // logits whose maximum is kept
#define KV_CANDIDATES 512  // most that are listed
// Words of a row's list: the number of candidates, then (index, bits of the float) of each, by index.
#define KV_CANDIDATE_WORDS (1 + 2 * KV_CANDIDATES)
#endif
