// One prompt stored under many policies.
#include "engine/run/store_as.h"
#include <algorithm>

namespace kvrun {
namespace {

void check_f16(const Session& s) {
	if (!s.entries().empty())
		fail(Code::Unsupported,
		     "kvrun does not store a prompt of {} under another policy, as its layers attend to entries of blocks; "
		     "measure one policy at a time, without --together",
		     s.engine().config().arch);
	if (s.window())
		fail(Code::Unsupported,
		     "all layers of this model attend to the latest {} tokens, which are kept in f16 under every policy; give "
		     "-c {} or less",
		     s.window().tokens, s.window().tokens);
	if (!s.plan().keeps_all) fail(Code::Invalid, "{} packs tokens; those of an f16 cache are needed", s.policy_text());
}

// Scratch memory of a prompt; returned to the engine by the destructor.
class Borrowed {
 public:
	explicit Borrowed(Engine& e) : engine_(e), memory_(e.take_prompt_memory()) {}
	~Borrowed() { engine_.give_prompt_memory(std::move(memory_)); }
	Borrowed(const Borrowed&) = delete;
	PromptMemory* operator->() const { return memory_.get(); }

 private:
	Engine& engine_;
	std::unique_ptr<PromptMemory> memory_;
};

} // namespace

bool can_store_as(const Session& to) {
	const KvPlan& plan = to.plan();
	return !to.window() && !plan.ranked() && !plan.fetches() && std::ranges::none_of(plan.layers, &LayerPlan::balanced);
}

void store_as(Session& to, Session& from) {
	Engine& e = to.engine();
	KV_ASSERT(&from.engine() == &e && to.n_tokens() == 0);
	check_f16(from);
	to.check_room(from.history());
	to.lora_scales_ = from.lora_scales_;
	const KvPlan& plan = to.plan();
	if (!can_store_as(to))
		fail(Code::Invalid, "{} depends on queries of the prompt, or fetches; it has to read the prompt itself",
		     to.policy_text());
	const uint32_t n = from.n_tokens();
	Backend& be = e.backend();
	to.reserve_hint(n);
	Borrowed memory(e);
	for (uint32_t at = 0; at < n; at += e.prefill_block()) {
		const uint32_t m = std::min(e.prefill_block(), n - at);
		memory->fit(m, to.prompt_rows());
		KvPrefill block(be, e.scratch(), to.seq(), m, memory->kv(false, {}), e.cache_layers().n_heads(false),
		                e.ubatch());
		for (uint32_t k = 0; k < plan.shape.n_layers; ++k) {
			be.at_layer(k);
			block.begin_layer(k);
			block.load_own(k, from.seq(), at);
			block.end_layer(k);
			be.submit();
			be.wait();
		}
		block.end();
	}
	if (from.seqs_.window) to.seqs_.window = from.seqs_.window->fork(), to.window_plan_ = from.window_plan_;
	if (from.seqs_.states) to.seqs_.states = from.seqs_.states->fork();
	if (to.seqs_.index && from.seqs_.index) to.seqs_.index = from.seqs_.index->fork();
	to.append_history(from.history());
}

std::vector<std::vector<float>> attend_as(Session& s, const Session& next, uint32_t n,
                                          std::span<const LayerQueries> queries) {
	Engine& e = s.engine();
	KV_ASSERT(&next.engine() == &e && queries.size() == e.config().n_layers && n <= e.ubatch());
	check_f16(next);
	if (s.n_tokens() + n > next.n_tokens())
		fail(Code::Invalid, "{} rows behind {} tokens; the other session has {}", n, s.n_tokens(), next.n_tokens());
	Backend& be = e.backend();
	const uint32_t n_heads = e.cache_layers().n_heads(false), head_dim = e.kv_shape().head_dim,
	               rope_dim = e.kv_shape().rope_dim;
	const size_t elements = size_t(n) * n_heads * head_dim, rope_elements = size_t(n) * n_heads * rope_dim;
	const Buffer rope_buffer = be.alloc(std::max<size_t>(rope_elements, 1) * 4, Mem::Device, "rotated queries"),
	             q_buffer = be.alloc(elements * 4, Mem::Device, "queries"),
	             out_buffer = be.alloc(elements * 4, Mem::Device, "attention");
	const View q = view(q_buffer, 0, DType::F32, n, n_heads, head_dim),
	           out = view(out_buffer, 0, DType::F32, n, n_heads, head_dim),
	           rope = rope_dim ? view(rope_buffer, 0, DType::F32, n, n_heads, rope_dim) : View();
	std::vector<std::vector<float>> result(queries.size());
	Borrowed memory(e);
	memory->fit(n, s.prompt_rows());
	KvPrefill block(be, e.scratch(), s.seq(), n, memory->kv(false, {}), n_heads, e.ubatch());
	for (uint32_t l = 0; l < queries.size(); ++l) {
		const CacheLayers::Place at = e.cache_layers()[l];
		if (queries[l].q.empty()) continue;
		KV_ASSERT(!at.window && queries[l].q.size() == elements && queries[l].rope.size() == rope_elements);
		be.at_layer(l);
		be.write(*q.buf, q.at, std::as_bytes(std::span(queries[l].q)));
		if (rope) be.write(*rope.buf, rope.at, std::as_bytes(std::span(queries[l].rope)));
		block.begin_layer(at.index);
		block.load_own(at.index, next.seq(), s.n_tokens());
		Softmax softmax = e.runner().softmax(l, {});
		softmax.q_rope = rope;
		block.attend(at.index, out, q, 0, softmax, /*counts=*/false);
		result[l].resize(elements);
		be.read(*out.buf, out.at, std::as_writable_bytes(std::span(result[l])));
		be.submit();
		be.wait();
	}
	return result;
}

} // namespace kvrun
