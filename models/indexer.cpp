// The indexer of sparse attention: its metadata and tensors.
#include "models/indexer.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kMostIndexHeads = 256, kMostIndexChannels = 256, kMostBlockTokens = 32, kIndexStep = 8;

[[noreturn]] void refuse(const ConfigKeys& k, const char* key, uint64_t v, const std::string& what) {
	fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {}", k.g.name(), k.key(key), v, what);
}

uint32_t in_range(const ConfigKeys& k, const char* key, uint32_t highest) {
	const uint32_t v = k.u32(key);
	if (v == 0 || v > highest) refuse(k, key, v, fmt::format("1 to {}", highest));
	return v;
}

} // namespace

void read_indexer(const ConfigKeys& k, const Family& f, Config& c) {
	if (!f.indexed) return;
	// Tokens of a block. 0: the layer attends to all tokens.
	const char* const key = "attention.compress_ratios";
	const std::vector<uint32_t> blocks = k.u32_each(key, c.n_layers, k.u32("block_count"));
	Indexer& x = c.indexer;
	for (uint32_t l = 0; l < c.n_layers && l < blocks.size(); ++l) {
		if (!blocks[l] || !attends(c.layers[l])) continue;
		if (blocks[l] > kMostBlockTokens || kMostBlockTokens % blocks[l])
			refuse(k, key, blocks[l], fmt::format("powers of two up to {}", kMostBlockTokens));
		if (x.block && x.block != blocks[l]) refuse(k, key, blocks[l], "blocks of one size");
		if (c.layers[l].rope)
			fail(Code::Unsupported, "{}: layer {} has an indexer and a RoPE of its own", k.g.name(), l);
		x.block = blocks[l], c.layers[l].indexed = true;
	}
	if (!x.block) return;
	x.n_heads = in_range(k, "attention.indexer.head_count", kMostIndexHeads);
	x.dim = in_range(k, "attention.indexer.key_length", kMostIndexChannels);
	if (x.dim % kIndexStep)
		refuse(k, "attention.indexer.key_length", x.dim, fmt::format("multiples of {}", kIndexStep));
	if (x.dim < c.ropes[0].dim)
		fail(Code::Unsupported, "{}: key {} is {}, of which RoPE takes {}", k.g.name(),
		     k.key("attention.indexer.key_length"), x.dim, c.ropes[0].dim);
	x.most = in_range(k, "attention.indexer.top_k", 1 << 24) / x.block;
	if (!x.most) refuse(k, "attention.indexer.top_k", 0, fmt::format("at least one block of {}", x.block));
}

void add_indexer_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	if (!c.layers[l].indexed) return;
	const Indexer& x = c.indexer;
	const auto name = [l](const char* what) { return fmt::format("blk.{}.indexer.{}.weight", l, what); };
	out.push_back({name("q_proj"), x.n_heads * x.dim, c.dim, true});
	out.push_back({name("k_proj"), x.dim, c.dim, true});
	for (const char* norm : {"q_norm", "k_norm"}) out.push_back({name(norm), 1, x.dim, false});
}

} // namespace kvrun
