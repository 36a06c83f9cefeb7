// Attention of a query over one layer of a sequence as it is.
#include "engine/kv_device/look.h"

namespace kvrun {

KvLook::KvLook(Backend& be, KvScratch& scratch, KvSequence& seq, uint32_t l, uint32_t n_heads)
    : be_(be), scratch_(scratch), seq_(seq), masks_(seq.pool()) {
	KV_ASSERT(seq.n_tokens() && !seq.fetch());
	seq.sync();
	masks_.add_next(be, seq);
	StepTable table;
	const RowMask* const mask = masks_.of(seq, 0);
	const ReadRows row{&seq, 0, 1, decode_piece(seq.pool().device(), seq, l, mask), Fetched::None, mask};
	read_.build(l, {&row, 1}, /*extra=*/0, table);
	parts_ = scratch.parts_view(be, read_.n_parts(), n_heads, seq.plan().shape.head_dim);
	table.upload(be, scratch.step);
}

void KvLook::attend(const View& out, const View& q, const Softmax& softmax) {
	KvRead read = read_.read(seq_.pool(), scratch_.step, parts_, seq_.plan().shape.n_kv_heads);
	read.softmax = softmax;
	be_.attend(out, {}, q, read);
}

} // namespace kvrun
