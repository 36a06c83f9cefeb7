// Ids of specialization constants: one id, one meaning, in every shader. Read by GLSL and C++.
#ifndef KVRUN_SPEC_H
#define KVRUN_SPEC_H
#include "shared/flags.h"
#define SPEC_LOCAL_X 0  // workgroup size
#define SPEC_HEAD_DIM 1 // channels of a head
#define SPEC_K_BITS 2   // bits of a K code; 16 is f16
#define SPEC_V_BITS 3
#define SPEC_K_GROUP 4 // elements per K (scale, zero)
#define SPEC_V_GROUP 5
#define SPEC_FLAGS 6     // bits: shared/flags.h
#define SPEC_PAGE 7      // tokens of a KV page
#define SPEC_SUBGROUP 8  // subgroup size of the pipeline, from kernel_choice.cpp or chosen by kernels.cpp
#define SPEC_ROWS 9      // output rows of a workgroup
#define SPEC_COLS 10     // rows of x (tokens) of a workgroup
#define SPEC_KEPT 11     // whether queries stay in shared memory, where registers do not hold them
#define SPEC_WTYPE 12    // element type of a weight: the value of DType
#define SPEC_QUERIES 13  // queries that a workgroup takes, by matrices
#define SPEC_HEADS 15    // heads of a group a workgroup serves
#define SPEC_MATRIX_M 16 // rows, columns and depth of a cooperative matrix product
#define SPEC_MATRIX_N 17
#define SPEC_MATRIX_K 18
#define SPEC_SUBGROUP_ROWS 20 // rows of the grid of subgroups in a workgroup
#define SPEC_SUBGROUP_COLS 21 // columns of it
#define SPEC_TAPS 22          // tokens that a short convolution sees
#define SPEC_STATE_ROWS 23    // rows of a state that an invocation holds
#define SPEC_STATE_COLS 24    // columns of a state in a workgroup
#define SPEC_ROPE_DIM 25      // channels of V, where K is a latent
#define SPEC_TILE 26          // tokens that a workgroup takes at a time
#define SPEC_QUAD_LANES 27    // lanes that share 4 tokens
#define SPEC_BUFFERS 28       // tiles in shared memory: 2: one is written while the other is multiplied
#define SPEC_STEP 29          // elements of a row that a tile holds
#define SPEC_LANE_COLS 30     // columns of a state that an invocation holds
#define SPEC_AHEAD 31         // whether the next tile is loaded while one is computed
#endif
