// libFuzzer target: any bytes as a GGUF file, through the reader, the config, and the first bytes of every tensor.
#include "models/draft_file.h"
#include "models/finite.h"
#include "tests/fuzz/expect.h"

using namespace kvrun;

static Config golden(const char* name) {
	return read_config(Gguf::open(KVRUN_SOURCE_DIR "/tests/golden/tiny/" + std::string(name)));
}

// Files that draft are read for the models that those in tests/golden were made for.
static Config any_config(const Gguf& g) {
	static const Config gemma = golden("gemma4.gguf"), gpt = golden("gpt_oss.gguf"), qwen = golden("qwen3moe.gguf");
	const DraftKind kind = draft_kind(g);
	if (kind == DraftKind::None) return read_config(g);
	if (kind == DraftKind::Assistant) return read_draft_file(g, gemma);
	return read_draft_file(g, g.find_tensor(kTokenTable) && kind == DraftKind::Eagle ? qwen : gpt);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	expect_errors_only([&] {
		const Gguf g = Gguf::parse("fuzz", std::as_bytes(std::span(data, size)));
		for (const GgufEntry& e : g.entries()) { // every getter on every key
			expect_errors_only([&] { g.u32(e.key); });
			expect_errors_only([&] { g.u32_same(e.key); });
			expect_errors_only([&] { g.f32(e.key); });
			expect_errors_only([&] { g.flag(e.key, false); });
			expect_errors_only([&] { g.text(e.key); });
			expect_errors_only([&] { g.texts(e.key); });
			expect_errors_only([&] { g.floats(e.key); });
			expect_errors_only([&] { g.ints(e.key); });
		}
		std::byte first[64];
		for (const GgufTensor& t : g.tensors()) {
			const size_t n = size_t(std::min<uint64_t>(sizeof first, t.bytes));
			g.read(t, 0, {first, n});
			g.read(t, t.bytes - n, {first, n});
			std::vector<std::byte> all(t.bytes); // no more than the file has, or eight times that of attn_kv_b
			g.read(t, 0, all);
			(void)first_not_finite(t.type, all);
		}
		if (!g.splits_latents() && g.tensor_bytes() > size) std::abort();
		const Config c = any_config(g);
		for (const TensorSpec& s : tensor_specs(c))
			if (!g.find_tensor(s.name)) std::abort();
		if (rope_inv_freq(c.ropes[0], c.max_seq).size() != c.ropes[0].dim / 2) std::abort();
		(void)rope_attention_scale(c.ropes[0]);
	});
	return 0;
}
