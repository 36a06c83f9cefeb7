// Device memory that steps and prompts of an engine share; nothing in it outlives one piece of work.
#pragma once
#include "backends/backend.h"
#include "engine/core/round.h"
#include "engine/kv_host/plan.h"

namespace kvrun {

struct KvScratch {
	Buffer step;   // StepTable of a decode step
	Buffer parts;  // partial states of attention
	Buffer gather; // f16 slots to be stored in pages: keys, then values
	Buffer single; // new tokens for slots in different chunks: keys, then values
	Buffer lse;    // row normalisers
	Buffer states; // rows of recurrent layers
	Buffer fetch;  // weights of tokens, picks, shares

	View parts_view(Backend& be, uint32_t n_parts, uint32_t n_heads, uint32_t head_dim) {
		n_parts = std::max(n_parts, 1u);
		const size_t bytes = size_t(n_parts) * n_heads * (head_dim + 2) * 4;
		fit(be, parts, bytes, bytes / 2, "attention parts");
		return view(parts, 0, DType::F32, n_parts, n_heads, head_dim + 2); // (n_parts, n_heads, head_dim + 2)
	}
	View lse_view(Backend& be, uint32_t n_rows, uint32_t n_heads) { // (n_rows, n_heads)
		fit(be, lse, size_t(n_rows) * n_heads * 4, 0, "row normalisers");
		return view(lse, 0, DType::F32, n_rows, n_heads);
	}
	KvRows gather_rows(Backend& be, const KvShape& s, uint32_t n) {
		return rows_in(be, gather, s, n, "leaving tokens");
	}
	KvRows single_rows(Backend& be, const KvShape& s, uint32_t n) { return rows_in(be, single, s, n, "new tokens"); }
	size_t bytes() const {
		return step.bytes() + parts.bytes() + gather.bytes() + single.bytes() + lse.bytes() + states.bytes() +
		       fetch.bytes();
	}
	void fit_fetch(Backend& be, size_t words) { fit(be, fetch, words * 4, words, "fetch choices"); }

 private:
	static void fit(Backend& be, Buffer& b, size_t bytes, size_t more, const char* label) {
		if (b.bytes() < bytes) b = be.alloc(bytes + more, Mem::Device, label);
	}
	static KvRows rows_in(Backend& be, Buffer& b, const KvShape& s, uint32_t n, const char* label) {
		const auto k_bytes = [&](size_t rows) { return align_up(rows * s.n_kv_heads * s.head_dim * 2, kBufferAlign); };
		const auto all_bytes = [&](size_t rows) {
			return k_bytes(rows) + align_up(rows * s.n_kv_heads * s.v_dim() * 2, kBufferAlign);
		};
		if (b.bytes() < all_bytes(n)) b = be.alloc(all_bytes(n + n / 2), Mem::Device, label);
		uint32_t cap = uint32_t(b.bytes() / (s.token_channels() * 2));
		while (all_bytes(cap) > b.bytes()) --cap;
		return {view(b, 0, DType::F16, s.n_kv_heads, cap, s.head_dim),
		        view(b, k_bytes(cap), DType::F16, s.n_kv_heads, cap, s.v_dim()), 0};
	}
};

} // namespace kvrun
