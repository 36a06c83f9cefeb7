// GGUF v2/v3: the parts of a model, typed access to its metadata, and reads of tensor data.
#include "models/gguf.h"
#include "engine/core/utf8.h"
#include "models/gguf_header.h"
#include "models/kv_b.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvrun {

struct Gguf::Part {
	GgufFile file;
	GgufHeader header;
	explicit Part(const std::string& path, uint32_t index) : file(path), header(parse_header(file, index)) {}
	Part(std::string name, std::span<const std::byte> bytes)
	    : file(std::move(name), bytes), header(parse_header(file, 0)) {}
};

namespace {

constexpr uint64_t kMaxParts = 512; // every part is an open file

template <class T> T load(std::span<const std::byte> bytes, uint64_t index = 0) {
	T v;
	std::memcpy(&v, bytes.data() + index * sizeof(T), sizeof v);
	return v;
}

std::string_view as_text(std::span<const std::byte> b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

// Element `i` of a value; empty if its type is not an integer, or if it is too large for the result.
std::optional<int64_t> integer(GgufType t, std::span<const std::byte> b, uint64_t i) {
	switch (t) {
	case GgufType::U8: return load<uint8_t>(b, i);
	case GgufType::I8: return load<int8_t>(b, i);
	case GgufType::U16: return load<uint16_t>(b, i);
	case GgufType::I16: return load<int16_t>(b, i);
	case GgufType::U32: return load<uint32_t>(b, i);
	case GgufType::I32: return load<int32_t>(b, i);
	case GgufType::I64: return load<int64_t>(b, i);
	case GgufType::U64: {
		const uint64_t v = load<uint64_t>(b, i);
		if (v > uint64_t(INT64_MAX)) return {};
		return int64_t(v);
	}
	default: return {};
	}
}

bool is_unsigned(GgufType t) {
	return t == GgufType::U8 || t == GgufType::U16 || t == GgufType::U32 || t == GgufType::U64;
}
bool is_integer(GgufType t) {
	return is_unsigned(t) || t == GgufType::I8 || t == GgufType::I16 || t == GgufType::I32 || t == GgufType::I64;
}

} // namespace

Gguf::Gguf() = default;
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;
Gguf::~Gguf() = default;

Gguf Gguf::open(const std::string& path) {
	Gguf g;
	const Part& first = g.add_part(std::make_unique<Part>(path, 0));
	g.name_ = first.file.name();
	if (g.find("split.count")) g.add_split_parts(path);
	g.split_latents();
	return g;
}

Gguf Gguf::parse(std::string name, std::span<const std::byte> bytes) {
	Gguf g;
	const Part& first = g.add_part(std::make_unique<Part>(std::move(name), bytes));
	g.name_ = first.file.name();
	if (g.find("split.count") && g.split_number(first, "split.count") > 1)
		fail(Code::Unsupported, "{}: is one part of a split model; a split model is opened by its path", g.name_);
	g.split_latents();
	return g;
}

// Keys come from the first part, tensors from all parts.
Gguf::Part& Gguf::add_part(std::unique_ptr<Part> part) {
	const GgufHeader& h = part->header;
	if (parts_.empty()) {
		version_ = h.version;
		entries_ = h.entries;
		for (size_t i = 0; i < entries_.size(); ++i) entry_of_.emplace(entries_[i].key, i);
	}
	for (const GgufTensor& t : h.tensors) {
		if (!tensor_of_.emplace(t.name, tensors_.size()).second)
			fail(Code::Format, "{}: tensor {} is in another part too; the parts are not of one model",
			     part->file.name(), one_line(t.name));
		tensors_.push_back(t);
	}
	parts_.push_back(std::move(part));
	return *parts_.back();
}

uint64_t Gguf::split_number(const Part& p, std::string_view key) const {
	for (const GgufEntry& e : p.header.entries) {
		if (e.key != key) continue;
		const auto v = integer(e.type, e.bytes, 0);
		if (v && *v >= 0) return uint64_t(*v);
		fail(Code::Format, "{}: key {} is not a number of parts or tensors; the file is damaged", p.file.name(), key);
	}
	fail(Code::Format, "{}: key {} is missing; the file is not a part of a split model", p.file.name(), key);
}

void Gguf::add_split_parts(const std::string& path) {
	const uint64_t n = split_number(*parts_[0], "split.count"), no = split_number(*parts_[0], "split.no");
	if (n <= 1) return;
	if (n > kMaxParts) fail(Code::Format, "{}: split.count is {}, at most {} parts are accepted", name_, n, kMaxParts);
	if (no != 0)
		fail(Code::Invalid, "{}: is part {} of {}; name the first part, *-00001-of-{:05}.gguf", name_, no + 1, n, n);
	const std::string ending = fmt::format("-00001-of-{:05}.gguf", n);
	if (!path.ends_with(ending))
		fail(Code::Invalid,
		     "{}: is the first of {} parts, but its name does not end in {}; give the parts their names back", name_, n,
		     ending);
	const std::string stem = path.substr(0, path.size() - ending.size());
	const GgufEntry* arch = find("general.architecture");
	for (uint32_t i = 1; i < n; ++i) {
		const std::string part_path = fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, n);
		const auto open_part = [&] {
			try {
				return std::make_unique<Part>(part_path, i);
			} catch (const Error& e) {
				if (e.code != Code::NotFound) throw;
				fail(Code::NotFound, "{}; the model has {} parts, which belong into one folder", e.what(), n);
			}
		};
		const Part& p = add_part(open_part());
		if (split_number(p, "split.no") != i || split_number(p, "split.count") != n)
			fail(Code::Format, "{}: says it is part {} of {}, expected part {} of {}; the parts are not of one model",
			     p.file.name(), split_number(p, "split.no") + 1, split_number(p, "split.count"), i + 1, n);
		for (const GgufEntry& e : p.header.entries)
			if (arch && e.key == arch->key && as_text(e.bytes) != as_text(arch->bytes))
				fail(Code::Format, "{}: has architecture {}, the first part has {}; the parts are not of one model",
				     p.file.name(), one_line(as_text(e.bytes)), one_line(as_text(arch->bytes)));
	}
	const uint64_t total = split_number(*parts_[0], "split.tensors.count");
	if (total != tensors_.size())
		fail(Code::Format,
		     "{}: all parts together have {} tensors, split.tensors.count is {}; the parts are not of one model", name_,
		     tensors_.size(), total);
}

// Puts attn_k_b and attn_v_b in the place of each attn_kv_b whose shape is as the keys say. Other ones stay: the config
// refuses them.
void Gguf::split_latents() {
	const GgufEntry* arch = find("general.architecture");
	if (!arch || arch->type != GgufType::String) return;
	const auto number = [&](std::string_view key) -> uint32_t {
		const GgufEntry* e = find(fmt::format("{}.{}", as_text(arch->bytes), key));
		return e && e->type == GgufType::U32 ? load<uint32_t>(e->bytes) : 0;
	};
	const auto length = [&](std::string_view key) {
		const uint32_t own = number(fmt::format("attention.{}_mla", key));
		return own ? own : number(fmt::format("attention.{}", key));
	};
	const uint32_t n_heads = number("attention.head_count"), rope = number("rope.dimension_count"),
	               key = length("key_length");
	uint32_t value = length("value_length");
	if (!value && n_heads) value = number("embedding_length") / n_heads;
	if (!number("attention.kv_lora_rank") || key <= rope) return;
	constexpr std::string_view kWhole = ".attn_kv_b.weight";
	for (size_t i = 0, n = tensors_.size(); i < n; ++i) {
		const std::string_view name = tensors_[i].name;
		if (!name.starts_with("blk.") || !name.ends_with(kWhole)) continue;
		const std::string before(name.substr(0, name.size() - kWhole.size()));
		if (find_tensor(before + ".attn_k_b.weight")) continue; // of a file that has both
		std::optional<KvBParts> parts = split_kv_b(tensors_[i], n_heads, key - rope, value);
		if (!parts) continue;
		const auto named = [&](GgufTensor& t, const char* what) {
			names_.push_back(std::make_unique<const std::string>(before + what));
			t.name = *names_.back();
		};
		named(parts->keys, ".attn_k_b.weight"), named(parts->values, ".attn_v_b.weight");
		tensor_of_.erase(name);
		tensor_of_.emplace(parts->keys.name, i);
		tensor_of_.emplace(parts->values.name, tensors_.size());
		tensors_[i] = parts->keys;
		tensors_.push_back(parts->values);
	}
}

uint32_t Gguf::n_parts() const { return uint32_t(parts_.size()); }

uint64_t Gguf::file_bytes() const {
	uint64_t sum = 0;
	for (const auto& p : parts_) sum += p->file.bytes();
	return sum;
}

uint64_t Gguf::tensor_bytes() const {
	uint64_t sum = 0;
	for (const GgufTensor& t : tensors_) sum += t.bytes;
	return sum;
}

const GgufEntry* Gguf::find(std::string_view key) const {
	const auto i = entry_of_.find(key);
	return i == entry_of_.end() ? nullptr : &entries_[i->second];
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
	const auto i = tensor_of_.find(name);
	return i == tensor_of_.end() ? nullptr : &tensors_[i->second];
}

const GgufEntry& Gguf::entry(std::string_view key) const {
	if (const GgufEntry* e = find(key)) return *e;
	fail(Code::Format, "{}: key {} is missing; not a model kvrun can use", name_, key);
}

void Gguf::fail_type(const GgufEntry& e, const char* want) const {
	const bool array = e.type == GgufType::Array;
	fail(Code::Format, "{}: key {} is {}{}, expected {}; the file is damaged", name_, one_line(e.key),
	     array ? "an array of " : "", gguf_type_name(e.element), want);
}

uint64_t Gguf::u64(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type == GgufType::U64) return load<uint64_t>(e.bytes);
	const auto v = is_unsigned(e.type) ? integer(e.type, e.bytes, 0) : std::nullopt;
	if (!v) fail_type(e, "an unsigned integer");
	return uint64_t(*v);
}

uint32_t Gguf::u32(std::string_view key) const {
	const uint64_t v = u64(key);
	if (v > UINT32_MAX)
		fail(Code::Format, "{}: key {} is {}, at most {} is possible; the file is damaged", name_, one_line(key), v,
		     UINT32_MAX);
	return uint32_t(v);
}
uint32_t Gguf::u32(std::string_view key, uint32_t fallback) const { return find(key) ? u32(key) : fallback; }

uint32_t Gguf::u32_same(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::Array) return u32(key);
	const std::vector<int64_t> v = ints(key);
	if (v.empty()) fail(Code::Format, "{}: key {} is an empty array; the file is damaged", name_, one_line(key));
	for (int64_t x : v)
		if (x != v[0])
			fail(Code::Unsupported,
			     "{}: key {} differs between layers ({} and {}); kvrun runs models with equal layers", name_,
			     one_line(key), v[0], x);
	if (v[0] < 0 || v[0] > UINT32_MAX) fail(Code::Format, "{}: key {} is {}; the file is damaged", name_, key, v[0]);
	return uint32_t(v[0]);
}

float Gguf::f32(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::F32 && e.type != GgufType::F64) fail_type(e, "f32");
	const float v = e.type == GgufType::F32 ? load<float>(e.bytes) : float(load<double>(e.bytes));
	if (!std::isfinite(v))
		fail(Code::Format, "{}: key {} is {}, expected a finite number; the file is damaged", name_, key, v);
	return v;
}
float Gguf::f32(std::string_view key, float fallback) const { return find(key) ? f32(key) : fallback; }

bool Gguf::flag(std::string_view key, bool fallback) const {
	const GgufEntry* e = find(key);
	if (!e) return fallback;
	if (e->type != GgufType::Bool) fail_type(*e, "bool");
	return e->bytes[0] != std::byte(0);
}

std::string_view Gguf::text(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::String) fail_type(e, "string");
	return as_text(e.bytes);
}
std::string_view Gguf::text(std::string_view key, std::string_view fallback) const {
	return find(key) ? text(key) : fallback;
}

std::vector<std::string_view> Gguf::texts(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::Array || e.element != GgufType::String) fail_type(e, "an array of string");
	std::vector<std::string_view> out;
	out.reserve(e.count);
	for (size_t at = 0; at < e.bytes.size();) {
		const uint64_t n = load<uint64_t>(e.bytes.subspan(at)); // lengths were checked when the header was parsed
		out.push_back(as_text(e.bytes.subspan(at + 8, n)));
		at += 8 + n;
	}
	return out;
}

std::vector<float> Gguf::floats(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::Array || e.element != GgufType::F32) fail_type(e, "an array of f32");
	std::vector<float> out(e.count);
	if (!out.empty()) std::memcpy(out.data(), e.bytes.data(), e.bytes.size());
	return out;
}

std::vector<int64_t> Gguf::ints(std::string_view key) const {
	const GgufEntry& e = entry(key);
	if (e.type != GgufType::Array || !(is_integer(e.element) || e.element == GgufType::Bool))
		fail_type(e, "an array of integers");
	std::vector<int64_t> out(e.count);
	if (e.element == GgufType::Bool) {
		for (uint64_t i = 0; i < e.count; ++i) out[i] = e.bytes[i] != std::byte(0);
		return out;
	}
	for (uint64_t i = 0; i < e.count; ++i) {
		const auto v = integer(e.element, e.bytes, i);
		if (!v)
			fail(Code::Format, "{}: key {}: element {} is larger than {}; the file is damaged", name_, key, i,
			     INT64_MAX);
		out[i] = *v;
	}
	return out;
}

void Gguf::read(const GgufTensor& t, uint64_t offset, std::span<std::byte> dst) const {
	KV_ASSERT(t.part < parts_.size() && offset <= t.bytes && dst.size() <= t.bytes - offset);
	const GgufFile& file = parts_[t.part]->file;
	if (t.kv_b.half == KvBHalf::None) return file.read_at(t.at + offset, dst);
	read_kv_b(t, offset, dst, [&](uint64_t at, std::span<std::byte> bytes) { file.read_at(at, bytes); });
}

} // namespace kvrun
