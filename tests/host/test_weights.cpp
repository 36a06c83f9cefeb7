// Upload of weights: which bytes are written where, in which pieces, on a backend that only stores them.
#include "engine/core/block_quant.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include "models/finite.h"
#include "models/model.h"
#include "models/read_ahead.h"
#include "models/weights.h"
#include "tests/support/mixture_builder.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>

using namespace kvrun;

namespace {

// Stores the bytes that are written; every row of a weight has 12 bytes more than in the file.
class MemoryBackend : public Backend {
 public:
	size_t max_buffer_bytes = size_t(1) << 30;
	std::vector<std::vector<std::byte>> buffers;
	size_t live = 0, pending = 0, most_piece = 0, n_arranged = 0, submits = 0;

	const char* name() const override { return "memory"; }
	DeviceInfo info() const override {
		DeviceInfo i;
		i.name = "memory";
		i.max_buffer_bytes = max_buffer_bytes;
		return i;
	}
	Buffer alloc(size_t bytes, Mem mem, const char*) override {
		CHECK(mem == Mem::Device);
		CHECK(bytes <= max_buffer_bytes);
		buffers.emplace_back(bytes);
		++live;
		return Buffer(*this, uint32_t(buffers.size() - 1), bytes);
	}
	void free(uint32_t) noexcept override { --live; }
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override {
		REQUIRE(at + src.size() <= buffers[dst.id()].size());
		std::copy(src.begin(), src.end(), buffers[dst.id()].begin() + std::ptrdiff_t(at));
		stage(src.size());
	}
	size_t weight_row_bytes(DType t, uint32_t cols) const override { return dtype_row_bytes(t, cols) + 12; }
	bool arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override {
		const size_t in = dtype_row_bytes(t, cols), out = weight_row_bytes(t, cols), n = src.bytes.size() / in;
		if (dst.size() != n * out) return false;
		for (size_t r = 0; r < n; ++r) put_row(src.rows(r, 1, in), dst.subspan(r * out, out));
		return true;
	}
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override {
		const size_t in = dtype_row_bytes(w.type, w.shape[1]), out = weight_row_bytes(w.type, w.shape[1]);
		REQUIRE(row + n <= w.shape[0]);
		REQUIRE(src.bytes.size() == n * in);
		for (uint32_t r = 0; r < n; ++r) {
			const size_t at = w.at + (row + r) * out;
			REQUIRE(at + out <= buffers[w.buf->id()].size());
			const auto row_of_buffer = std::span(buffers[w.buf->id()]).subspan(at, out);
			put_row(src.rows(r, 1, in), row_of_buffer);
			if (arranged.empty()) continue;
			REQUIRE(arranged.size() == n * out);
			CHECK(std::ranges::equal(arranged.subspan(r * out, in + 4), row_of_buffer.first(in + 4)));
			++n_arranged;
		}
		stage(src.bytes.size());
	}
	// The bytes of a row, then its factor.
	static void put_row(const WeightRows& row, std::span<std::byte> to) {
		std::ranges::copy(row.bytes, to.begin());
		const float factor = row.factor(0);
		std::memcpy(to.data() + row.bytes.size(), &factor, sizeof factor);
	}
	std::vector<float> factors(const View& w) const {
		const size_t in = dtype_row_bytes(w.type, w.shape[1]), out = weight_row_bytes(w.type, w.shape[1]);
		std::vector<float> r(w.shape[0]);
		for (uint32_t i = 0; i < w.shape[0]; ++i)
			std::memcpy(&r[i], &buffers[w.buf->id()][w.at + i * out + in], sizeof(float));
		return r;
	}
	// The rows of a weight as in the file.
	std::vector<std::byte> rows(const View& w) const {
		const size_t in = dtype_row_bytes(w.type, w.shape[1]), out = weight_row_bytes(w.type, w.shape[1]);
		std::vector<std::byte> r;
		for (uint32_t i = 0; i < w.shape[0]; ++i) {
			const auto at = buffers[w.buf->id()].begin() + std::ptrdiff_t(w.at + i * out);
			r.insert(r.end(), at, at + std::ptrdiff_t(in));
		}
		return r;
	}
	std::vector<std::byte> vector(const View& v) const {
		const auto at = buffers[v.buf->id()].begin() + std::ptrdiff_t(v.at);
		return {at, at + std::ptrdiff_t(v.shape[0] * 4)};
	}
	void submit() override { ++submits; }
	void wait() override { pending = 0; }

	void read(const Buffer&, size_t, std::span<std::byte>) override { FAIL("read"); }
	void run(const Op&) override { FAIL("op"); }
	std::span<std::byte> host_bytes(const Buffer&) override { return {}; }
	uint64_t transfer(View, View) override { return 0; }
	bool arrive(uint64_t) override { return false; }
	uint64_t mark() override { return 0; }
	void wait_for(uint64_t) override {}
	bool done(uint64_t) override { return true; }
	void at_layer(uint32_t) override {}
	std::vector<OpTime> op_times(bool) override { return {}; }
	void time_ops(bool) override {}

 private:
	void stage(size_t n) {
		most_piece = std::max(most_piece, n);
		pending += n;
	}
};

// The lines that f logs at level 0, each with its newline.
template <class F> std::string warnings_of(F&& f) {
	std::string out;
	set_log_sink([&](int, std::string_view line) { (out += line) += '\n'; }, 0);
	f();
	set_log_sink({}, 0);
	return out;
}

std::vector<std::byte> stored(const Gguf& g, const std::string& tensor) {
	const GgufTensor* t = g.find_tensor(tensor);
	REQUIRE(t);
	std::vector<std::byte> b(t->bytes);
	g.read(*t, 0, b);
	return b;
}
std::vector<std::byte> part(const std::vector<std::byte>& b, size_t first, size_t n) {
	return {b.begin() + std::ptrdiff_t(first), b.begin() + std::ptrdiff_t(first + n)};
}

} // namespace

TEST_CASE("weights: every tensor of every family arrives where its view says") {
	for (const char* arch : {"llama", "qwen2", "qwen3", "phi3"}) {
		CAPTURE(arch);
		TinyShape s;
		s.arch = arch;
		s.n_layers = 2;
		s.tied = std::string(arch) == "qwen2";
		const auto bytes = tiny_model(s).bytes();
		const Gguf g = Gguf::parse("test.gguf", bytes);
		const Config c = read_config(g);
		MemoryBackend b;
		Weights loaded = load_weights(g, c, b);
		const Weights w = std::move(loaded); // views stay valid
		CHECK(b.rows(w.embed) == stored(g, "token_embd.weight"));
		CHECK(b.vector(w.final_norm.w) == stored(g, "output_norm.weight"));
		CHECK(b.rows(w.lm_head) == stored(g, s.tied ? "token_embd.weight" : "output.weight"));
		CHECK((w.lm_head.buf == w.embed.buf && w.lm_head.at == w.embed.at) == s.tied);
		REQUIRE(w.layers.size() == 2);
		for (uint32_t l = 0; l < 2; ++l) {
			const LayerWeights& x = w.layers[l];
			auto file = [&](const char* what) { return stored(g, fmt::format("blk.{}.{}", l, what)); };
			CHECK(b.vector(x.attn_norm.w) == file("attn_norm.weight"));
			CHECK(b.vector(x.mlp_norm.w) == file("ffn_norm.weight"));
			CHECK(b.rows(x.wo) == file("attn_output.weight"));
			CHECK(b.rows(x.w_down) == file("ffn_down.weight"));
			const size_t row = c.dim * 4, q = c.n_heads * c.head_dim * row, kv = c.n_kv_heads * c.head_dim * row,
			             h = c.hidden_dim * row;
			if (c.layers[0].fused_qkv) {
				CHECK(b.rows(x.wq) == part(file("attn_qkv.weight"), 0, q));
				CHECK(b.rows(x.wk) == part(file("attn_qkv.weight"), q, kv));
				CHECK(b.rows(x.wv) == part(file("attn_qkv.weight"), q + kv, kv));
				CHECK(b.rows(x.w_gate) == part(file("ffn_up.weight"), 0, h));
				CHECK(b.rows(x.w_up) == part(file("ffn_up.weight"), h, h));
			} else {
				CHECK(b.rows(x.wq) == file("attn_q.weight"));
				CHECK(b.rows(x.wk) == file("attn_k.weight"));
				CHECK(b.rows(x.wv) == file("attn_v.weight"));
				CHECK(b.rows(x.w_gate) == file("ffn_gate.weight"));
				CHECK(b.rows(x.w_up) == file("ffn_up.weight"));
			}
			CHECK(bool(x.bq) == c.layers[0].qkv_bias);
			if (c.layers[0].qkv_bias) {
				CHECK(b.vector(x.bq) == file("attn_q.bias"));
				CHECK(b.vector(x.bk) == file("attn_k.bias"));
				CHECK(b.vector(x.bv) == file("attn_v.bias"));
			}
			CHECK(bool(x.q_norm) == (c.layers[0].qk_norm == QkNorm::Head));
			if (c.layers[0].qk_norm == QkNorm::Head) {
				CHECK(b.vector(x.q_norm) == file("attn_q_norm.weight"));
				CHECK(b.vector(x.k_norm) == file("attn_k_norm.weight"));
			}
			for (const View* v : {&x.wq, &x.wo, &x.w_down, &x.attn_norm.w})
				if (!c.layers[0].fused_qkv || v != &x.wq) CHECK(v->at % 256 == 0);
		}
		CHECK(w.buffers.size() == 1);
		CHECK(b.live == 1);
		CHECK(b.pending == 0); // all copies are complete
	}
}

TEST_CASE("weights: experts stand one behind the other; of fused ones all gates, then all factors") {
	for (const bool fused : {false, true}) {
		CAPTURE(fused);
		const TinyMixture m{
		    .n = 5, .shared = 12, .fused = fused, .bias = true, .choice_bias = true, .shared_gate = true};
		const auto bytes = tiny_mixture(m).bytes();
		const Gguf g = Gguf::parse("test.gguf", bytes);
		MemoryBackend b;
		const Weights w = load_weights(g, read_config(g), b);
		for (uint32_t l = 0; l < 2; ++l) {
			const ExpertWeights& x = w.layers[l].experts;
			auto file = [&](const char* what) { return stored(g, fmt::format("blk.{}.{}", l, what)); };
			CHECK(b.rows(x.router) == file("ffn_gate_inp.weight"));
			CHECK(b.vector(x.choice_bias) == file("exp_probs_b.bias"));
			CHECK(!x.router_bias);
			CHECK(b.rows(x.w_down) == file("ffn_down_exps.weight"));
			CHECK(b.vector(x.b_down) == file("ffn_down_exps.bias"));
			CHECK(b.rows(x.shared_switch) == file("ffn_gate_inp_shexp.weight"));
			CHECK(b.rows(x.shared_up) == file("ffn_up_shexp.weight"));
			CHECK(x.w_up.shape[0] == 5 * 8);
			if (!fused) {
				CHECK(b.rows(x.w_gate) == file("ffn_gate_exps.weight"));
				CHECK(b.rows(x.w_up) == file("ffn_up_exps.weight"));
				CHECK(b.vector(x.b_up) == file("ffn_up_exps.bias"));
				continue;
			}
			const auto all = file("ffn_gate_up_exps.weight"), biases = file("ffn_gate_up_exps.bias");
			const size_t half = 8 * 16 * 4, part_of_bias = 8 * 4;
			for (size_t e = 0; e < 5; ++e) {
				CHECK(part(b.rows(x.w_gate), e * half, half) == part(all, 2 * e * half, half));
				CHECK(part(b.rows(x.w_up), e * half, half) == part(all, (2 * e + 1) * half, half));
				CHECK(part(b.vector(x.b_gate), e * part_of_bias, part_of_bias) ==
				      part(biases, 2 * e * part_of_bias, part_of_bias));
				CHECK(part(b.vector(x.b_up), e * part_of_bias, part_of_bias) ==
				      part(biases, (2 * e + 1) * part_of_bias, part_of_bias));
			}
		}
	}
}

TEST_CASE("weights: norms of any type become f32, matrices keep their type") {
	GgufBuilder g = tiny_model();
	std::string halves;
	for (int i = 0; i < 16; ++i) halves += GgufBuilder::raw(uint16_t(0x3c00 + i)); // 1 and a little
	g.tensor("output_norm.weight", DType::F16, {16}, halves);
	g.tensor("blk.0.ffn_down.weight", DType::Q8_0, {32, 16}, std::string(34 * 16, '\1'));
	const auto bytes = g.bytes();
	const Gguf file = Gguf::parse("test.gguf", bytes);
	MemoryBackend b;
	const Weights w = load_weights(file, read_config(file), b);
	CHECK(w.final_norm.w.type == DType::F32);
	float norm[16];
	std::memcpy(norm, b.vector(w.final_norm.w).data(), sizeof norm);
	for (int i = 0; i < 16; ++i) CHECK(norm[i] == 1 + float(i) / 1024);
	CHECK(w.layers[0].w_down.type == DType::Q8_0);
	CHECK(b.rows(w.layers[0].w_down) == stored(file, "blk.0.ffn_down.weight"));
}

TEST_CASE("weights: factors of matrices and of experts reach the rows they belong to") {
	const std::string block = std::string("\x38\x40\x30\x38", 4) + std::string(32, '\x21');
	const auto blocks = [&](size_t n) {
		std::string s;
		for (size_t i = 0; i < n; ++i) s += block;
		return s;
	};
	TinyShape s;
	s.arch = "phi3", s.dim = 64, s.hidden_dim = 128, s.head_dim = 32;
	GgufBuilder dense = tiny_model(s);
	dense.tensor("blk.0.attn_qkv.weight", DType::NVFP4, {64, 128}, blocks(128));
	dense.tensor("blk.0.ffn_down.weight", DType::NVFP4, {128, 64}, blocks(128));
	dense.tensor_f32("blk.0.attn_qkv.scale", {1}, {0.375f});
	dense.tensor_f32("blk.0.attn_qkv.input_scale", {1}, {3});
	GgufBuilder experts = tiny_mixture({.n = 3, .hidden = 64, .dense_first = 1, .fused = true});
	for (GgufBuilder::Tensor& t : experts.tensors)
		if (t.name == "blk.1.ffn_down_exps.weight") t.type = uint32_t(DType::NVFP4), t.data = blocks(3 * 16);
	experts.tensor_f32("blk.1.ffn_down_exps.scale", {3}, {2, 3, 5});
	experts.tensor_f32("blk.1.ffn_down_exps.input_scale", {3}, {1, 1, 1});

	const auto with = [](const GgufBuilder& g, const auto& look) {
		const auto bytes = g.bytes();
		const Gguf file = Gguf::parse("test.gguf", bytes);
		const Config c = read_config(file);
		MemoryBackend b;
		look(c, load_weights(file, c, b), b);
	};
	with(dense, [](const Config&, const Weights& w, const MemoryBackend& b) {
		CHECK(b.factors(w.layers[0].wq) == std::vector<float>(64, 0.375f));
		CHECK(b.factors(w.layers[0].wv) == std::vector<float>(32, 0.375f));
		CHECK(b.factors(w.layers[0].w_down) == std::vector<float>(64, 1.f));
	});
	with(experts, [](const Config& c, const Weights& w, const MemoryBackend& b) {
		CHECK(!c.layers[1].experts.factors); // they belong to the weights
		const std::vector<float> f = b.factors(w.layers[1].experts.w_down);
		REQUIRE(f.size() == 48);
		for (size_t i = 0; i < 48; ++i) CHECK(f[i] == std::array{2.f, 3.f, 5.f}[i / 16]);
	});
	const auto refusal = [&](GgufBuilder g, const char* name, std::vector<uint64_t> dims, std::vector<float> v) {
		g.tensor_f32(name, std::move(dims), v);
		try {
			with(g, [](const auto&...) {});
		} catch (const Error& e) { return std::string(e.what()); }
		return std::string();
	};
	CHECK(refusal(dense, "blk.0.attn_qkv.scale", {2}, {1, 1})
	          .find("tensor blk.0.attn_qkv.scale has 2 elements of type F32, expected 1 of type F32") !=
	      std::string::npos);
	CHECK(refusal(experts, "blk.1.ffn_down_exps.scale", {2}, {1, 1}).find("2 elements of type F32, expected 1 or 3") !=
	      std::string::npos);
	CHECK(refusal(dense, "blk.0.attn_qkv.scale", {1}, {NAN}).find("blk.0.attn_qkv.scale holds a value that is not") !=
	      std::string::npos);
	CHECK(refusal(dense, "blk.0.attn_output.scale", {1}, {1}).find("blk.0.attn_output.scale belongs to a variant") !=
	      std::string::npos); // its weight is F32
}

// Dequantising every element of random blocks gives the same verdict as the search of scales alone.
TEST_CASE("T15: values that are no finite numbers are found in every type, where they are") {
	std::mt19937 rng(15);
	for (const DType t : kTensorTypes) {
		const auto [type, block, block_bytes] = dtype_info(t);
		const std::string name = type;
		const size_t n = 5000 / block + 1;
		std::vector<std::byte> rows(n * block_bytes);
		std::vector<float> values(n * block);
		size_t found = 0;
		for (int round = 0; round < 200; ++round) {
			// exponents with all bits set are rare in most rounds, so that the first one may be far inside
			for (std::byte& b : rows) b = std::byte(rng() & (round % 2 ? 0xbfu : 0xffu));
			if (round % 2)
				for (int k = 0; k < round % 4 - 1; ++k) std::memset(rows.data() + rng() % (rows.size() - 4), 0xff, 4);
			dequantise_row(t, rows.data(), values.data(), values.size());
			for (size_t k = 0; t == DType::NVFP4 && k < values.size(); ++k) // reads the NaN codes of scales as numbers
				if ((rows[k / 64 * 36 + k % 64 / 16] & std::byte(0x7f)) == std::byte(0x7f)) values[k] = NAN;
			const auto i = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
			const std::optional<size_t> at = first_not_finite(t, rows);
			INFO(name, " round ", round);
			CHECK(at.has_value() == (i != values.end()));
			if (at) CHECK(*at == size_t(i - values.begin()));
			found += at.has_value();
		}
		CHECK(found > 20);
		CHECK(found < 200);
	}
}

TEST_CASE("T15: a model with such values is loaded, and one line says where they are") {
	auto warnings = [](const GgufBuilder& b, const char* name) {
		const auto bytes = b.bytes();
		const Gguf g = Gguf::parse(name, bytes);
		MemoryBackend backend;
		return warnings_of([&] { load_weights(g, read_config(g), backend); });
	};
	CHECK(warnings(tiny_model(), "sound.gguf") == "");
	GgufBuilder b = tiny_model();
	const float nan = NAN;
	std::memcpy(b.find("blk.0.ffn_norm.weight").data.data() + 12, &nan, 4);
	CHECK(warnings(b, "norm.gguf") ==
	      "warning: norm.gguf: 1 of 12 tensors hold values that are not finite, first "
	      "blk.0.ffn_norm.weight at row 0, column 3; output may be wrong, download the file again\n");
	TinyShape s; // several reads and several pieces: the last element of 24 MiB
	s.dim = 2048;
	s.hidden_dim = 3072;
	s.n_heads = 8;
	s.head_dim = 64;
	b = tiny_model(s);
	std::string& up = b.find("blk.0.ffn_up.weight").data;
	std::memcpy(up.data() + up.size() - 4, &nan, 4);
	std::memcpy(b.find("output.weight").data.data(), &nan, 4);
	CHECK(warnings(b, "matrix.gguf")
	          .find("2 of 12 tensors hold values that are not finite, first "
	                "blk.0.ffn_up.weight at row 3071, column 2047;") != std::string::npos);
}

TEST_CASE("weights: buffers stay within the device's limit, pieces and staging within kvrun's") {
	TinyShape s;
	s.dim = 2048;
	s.hidden_dim = 6144; // 48 MiB per matrix of the MLP
	s.n_heads = 8;
	s.head_dim = 64;
	const auto bytes = tiny_model(s).bytes();
	const Gguf g = Gguf::parse("test.gguf", bytes);
	const Config c = read_config(g);
	{
		MemoryBackend b;
		b.max_buffer_bytes = size_t(60) << 20;
		uint64_t last = 0, total = 0, calls = 0;
		const Weights w = load_weights(g, c, b, [&](uint64_t done, uint64_t all) {
			CHECK(done > last);
			last = done;
			total = all;
			++calls;
		});
		CHECK(last == total);
		CHECK(total == g.tensor_bytes());
		CHECK(calls > 20);
		CHECK(w.buffers.size() >= 3);
		CHECK(b.most_piece <= size_t(8) << 20);
		CHECK(b.submits > 20); // the device copies while the next piece is read
		CHECK(b.n_arranged > 1000);
		CHECK(b.rows(w.layers[0].w_up) == stored(g, "blk.0.ffn_up.weight"));
	}
	{
		MemoryBackend b;
		b.max_buffer_bytes = size_t(40) << 20;
		try {
			load_weights(g, c, b);
			FAIL("a tensor larger than a buffer was accepted");
		} catch (const Error& e) {
			CHECK(e.code == Code::Unsupported);
			CHECK(std::string(e.what()).find("tensor blk.0.ffn_gate.weight takes") != std::string::npos);
			CHECK(std::string(e.what()).find(std::to_string(b.max_buffer_bytes)) != std::string::npos);
		}
		CHECK(b.live == 0);
	}
	{ // stopped half-way: all memory is returned
		MemoryBackend b;
		CHECK_THROWS_AS(load_weights(g, c, b,
		                             [](uint64_t done, uint64_t total) {
			                             if (done > total / 2) throw std::runtime_error("stop");
		                             }),
		                std::runtime_error);
		CHECK(b.live == 0);
	}
}

TEST_CASE("T18: a file truncated between opening and loading is an error, and nothing stays allocated") {
	const auto bytes = tiny_model().bytes();
	std::string name = (std::filesystem::temp_directory_path() / "kvrun-test-XXXXXX").string();
	const int fd = sys::create_unique(name);
	REQUIRE(fd >= 0);
	REQUIRE(sys::write_file(fd, bytes));
	const Model m = open_model(name);
	REQUIRE(sys::cut_file(fd, bytes.size() - 100));
	MemoryBackend b;
	try {
		load_weights(m.file, m.config, b);
		FAIL("a truncated file was loaded");
	} catch (const Error& e) {
		CHECK(e.code == Code::Io);
		CHECK(std::string(e.what()).find("do not change a file in use") != std::string::npos);
	}
	CHECK(b.live == 0);
	sys::close_file(fd);
	sys::remove_file(name);
}

TEST_CASE(
    "weights: pieces read ahead come in order and whole, with any number of threads; a fault comes at its piece") {
	TinyShape s;
	const auto bytes = tiny_model(s).bytes();
	const Gguf g = Gguf::parse("test.gguf", bytes);
	std::vector<WeightPiece> pieces;
	for (const GgufTensor& t : g.tensors())
		for (uint64_t from = 0; from < t.bytes; from += 64)
			pieces.push_back({&t, from, std::min<size_t>(64, t.bytes - from)});
	REQUIRE(pieces.size() > 20);
	for (const unsigned threads : {0u, 1u, 2u, 4u, 40u}) {
		CAPTURE(threads);
		ReadAhead ahead(g, pieces, threads);
		for (const WeightPiece& p : pieces) {
			const ReadAhead::Read r = ahead.next();
			const std::vector<std::byte> all = stored(g, std::string(p.tensor->name));
			CHECK(std::ranges::equal(r.bytes, part(all, p.from, p.bytes)));
			CHECK(!r.not_finite);
		}
		ReadAhead unread(g, pieces, threads);
		(void)unread.next(); // the rest is not read
		std::vector<WeightPiece> wrong = pieces;
		wrong[5].from = wrong[5].tensor->bytes;
		ReadAhead broken(g, wrong, threads);
		for (int i = 0; i < 5; ++i) (void)broken.next();
		CHECK_THROWS_AS(broken.next(), Error);
	}
}
