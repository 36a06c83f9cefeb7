// Work items as kernels read them are those that ops are given: a field that moves is an error of the compiler.
#include "backends/cuda/args.h"
#include "backends/ops.h"
#include <cstddef>

namespace kvrun::cuda {

#define KV_SAME(Item, Work, field) static_assert(offsetof(Item, field) == offsetof(Work, field))

static_assert(sizeof(AttendItem) == sizeof(AttendWork) && kAttendItemWords == kAttendWords);
KV_SAME(AttendItem, AttendWork, row);
KV_SAME(AttendItem, AttendWork, part);
KV_SAME(AttendItem, AttendWork, n_pages);
KV_SAME(AttendItem, AttendWork, pages);
KV_SAME(AttendItem, AttendWork, live);
KV_SAME(AttendItem, AttendWork, live_stride);
KV_SAME(AttendItem, AttendWork, factors);
KV_SAME(AttendItem, AttendWork, balance);

static_assert(sizeof(ScoreItem) == sizeof(ScoreWork) && kScoreItemWords == kScoreWords);
KV_SAME(ScoreItem, ScoreWork, first);
KV_SAME(ScoreItem, ScoreWork, n);
KV_SAME(ScoreItem, ScoreWork, n_pages);
KV_SAME(ScoreItem, ScoreWork, pages);
KV_SAME(ScoreItem, ScoreWork, live);
KV_SAME(ScoreItem, ScoreWork, live_stride);
KV_SAME(ScoreItem, ScoreWork, score);
KV_SAME(ScoreItem, ScoreWork, score_stride);

static_assert(sizeof(WeighItem) == sizeof(WeighWork) && kWeighItemWords == kWeighWords);
KV_SAME(WeighItem, WeighWork, row);
KV_SAME(WeighItem, WeighWork, n_pages);
KV_SAME(WeighItem, WeighWork, pages);
KV_SAME(WeighItem, WeighWork, live);
KV_SAME(WeighItem, WeighWork, live_stride);
KV_SAME(WeighItem, WeighWork, weight);
KV_SAME(WeighItem, WeighWork, weight_stride);
KV_SAME(WeighItem, WeighWork, balance);
static_assert(sizeof(PackItem) == sizeof(PackWork) && kPackItemWords == kPackWords);
KV_SAME(PackItem, PackWork, src);
KV_SAME(PackItem, PackWork, n);
KV_SAME(PackItem, PackWork, head);
KV_SAME(PackItem, PackWork, slot);
KV_SAME(PackItem, PackWork, k_codes);
KV_SAME(PackItem, PackWork, v_codes);
KV_SAME(PackItem, PackWork, k_params);
KV_SAME(PackItem, PackWork, v_params);
KV_SAME(PackItem, PackWork, v_factors);
KV_SAME(PackItem, PackWork, balance);

static_assert(sizeof(BlockItem) == sizeof(BlockWork) && kBlockItemWords == kBlockWords);
KV_SAME(BlockItem, BlockWork, src);
KV_SAME(BlockItem, BlockWork, n);
KV_SAME(BlockItem, BlockWork, head);
KV_SAME(BlockItem, BlockWork, k_params);
KV_SAME(BlockItem, BlockWork, v_factors);
KV_SAME(BlockItem, BlockWork, balance);

#undef KV_SAME

} // namespace kvrun::cuda
