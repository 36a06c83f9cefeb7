// What a made-up model is: shapes of well-known models, and the text that names one.
#include "models/synth/shape.h"
#include "engine/core/utf8.h"
#include "models/families.h"
#include <algorithm>
#include <charconv>

namespace kvrun {
namespace {

struct Row { // as the models' own files have it
	const char *name, *arch;
	uint32_t dim, hidden, layers, heads, kv_heads, head_dim, vocab, ctx;
	float theta, eps;
	bool tied; // the output projection is the embedding
	SynthVocab tokenizer;
};
constexpr SynthVocab kSpm = SynthVocab::Spm, kLlama3 = SynthVocab::Llama3, kQwen2 = SynthVocab::Qwen2;
constexpr Row kRows[] = {
    {"llama-2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e4f, 1e-5f, false, kSpm},
    {"llama-3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5f, 1e-5f, true, kLlama3},
    {"llama-3.2-3b", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5f, 1e-5f, true, kLlama3},
    {"llama-3.1-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5f, 1e-5f, false, kLlama3},
    {"llama-3.1-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 131072, 5e5f, 1e-5f, false, kLlama3},
    {"mistral-7b", "llama", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6f, 1e-5f, false, kSpm},
    {"tinyllama-1.1b", "llama", 2048, 5632, 22, 32, 4, 64, 32000, 2048, 1e4f, 1e-5f, false, kSpm},
    {"smollm2-135m", "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5f, 1e-5f, true, kLlama3},
    {"qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e6f, 1e-6f, true, kQwen2},
    {"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 32768, 1e6f, 1e-6f, true, kQwen2},
    {"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen2.5-14b", "qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 32768, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6f, 1e-6f, true, kQwen2},
    {"qwen3-4b", "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f, true, kQwen2},
    {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-14b", "qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e6f, 1e-6f, false, kQwen2},
    {"phi-3-mini", "phi3", 3072, 8192, 32, 32, 32, 96, 32064, 4096, 1e4f, 1e-5f, false, kSpm},
};
std::string lower_name(DType t) {
	std::string s = dtype_info(t).name;
	for (char& c : s) c = char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
	return s;
}

std::string joined(const std::vector<std::string>& words) {
	std::string s;
	for (const std::string& w : words) s += (s.empty() ? "" : " ") + w;
	return s;
}

std::vector<std::string_view> split(std::string_view s, char at) {
	std::vector<std::string_view> out;
	for (size_t begin = 0; begin <= s.size();) {
		const size_t end = std::min(s.find(at, begin), s.size());
		out.push_back(s.substr(begin, end - begin));
		begin = end + 1;
	}
	return out;
}

uint64_t number(std::string_view what, std::string_view text, uint64_t lowest, uint64_t highest) {
	uint64_t n = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
	if (error != std::errc() || end != text.data() + text.size() || n < lowest || n > highest)
		fail(Code::Invalid, "{} of a synthetic model is '{}', expected a number from {} to {}", what,
		     one_line(text, 40), lowest, highest);
	return n;
}

void set_key(SynthSpec& s, std::string_view item) {
	const size_t at = item.find('=');
	const std::string_view key = item.substr(0, at), value = at == item.npos ? "" : item.substr(at + 1);
	Config& c = s.config;
	struct Key {
		std::string_view name;
		uint32_t* value;
		uint32_t lowest, highest;
	};
	const Key keys[] = {{"dim", &c.dim, 32, 65536},           {"hidden", &c.hidden_dim, 32, 262144},
	                    {"layers", &c.n_layers, 1, 512},      {"heads", &c.n_heads, 1, 1024},
	                    {"kv_heads", &c.n_kv_heads, 1, 1024}, {"head_dim", &c.head_dim, 8, 256},
	                    {"vocab", &c.vocab, 1024, 262144},    {"ctx", &c.max_seq, 16, 1u << 24}};
	for (const Key& k : keys)
		if (k.name == key) {
			*k.value = uint32_t(number(key, value, k.lowest, k.highest));
			return;
		}
	if (key == "arch") {
		const Family* f = find_family(value);
		if (!f)
			fail(Code::Invalid, "arch of a synthetic model is '{}', expected one of {}", one_line(value),
			     family_names());
		c.arch = f->arch;
		return;
	}
	fail(Code::Invalid,
	     "a synthetic model has no key '{}'; there are arch dim hidden layers heads kv_heads head_dim vocab ctx",
	     one_line(key, 40));
}

// What follows from the rest; the limits that read_config() would name only after the file has been made.
void complete(SynthSpec& s) {
	Config& c = s.config;
	const Family& family = *find_family(c.arch);
	c.rope.dim = c.head_dim, c.rope.neox = family.neox;
	describe_layers(c, family.layer);
	if (c.n_heads % c.n_kv_heads != 0)
		fail(Code::Invalid, "{} heads of a synthetic model do not divide into {} kv_heads", c.n_heads, c.n_kv_heads);
	if (c.head_dim % 8 != 0)
		fail(Code::Invalid, "head_dim of a synthetic model is {}, not a multiple of 8", c.head_dim);
	if (c.dim % 32 != 0 || c.hidden_dim % 32 != 0)
		fail(Code::Invalid, "dim {} and hidden {} of a synthetic model must be multiples of 32", c.dim, c.hidden_dim);
}

const Row& find_row(std::string_view name) {
	for (const Row& r : kRows)
		if (name == r.name) return r;
	fail(Code::Invalid, "there is no shape of the name '{}'; there are {}", one_line(name, 60), joined(synth_names()));
}

} // namespace

std::vector<std::string> synth_names() {
	std::vector<std::string> out;
	for (const Row& r : kRows) out.push_back(r.name);
	return out;
}

std::vector<std::string> synth_types() {
	std::vector<std::string> out;
	for (const DType t : kTensorTypes) out.push_back(lower_name(t));
	return out;
}

DType parse_synth_type(std::string_view name) {
	for (const DType t : kTensorTypes)
		if (name == lower_name(t)) return t;
	fail(Code::Invalid, "the type of a synthetic model is '{}', expected one of {}", one_line(name, 40),
	     joined(synth_types()));
}

SynthSpec parse_synth(std::string_view text) {
	const std::vector<std::string_view> parts = split(text, ':');
	if (parts.size() < 2 || parts.size() > 3)
		fail(Code::Invalid, "'{}' is no synthetic model; write NAME[,key=value,...]:TYPE[:SEED], as llama-3.1-8b:q4_k",
		     one_line(text, 80));
	const std::vector<std::string_view> items = split(parts[0], ',');
	const Row& r = find_row(items[0]);
	SynthSpec s;
	s.name = parts[0];
	Config& c = s.config;
	c.arch = r.arch, c.name = fmt::format("{} of random weights", parts[0]);
	c.dim = r.dim, c.hidden_dim = r.hidden, c.n_layers = r.layers, c.n_heads = r.heads, c.n_kv_heads = r.kv_heads;
	c.head_dim = r.head_dim, c.vocab = r.vocab, c.max_seq = r.ctx;
	c.rope.theta = r.theta, c.norm_eps = r.eps, c.tied_embedding = r.tied;
	s.tokenizer = r.tokenizer;
	for (size_t i = 1; i < items.size(); ++i) set_key(s, items[i]);
	complete(s);
	s.type = parse_synth_type(parts[1]);
	if (parts.size() == 3) s.seed = number("seed", parts[2], 0, UINT64_MAX);
	return s;
}

} // namespace kvrun
