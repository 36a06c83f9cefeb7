// Writes GGUF files in memory, valid or broken on purpose, and a tiny valid model to start from.
#pragma once
#include "engine/core/dtype.h"
#include "models/gguf.h"
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvrun {

struct GgufBuilder {
	using Bytes = std::string;
	struct Key {
		std::string name;
		uint32_t type;
		Bytes value;
	};
	struct Tensor {
		std::string name;
		std::vector<uint64_t> dims; // innermost first
		uint32_t type;              // ggml's number
		Bytes data;
		uint64_t offset = UINT64_MAX; // of the data; UINT64_MAX: its position in the file
		uint32_t n_dims = UINT32_MAX; // as written; UINT32_MAX: dims.size()
	};

	std::vector<Key> keys;
	std::vector<Tensor> tensors;
	std::string magic = "GGUF";
	uint32_t version = 3;
	uint64_t n_tensors = UINT64_MAX, n_keys = UINT64_MAX; // as written; UINT64_MAX: the true numbers
	uint64_t alignment = 32;                              // of the data as written

	template <class T> static Bytes raw(T v) { return {reinterpret_cast<const char*>(&v), sizeof v}; }
	static Bytes string(std::string_view s) { return raw(uint64_t(s.size())) + Bytes(s); }
	static uint32_t type_number(DType t) { return t == DType::U32 ? 26 : gguf_number(t); } // I32

	// A model file again, as one of another architecture.
	static GgufBuilder copy_as(const Gguf& g, const std::string& arch) {
		const std::string front = std::string(g.text("general.architecture")) + ".";
		GgufBuilder b;
		for (const GgufEntry& e : g.entries()) {
			const std::string key(e.key);
			const Bytes value(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size());
			b.set(key.starts_with(front) ? arch + "." + key.substr(front.size()) : key, e.type,
			      e.type == GgufType::String  ? string(value)
			      : e.type == GgufType::Array ? raw(uint32_t(e.element)) + raw(e.count) + value
			                                  : value);
		}
		b.text("general.architecture", arch);
		for (const GgufTensor& t : g.tensors()) {
			Bytes data(t.bytes, 0);
			g.read(t, 0, std::as_writable_bytes(std::span(data)));
			b.tensor(std::string(t.name), t.type, {t.shape, t.shape + t.n_dims}, std::move(data));
		}
		return b;
	}
	// Sets a key; replaces an older one of the same name.
	GgufBuilder& set(const std::string& name, GgufType type, Bytes value) {
		erase(name);
		keys.push_back({name, uint32_t(type), std::move(value)});
		return *this;
	}
	GgufBuilder& erase(const std::string& name) {
		std::erase_if(keys, [&](const Key& k) { return k.name == name; });
		return *this;
	}
	GgufBuilder& u32(const std::string& k, uint32_t v) { return set(k, GgufType::U32, raw(v)); }
	GgufBuilder& f32(const std::string& k, float v) { return set(k, GgufType::F32, raw(v)); }
	GgufBuilder& flag(const std::string& k, bool v) { return set(k, GgufType::Bool, raw(uint8_t(v))); }
	GgufBuilder& text(const std::string& k, std::string_view v) { return set(k, GgufType::String, string(v)); }
	GgufBuilder& array(const std::string& k, GgufType element, uint64_t n, const Bytes& values) {
		return set(k, GgufType::Array, raw(uint32_t(element)) + raw(n) + values);
	}
	GgufBuilder& texts(const std::string& k, const std::vector<std::string>& v) {
		Bytes b;
		for (const auto& s : v) b += string(s);
		return array(k, GgufType::String, v.size(), b);
	}
	template <class T> GgufBuilder& numbers(const std::string& k, GgufType element, const std::vector<T>& v) {
		return array(k, element, v.size(), {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T)});
	}

	GgufBuilder& tensor(const std::string& name, DType type, std::vector<uint64_t> dims, Bytes data) {
		erase_tensor(name);
		tensors.push_back({name, std::move(dims), type_number(type), std::move(data)});
		return *this;
	}
	GgufBuilder& tensor_f32(const std::string& name, std::vector<uint64_t> dims, const std::vector<float>& v) {
		return tensor(name, DType::F32, std::move(dims), {reinterpret_cast<const char*>(v.data()), v.size() * 4});
	}
	GgufBuilder& erase_tensor(const std::string& name) {
		std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
		return *this;
	}
	Tensor& find(const std::string& name) {
		for (Tensor& t : tensors)
			if (t.name == name) return t;
		throw std::out_of_range(name);
	}

	std::vector<std::byte> bytes() const {
		Bytes b = magic + raw(version) + raw(n_tensors == UINT64_MAX ? uint64_t(tensors.size()) : n_tensors) +
		          raw(n_keys == UINT64_MAX ? uint64_t(keys.size()) : n_keys);
		for (const Key& k : keys) b += string(k.name) + raw(k.type) + k.value;
		uint64_t at = 0;
		for (const Tensor& t : tensors) {
			b += string(t.name) + raw(t.n_dims == UINT32_MAX ? uint32_t(t.dims.size()) : t.n_dims);
			for (uint64_t d : t.dims) b += raw(d);
			b += raw(t.type) + raw(t.offset == UINT64_MAX ? at : t.offset);
			at += (t.data.size() + alignment - 1) / alignment * alignment;
		}
		for (const Tensor& t : tensors) {
			b.resize((b.size() + alignment - 1) / alignment * alignment);
			b += t.data;
		}
		std::vector<std::byte> out(b.size());
		std::memcpy(out.data(), b.data(), b.size());
		return out;
	}
};

struct TinyShape {
	std::string arch = "llama";
	uint32_t dim = 16, hidden_dim = 32, head_dim = 8, n_layers = 1, n_heads = 2, n_kv_heads = 1, ctx = 64;
	bool tied = false;
};

// The character that stands for byte b in byte-level BPE, from its definition.
inline std::string byte_character(int b) {
	auto visible = [](int c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174; };
	int code = b;
	if (!visible(b)) {
		code = 256;
		for (int c = 0; c < b; ++c) code += !visible(c);
	}
	if (code < 128) return std::string(1, char(code));
	return {char(0xc0 | code >> 6), char(0x80 | (code & 63))};
}

// <unk> <s> </s>, 256 byte tokens, then a few words.
inline std::vector<std::string> tiny_spm_tokens() {
	std::vector<std::string> t = {"<unk>", "<s>", "</s>"};
	for (int i = 0; i < 256; ++i) {
		char hex[8];
		std::snprintf(hex, sizeof hex, "<0x%02X>", i);
		t.push_back(hex);
	}
	for (const char* w : {"\xe2\x96\x81", "a", "b",
	                      "\xe2\x96\x81"
	                      "a",
	                      "ab",
	                      "\xe2\x96\x81"
	                      "ab",
	                      "aa", "\xc3\xa9"})
		t.push_back(w);
	return t;
}

inline void add_spm(GgufBuilder& b, const std::vector<std::string>& tokens) {
	std::vector<int32_t> kinds(tokens.size(), 1);
	std::vector<float> scores(tokens.size());
	int words = 0; // the first has the best score
	for (size_t i = 0; i < tokens.size(); ++i) {
		if (i < 3)
			kinds[i] = i == 0 ? 2 : 3;
		else if (tokens[i].size() == 6 && tokens[i].starts_with("<0x"))
			kinds[i] = 6;
		else
			scores[i] = float(-words++);
	}
	b.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.scores", GgufType::F32, scores)
	    .numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	b.u32("tokenizer.ggml.bos_token_id", 1)
	    .u32("tokenizer.ggml.eos_token_id", 2)
	    .u32("tokenizer.ggml.unknown_token_id", 0);
}

// A valid model of any family with small random F32 weights.
inline GgufBuilder tiny_model(const TinyShape& s = {}) {
	GgufBuilder b;
	auto key = [&](const char* k) { return s.arch + "." + k; };
	b.text("general.architecture", s.arch).text("general.name", "tiny");
	b.u32(key("embedding_length"), s.dim)
	    .u32(key("block_count"), s.n_layers)
	    .u32(key("feed_forward_length"), s.hidden_dim);
	b.u32(key("attention.head_count"), s.n_heads).u32(key("attention.head_count_kv"), s.n_kv_heads);
	b.u32(key("attention.key_length"), s.head_dim).u32(key("attention.value_length"), s.head_dim);
	b.u32(key("rope.dimension_count"), s.head_dim).u32(key("context_length"), s.ctx);
	b.f32(key("attention.layer_norm_rms_epsilon"), 1e-5f).f32(key("rope.freq_base"), 10000);
	const std::vector<std::string> tokens = tiny_spm_tokens();
	add_spm(b, tokens);
	b.u32(key("vocab_size"), uint32_t(tokens.size()));

	std::mt19937 rng(1);
	auto add = [&](const std::string& name, uint64_t cols, uint64_t rows) {
		std::vector<float> v(cols * rows);
		for (float& x : v) x = float(rng() % 2001) / 1000.f - 1.f;
		b.tensor_f32(name, rows == 1 ? std::vector<uint64_t>{cols} : std::vector<uint64_t>{cols, rows}, v);
	};
	const uint64_t q = uint64_t(s.n_heads) * s.head_dim, kv = uint64_t(s.n_kv_heads) * s.head_dim;
	const bool fused = s.arch == "phi3";
	add("token_embd.weight", s.dim, tokens.size());
	for (uint32_t l = 0; l < s.n_layers; ++l) {
		const std::string p = "blk." + std::to_string(l) + ".";
		add(p + "attn_norm.weight", s.dim, 1);
		if (fused) {
			add(p + "attn_qkv.weight", s.dim, q + 2 * kv);
		} else {
			add(p + "attn_q.weight", s.dim, q);
			add(p + "attn_k.weight", s.dim, kv);
			add(p + "attn_v.weight", s.dim, kv);
		}
		if (s.arch == "qwen2") {
			add(p + "attn_q.bias", q, 1);
			add(p + "attn_k.bias", kv, 1);
			add(p + "attn_v.bias", kv, 1);
		}
		if (s.arch == "qwen3") {
			add(p + "attn_q_norm.weight", s.head_dim, 1);
			add(p + "attn_k_norm.weight", s.head_dim, 1);
		}
		add(p + "attn_output.weight", q, s.dim);
		add(p + "ffn_norm.weight", s.dim, 1);
		if (!fused) add(p + "ffn_gate.weight", s.dim, s.hidden_dim);
		add(p + "ffn_up.weight", s.dim, fused ? 2 * s.hidden_dim : s.hidden_dim);
		add(p + "ffn_down.weight", s.hidden_dim, s.dim);
	}
	add("output_norm.weight", s.dim, 1);
	if (!s.tied) add("output.weight", s.dim, tokens.size());
	return b;
}

} // namespace kvrun
