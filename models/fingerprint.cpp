// Hash that identifies a model by its file.
#include "models/fingerprint.h"
#include <algorithm>
#include <xxhash.h>

namespace kvrun {

uint64_t fingerprint(const Gguf& g) {
	constexpr uint64_t kSample = 4096; // bytes of a tensor
	struct State {
		XXH3_state_t* s = XXH3_createState();
		State() { XXH3_64bits_reset(s); }
		~State() { XXH3_freeState(s); }
		void add(const void* p, size_t n) { XXH3_64bits_update(s, p, n); }
		void add(uint64_t x) { add(&x, sizeof(x)); }
		void add(std::string_view t) { add(t.size()), add(t.data(), t.size()); }
	} state;
	for (const GgufEntry& e : g.entries()) {
		state.add(e.key);
		state.add(uint64_t(e.type) << 8 | uint64_t(e.element));
		state.add(e.bytes.size());
		state.add(e.bytes.data(), e.bytes.size());
	}
	std::vector<std::byte> sample;
	for (const GgufTensor& t : g.tensors()) {
		state.add(t.name);
		state.add(uint64_t(t.type));
		for (const uint64_t n : t.shape) state.add(n);
		sample.resize(size_t(std::min(t.bytes, kSample)));
		g.read(t, 0, sample);
		state.add(sample.data(), sample.size());
	}
	return XXH3_64bits_digest(state.s);
}

} // namespace kvrun
