// Parses the header of one GGUF file.
#include "models/gguf_header.h"
#include "engine/core/utf8.h"
#include "models/checked.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

namespace kvrun {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they are stored");

constexpr uint32_t kMagic = 0x46554747; // "GGUF"
constexpr uint64_t kTypes = 13;         // GgufType

// What people have in the place of a model, and what to do; `head`: the file's first bytes.
const char* other_file(std::string_view head) {
	const auto has = [&](size_t at, std::string_view text) {
		return head.substr(std::min(at, head.size())).starts_with(text);
	};
	if (has(0, "version https://git-lfs")) return ": it is a pointer of Git LFS; 'git lfs pull' gets the file itself";
	if (has(0, "<!") || has(0, "<html"))
		return ": it is a web page; get the file by its download link, or by 'kvrun pull'";
	if (has(8, "{\"")) return ": it looks like safetensors; convert it with llama.cpp's convert_hf_to_gguf.py";
	if (has(0, "\x1f\x8b") || has(0, "PK\3\4")) return ": it is an archive; unpack it";
	if (has(0, "{") || has(0, "Entry not found") || has(0, "Invalid username") || has(0, "Access to"))
		return ": it is a text, perhaps a server's message in the place of the file; read it, and get the file again";
	return "; kvrun reads GGUF versions 2 and 3";
}

// Bytes of a value; for strings, of the shortest.
constexpr uint32_t value_bytes(GgufType t) {
	constexpr uint8_t table[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
	return table[size_t(t)];
}

// ggml's tensor types that kvrun does not support, for the error message.
struct ForeignType {
	uint32_t id;
	const char* name;
};
constexpr ForeignType kForeignTypes[] = {
    {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"}, {28, "F64"},
};

class Parser {
 public:
	Parser(const GgufFile& file, uint32_t part) : file_(file), part_(part) {}
	GgufHeader parse();

 private:
	struct Range { // bytes of the header; becomes a span once the header is complete
		uint64_t at, n;
	};
	struct Entry {
		Range key, value;
		GgufType type, element;
		uint64_t count;
	};
	struct Tensor {
		Range name;
		GgufTensor t; // without name; `at` counts from the start of the tensor data
	};

	void need(uint64_t n, const char* what);
	template <class T> T number(const char* what);
	Range text(uint64_t max_bytes, const char* what);
	GgufType type(const char* what);
	uint64_t count(const char* what, uint64_t most, uint64_t min_bytes);
	void check_start();
	Entry entry();
	void array(Entry&);
	Tensor tensor();
	DType tensor_type(uint32_t id, const std::string& name);
	void choose_formats(std::vector<Tensor>&);
	void place(std::vector<Tensor>&);
	void check_filled(const std::vector<Tensor>&);
	std::string_view view(Range r) const { return {reinterpret_cast<const char*>(header_.data()) + r.at, size_t(r.n)}; }
	std::string shown(Range r) const { return one_line(view(r)); }
	const std::string& name() const { return file_.name(); }
	uint64_t left() const { return file_.bytes() - at_; }

	const GgufFile& file_;
	const uint32_t part_;
	std::vector<std::byte> header_; // bytes of the file read so far
	uint64_t at_ = 0;               // next byte to parse
	uint32_t version_ = 0;
	uint64_t alignment_ = 32;
};

// Makes bytes [at, at + n) of the file present in header_.
void Parser::need(uint64_t n, const char* what) {
	if (n > left())
		fail(Code::Format, "{}: truncated at byte {}: {} needs {} bytes, {} are left; get the file again", name(),
		     file_.bytes(), what, n, left());
	const uint64_t end = at_ + n;
	if (end > kMaxHeaderBytes)
		fail(Code::Format, "{}: metadata is longer than {} MiB at byte {} ({}); not a usable model", name(),
		     kMaxHeaderBytes >> 20, at_, what);
	if (end <= header_.size()) return;
	const uint64_t had = header_.size();
	const uint64_t want = std::max<uint64_t>({end, 2 * had, 64 << 10});
	header_.resize(size_t(std::min({want, file_.bytes(), kMaxHeaderBytes})));
	file_.read_at(had, std::span(header_).subspan(had));
}

template <class T> T Parser::number(const char* what) {
	need(sizeof(T), what);
	T v;
	std::memcpy(&v, header_.data() + at_, sizeof v);
	at_ += sizeof v;
	return v;
}

Parser::Range Parser::text(uint64_t max_bytes, const char* what) {
	const uint64_t n = number<uint64_t>(what);
	if (n > max_bytes)
		fail(Code::Format, "{}: {} at byte {} has length {}, at most {} is accepted; the file is damaged", name(), what,
		     at_ - 8, n, max_bytes);
	need(n, what);
	at_ += n;
	return {at_ - n, n};
}

GgufType Parser::type(const char* what) {
	const uint32_t t = number<uint32_t>(what);
	if (t >= kTypes)
		fail(Code::Format, "{}: {} at byte {} is {}, known are 0..{}; the file is damaged", name(), what, at_ - 4, t,
		     kTypes - 1);
	return GgufType(t);
}

// Reads a count of things that take at least min_bytes each.
uint64_t Parser::count(const char* what, uint64_t most, uint64_t min_bytes) {
	const uint64_t n = number<uint64_t>(what);
	if (n > most)
		fail(Code::Format, "{}: {} at byte {} is {}, at most {} is accepted; the file is damaged", name(), what,
		     at_ - 8, n, most);
	if (n > left() / min_bytes)
		fail(Code::Format,
		     "{}: truncated at byte {}: {} at byte {} is {}, the {} bytes that follow hold at most {}; get the file "
		     "again",
		     name(), file_.bytes(), what, at_ - 8, n, left(), left() / min_bytes);
	return n;
}

void Parser::check_start() {
	if (number<uint32_t>("the magic 'GGUF'") != kMagic)
		fail(Code::Format, "{}: does not begin with 'GGUF'{}", name(), other_file(view({0, header_.size()})));
	version_ = number<uint32_t>("the version");
	if (version_ == 0x02000000 || version_ == 0x03000000)
		fail(Code::Unsupported, "{}: is a big-endian GGUF file; kvrun reads little-endian versions 2 and 3, convert it",
		     name());
	if (version_ != 2 && version_ != 3)
		fail(Code::Unsupported, "{}: is GGUF version {}; kvrun reads versions 2 and 3", name(), version_);
}

void Parser::array(Entry& e) {
	e.element = type("the element type of an array");
	if (e.element == GgufType::Array)
		fail(Code::Format, "{}: key {} is an array of arrays at byte {}; kvrun accepts no nested arrays", name(),
		     shown(e.key), at_ - 4);
	e.count = count("the length of an array", UINT64_MAX, value_bytes(e.element));
	e.value.at = at_;
	if (e.element == GgufType::String) {
		for (uint64_t i = 0; i < e.count; ++i) text(kMaxTextBytes, "a string of an array");
	} else {
		const uint64_t n = e.count * value_bytes(e.element); // cannot wrap: count() compared it with the file's length
		need(n, "an array");
		at_ += n;
	}
	e.value.n = at_ - e.value.at;
}

Parser::Entry Parser::entry() {
	Entry e{};
	e.key = text(kMaxNameBytes, "a key");
	if (e.key.n == 0) fail(Code::Format, "{}: empty key at byte {}; the file is damaged", name(), e.key.at);
	e.type = e.element = type("the type of a value");
	e.count = 1;
	if (e.type == GgufType::Array) {
		array(e);
	} else if (e.type == GgufType::String) {
		e.value = text(kMaxTextBytes, "a string");
	} else {
		e.value = {at_, value_bytes(e.type)};
		need(e.value.n, "a value");
		at_ += e.value.n;
	}
	return e;
}

DType Parser::tensor_type(uint32_t id, const std::string& tensor) {
	if (id == 27 && tensor == kTokenTable) return DType::I64;
	if (id == 26 && tensor.ends_with(kExpertTable)) return DType::U32;
	std::string known, found = fmt::format("number {}", id);
	for (const DType t : kTensorTypes) {
		if (uint32_t(t) == id && gguf_number(t) == id) return t;
		known += fmt::format("{}{}", known.empty() ? "" : " ", dtype_info(t).name);
	}
	for (const ForeignType& t : kForeignTypes)
		if (t.id == id) found = t.name;
	fail(Code::Unsupported, "{}: tensor {} has type {}; kvrun computes with {}", name(), tensor, found, known);
}

Parser::Tensor Parser::tensor() {
	Tensor r{};
	r.name = text(kMaxNameBytes, "the name of a tensor");
	if (r.name.n == 0)
		fail(Code::Format, "{}: tensor without a name at byte {}; the file is damaged", name(), r.name.at);
	const std::string tensor = shown(r.name);
	GgufTensor& t = r.t;
	t.part = part_;
	t.n_dims = number<uint32_t>("the number of dimensions of a tensor");
	if (t.n_dims < 1 || t.n_dims > 4)
		fail(Code::Format, "{}: tensor {} has {} dimensions, 1 to 4 are possible; the file is damaged", name(), tensor,
		     t.n_dims);
	std::optional<uint64_t> elements = 1;
	for (uint32_t d = 0; d < 4; ++d) {
		t.shape[d] = d < t.n_dims ? number<uint64_t>("a dimension of a tensor") : 1;
		if (t.shape[d] == 0)
			fail(Code::Format, "{}: tensor {}: dimension {} is 0; the file is damaged", name(), tensor, d);
		if (elements) elements = checked_mul(*elements, t.shape[d]);
	}
	t.type = tensor_type(number<uint32_t>("the type of a tensor"), tensor);
	t.at = number<uint64_t>("the offset of a tensor");
	const auto [type_name, block, block_bytes] = dtype_info(t.type);
	const auto bytes = elements ? checked_mul(*elements / block, block_bytes) : std::nullopt;
	if (!bytes)
		fail(Code::Format, "{}: tensor {}: {} x {} x {} x {} elements overflow; the file is damaged", name(), tensor,
		     t.shape[0], t.shape[1], t.shape[2], t.shape[3]);
	if (t.shape[0] % block != 0)
		fail(Code::Format,
		     "{}: tensor {}: rows of {} elements are not a multiple of the {} in a {} block; the file is damaged",
		     name(), tensor, t.shape[0], block, type_name);
	t.bytes = *bytes;
	return r;
}

// Types of which two block formats have the same number: the larger blocks are the smaller ones with fewer scales, so
// where a tensor has less room than it would need in smaller blocks, it has larger ones.
void Parser::choose_formats(std::vector<Tensor>& tensors) {
	std::vector<uint64_t> begins;
	for (const Tensor& r : tensors) begins.push_back(r.t.at);
	std::ranges::sort(begins);
	for (Tensor& tensor : tensors) {
		GgufTensor& t = tensor.t;
		const DType other = DType(uint32_t(t.type) | KV_SECOND_FORMAT);
		if (std::ranges::find(kTensorTypes, other) == std::end(kTensorTypes)) continue;
		const auto next = std::ranges::upper_bound(begins, t.at);
		const uint64_t data = checked_align_up(at_, alignment_).value_or(file_.bytes()),
		               end = next != begins.end() ? *next : file_.bytes() - std::min(data, file_.bytes());
		const DTypeInfo first = dtype_info(t.type), second = dtype_info(other);
		if (t.at > end || end - t.at >= t.bytes || t.shape[0] % second.block != 0) continue;
		t.type = other;
		t.bytes = t.bytes / first.bytes * first.block / second.block * second.bytes;
	}
}

// Turns offsets into positions in the file; refuses tensors that exceed the file or are not aligned.
void Parser::place(std::vector<Tensor>& tensors) {
	const auto data = checked_align_up(at_, alignment_);
	for (Tensor& r : tensors) {
		GgufTensor& t = r.t;
		if (t.at % alignment_ != 0)
			fail(Code::Format, "{}: tensor {}: offset {} is not a multiple of the alignment {}; the file is damaged",
			     name(), shown(r.name), t.at, alignment_);
		const auto begin = data ? checked_add(*data, t.at) : std::nullopt;
		const auto end = begin ? checked_add(*begin, t.bytes) : std::nullopt;
		if (!end || *end > file_.bytes())
			fail(Code::Format,
			     "{}: truncated at byte {}: tensor {} has {} bytes at offset {} of the data; get the file again",
			     name(), file_.bytes(), shown(r.name), t.bytes, t.at);
		t.at = *begin;
	}
}

// Refuses tensors that overlap, and gaps between them. All GGUF writers store tensors consecutively, each padded to the
// alignment; padding of the last one is optional. Any other layout means that a count or a shape is wrong, and tensors
// would be read from each other's bytes.
void Parser::check_filled(const std::vector<Tensor>& tensors) {
	std::vector<const Tensor*> order;
	for (const Tensor& r : tensors) order.push_back(&r);
	std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) { return a->t.at < b->t.at; });
	uint64_t end = at_; // end of the tensors so far
	std::string before = "the table of tensors";
	for (const Tensor* r : order) {
		const GgufTensor& t = r->t;
		if (t.at < end)
			fail(Code::Format, "{}: tensor {} at byte {} overlaps {}, which ends at byte {}; the file is damaged",
			     name(), shown(r->name), t.at, before, end);
		if (t.at - end >= alignment_)
			fail(Code::Format, "{}: {} bytes between {} and tensor {} belong to no tensor; the file is damaged", name(),
			     t.at - end, before, shown(r->name));
		end = t.at + t.bytes;
		before = "tensor " + shown(r->name);
	}
	if (file_.bytes() > *checked_align_up(end, alignment_))
		fail(Code::Format,
		     "{}: {} bytes after {} belong to no tensor, of which the file says it has {}; the file is damaged", name(),
		     file_.bytes() - end, before, tensors.size());
}

GgufHeader Parser::parse() {
	check_start();
	// the shortest tensor: name of 1, one dimension; the shortest entry: key of 1, value of 1
	const uint64_t n_tensors = count("the number of tensors", kMaxTensors, 8 + 1 + 4 + 8 + 4 + 8);
	const uint64_t n_entries = count("the number of keys", kMaxEntries, 8 + 1 + 4 + 1);
	std::vector<Entry> entries;
	for (uint64_t i = 0; i < n_entries; ++i) {
		entries.push_back(entry());
		const Entry& e = entries.back();
		if (view(e.key) != "general.alignment") continue;
		if (e.type != GgufType::U32)
			fail(Code::Format, "{}: key general.alignment is {}, expected u32; the file is damaged", name(),
			     gguf_type_name(e.type));
		uint32_t v;
		std::memcpy(&v, header_.data() + e.value.at, sizeof v);
		alignment_ = v;
		if (!std::has_single_bit(v) || v < kMinAlignment || v > kMaxAlignment)
			fail(Code::Format,
			     "{}: general.alignment is {}, expected a power of two from {} to {}; the file is damaged", name(), v,
			     kMinAlignment, kMaxAlignment);
	}
	std::vector<Tensor> tensors;
	for (uint64_t i = 0; i < n_tensors; ++i) tensors.push_back(tensor());
	choose_formats(tensors);
	place(tensors);
	check_filled(tensors);

	header_.resize(size_t(at_));
	header_.shrink_to_fit();
	GgufHeader out{version_, std::move(header_), {}, {}};
	header_ = {};
	const char* base = reinterpret_cast<const char*>(out.bytes.data());
	auto text_at = [&](Range r) { return std::string_view(base + r.at, size_t(r.n)); };
	std::unordered_set<std::string_view, TextHash> seen;
	for (const Entry& e : entries) {
		out.entries.push_back(
		    {text_at(e.key), e.type, e.element, e.count, std::span(out.bytes).subspan(e.value.at, e.value.n)});
		if (!seen.insert(out.entries.back().key).second)
			fail(Code::Format, "{}: key {} occurs twice; the file is damaged", name(),
			     one_line(out.entries.back().key));
	}
	seen.clear();
	for (Tensor& r : tensors) {
		r.t.name = text_at(r.name);
		out.tensors.push_back(r.t);
		if (!seen.insert(r.t.name).second)
			fail(Code::Format, "{}: tensor {} occurs twice; the file is damaged", name(), one_line(r.t.name));
	}
	return out;
}

} // namespace

GgufHeader parse_header(const GgufFile& file, uint32_t part) { return Parser(file, part).parse(); }

const char* gguf_type_name(GgufType t) {
	constexpr const char* names[kTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
	                                       "bool", "string", "array", "u64", "i64", "f64"};
	return names[size_t(t)];
}

} // namespace kvrun
