// The GGUF reader with valid, truncated and hostile files.
#include "models/checked.h"
#include "models/gguf.h"
#include "models/gguf_header.h"
#include "tests/support/config_of.h"
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

// The message of the error that refuses to open these bytes; "" if none does.
std::string gguf_refusal(const std::vector<std::byte>& bytes, Code* code = nullptr) {
	return refusal_by([&] { Gguf::parse("test.gguf", bytes); }, code);
}
std::string gguf_refusal(const GgufBuilder& b, Code* code = nullptr) { return gguf_refusal(b.bytes(), code); }

#define CHECK_REFUSED(builder, part)                                                                                   \
	do {                                                                                                               \
		const std::string said = gguf_refusal(builder);                                                                \
		INFO(said);                                                                                                    \
		CHECK(said.find(part) != said.npos);                                                                           \
	} while (0)

GgufBuilder small() {
	GgufBuilder b;
	b.text("general.architecture", "llama").u32("a.u32", 7).f32("a.f32", 1.5f).flag("a.flag", true);
	b.set("a.u8", GgufType::U8, b.raw(uint8_t(8))).set("a.i8", GgufType::I8, b.raw(int8_t(-8)));
	b.set("a.u16", GgufType::U16, b.raw(uint16_t(16))).set("a.i16", GgufType::I16, b.raw(int16_t(-16)));
	b.set("a.i32", GgufType::I32, b.raw(int32_t(-32))).set("a.u64", GgufType::U64, b.raw(uint64_t(1) << 40));
	b.set("a.i64", GgufType::I64, b.raw(int64_t(-64))).set("a.f64", GgufType::F64, b.raw(2.5));
	b.texts("a.texts", {"x", "", "yz"}).numbers<int32_t>("a.ints", GgufType::I32, {3, -1});
	b.numbers<float>("a.floats", GgufType::F32, {0.5f});
	b.tensor_f32("one", {3}, {1, 2, 3}).tensor_f32("two", {2, 2}, {4, 5, 6, 7});
	b.tensor("blocks", DType::Q8_0, {32, 2}, std::string(68, 'q'));
	return b;
}

} // namespace

TEST_CASE("gguf: keys of every type and tensors are read as written") {
	const auto bytes = small().bytes();
	const Gguf g = Gguf::parse("test.gguf", bytes);
	CHECK(g.version() == 3);
	CHECK(g.n_parts() == 1);
	CHECK(g.file_bytes() == bytes.size());
	CHECK(g.entries().size() == 15);
	CHECK(g.text("general.architecture") == "llama");
	CHECK(g.u32("a.u8") == 8);
	CHECK(g.u32("a.u16") == 16);
	CHECK(g.u32("a.u32") == 7);
	CHECK(g.u64("a.u64") == uint64_t(1) << 40);
	CHECK(g.f32("a.f32") == 1.5f);
	CHECK(g.f32("a.f64") == 2.5f);
	CHECK(g.flag("a.flag", false));
	CHECK(g.flag("no.such", true));
	CHECK(g.u32("no.such", 5) == 5);
	CHECK(g.texts("a.texts") == std::vector<std::string_view>{"x", "", "yz"});
	CHECK(g.ints("a.ints") == std::vector<int64_t>{3, -1});
	CHECK(g.floats("a.floats") == std::vector<float>{0.5f});

	REQUIRE(g.tensors().size() == 3);
	const GgufTensor* t = g.find_tensor("two");
	REQUIRE(t);
	CHECK(t->cols() == 2);
	CHECK(t->rows() == 2);
	float values[3];
	g.read(*t, 4, std::as_writable_bytes(std::span(values)));
	CHECK(values[0] == 5);
	CHECK(values[2] == 7);
	CHECK(g.find_tensor("blocks")->bytes == 68);
	CHECK(g.tensor_bytes() == 12 + 16 + 68);
	CHECK_THROWS_AS(g.read(*t, 8, std::as_writable_bytes(std::span(values))), Error); // past the tensor
}

TEST_CASE("gguf: version 2 and other alignments are read") {
	GgufBuilder b = small();
	b.version = 2;
	CHECK(gguf_refusal(b) == "");
	for (uint32_t alignment : {8u, 16u, 64u, 4096u, 1u << 20}) {
		GgufBuilder a = small();
		a.u32("general.alignment", alignment);
		a.alignment = alignment;
		const auto bytes = a.bytes();
		const Gguf g = Gguf::parse("test.gguf", bytes);
		float first;
		g.read(*g.find_tensor("two"), 0, std::as_writable_bytes(std::span(&first, 1)));
		CHECK(first == 4);
	}
}

TEST_CASE("gguf: a move keeps names, values and data") {
	Gguf g = [] {
		static const auto bytes = small().bytes();
		Gguf inner = Gguf::parse("test.gguf", bytes);
		Gguf moved = std::move(inner);
		return moved;
	}();
	CHECK(g.find_tensor("one")->name == "one");
	CHECK(g.u32("a.u32") == 7);
}

TEST_CASE("T01: every truncation of a tiny model is refused") {
	const auto whole = tiny_model().bytes();
	REQUIRE(gguf_refusal(whole) == "");
	for (size_t n = 0; n < whole.size(); ++n) {
		const std::vector<std::byte> part(whole.begin(), whole.begin() + std::ptrdiff_t(n));
		const std::string said = gguf_refusal(part);
		INFO(n, " bytes: ", said);
		REQUIRE(said.find(fmt::format("truncated at byte {}", n)) != said.npos);
	}
}

TEST_CASE("T02: bad magic, big-endian files and unknown versions are refused") {
	GgufBuilder b = small();
	for (const char* magic : {"GGML", "FUGG", "\0\0\0\0", "<gg>"}) {
		b.magic = std::string(magic, 4);
		CHECK_REFUSED(b, "does not begin with 'GGUF'; kvrun reads GGUF versions 2 and 3");
	}
	const std::vector<std::array<std::string, 2>> others = {
	    {"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS; 'git lfs pull' gets"},
	    {"<!doctype html>", "it is a web page; get the file by its download link"},
	    {"<html>", "it is a web page"},
	    {std::string("\x50\0\0\0\0\0\0\0{\"a\":", 13), "it looks like safetensors; convert it"},
	    {"\x1f\x8b\b\b", "it is an archive; unpack it"},
	    {"PK\3\4", "it is an archive; unpack it"},
	    {"Entry not found", "it is a text, perhaps a server's message in the place of the file"},
	    {"{\"error\":\"x\"}", "it is a text, perhaps a server's message"}};
	for (const auto& [head, says] : others) {
		std::vector<std::byte> bytes(head.size());
		std::memcpy(bytes.data(), head.data(), head.size());
		const std::string said = gguf_refusal(bytes);
		INFO(said);
		CHECK(said.find("does not begin with 'GGUF': " + says) != said.npos);
	}
	b.magic = "GGUF";
	for (uint32_t v : {0u, 1u, 4u, 99u, UINT32_MAX}) {
		b.version = v;
		CHECK_REFUSED(b, fmt::format("is GGUF version {}; kvrun reads versions 2 and 3", v));
	}
	b.version = 0x03000000;
	CHECK_REFUSED(b, "big-endian");
}

TEST_CASE("T03: counts of tensors and keys that cannot be are refused") {
	for (uint64_t n : {UINT64_MAX, UINT64_MAX - 1, uint64_t(1) << 63, uint64_t(1) << 32, uint64_t(70000)}) {
		if (n == UINT64_MAX) continue; // in the builder this means the true value; tested below by hand
		GgufBuilder b = small();
		b.n_tensors = n;
		CHECK_REFUSED(b, fmt::format("the number of tensors at byte 8 is {}", n));
		b = small();
		b.n_keys = n;
		CHECK_REFUSED(b, fmt::format("the number of keys at byte 16 is {}", n));
	}
	for (size_t at : {size_t(8), size_t(16)}) {
		auto bytes = small().bytes();
		std::memset(bytes.data() + at, 0xff, 8);
		CHECK(gguf_refusal(bytes).find("is 18446744073709551615") != std::string::npos);
	}
	GgufBuilder b = small();
	b.n_keys = 16; // one too many: tensor names are read as keys
	CHECK(gguf_refusal(b) != "");
	b.n_keys = 14;
	CHECK(gguf_refusal(b) != "");
}

TEST_CASE("T04: lengths of strings that cannot be are refused") {
	for (uint64_t n :
	     {UINT64_MAX, UINT64_MAX - 7, uint64_t(1) << 63, uint64_t(1) << 31, kMaxTextBytes + 1, uint64_t(100000)}) {
		GgufBuilder b = small();
		b.set("a.bad", GgufType::String, b.raw(n) + "text");
		CHECK(gguf_refusal(b) != "");
		b = small();
		b.array("a.bad", GgufType::String, 1, b.raw(n) + "text");
		CHECK(gguf_refusal(b) != "");
	}
	GgufBuilder b = small();
	b.array("a.long", GgufType::String, 1, b.string(std::string(kMaxTextBytes + 1, 'x'))); // all of it is there
	CHECK_REFUSED(b, "a string of an array");
	b = small();
	b.keys[1].name = std::string(kMaxNameBytes, 'k');
	CHECK(gguf_refusal(b) == "");
	b.keys[1].name += 'k';
	CHECK_REFUSED(b, "a key at byte");
	b = small();
	b.tensors[0].name = std::string(kMaxNameBytes + 1, 't');
	CHECK_REFUSED(b, "the name of a tensor at byte");
}

TEST_CASE("T05: arrays too long, nested, or of unknown elements are refused") {
	for (uint64_t n : {UINT64_MAX, uint64_t(1) << 62, uint64_t(1) << 61, uint64_t(1) << 40, uint64_t(5000)})
		for (GgufType e : {GgufType::U8, GgufType::U32, GgufType::F64, GgufType::String, GgufType::Bool}) {
			GgufBuilder b = small();
			b.array("a.bad", e, n, "12345678");
			CHECK_REFUSED(b, "the length of an array");
		}
	GgufBuilder b = small();
	b.array("a.bad", GgufType::Array, 1, b.raw(uint32_t(4)) + b.raw(uint64_t(0)));
	CHECK_REFUSED(b, "a.bad is an array of arrays");
	for (uint32_t type : {13u, 14u, 255u, UINT32_MAX}) {
		b = small();
		b.set("a.bad", GgufType::Array, b.raw(type) + b.raw(uint64_t(1)) + "12345678");
		CHECK_REFUSED(b, fmt::format("the element type of an array at byte"));
		b = small();
		b.keys.push_back({"a.bad", type, "12345678"});
		CHECK_REFUSED(b, "the type of a value at byte");
	}
	b = small();
	b.array("a.good", GgufType::U32, 0, "");
	CHECK(gguf_refusal(b) == "");
}

TEST_CASE("T06: duplicate keys, duplicate tensors and empty names are refused") {
	GgufBuilder b = small();
	b.keys.push_back(b.keys[1]);
	CHECK_REFUSED(b, "key a.u32 occurs twice");
	b = small();
	b.keys[1].name = "";
	CHECK_REFUSED(b, "empty key");
	b = small();
	b.tensors.push_back(b.tensors[0]);
	CHECK_REFUSED(b, "tensor one occurs twice");
	b = small();
	b.tensors[1].name = "";
	CHECK_REFUSED(b, "tensor without a name");
}

TEST_CASE("T07: a key of another type is an error that names both") {
	const auto bytes = small().bytes();
	const Gguf g = Gguf::parse("test.gguf", bytes);
	auto says = [&](auto f) { return error_of(f); };
	CHECK(says([&] { g.u32("a.f32"); }) ==
	      "test.gguf: key a.f32 is f32, expected an unsigned integer; the file is damaged");
	CHECK(says([&] { g.u32("a.i32"); }).find("a.i32 is i32") != std::string::npos);
	CHECK(says([&] { g.u32("a.u64"); }).find("a.u64 is 1099511627776, at most 4294967295") != std::string::npos);
	CHECK(says([&] { g.f32("a.u32"); }).find("a.u32 is u32, expected f32") != std::string::npos);
	CHECK(says([&] { g.flag("a.u32", false); }).find("a.u32 is u32, expected bool") != std::string::npos);
	CHECK(says([&] { g.text("a.u32"); }).find("a.u32 is u32, expected string") != std::string::npos);
	CHECK(says([&] { g.texts("a.ints"); }).find("a.ints is an array of i32, expected an array of string") !=
	      std::string::npos);
	CHECK(says([&] { g.ints("a.floats"); }).find("a.floats is an array of f32") != std::string::npos);
	CHECK(says([&] { g.floats("a.f32"); }).find("a.f32 is f32, expected an array of f32") != std::string::npos);
	CHECK(says([&] { g.u32("no.such"); }).find("key no.such is missing") != std::string::npos);
	for (const float x : {INFINITY, -INFINITY, NAN}) {
		GgufBuilder b = small();
		b.f32("a.f32", x);
		const auto damaged = b.bytes();
		const Gguf file = Gguf::parse("test.gguf", damaged);
		CHECK(says([&] { file.f32("a.f32"); }).find("expected a finite number") != std::string::npos);
	}
	for (GgufType t : {GgufType::I32, GgufType::String, GgufType::F32, GgufType::U64, GgufType::Bool}) {
		GgufBuilder b = small();
		b.set("general.alignment", t,
		      t == GgufType::String ? b.string("32")
		                            : b.raw(uint64_t(32))
		                                  .substr(0, t == GgufType::U64    ? 8
		                                             : t == GgufType::Bool ? 1
		                                                                   : 4));
		CHECK_REFUSED(b, "key general.alignment is");
	}
}

TEST_CASE("T08: an alignment that is no power of two, or absurd, is refused") {
	for (uint32_t a : {0u, 1u, 4u, 13u, 33u, 1u << 21, 1u << 31, UINT32_MAX}) {
		GgufBuilder b = small();
		b.u32("general.alignment", a);
		CHECK_REFUSED(b, fmt::format("general.alignment is {}", a));
	}
}

TEST_CASE("T09: dimensions that cannot be are refused") {
	for (uint32_t n : {0u, 5u, 100u, UINT32_MAX - 1}) {
		GgufBuilder b = small();
		b.tensors[0].n_dims = n;
		CHECK_REFUSED(b, fmt::format("tensor one has {} dimensions", n));
	}
	GgufBuilder b = small();
	b.tensors[1].dims = {2, 0};
	CHECK_REFUSED(b, "tensor two: dimension 1 is 0");
	for (std::vector<uint64_t> dims : {std::vector<uint64_t>{UINT64_MAX},
	                                   {uint64_t(1) << 63, 2},
	                                   {uint64_t(1) << 32, uint64_t(1) << 32},
	                                   {uint64_t(1) << 16, uint64_t(1) << 16, uint64_t(1) << 16, uint64_t(1) << 16},
	                                   {uint64_t(int64_t(-4))}}) {
		b = small();
		b.tensors[1].dims = dims;
		CHECK(gguf_refusal(b) != "");
	}
}

TEST_CASE("T10: checked arithmetic at the edge") {
	CHECK(checked_add(UINT64_MAX - 1, 1) == UINT64_MAX);
	CHECK(!checked_add(UINT64_MAX, 1));
	CHECK(checked_mul(UINT64_MAX / 3, 3) == UINT64_MAX / 3 * 3);
	CHECK(!checked_mul(UINT64_MAX / 3 + 1, 3));
	CHECK(checked_mul(0, UINT64_MAX) == 0u);
	CHECK(checked_mul(UINT64_MAX, 0) == 0u);
	CHECK(checked_align_up(33, 32) == 64u);
	CHECK(checked_align_up(64, 32) == 64u);
	CHECK(checked_align_up(0, 32) == 0u);
	CHECK(!checked_align_up(UINT64_MAX - 3, 32)); // the padding wraps
	CHECK(checked_align_up(UINT64_MAX - 31, 32) == UINT64_MAX - 31);
}

TEST_CASE("T10: sizes that overflow and rows that are no whole blocks are refused") {
	GgufBuilder b = small();
	b.tensors[1].dims = {uint64_t(1) << 62}; // times 4 bytes wraps to 0
	CHECK_REFUSED(b, "overflow");
	b = small();
	b.find("blocks").dims = {uint64_t(1) << 59, 32}; // elements fit, bytes do not
	CHECK_REFUSED(b, "overflow");
	b = small();
	b.find("blocks").dims = {33, 2};
	CHECK_REFUSED(b, "rows of 33 elements are not a multiple of the 32 in a Q8_0 block");
	b = small();
	b.find("blocks").dims = {16, 4}; // as many elements as two blocks, but no row is a block
	CHECK_REFUSED(b, "rows of 16 elements");
}

TEST_CASE("T11: tensors outside the file, unaligned or overlapping are refused") {
	for (uint64_t offset : {uint64_t(1) << 20, uint64_t(1) << 63, UINT64_MAX - 31, UINT64_MAX - 63}) {
		GgufBuilder b = small();
		b.tensors[1].offset = offset;
		CHECK_REFUSED(b, "truncated at byte");
	}
	for (uint64_t offset : {uint64_t(1), uint64_t(31), uint64_t(33), UINT64_MAX - 1}) {
		GgufBuilder b = small();
		b.tensors[1].offset = offset;
		CHECK_REFUSED(b, fmt::format("offset {} is not a multiple of the alignment 32", offset));
	}
	GgufBuilder b = small();
	b.tensors[1].offset = 0;
	CHECK_REFUSED(b, "overlap");
	b = small();
	b.tensors[1].dims = {2, 10}; // overlaps `blocks`
	CHECK_REFUSED(b, "overlaps tensor two, which ends at byte");
	b = small();
	b.tensors[2].dims = {32, 3}; // one row more than in the file
	CHECK_REFUSED(b, "truncated at byte");
}

TEST_CASE("T11: tensors fill the data; a count that is too small does not shift them") {
	const GgufBuilder whole = tiny_model();
	for (uint64_t n = 0; n < whole.tensors.size(); ++n) {
		GgufBuilder b = whole;
		b.n_tensors = n;
		CHECK_REFUSED(b, fmt::format("belong to no tensor, of which the file says it has {}; the file is damaged", n));
	}
	GgufBuilder b = whole;
	b.n_tensors = whole.tensors.size() + 1;
	CHECK(gguf_refusal(b) != "");
	b = whole;
	b.find("blk.0.attn_k.weight").dims[1] /= 2;
	CHECK_REFUSED(b, "bytes between tensor blk.0.attn_k.weight and tensor blk.0.attn_v.weight belong to no tensor");
	b = whole;
	b.tensors.back().dims[1] -= 1;
	CHECK_REFUSED(b, "bytes after tensor output.weight belong to no tensor");
	b = small(); // padded more than needed
	b.alignment = 64;
	CHECK_REFUSED(b, "belong to no tensor");
	b = small(); // another order than in the table
	for (GgufBuilder::Tensor& t : b.tensors) t.offset = &t == &b.tensors[0] ? 0 : &t == &b.tensors[1] ? 32 : 64;
	std::swap(b.tensors[0].offset, b.tensors[1].offset);
	std::swap(b.tensors[0].data, b.tensors[1].data);
	CHECK(gguf_refusal(b) == "");
	for (const GgufBuilder& sound : {small(), GgufBuilder()}) { // the last tensor, or the table, is padded or not
		auto bytes = sound.bytes();
		const size_t padded = (bytes.size() + 31) / 32 * 32;
		REQUIRE(padded > bytes.size());
		for (; bytes.size() <= padded; bytes.push_back(std::byte(0))) CHECK(gguf_refusal(bytes) == "");
		CHECK(gguf_refusal(bytes).find("belong to no tensor") != std::string::npos);
	}
}

TEST_CASE("T12: tensor types kvrun does not compute with are refused by name") {
	for (const auto& [id, name] : {std::pair<uint32_t, const char*>{9, "Q8_1"},
	                               {15, "Q8_K"},
	                               {26, "I32"},
	                               {4, "number 4"},
	                               {1000, "number 1000"},
	                               {UINT32_MAX, "number 4294967295"}}) {
		GgufBuilder b = small();
		b.tensors[2].type = id;
		Code code{};
		std::string known;
		for (const DType t : kTensorTypes) known += fmt::format(" {}", dtype_info(t).name);
		CHECK(gguf_refusal(b, &code) ==
		      fmt::format("test.gguf: tensor blocks has type {}; kvrun computes with{}", name, known));
		CHECK(code == Code::Unsupported);
	}
}

TEST_CASE("gguf: Q2_0 has blocks of 64 elements, or of 128 where the tensor has no room for more scales") {
	for (const bool last : {false, true}) { // whose end is the file's end
		GgufBuilder b = small();
		for (const auto& [name, type] : {std::pair{"large", DType::Q2_0_128}, {"little", DType::Q2_0}})
			b.tensor(name, type, {256, 5}, std::string(dtype_row_bytes(type, 256) * 5, 'q'));
		if (last) std::swap(b.tensors[3], b.tensors[4]);
		const Gguf g = Gguf::parse("test.gguf", b.bytes());
		for (const auto& [name, type] : {std::pair{"large", DType::Q2_0_128}, {"little", DType::Q2_0}}) {
			const std::string tensor = name;
			CAPTURE(tensor);
			REQUIRE(g.find_tensor(name));
			CHECK(g.find_tensor(name)->type == type);
			CHECK(g.find_tensor(name)->bytes == dtype_row_bytes(type, 256) * 5);
		}
		b.find("large").data.resize(300); // for neither
		CHECK(gguf_refusal(b) != "");
		b.find("large").type = uint32_t(DType::Q2_0_128); // not a number of files
		CHECK(gguf_refusal(b).find("has type number 170") != std::string::npos);
	}
}

TEST_CASE("gguf: every single-byte change of the header is read or refused, in bounds") {
	const auto whole = small().bytes();
	const size_t header = whole.size() - 12 - 16 - 68 - 100;
	size_t refused = 0;
	for (size_t at = 0; at < header; ++at)
		for (int flip : {0x01, 0x80, 0xff}) {
			auto bytes = whole;
			bytes[at] ^= std::byte(flip);
			refused += gguf_refusal(bytes) != "";
		}
	CHECK(refused > header); // more than a third
}
