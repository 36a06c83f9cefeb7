// The model graph, once, for all backends.
#include "engine/run/forward.h"
#include "engine/core/log.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// Hands out 256-byte aligned views of one buffer: first a dry pass for the size, then the views.
class Arena {
 public:
	explicit Arena(const Buffer* b) : buffer_(b) {}
	View take(DType t, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		const View v = view_at(at_, t, d0, d1, d2);
		at_ += (v.elements() * dtype_info(t).bytes + 255) / 256 * 256;
		return v;
	}
	size_t bytes() const { return at_; }

 private:
	View view_at(size_t at, DType t, uint32_t d0, uint32_t d1, uint32_t d2) const {
		View v;
		v.buf = buffer_;
		v.at = at;
		v.type = t;
		v.shape[0] = d0, v.shape[1] = d1, v.shape[2] = d2;
		return v;
	}
	const Buffer* buffer_;
	size_t at_ = 0;
};

// Allocates what `lay` takes from an arena, then lays the views over the new buffer.
template <class Lay> void allocate(Backend& be, Buffer& b, const char* label, Lay lay) {
	Arena dry(nullptr);
	lay(dry);
	b = be.alloc(std::max<size_t>(dry.bytes(), 256), Mem::Device, label);
	Arena real(&b);
	lay(real);
}

void write_u32(Backend& be, const View& v, std::span<const uint32_t> x) { be.write(*v.buf, v.at, std::as_bytes(x)); }
void write_f32(Backend& be, const View& v, std::span<const float> x) { be.write(*v.buf, v.at, std::as_bytes(x)); }

constexpr uint32_t kLogitRows = 32;           // rows of logits computed at once when all are asked for
constexpr size_t kKeptPromptBytes = 64 << 20; // a prompt's memory up to this is kept for the next one

} // namespace

Forward::Forward(Backend& be, const Config& cfg, const Weights& w, uint32_t max_tokens, const ForwardOptions& opt)
    : be_(be), cfg_(cfg), w_(w), opt_(opt), inv_freq_(rope_inv_freq(cfg, max_tokens)),
      rope_scale_(rope_attention_scale(cfg)) {
	KV_ASSERT(opt_.ubatch >= 1 && opt_.max_rows >= 1);
	opt_.ubatch = std::min(opt_.ubatch, std::max(max_tokens, 1u));
	const DeviceInfo dev = be.info();
	const size_t token_bytes = size_t(cfg.n_kv_heads) * cfg.head_dim * 2; // f16 K (or V) of one layer
	const size_t row_bytes = size_t(cfg.dim) * 4 + size_t(cfg.rope.dim) * 4 + 4 + 2 * token_bytes;
	// A block's K (and V) scratch is one view; all of a block's memory stays under an eighth of what is free.
	size_t most = std::min(dev.max_view_bytes / token_bytes, std::max<size_t>(dev.free_bytes / 8 / row_bytes, 1));
	if (opt_.prefill_block) most = std::min<size_t>(most, opt_.prefill_block);
	opt_.prefill_block = uint32_t(std::clamp<size_t>(most, 1, std::max(max_tokens, 1u)));

	const uint32_t rows = std::max(opt_.ubatch, opt_.max_rows);
	const uint32_t logit_rows = std::max(kLogitRows, opt_.max_rows);
	allocate(be, chunk_, "activations", [&](Arena& a) {
		h_ = a.take(DType::F32, rows, cfg.dim);
		q_ = a.take(DType::F32, rows, cfg.n_heads, cfg.head_dim);
		att_ = a.take(DType::F32, rows, cfg.n_heads, cfg.head_dim);
		k_ = a.take(DType::F32, rows, cfg.n_kv_heads, cfg.head_dim);
		v_ = a.take(DType::F32, rows, cfg.n_kv_heads, cfg.head_dim);
		gate_ = a.take(DType::F32, rows, cfg.hidden_dim);
		up_ = a.take(DType::F32, rows, cfg.hidden_dim);
		final_ = a.take(DType::F32, logit_rows, cfg.dim);
		logits_ = a.take(DType::F32, logit_rows, cfg.vocab);
	});
	allocate(be, step_, "decode rows", [&](Arena& a) {
		step_x_ = a.take(DType::F32, opt_.max_rows, cfg.dim);
		step_tokens_ = a.take(DType::U32, opt_.max_rows);
		step_rope_ = a.take(DType::F32, opt_.max_rows, std::max(cfg.rope.dim / 2, 1u), 2);
	});
}

size_t Forward::activation_bytes() const { return chunk_.bytes() + step_.bytes() + prompt_.bytes() + scratch_.bytes(); }

// Memory of a prompt block of n tokens; kept for the next prompt, grown when that one is longer.
// tail: rows of the scratch behind the prompt's own tokens.
void Forward::prompt_memory(uint32_t n, uint32_t tail) {
	if (n > prompt_rows_) {
		prompt_ = {};
		prompt_rows_ = 0; // should there be no memory
		const uint32_t n_rows = (n + 63) / 64 * 64;
		allocate(be_, prompt_, "prompt rows", [&](Arena& a) {
			x_ = a.take(DType::F32, n_rows, cfg_.dim);
			tokens_ = a.take(DType::U32, n_rows);
			rope_ = a.take(DType::F32, n_rows, std::max(cfg_.rope.dim / 2, 1u), 2);
		});
		prompt_rows_ = n_rows;
	}
	if (n + tail > scratch_rows_) {
		scratch_ = {};
		scratch_rows_ = 0;
		const uint32_t n_rows = (n + tail + 63) / 64 * 64;
		allocate(be_, scratch_, "prompt keys and values", [&](Arena& a) {
			k16_ = a.take(DType::F16, cfg_.n_kv_heads, n_rows, cfg_.head_dim);
			v16_ = a.take(DType::F16, cfg_.n_kv_heads, n_rows, cfg_.head_dim);
		});
		scratch_rows_ = n_rows;
	}
	prompt_peak_ = std::max(prompt_peak_, prompt_.bytes() + scratch_.bytes());
}

// A long prompt's memory is given back: it may be more than a packed cache takes.
void Forward::release_prompt_memory() {
	if (prompt_.bytes() + scratch_.bytes() <= kKeptPromptBytes) return;
	prompt_ = {}, scratch_ = {};
	prompt_rows_ = scratch_rows_ = 0;
	host_rope_ = {};
}

// cos and sin are taken on the host in double: drivers may be as coarse as 2^-11, and at position 100 000 useless.
void Forward::rope_rows(uint32_t first_pos, uint32_t n, std::vector<float>& out) const {
	for (uint32_t pos = first_pos; pos < first_pos + n; ++pos)
		for (const float f : inv_freq_) {
			const double angle = double(pos) * double(f);
			out.push_back(float(std::cos(angle) * rope_scale_));
			out.push_back(float(std::sin(angle) * rope_scale_));
		}
}

Forward::Chunk Forward::chunk(const View& x, const View& rope, uint32_t first, uint32_t n) const {
	return {n,
	        rows(x, first, n),
	        rows(h_, 0, n),
	        rows(q_, 0, n),
	        rows(att_, 0, n),
	        rows(k_, 0, n),
	        rows(v_, 0, n),
	        rows(gate_, 0, n),
	        rows(up_, 0, n),
	        rows(rope, first, n)};
}

Forward::Chunk Forward::last_row(const Chunk& c) {
	const auto last = [&](const View& v) { return rows(v, c.n - 1, 1); };
	return {1,         last(c.x), last(c.h),    last(c.q),  last(c.att),
	        last(c.k), last(c.v), last(c.gate), last(c.up), last(c.rope)};
}

void Forward::project_in(const LayerWeights& L, const Chunk& c, bool decode) {
	be_.rmsnorm(c.h, c.x, L.attn_norm, cfg_.norm_eps);
	const Proj qkv[] = {{c.q, L.wq, L.bq}, {c.k, L.wk, L.bk}, {c.v, L.wv, L.bv}};
	be_.matmul(qkv, c.h, Epilogue::None, decode);
}

void Forward::project_out(const LayerWeights& L, const Chunk& c, bool decode) {
	const Proj out[] = {{c.x, L.wo, {}}};
	be_.matmul(out, c.att, Epilogue::Add, decode);
	be_.rmsnorm(c.h, c.x, L.ffn_norm, cfg_.norm_eps);
	const Proj gate_up[] = {{c.gate, L.w_gate, {}}, {c.up, L.w_up, {}}};
	be_.matmul(gate_up, c.h, Epilogue::SwiGLU, decode);
	const Proj down[] = {{c.x, L.w_down, {}}};
	be_.matmul(down, c.gate, Epilogue::Add, decode);
}

void Forward::enqueue_logits(const View& x, bool decode) {
	const uint32_t n = x.shape[0];
	const View norm = rows(final_, 0, n), out = rows(logits_, 0, n);
	be_.rmsnorm(norm, x, w_.final_norm, cfg_.norm_eps);
	const Proj head[] = {{out, w_.lm_head, {}}};
	be_.matmul(head, norm, Epilogue::None, decode);
	host_logits_.resize(size_t(n) * cfg_.vocab);
	be_.read(*out.buf, out.at, std::as_writable_bytes(std::span(host_logits_)));
}

std::span<const float> Forward::decode(std::span<const Row> step) {
	const uint32_t n = uint32_t(step.size());
	KV_ASSERT(n >= 1 && n <= opt_.max_rows);
	std::vector<uint32_t> tokens;
	host_rope_.clear();
	for (const Row& r : step) {
		tokens.push_back(r.token);
		rope_rows(r.kv->n_tokens(), 1, host_rope_);
	}
	write_u32(be_, step_tokens_, tokens);
	write_f32(be_, step_rope_, host_rope_);
	std::vector<KvState*> states;
	for (const Row& r : step) states.push_back(r.kv);
	KvStep kv(be_, kv_, states, cfg_.n_heads);
	const Chunk c = chunk(step_x_, step_rope_, 0, n);
	be_.embed(c.x, w_.embed, rows(step_tokens_, 0, n));
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		const LayerWeights& L = w_.layers[l];
		be_.at_layer(l);
		kv.before_layer(l);
		project_in(L, c, /*decode=*/true);
		for (uint32_t i = 0; i < n;) { // rows whose pages lie in the same pool memory go together
			uint32_t same = 1;
			const KvDst dst = kv.destination(l, i, same);
			be_.rope_store(rows(c.q, i, same), rows(c.k, i, same), rows(c.v, i, same),
			               {rows(c.rope, i, same), cfg_.rope.dim, cfg_.rope.neox}, {L.q_norm, L.k_norm, cfg_.norm_eps},
			               dst);
			kv.stored(l, i);
			i += same;
		}
		kv.attend(l, c.att, c.q);
		project_out(L, c, /*decode=*/true);
	}
	enqueue_logits(c.x, /*decode=*/true);
	be_.submit();
	be_.wait();
	return host_logits_;
}

std::span<const float> Forward::prefill(KvState& kv, std::span<const uint32_t> tokens, const PrefillHooks& hooks) {
	KV_ASSERT(!tokens.empty());
	if (tokens.size() > opt_.prefill_block)
		warn_once(fmt::format(
		    "a prompt of {} tokens is taken in blocks of {}: later blocks attend to the packed cache of earlier ones",
		    tokens.size(), opt_.prefill_block));
	kv.cache().expect(uint32_t(tokens.size()));
	bool done = true;
	for (size_t at = 0; done && at < tokens.size(); at += opt_.prefill_block)
		done = block(kv, tokens.subspan(at, std::min<size_t>(opt_.prefill_block, tokens.size() - at)), hooks,
		             uint32_t(at));
	release_prompt_memory();
	return done ? std::span(host_logits_).last(cfg_.vocab) : std::span<float>();
}

// One block of a prompt, layer by layer. A layer's new K and V live in the scratch until every row has attended.
bool Forward::block(KvState& kv, std::span<const uint32_t> tokens, const PrefillHooks& hooks, uint32_t first) {
	const uint32_t n = uint32_t(tokens.size());
	prompt_memory(n, KvPrompt::tail_rows(kv));
	write_u32(be_, tokens_, tokens);
	host_rope_.clear();
	rope_rows(kv.n_tokens(), n, host_rope_);
	write_f32(be_, rope_, host_rope_);
	KvPrompt prompt(be_, kv_, kv, n, PromptKv{k16_, v16_, 0}, cfg_.n_heads, opt_.ubatch);

	for (uint32_t at = 0; at < n; at += opt_.ubatch) {
		const uint32_t m = std::min(opt_.ubatch, n - at);
		be_.embed(rows(x_, at, m), w_.embed, rows(tokens_, at, m));
	}
	for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
		const LayerWeights& L = w_.layers[l];
		be_.at_layer(l);
		prompt.begin_layer(l);
		for (uint32_t at = 0; at < n; at += opt_.ubatch) {
			const Chunk c = chunk(x_, rope_, at, std::min(opt_.ubatch, n - at));
			project_in(L, c, /*decode=*/false);
			be_.rope_store(c.q, c.k, c.v, {c.rope, cfg_.rope.dim, cfg_.rope.neox}, {L.q_norm, L.k_norm, cfg_.norm_eps},
			               prompt.scratch(at, c.n));
			// Of the last layer only the keys and values are needed, and one row of logits.
			const bool last_layer = l + 1 == cfg_.n_layers && !hooks.all_logits, last_chunk = at + c.n == n;
			if (last_layer && !last_chunk && !prompt.wants_queries()) continue;
			prompt.attend(l, c.att, c.q, at);
			if (!last_layer)
				project_out(L, c, /*decode=*/false);
			else if (last_chunk)
				project_out(L, last_row(c), /*decode=*/false);
		}
		prompt.end_layer(l);
		be_.submit();
		be_.wait(); // one wait per layer of a prompt: progress, cancelling, bounded staging
		if (hooks.progress && !hooks.progress(l + 1, cfg_.n_layers)) return false;
	}
	if (hooks.all_logits) {
		for (uint32_t at = 0; at < n; at += kLogitRows) {
			enqueue_logits(rows(x_, at, std::min(kLogitRows, n - at)), /*decode=*/false);
			be_.submit();
			be_.wait();
			hooks.all_logits(first + at, std::min(kLogitRows, n - at), host_logits_);
		}
	} else {
		enqueue_logits(rows(x_, n - 1, 1), /*decode=*/false);
		be_.submit();
		be_.wait();
	}
	prompt.end();
	return true;
}

void Forward::fill(KvState& kv, uint32_t n) {
	kv.cache().expect(n);
	std::vector<uint16_t> noise(1 << 20);
	for (uint32_t seed = 1; uint16_t & x : noise) { // 0.5 to 1 of either sign
		seed = seed * 1664525u + 1013904223u;
		x = uint16_t((seed >> 16 & 0x83ff) | 0x3800);
	}
	for (uint32_t at = 0; at < n; at += opt_.prefill_block) {
		const uint32_t m = std::min(opt_.prefill_block, n - at);
		prompt_memory(m, KvPrompt::tail_rows(kv));
		for (size_t b = 0; b < scratch_.bytes(); b += noise.size() * 2) {
			be_.write(scratch_, b,
			          std::as_bytes(std::span(noise)).first(std::min(noise.size() * 2, scratch_.bytes() - b)));
			be_.submit();
			be_.wait(); // no more staging memory than a prompt takes
		}
		KvPrompt prompt(be_, kv_, kv, m, PromptKv{k16_, v16_, 0}, cfg_.n_heads, opt_.ubatch);
		for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
			be_.at_layer(l);
			prompt.begin_layer(l);
			prompt.end_layer(l);
			be_.submit();
			be_.wait();
		}
		prompt.end();
	}
	release_prompt_memory();
}

} // namespace kvrun
