// Hyper-connections and n-grams: their metadata and tensors.
#include "models/hyper_streams.h"
#include "engine/core/dtype.h"
#include <algorithm>
#include <numeric>

namespace kvrun {
namespace {

constexpr uint32_t kMostLength = 8, kMostRows = 64; // of n-grams

uint32_t in_range(const ConfigKeys& k, const char* key, uint32_t lowest, uint32_t highest) {
	const uint32_t v = k.u32(key);
	if (v < lowest || v > highest)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} to {}", k.g.name(), k.key(key), v, lowest, highest);
	return v;
}

std::vector<uint64_t> numbers(const ConfigKeys& k, const char* key, uint32_t n) {
	const std::vector<int64_t> v = k.g.ints(k.key(key));
	if (v.size() != n || std::ranges::min(v) < 0)
		fail(Code::Format, "{}: key {} has {} numbers{}, expected {}; the file is damaged", k.g.name(), k.key(key),
		     v.size(), v.size() == n ? ", some below 0" : "", n);
	return {v.begin(), v.end()};
}

// Rows of the table lie within it, and are whole blocks of its type.
void check_table(const ConfigKeys& k, const NGrams& g) {
	const GgufTensor* t = k.g.find_tensor(kNGramTable);
	if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", k.g.name(), kNGramTable);
	uint64_t rows = 0;
	for (uint32_t i = 0; i < g.rows(); ++i) {
		if (!g.sizes[i] || g.sizes[i] > UINT32_MAX || g.first[i] > UINT32_MAX - g.sizes[i])
			fail(Code::Format, "{}: row {} of a token's n-grams is one of {} from {} on; the file is damaged",
			     k.g.name(), i, g.sizes[i], g.first[i]);
		rows = std::max(rows, g.first[i] + g.sizes[i]);
	}
	if (t->cols() != g.dim || t->rows() < rows)
		fail(Code::Format, "{}: tensor {} has {} rows of {}, the keys say {} of {}; wrong or damaged file", k.g.name(),
		     kNGramTable, t->rows(), t->cols(), rows, g.dim);
}

void read_ngrams(const ConfigKeys& k, Config& c) {
	const GgufEntry* layers = k.g.find(k.key("ple.layers"));
	if (!layers || !layers->count) return;
	const std::vector<int64_t> at = k.g.ints(k.key("ple.layers"));
	if (at.size() != 1)
		fail(Code::Unsupported, "{}: key {} names {} layers; kvrun runs models where one adds n-grams", k.g.name(),
		     k.key("ple.layers"), at.size());
	if (at[0] < 0 || at[0] >= c.n_layers)
		fail(Code::Format, "{}: key {} is {}, the model has {} layers; the file is damaged", k.g.name(),
		     k.key("ple.layers"), at[0], c.n_layers);
	NGrams& g = c.ngrams;
	g.layer = uint32_t(at[0]);
	g.longest = in_range(k, "ple.ngram_size", 2, kMostLength);
	g.per_length = in_range(k, "ple.heads_per_ngram", 1, kMostRows);
	g.taps = in_range(k, "ple.conv_kernel", 2, kMostTaps);
	g.dim = in_range(k, "embedding_length_per_layer_input", 1, 1 << 16);
	g.separator = k.u32("ple.eos_token_id"), g.image = k.u32("ple.image_token_id", g.separator);
	if (g.rows() > kMostRows || g.span() > kMostTaps)
		fail(Code::Unsupported, "{}: {} rows of n-grams for a token, a convolution over {}; kvrun runs up to {} and {}",
		     k.g.name(), g.rows(), g.span(), kMostRows, kMostTaps);
	g.factors = numbers(k, "ple.layer_multipliers", g.longest);
	g.first = numbers(k, "ple.head_offsets", g.rows()), g.sizes = numbers(k, "ple.head_vocab_sizes", g.rows());
	check_table(k, g);
}

// Files without a matrix add epsilon to the factors of outputs, too.
void read_manifold(const ConfigKeys& k, Streams& s) {
	const char* const rounds = "hyper_connection.sinkhorn_iterations";
	if (k.has(rounds)) s.rounds = in_range(k, rounds, 1, 1000);
	s.eps = k.positive("hyper_connection.epsilon", 1e-6f);
	s.post_scale = k.positive("hyper_connection.magnitude", s.post_scale);
	s.post_eps = s.rounds ? 0 : s.eps;
	s.weighs_output = k.g.find_tensor("output_hc_fn.weight") != nullptr;
}

} // namespace

void read_hyper_streams(const ConfigKeys& k, const Family& f, Config& c) {
	if (f.streams != StreamKind::Gated && f.streams != StreamKind::Manifold) return;
	c.streams.kind = f.streams;
	c.streams.n = in_range(k, "hyper_connection.count", 2, kMostStreams);
	if (uint64_t(c.dim) * c.streams.n > UINT32_MAX / 4)
		fail(Code::Format, "{}: {} residual streams of {} channels: too large; the file is damaged", k.g.name(),
		     c.streams.n, c.dim);
	if (f.streams == StreamKind::Manifold) return read_manifold(k, c.streams);
	c.streams.rank = in_range(k, "hyper_connection.low_rank", 1, 1 << 16);
	read_ngrams(k, c);
}

// A mixer's mean is a sum of norms whose weights are divided by the number of streams. So is what its matrices read,
// as they are meant to.
static void add_mixer(std::vector<TensorSpec>& out, const Config& c, const std::string& name, bool injects) {
	const uint32_t all = c.streams.n * c.dim;
	TensorSpec norm{name + "_norm.weight", 1, all, false};
	norm.factor = 1 / float(c.streams.n);
	out.push_back(norm);
	out.push_back({name + "_down.weight", c.streams.rank, all, true});
	out.push_back({name + "_up.weight", all, c.streams.rank, true});
	if (injects) out.push_back({name + "_inject.weight", c.streams.n, all, true});
}

static void add_connection(std::vector<TensorSpec>& out, const Config& c, const std::string& name, uint32_t coefs,
                           uint32_t parts) {
	out.push_back({name + "_fn.weight", coefs, c.streams.n * c.dim, true});
	out.push_back({name + "_base.weight", 1, coefs, false});
	out.push_back({name + "_scale.weight", 1, parts, false});
}

void add_hyper_specs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.streams.kind == StreamKind::Gated) add_mixer(out, c, "output_hc", false);
	if (c.streams.weighs_output) add_connection(out, c, "output_hc", c.streams.n, 1);
}

void add_hyper_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	if (!c.streams.hyper()) return;
	const auto name = [l](const char* what) { return fmt::format("blk.{}.{}", l, what); };
	if (c.streams.kind == StreamKind::Manifold) {
		for (const char* part : {"hc_attn", "hc_ffn"})
			add_connection(out, c, name(part), c.streams.coefs(), c.streams.rounds ? 3 : 2);
		return;
	}
	add_mixer(out, c, name("hc_attn"), true);
	add_mixer(out, c, name("hc_ffn"), true);
	const NGrams& g = c.ngrams;
	if (!g.longest || l != g.layer) return;
	const uint32_t all = c.streams.n * c.dim;
	out.push_back({name("ple_key.weight"), all, g.width(), true});
	out.push_back({name("ple_value.weight"), c.dim, g.width(), true});
	for (const char* what : {"ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight"})
		out.push_back({name(what), 1, all, false});
	TensorSpec conv{name("ple_conv1d.weight"), 1, all * g.taps, false, all};
	conv.apart = g.longest;
	out.push_back(conv);
}

} // namespace kvrun
