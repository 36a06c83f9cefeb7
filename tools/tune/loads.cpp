// Ops that are measured on a device.
#include "tools/tune/loads.h"
#include "backends/tolerance.h"
#include "engine/core/block_quant.h"
#include "engine/core/block_scales.h"
#include "engine/core/f16.h"
#include "engine/core/round.h"
#include "engine/core/splitmix64.h"
#include "engine/kv_device/sequence.h"
#include "models/model.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cstring>
#include <map>

namespace kvrun {
namespace {

// Rows of weights and of x repeat, so that the reference computes few of them.
constexpr uint32_t kOwnRows = 64, kOwnTokens = 4;

uint32_t load_number(uint64_t seed, uint64_t i) {
	return uint32_t(splitmix64(seed * 1000003 + i * kSplitmixStep) >> 32);
}
float load_value(uint64_t seed, uint64_t i) { return float(int(load_number(seed, i) % 513) - 256) / 256; } // -1 .. 1
std::vector<float> load_values(size_t n, uint64_t seed) {
	std::vector<float> out(n);
	for (size_t i = 0; i < n; ++i) out[i] = load_value(seed, i);
	return out;
}
std::vector<uint16_t> load_halves(size_t n, uint64_t seed) {
	std::vector<uint16_t> out;
	for (const float v : load_values(n, seed)) out.push_back(f32_to_f16(v));
	return out;
}

template <class T> void write_all(Backend& b, const View& v, const std::vector<T>& data) {
	b.write(*v.buf, v.at, std::as_bytes(std::span(data)));
}
std::vector<float> read_floats(Backend& b, const View& v) {
	std::vector<float> x(v.elements());
	b.read(*v.buf, v.at, std::as_writable_bytes(std::span(x)));
	b.submit();
	b.wait();
	return x;
}

class Held { // buffers of a load; addresses stay
 public:
	View make(Backend& b, DType t, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		const size_t bytes = size_t(d0) * d1 * d2 * dtype_info(t).bytes;
		all_.push_back(std::make_unique<Buffer>(b.alloc(align_up(bytes, 16), Mem::Device, "measured")));
		return view(*all_.back(), 0, t, d0, d1, d2);
	}
	const Buffer& bytes(Backend& b, size_t n) {
		all_.push_back(std::make_unique<Buffer>(b.alloc(n, Mem::Device, "measured")));
		return *all_.back();
	}

 private:
	std::vector<std::unique_ptr<Buffer>> all_;
};

// ---- products with weights

class ProjectionLoad final : public TuneLoad {
 public:
	ProjectionLoad(Backend& b, const TuneMatmul& shape, uint32_t tokens, bool decode, size_t weight_bytes)
	    : shape_(shape), tokens_(tokens), decode_(decode) {
		name = fmt::format("{} {} x {}, {} token{}", dtype_info(shape.type).name, shape.rows, shape.cols, tokens,
		                   tokens == 1 ? "" : "s");
		choices = decode ? std::vector<std::string>{"texels", "project_int8", "matvec_rows"}
		                 : std::vector<std::string>{"texels", "matrices", "project_int8", "tile_fill", "tile_buffers"};
		const size_t one = shape.rows * b.weight_row_bytes(shape.type, shape.cols);
		const std::vector<std::byte> own = own_rows();
		for (size_t bytes = 0; bytes < std::max(one, weight_bytes); bytes += one)
			weights_.push_back(weight(b, held_, shape.rows, own));
		x_ = x(b, held_, tokens);
		out_ = held_.make(b, DType::F32, tokens, shape.rows);
	}
	void run(Backend& b) override {
		const Proj p{out_, weights_[next_++ % weights_.size()], {}};
		b.matmul({&p, 1}, x_, Epilogue::None, decode_);
	}

 protected:
	Result result(Backend& b) override {
		return {read_floats(b, out_), matmul_tolerance(b.info(), shape_.type, /*swiglu=*/false, decode_)};
	}
	std::vector<float> expected(Backend& b) override {
		Held held;
		const uint32_t rows = std::min(shape_.rows, kOwnRows), tokens = std::min(tokens_, kOwnTokens);
		const View w = weight(b, held, rows, own_rows()), out = held.make(b, DType::F32, tokens, rows);
		const Proj p{out, w, {}};
		b.matmul({&p, 1}, x(b, held, tokens), Epilogue::None, decode_);
		const std::vector<float> few = read_floats(b, out);
		std::vector<float> all(size_t(tokens_) * shape_.rows);
		for (size_t t = 0; t < tokens_; ++t)
			for (size_t r = 0; r < shape_.rows; ++r)
				all[t * shape_.rows + r] = few[t % kOwnTokens * rows + r % kOwnRows];
		return all;
	}

 private:
	View x(Backend& b, Held& held, uint32_t tokens) const {
		const View v = held.make(b, DType::F32, tokens, shape_.cols);
		const std::vector<float> own = load_values(size_t(kOwnTokens) * shape_.cols, 2);
		std::vector<float> all(size_t(tokens) * shape_.cols);
		for (size_t i = 0; i < all.size(); ++i) all[i] = own[i % own.size()];
		write_all(b, v, all);
		return v;
	}
	std::vector<std::byte> own_rows() const {
		std::vector<std::byte> own(kOwnRows * dtype_row_bytes(shape_.type, shape_.cols));
		for (size_t i = 0; i + 4 <= own.size(); i += 4) {
			const uint32_t word = load_number(1, i);
			std::memcpy(&own[i], &word, 4);
		}
		const size_t block = dtype_info(shape_.type).bytes;
		for (size_t at = 0; at < own.size(); at += block) {
			if (is_quantised(shape_.type)) {
				set_block_scales(shape_.type, &own[at], 1);
				continue;
			}
			const float v = load_value(1, at);
			const uint16_t half =
			    shape_.type == DType::BF16 ? uint16_t(std::bit_cast<uint32_t>(v) >> 16) : f32_to_f16(v);
			if (shape_.type == DType::F32)
				std::memcpy(&own[at], &v, 4);
			else
				std::memcpy(&own[at], &half, 2);
		}
		return own;
	}
	View weight(Backend& b, Held& held, uint32_t rows, std::span<const std::byte> own) const {
		const size_t row_bytes = dtype_row_bytes(shape_.type, shape_.cols);
		const View w =
		    view(held.bytes(b, rows * b.weight_row_bytes(shape_.type, shape_.cols)), 0, shape_.type, rows, shape_.cols);
		for (uint32_t row = 0; row < rows; row += kOwnRows) {
			const uint32_t n = std::min(kOwnRows, rows - row);
			b.write_weight(w, row, n, own.first(n * row_bytes), {});
		}
		return w;
	}

	TuneMatmul shape_;
	uint32_t tokens_;
	bool decode_;
	Held held_;
	std::vector<View> weights_; // copies, so that no cache holds the next one
	View x_, out_;
	size_t next_ = 0;
};

// What a prompt's attention measures: kernels by matrices, and how these keep queries and scores.
const std::vector<std::string> kPromptChoices = {"texels",          "matrices",       "attend_matrices",
                                                 "register_scores", "shared_queries", "prompt_queries"};

// ---- attention over pages of a decode step, or of rows of a prompt, to themselves and to pages if there are some

class AttendLoad final : public TuneLoad {
 public:
	AttendLoad(Backend& b, const TuneShapes& s, uint8_t bits, uint32_t tokens, uint32_t rows = 1)
	    : shapes_(s), tokens_(tokens), rows_(rows) {
		const std::string over = tokens ? fmt::format(" over {} tokens of {} bits", tokens, bits) : "";
		name = "attention" + (prompt() ? fmt::format(" of {} rows of a prompt", rows) : std::string()) + over;
		choices = prompt() ? kPromptChoices : std::vector<std::string>{"texels", "pieces"};
		if (bits < 16) {
			if (!prompt()) choices.push_back("attend_int8");
			format_.k = {.bits = bits, .scale = Scale::PerChannel, .group = kPage};
			format_.v = {.bits = bits, .scale = Scale::PerToken, .group = kGroup};
		}
		make(b, held_, q_, out_, group_, own_);
	}
	void prepare(Backend& b) override {
		pieces_ = Held();
		if (tokens_) read_ = cut(b, pieces_, group_);
	}
	void run(Backend& b) override { attend(b, out_, q_, read_, group_, own_); }

 protected:
	Result result(Backend& b) override {
		const bool packed = format_.k.bits < 16;
		return {read_floats(b, out_), attend_tolerance(b.info(), prompt(), packed,
		                                               prompt() ? "attend_prompt"
		                                               : packed ? "attend packed"
		                                                        : "attend")};
	}
	std::vector<float> expected(Backend& b) override {
		Held held;
		View q, out;
		AttendGroup group;
		KvRows own;
		make(b, held, q, out, group, own);
		KvRead read{};
		if (tokens_) read = cut(b, held, group);
		attend(b, out, q, read, group, own);
		return read_floats(b, out);
	}

 private:
	static constexpr uint32_t kPage = 128, kGroup = 32;
	bool prompt() const { return rows_ > 1; }
	void attend(Backend& b, const View& out, const View& q, KvRead& read, const AttendGroup& group,
	            const KvRows& own) const {
		read.groups = {&group, 1};
		if (prompt())
			b.attend_prompt(out, {}, q, own, tokens_ ? &read : nullptr);
		else
			b.attend(out, {}, q, read);
	}
	uint32_t n_pages() const { return tokens_ / kPage; }
	uint32_t k_words() const { return kv_code_words(shapes_.n_kv_heads, shapes_.head_dim, format_.k.bits, kPage); }
	uint32_t page_words() const {
		const uint32_t params = format_.k.bits == 16
		                            ? 0
		                            : kv_channel_param_words(shapes_.n_kv_heads, shapes_.head_dim) +
		                                  kv_token_param_words(shapes_.n_kv_heads, shapes_.head_dim, kGroup, kPage);
		return 2 * k_words() + params;
	}
	// A page of random codes, with scales and zero points that make them numbers around 0; all pages are the same.
	std::vector<uint32_t> page() const {
		std::vector<uint32_t> words(page_words());
		const size_t codes = size_t(2) * k_words();
		if (format_.k.bits == 16) {
			const std::vector<uint16_t> h = load_halves(words.size() * 2, 3);
			std::memcpy(words.data(), h.data(), words.size() * 4);
			return words;
		}
		for (size_t i = 0; i < codes; ++i) words[i] = load_number(3, i);
		const float levels = float((1u << format_.k.bits) - 1);
		for (size_t i = codes; i < words.size(); ++i) {
			const float scale = float(128 + load_number(4, i) % 128) / 128 / levels;
			words[i] = f32_to_f16(scale) | uint32_t(f32_to_f16(-scale * levels / 2)) << 16;
		}
		return words;
	}
	void make(Backend& b, Held& held, View& q, View& out, AttendGroup& group, KvRows& own) const {
		q = held.make(b, DType::F32, rows_, shapes_.n_heads, shapes_.head_dim);
		write_all(b, q, load_values(q.elements(), 5));
		out = held.make(b, DType::F32, rows_, shapes_.n_heads, shapes_.head_dim);
		if (prompt()) {
			own.k = held.make(b, DType::F16, shapes_.n_kv_heads, rows_, shapes_.head_dim);
			own.v = held.make(b, DType::F16, shapes_.n_kv_heads, rows_, shapes_.head_dim);
			write_all(b, own.k, load_halves(own.k.elements(), 7));
			write_all(b, own.v, load_halves(own.v.elements(), 8));
		}
		if (!tokens_) return;
		const View pool = held.make(b, DType::U32, page_words() * n_pages());
		const std::vector<uint32_t> one = page();
		for (uint32_t i = 0; i < n_pages(); ++i)
			b.write(*pool.buf, size_t(i) * one.size() * 4, std::as_bytes(std::span(one)));
		group = {.format = format_, .page = kPage};
		group.k_codes = group.v_codes = pool;
		if (format_.k.bits < 16) group.k_params = group.v_params = pool;
		group.n_pages = n_pages();
	}
	KvRead cut(Backend& b, Held& held, AttendGroup& group) const {
		const uint32_t piece = prompt() ? n_pages() : decode_piece(b.info(), shapes_.n_kv_heads, n_pages(), kPage);
		std::vector<uint32_t> tables, work;
		for (uint32_t i = 0; i < n_pages(); ++i) {
			const uint32_t at = i * page_words(), params = at + 2 * k_words();
			tables.insert(tables.end(), {at, at + k_words(), params,
			                             params + kv_channel_param_words(shapes_.n_kv_heads, shapes_.head_dim)});
		}
		const uint32_t live = uint32_t(tables.size());
		tables.insert(tables.end(), size_t(n_pages()) * 4, UINT32_MAX);
		uint32_t n_parts = 0;
		for (uint32_t first = 0; first < n_pages(); first += piece)
			work.insert(work.end(),
			            {0, n_parts++, std::min(piece, n_pages() - first), first * 4, live + first * 4, 0, 0, 0});
		group.n_work = n_parts;
		KvRead read{};
		read.tables = held.make(b, DType::U32, uint32_t(tables.size()));
		write_all(b, read.tables, tables);
		read.work = held.make(b, DType::U32, n_parts, ATTEND_WORDS);
		write_all(b, read.work, work);
		const uint32_t row_parts = prompt() ? n_parts + 1 : n_parts; // the last one: of the prompt itself
		std::vector<uint32_t> parts;
		for (uint32_t row = 0; row < rows_; ++row) parts.insert(parts.end(), {row * row_parts, row_parts});
		read.row_parts = held.make(b, DType::U32, rows_, 2);
		write_all(b, read.row_parts, parts);
		read.parts = held.make(b, DType::F32, rows_ * row_parts, shapes_.n_heads, shapes_.head_dim + 2);
		read.n_kv_heads = shapes_.n_kv_heads;
		if (prompt())
			read.item_rows = rows_, read.part_step = row_parts;
		else
			read.most_parts = n_parts;
		return read;
	}

	TuneShapes shapes_;
	uint32_t tokens_, rows_;
	Format format_;
	Held held_, pieces_;
	View q_, out_;
	KvRows own_;
	AttendGroup group_{};
	KvRead read_{};
};

} // namespace

std::string TuneLoad::fault(Backend& device, Backend& reference) {
	const Result r = result(device);
	if (expected_.empty()) expected_ = expected(reference);
	const Difference d = compare(r.x, expected_, tolerance(r.rule));
	if (!d.n_bad) return "";
	return fmt::format("{} of {} results differ from the cpu backend's, by up to {:.3g}", d.n_bad, d.n, d.max_error);
}

TuneShapes typical_shapes(const DeviceInfo& d) {
	if (d.is_cpu) return {{{DType::Q4_K, 1024, 1024}, {DType::F16, 512, 1024}}, 8, 2, 64};
	return {
	    {{DType::Q4_K, 4096, 4096}, {DType::Q4_K, 14336, 4096}, {DType::Q8_0, 4096, 4096}, {DType::F16, 4096, 4096}},
	    32,
	    8,
	    128};
}

TuneShapes shapes_of(const std::string& path, const DeviceInfo& d) {
	const auto model = open_model(path);
	constexpr size_t kMost = 3;
	constexpr uint32_t kCpuRows = 1024; // a software driver is slow, and no wider for more rows
	std::map<std::tuple<DType, uint64_t, uint64_t>, uint64_t> bytes;
	for (const GgufTensor& t : model.file.tensors())
		if (t.n_dims == 2 && t.rows() >= kOwnRows && t.rows() <= UINT32_MAX && t.cols() % 32 == 0)
			bytes[{t.type, t.rows(), t.cols()}] += t.bytes;
	std::vector<std::pair<uint64_t, TuneMatmul>> most;
	for (const auto& [key, n] : bytes)
		most.push_back({n, {std::get<0>(key), uint32_t(std::get<1>(key)), uint32_t(std::get<2>(key))}});
	std::ranges::stable_sort(most, std::greater(), &std::pair<uint64_t, TuneMatmul>::first);
	TuneShapes s;
	for (const auto& [n, m] : most) {
		TuneMatmul own = m;
		if (d.is_cpu) own.rows = std::min(own.rows, kCpuRows);
		if (s.matmuls.size() < kMost) s.matmuls.push_back(own);
	}
	const Config& c = model.config;
	if (!c.layers.empty() && c.n_heads && !c.layers[0].latent.rank && c.head_dim % 32 == 0 && c.head_dim <= 256)
		s.n_heads = c.n_heads, s.n_kv_heads = c.n_kv_heads, s.head_dim = c.head_dim;
	return s;
}

std::vector<std::unique_ptr<TuneLoad>> make_loads(Backend& b, const TuneShapes& s) {
	const DeviceInfo d = b.info();
	// More than a card's caches hold, so that decode steps read memory as they do in a model.
	const size_t weights = d.is_cpu ? 0 : std::min<size_t>(size_t(256) << 20, d.free_bytes / 16);
	std::vector<std::unique_ptr<TuneLoad>> out;
	for (const TuneMatmul& m : s.matmuls) {
		out.push_back(std::make_unique<ProjectionLoad>(b, m, 1, /*decode=*/true, weights));
		for (const uint32_t tokens : d.is_cpu ? std::vector<uint32_t>{32} : std::vector<uint32_t>{64, 512})
			out.push_back(std::make_unique<ProjectionLoad>(b, m, tokens, /*decode=*/false, 0));
	}
	if (!s.n_heads) return out;
	for (const uint8_t bits : {16, 2, 4})
		for (const uint32_t tokens : d.is_cpu ? std::vector<uint32_t>{512} : std::vector<uint32_t>{1024, 16384})
			out.push_back(std::make_unique<AttendLoad>(b, s, bits, tokens));
	const uint32_t rows = d.is_cpu ? 64 : 512, older = d.is_cpu ? 256 : 1024;
	out.push_back(std::make_unique<AttendLoad>(b, s, 16, 0, rows));
	for (const uint8_t bits : {16, 2}) out.push_back(std::make_unique<AttendLoad>(b, s, bits, older, rows));
	return out;
}

} // namespace kvrun
