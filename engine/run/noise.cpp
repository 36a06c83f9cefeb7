// Caches of random keys and values, for measurements at a depth.
#include "engine/run/prefill.h"
#include "engine/run/session.h"

namespace kvrun {

void fill_with_noise(Session& s, uint32_t n) {
	s.check_room(n);
	s.hold_scales();
	Engine& e = s.engine();
	Backend& be = e.backend();
	s.reserve_hint(n);
	std::vector<uint16_t> noise(1 << 20);
	for (uint32_t seed = 1; uint16_t & x : noise) { // magnitude 0.5 to 1, either sign
		seed = seed * 1664525u + 1013904223u;
		x = uint16_t((seed >> 16 & 0x83ff) | 0x3800);
	}
	std::unique_ptr<PromptMemory> memory = e.take_prompt_memory();
	for (uint32_t at = 0; at < n; at += e.prefill_block()) {
		const uint32_t m = std::min(e.prefill_block(), n - at);
		memory->fit(m, s.prompt_rows());
		const Buffer& own = memory->own();
		for (size_t b = 0; b < own.bytes(); b += noise.size() * 2) {
			be.write(own, b, std::as_bytes(std::span(noise)).first(std::min(noise.size() * 2, own.bytes() - b)));
			be.submit();
			be.wait(); // no more staging memory than a prompt takes
		}
		const CacheLayers& layers = e.cache_layers();
		KvPrefill main(be, e.scratch(), s.seq(), m, memory->kv(false, s.window()), layers.n_heads(false), e.ubatch());
		std::vector<std::unique_ptr<KvPrefill>> entries;
		if (!s.entries().empty()) memory->fit_entries(m, s.entry_rows());
		for (size_t i = 0; i < s.entries().size(); ++i) {
			KvSequence& seq = *s.entries()[i];
			const uint32_t more = (s.n_tokens() + m) / seq.plan().block - seq.n_tokens();
			entries.push_back(std::make_unique<KvPrefill>(be, e.entry_scratch(i), seq, more, memory->entries(),
			                                              layers.n_heads(false), e.ubatch()));
		}
		std::optional<KvPrefill> window;
		if (s.window_seq())
			window.emplace(be, e.window_scratch(), *s.window_seq(), m, memory->kv(true, layers.window()),
			               layers.n_heads(true), e.ubatch());
		for (uint32_t l = 0; l < e.config().n_layers; ++l) {
			if (!has_own_kv(e.config(), l)) continue;
			const auto [in_window, k] = layers[l];
			KvPrefill& kv = in_window ? *window : main;
			be.at_layer(l);
			kv.begin_layer(k);
			kv.end_layer(k);
			if (e.config().layers[l].blocks.tokens) entries[layers.block(l).cache]->end_layer(layers.block(l).index);
			be.submit();
			be.wait();
		}
		main.end();
		if (window) window->end();
		for (const auto& kv : entries) kv->end();
		if (StateSequence* states = s.states()) {
			constexpr float kNoise[] = {0.5f, -0.75f, 0.625f, -0.5f};
			states->fill(m, kNoise);
		}
		if (IndexSequence* index = s.index()) index->fill(m, std::span(noise).first(size_t(1) << 16));
		s.append_history(std::vector<uint32_t>(m, kNoToken));
	}
	e.note_prompt_bytes(memory->bytes());
	e.give_prompt_memory(std::move(memory));
}

} // namespace kvrun
