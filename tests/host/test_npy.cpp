// .npy reader and writer: round trips, a file written by NumPy, and misleading headers.
#include "engine/core/npy.h"
#include "tests/support/bytes_read.h"
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <iterator>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

struct TempFile {
	fs::path path = fs::temp_directory_path() / ("kvrun_npy_" + std::to_string(getpid()) + ".npy");
	~TempFile() {
		std::error_code ec;
		fs::remove(path, ec);
	}
};

std::string file_text(std::string_view header, size_t data_bytes, char major = 1) {
	std::string s = std::string("\x93NUMPY") + major + '\0';
	for (int i = 0; i < (major == 1 ? 2 : 4); ++i) s += char(header.size() >> (8 * i) & 255u);
	s += header;
	s.append(data_bytes, '\1');
	return s;
}
NpyArray parse(std::string_view s) { return npy_parse(std::as_bytes(std::span(s.data(), s.size())), "t.npy"); }

Code code_of(std::string_view s) {
	try {
		parse(s);
	} catch (const Error& e) {
		const std::string_view what = e.what();
		CHECK(what.starts_with("t.npy: "));
		CHECK(what.find('\n') == std::string_view::npos);
		return e.code;
	}
	FAIL("was read without an error: " << std::string(s));
	return Code::Invalid;
}

template <class T> void round_trip(std::vector<uint64_t> shape) {
	TempFile f;
	uint64_t n = 1;
	for (const uint64_t d : shape) n *= d;
	std::vector<std::byte> raw(n * sizeof(T));
	std::mt19937 rng(7);
	for (std::byte& b : raw) b = std::byte(std::is_same_v<T, bool> ? rng() & 1u : rng() & 255u);
	npy_write(f.path, NpyTypeOf<T>::value, shape, raw);
	const NpyArray a = npy_read(f.path);
	CHECK(a.shape == shape);
	CHECK(a.count() == n);
	CHECK(a.data == raw);
	CHECK(a.as<T>().size() == n);
	CHECK((fs::file_size(f.path) - raw.size()) % 64 == 0);
}

} // namespace

TEST_CASE("npy: every type and rank survives a round trip") {
	for (const std::vector<uint64_t>& shape :
	     {std::vector<uint64_t>{}, {1}, {0}, {7}, {2, 3}, {3, 0, 5}, {2, 1, 3, 2}}) {
		round_trip<float>(shape);
		round_trip<uint8_t>(shape);
		round_trip<int32_t>(shape);
		round_trip<int64_t>(shape);
		round_trip<bool>(shape);
		round_trip<uint16_t>(shape);
		round_trip<uint32_t>(shape);
	}
}

TEST_CASE("npy: a small array is written byte for byte as NumPy writes it") {
	// numpy.save of numpy.array([[1.5, -2.0, 0.25]], dtype='<f4')
	std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }";
	header.append(128 - 10 - header.size() - 1, ' ');
	std::string file = file_text(header + '\n', 0);
	const float values[3] = {1.5f, -2.0f, 0.25f};
	file.append(reinterpret_cast<const char*>(values), sizeof values);
	REQUIRE(file.size() == 140);
	const NpyArray a = parse(file);
	CHECK(a.shape == std::vector<uint64_t>{1, 3});
	CHECK(a.as<float>()[2] == 0.25f);
	TempFile f;
	npy_write<const float>(f.path, {1, 3}, values);
	std::ifstream in(f.path, std::ios::binary);
	const std::string ours{std::istreambuf_iterator<char>(in), {}};
	CHECK(ours == file);
}

TEST_CASE("npy: float16 is read as bit patterns; other types are not mixed up") {
	const NpyArray h = parse(file_text("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", 4));
	CHECK(h.as<uint16_t>()[1] == 0x0101);
	CHECK_THROWS_WITH_AS((void)h.as<float>(), doctest::Contains("holds float16, not the float32"), Error);
}

TEST_CASE("npy: versions 2 and 3, key order and quotes do not matter") {
	const char* header = "{\"shape\": (2,3),\"fortran_order\":False,  'descr':'|u1'}\n";
	for (const char major : {'\1', '\2', '\3'}) {
		const NpyArray a = parse(file_text(header, 6, major));
		CHECK(a.shape == std::vector<uint64_t>{2, 3});
		CHECK(a.type == NpyType::U8);
	}
	CHECK(code_of(file_text(header, 6, 4)) == Code::Unsupported);
}

TEST_CASE("npy: well-formed but unsupported files say so") {
	CHECK(code_of(file_text("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", 4)) == Code::Unsupported);
	CHECK(code_of(file_text("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4)) == Code::Unsupported);
	CHECK(code_of(file_text("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", 8)) == Code::Unsupported);
	CHECK(code_of(file_text("{'descr': [('a','<f4')], 'fortran_order': False, 'shape': (1,), }", 4)) ==
	      Code::Unsupported);
}

TEST_CASE("npy: sizes that lie are refused before anything is read by them") {
	const auto shaped = [](std::string_view shape, size_t bytes) {
		return file_text(fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", shape), bytes);
	};
	CHECK(parse(shaped("(2,)", 8)).count() == 2);
	for (const char* shape : {"(1,)", "(3,)", "(0,)", "(9223372036854775809,)", "(4294967296, 4294967296)",
	                          "(4611686018427387904, 1)", "(4611686018427387906,)", "(0, 4294967296, 4294967296)",
	                          "(18446744073709551616,)", "(-2,)", "(2.0,)", "(2", "2", "(2,),)", "(, 2)", "('2',)"})
		CHECK(code_of(shaped(shape, 8)) == Code::Format);
	std::string deep = "(";
	for (int i = 0; i < 65; ++i) deep += "1,";
	CHECK(code_of(shaped(deep + ")", 4)) == Code::Format);
	std::string lying = file_text("{}", 0);
	lying[8] = '\xff';
	lying[9] = '\xff'; // header of 65535 bytes in a file of 12
	CHECK(code_of(lying) == Code::Format);
	std::string longer = file_text(std::string(100, ' '), 0);
	longer[8] = char(2 * longer.size());
	try {
		parse(longer);
		FAIL("was read without an error");
	} catch (const Error& e) {
		CHECK(std::string_view(e.what()).find("claims 220 bytes, the file has 100 left") != std::string_view::npos);
	}
	CHECK(code_of(file_text("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }\1", 0)) == Code::Format);
}

TEST_CASE("npy: headers without their keys, with twice the same or with trailing text are refused") {
	for (const char* header :
	     {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False}",
	      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
	      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
	      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "{'descr': '<f4}",
	      "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}", "{'descr' '<f4'}", "['descr']"})
		CHECK(code_of(file_text(header, 4)) == Code::Format);
	std::string nan_bool = file_text("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", 1);
	CHECK(parse(nan_bool).as<bool>()[0]);
	nan_bool.back() = '\2';
	CHECK(code_of(nan_bool) == Code::Format);
}

TEST_CASE("npy: every cut and every changed byte ends in an array or in a clear error") {
	const std::string good = file_text("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2), }\n", 32);
	CHECK(parse(good).as<int64_t>()[3] == 0x0101010101010101);
	for (size_t n = 0; n < good.size(); ++n) CHECK(code_of(std::string_view(good).substr(0, n)) == Code::Format);
	for (size_t i = 0; i + 32 < good.size(); ++i)
		for (int v = 0; v < 256; ++v) {
			std::string s = good;
			s[i] = char(v);
			try {
				const NpyArray a = parse(s);
				CHECK(a.count() * npy_type_info(a.type).bytes == a.data.size());
			} catch (const Error& e) { CHECK((e.code == Code::Format || e.code == Code::Unsupported)); }
		}
}

TEST_CASE("npy: a missing file and an unwritable path are errors naming the path") {
	const auto fails = [](auto&& f, Code code, const char* text) {
		try {
			f();
			FAIL("no error");
		} catch (const Error& e) {
			CHECK(e.code == code);
			CHECK(std::string_view(e.what()).find(text) != std::string_view::npos);
		}
	};
	fails([] { npy_read("/nonexistent/a.npy"); }, Code::NotFound, "/nonexistent/a.npy");
	const float x = 1;
	fails([&] { npy_write<const float>("/nonexistent/b.npy", {1}, {&x, 1}); }, Code::Io, "/nonexistent/b.npy");
}

#ifndef _WIN32 // there are no such files
TEST_CASE("T16: what is no regular file is refused by its kind, without waiting") {
	const TempFile f;
	REQUIRE(mkfifo(f.path.c_str(), 0600) == 0);
	CHECK_THROWS_WITH_AS(npy_read(f.path), doctest::Contains("is a FIFO, not a regular file; name a .npy file"), Error);
	CHECK_THROWS_WITH_AS(npy_read(fs::temp_directory_path()), doctest::Contains("is a folder, not a regular"), Error);
	CHECK_THROWS_WITH_AS(npy_read("/dev/zero"), doctest::Contains("is a character device, not a regular"), Error);
}
#endif

TEST_CASE("T17: a header is judged before its data take memory or time") {
	const TempFile f;
	auto sparse = [&](std::string_view shape, uint64_t data_bytes) { // a sparse file with data of that shape
		const std::string head =
		    file_text(fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}}}", shape), 0);
		std::ofstream(f.path, std::ios::binary) << head;
		fs::resize_file(f.path, head.size() + data_bytes);
	};
	auto refusal = [&](const NpyCheck& check) -> std::string {
		try {
			npy_read(f.path, check);
			return "";
		} catch (const Error& e) { return e.what(); }
	};
	auto says = [&](const std::string& part, const NpyCheck& check = {}) {
		const uint64_t before = bytes_read();
		const std::string said = refusal(check);
		INFO(said);
		CHECK(said.find(part) != said.npos);
		CHECK(bytes_read() - before < 1 << 20); // of several GiB: only the header
	};
	const uint64_t gib = uint64_t(1) << 30;
	sparse("(6, 1073741824)", 24 * gib);
	says("the array has 25769803776 bytes, at most 4294967296 are read");
	sparse("(3, 4)", 6 * gib);
	says("the .npy shape needs 48 bytes of data, the file has 6442450944");
	sparse("(268435456, 3)", 3 * gib);
	says("too many rows", [](const NpyHeader& h) {
		CHECK(h.type == NpyType::F32);
		CHECK(h.shape == std::vector<uint64_t>{268435456, 3});
		CHECK(h.bytes() == uint64_t(3) << 30);
		if (h.shape[0] > 1000) fail(Code::Invalid, "too many rows");
	});
	sparse("(2, 3)", 24);
	CHECK(refusal([](const NpyHeader&) {}) == "");
	CHECK(npy_read(f.path).as<float>().size() == 6);
}
