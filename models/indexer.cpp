// The indexer of sparse attention: its metadata and tensors.
#include "models/indexer.h"
#include <algorithm>
#include <optional>

namespace kvrun {
namespace {

constexpr uint32_t kMostIndexHeads = 256, kMostIndexChannels = 256, kMostBlockTokens = 32, kIndexStep = 8;
constexpr uint32_t kMostPoolTokens = 256;

[[noreturn]] void refuse(const ConfigKeys& k, const char* key, uint64_t v, const std::string& what) {
	fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {}", k.g.name(), k.key(key), v, what);
}

uint32_t in_range(const ConfigKeys& k, const char* key, uint32_t highest) {
	const uint32_t v = k.u32(key);
	if (v == 0 || v > highest) refuse(k, key, v, fmt::format("1 to {}", highest));
	return v;
}

// Tokens of a block of each layer's. 0: the layer attends to all tokens.
void read_blocks(const ConfigKeys& k, Config& c) {
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
		x.block = blocks[l], c.layers[l].indexed = true, c.layers[l].index_layer = l;
	}
}

// Of heads that choose for KV heads of their own: layers with experts have an indexer.
void read_pool(const ConfigKeys& k, Config& c) {
	const char *const pool = "attention.indexer.block_size", *const local = "attention.indexer.local_blocks";
	Indexer& x = c.indexer;
	x.pool = in_range(k, pool, kMostPoolTokens);
	if (x.pool < 2 || kMostPoolTokens % x.pool)
		refuse(k, pool, x.pool, fmt::format("powers of two from 2 to {}", kMostPoolTokens));
	x.block = 1, x.local = in_range(k, local, 1 << 16);
	for (uint32_t l = 0; l < c.n_layers; ++l)
		if (c.layers[l].experts.n) c.layers[l].indexed = true, c.layers[l].index_layer = l;
	if (!c.layers.back().indexed) x.block = x.pool = 0;
}

std::string index_tensor(uint32_t l, const char* what) { return fmt::format("blk.{}.indexer.{}", l, what); }

// Which layers that attend have an indexer; the others attend to what the last indexer before them has chosen. In older
// files, without the key, layers without an indexer are those without its tensors.
void read_owners(const ConfigKeys& k, Config& c) {
	const char* const key = "attention.indexer.types";
	std::vector<uint32_t> owns;
	if (k.has(key)) owns = k.u32_each(key, c.n_layers, k.u32("block_count"));
	std::optional<uint32_t> last;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		if (!attends(c.layers[l])) continue;
		const bool own = owns.empty() ? !last || k.g.find_tensor(index_tensor(l, "attn_k.weight")) : owns[l] != 0;
		if (!last && !own) refuse(k, key, 0, "models whose first layer with attention has an indexer");
		if (own) last = l;
		c.layers[l].indexed = true, c.layers[l].index_layer = *last;
		if (!c.layers[l].latent.q_rank)
			fail(Code::Unsupported, "{}: key {} is 0; kvrun runs its indexer on a latent of queries", k.g.name(),
			     k.key("attention.q_lora_rank"));
	}
	c.indexer.block = 1, c.indexer.of_latent = true;
	if (k.has("attention.indexer.kpool")) {
		const uint32_t block = in_range(k, "attention.indexer.kpool", kMostBlockTokens);
		if (block < 2 || kMostBlockTokens % block)
			refuse(k, "attention.indexer.kpool", block, fmt::format("powers of two from 2 to {}", kMostBlockTokens));
		if (!k.flag("attention.indexer.kpool_select_tail", true))
			fail(Code::Unsupported, "{}: key {} is false; kvrun always reads the tokens behind the last block",
			     k.g.name(), k.key("attention.indexer.kpool_select_tail"));
		c.indexer.block = block, c.indexer.gated = true;
	}
}

} // namespace

void read_indexer(const ConfigKeys& k, const Family& f, Config& c) {
	if (f.indexer == IndexerKind::None) return;
	const bool pooled = f.indexer == IndexerKind::Heads, of_latent = !pooled && f.indexer != IndexerKind::Blocks;
	if (of_latent && !k.has("attention.indexer.top_k") && !k.g.find_tensor(index_tensor(0, "attn_k.weight"))) return;
	of_latent ? read_owners(k, c) : pooled ? read_pool(k, c) : read_blocks(k, c);
	Indexer& x = c.indexer;
	if (f.indexer == IndexerKind::LatentRopeLast) x.rope_last = true, x.norm_eps = c.norm_eps;
	if (!x.block) return;
	x.neox = f.neox || f.index_neox;
	x.n_heads = in_range(k, "attention.indexer.head_count", kMostIndexHeads);
	x.dim = in_range(k, "attention.indexer.key_length", kMostIndexChannels);
	if (x.dim % kIndexStep)
		refuse(k, "attention.indexer.key_length", x.dim, fmt::format("multiples of {}", kIndexStep));
	if (x.dim < c.ropes[0].dim)
		fail(Code::Unsupported, "{}: key {} is {}, of which RoPE takes {}", k.g.name(),
		     k.key("attention.indexer.key_length"), x.dim, c.ropes[0].dim);
	x.most = in_range(k, "attention.indexer.top_k", 1 << 24) / x.block;
	if (!x.most) refuse(k, "attention.indexer.top_k", 0, fmt::format("at least one block of {}", x.block));
	if (!pooled) return;
	if (x.most <= x.local)
		refuse(k, "attention.indexer.top_k", x.most, fmt::format("more than {} local blocks", x.local));
	x.most -= x.local;
	if (x.n_heads != c.n_kv_heads)
		refuse(k, "attention.indexer.head_count", x.n_heads, fmt::format("one for each of {} KV heads", c.n_kv_heads));
}

void add_indexer_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	if (!has_indexer(c, l) || c.indexer.of_entries) return; // add_block_specs()
	const Indexer& x = c.indexer;
	const auto name = [l](const char* what) { return index_tensor(l, what); };
	const bool of_latent = x.of_latent;
	const auto add = [&](const char* what, uint32_t rows, uint32_t cols, uint32_t depth) {
		TensorSpec spec{name(what), rows, cols, rows > 1};
		if (x.rope_last) {
			spec.depth = depth, spec.halves = spec.swapped = spec.flat = true;
			spec.first = x.dim - c.ropes[0].dim;
		}
		out.push_back(spec);
	};
	add(of_latent ? "attn_q_b.weight" : "q_proj.weight", x.n_heads * x.dim,
	    of_latent ? c.layers[l].latent.q_rank : c.dim, x.n_heads);
	add(of_latent ? "attn_k.weight" : "k_proj.weight", x.dim, c.dim, 1);
	if (of_latent) out.push_back({name("proj.weight"), x.n_heads, c.dim, true});
	if (x.gated) {
		out.push_back({fmt::format("blk.{}.indexer_compressor_gate.weight", l), x.dim, c.dim, true});
		out.push_back({fmt::format("blk.{}.indexer_compressor_ape.weight", l), 1, x.dim * x.block, false, x.block});
	}
	for (const char* vector : {of_latent ? "k_norm.bias" : "q_norm.weight", "k_norm.weight"}) add(vector, 1, x.dim, 1);
}

} // namespace kvrun
