// .npy files: a strict parser of the three-key header that checks every length, and the matching writer.
#include "engine/core/npy.h"
#include "engine/core/regular_file.h"
#include "engine/core/round.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>

namespace kvrun {

static_assert(std::endian::native == std::endian::little, ".npy data is copied as it is; big-endian hosts need swaps");

namespace {

constexpr std::array<NpyTypeInfo, 8> kTypes = {{{"float32", "<f4", 4},
                                                {"float16", "<f2", 2},
                                                {"uint8", "|u1", 1},
                                                {"int32", "<i4", 4},
                                                {"int64", "<i8", 8},
                                                {"bool", "|b1", 1},
                                                {"uint16", "<u2", 2},
                                                {"uint32", "<u4", 4}}};
constexpr char kMagic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
constexpr size_t kMaxHeader = 1u << 20; // bytes; NumPy itself writes at most a few hundred for plain types
constexpr size_t kMaxRank = 64;         // NumPy's own limit

// product * dim, or nothing on overflow.
std::optional<uint64_t> mul(uint64_t a, uint64_t b) {
	if (b != 0 && a > UINT64_MAX / b) return {};
	return a * b;
}

// The header is one Python dict literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
	HeaderParser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

	NpyHeader parse() {
		expect('{');
		while (!accept('}')) {
			const std::string_view key = quoted();
			expect(':');
			if (key == "descr")
				set(have_descr_, key), descr();
			else if (key == "fortran_order")
				set(have_order_, key), order();
			else if (key == "shape")
				set(have_shape_, key), shape();
			else
				broken("has an unknown key");
			if (accept(',')) continue;
			expect('}');
			break;
		}
		skip_space();
		if (at_ != text_.size()) broken("goes on after its closing brace");
		if (!have_descr_ || !have_order_ || !have_shape_) broken("lacks one of descr, fortran_order and shape");
		return std::move(out_);
	}

 private:
	[[noreturn]] void broken(const char* what) const {
		fail(Code::Format, "{}: the .npy header {} (byte {} of the header); write the file again with numpy.save",
		     name_, what, at_);
	}
	void set(bool& have, std::string_view) {
		if (have) broken("gives a key twice");
		have = true;
	}
	void skip_space() {
		while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
	}
	bool accept(char c) {
		skip_space();
		if (at_ >= text_.size() || text_[at_] != c) return false;
		++at_;
		return true;
	}
	void expect(char c) {
		if (!accept(c)) broken("is no dict of descr, fortran_order and shape");
	}
	bool accept_word(std::string_view word) {
		skip_space();
		if (!text_.substr(at_).starts_with(word)) return false;
		at_ += word.size();
		return true;
	}
	std::string_view quoted() {
		skip_space();
		const char q = at_ < text_.size() ? text_[at_] : 0;
		if (q != '\'' && q != '"') broken("lacks a quoted string");
		const size_t end = text_.find(q, at_ + 1);
		if (end == std::string_view::npos) broken("has a string without an end");
		const std::string_view s = text_.substr(at_ + 1, end - at_ - 1);
		at_ = end + 1;
		return s;
	}
	void descr() {
		skip_space();
		if (at_ < text_.size() && text_[at_] == '[')
			fail(Code::Unsupported, "{}: structured .npy arrays are not read; save one plain array per file", name_);
		const std::string_view d = quoted();
		for (size_t i = 0; i < kTypes.size(); ++i)
			if (d == kTypes[i].descr) {
				out_.type = NpyType(i);
				return;
			}
		std::string known;
		for (const NpyTypeInfo& t : kTypes) known += fmt::format("{}{}", known.empty() ? "" : " ", t.descr);
		fail(Code::Unsupported, "{}: element type '{}' is not read; convert to one of {}", name_, one_line(d, 16),
		     known);
	}
	void order() {
		if (accept_word("False")) return;
		if (accept_word("True"))
			fail(Code::Unsupported, "{}: Fortran order is not read; save numpy.ascontiguousarray(a)", name_);
		broken("has a fortran_order that is neither True nor False");
	}
	void shape() {
		expect('(');
		while (!accept(')')) {
			skip_space();
			uint64_t n = 0;
			const char* first = text_.data() + at_;
			const auto [end, err] = std::from_chars(first, text_.data() + text_.size(), n);
			if (err != std::errc()) broken("has a dimension that is no number of 64 bits");
			at_ += size_t(end - first);
			out_.shape.push_back(n);
			if (out_.shape.size() > kMaxRank) broken("has more than 64 dimensions");
			if (accept(',')) continue;
			expect(')');
			break;
		}
	}

	std::string_view text_, name_;
	size_t at_ = 0; // next byte of text_
	bool have_descr_ = false, have_order_ = false, have_shape_ = false;
	NpyHeader out_;
};

uint32_t little(std::span<const std::byte> bytes) {
	uint32_t v = 0;
	for (size_t i = 0; i < bytes.size(); ++i) v |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
	return v;
}

constexpr size_t kStartBytes = 12; // longest prefix of any version

struct Start { // the prefix before the header
	size_t header_at, header_bytes;
};

// `start`: the first kStartBytes of the file, or the whole file if it is shorter.
Start parse_start(std::span<const std::byte> start, uint64_t file_bytes, std::string_view name) {
	if (start.size() < 10 || std::memcmp(start.data(), kMagic, sizeof kMagic) != 0)
		fail(Code::Format, "{}: no .npy file ({} bytes, without NumPy's magic); check the path", name, file_bytes);
	const unsigned major = std::to_integer<unsigned>(start[6]);
	if (major < 1 || major > 3)
		fail(Code::Unsupported, "{}: .npy version {} is not read; versions 1 to 3 are", name, major);
	const size_t length_bytes = major == 1 ? 2 : 4;
	if (start.size() < 8 + length_bytes)
		fail(Code::Format, "{}: cut off inside the .npy header; copy the file again", name);
	const Start s{8 + length_bytes, little(start.subspan(8, length_bytes))};
	if (s.header_bytes > kMaxHeader || s.header_bytes > file_bytes - s.header_at)
		fail(Code::Format, "{}: the .npy header claims {} bytes, the file has {} left; copy the file again", name,
		     s.header_bytes, file_bytes - s.header_at);
	return s;
}

// `data_bytes`: bytes of the file after its header.
NpyHeader parse_header(std::span<const std::byte> text, uint64_t data_bytes, std::string_view name) {
	NpyHeader out = HeaderParser({reinterpret_cast<const char*>(text.data()), text.size()}, name).parse();
	// A zero dimension makes the array empty, but the product of the others must still not overflow count().
	std::optional<uint64_t> bytes = npy_type_info(out.type).bytes, all = bytes;
	for (const uint64_t d : out.shape) {
		if (bytes) bytes = mul(*bytes, d);
		if (all) all = mul(*all, d ? d : 1);
	}
	if (!all || !bytes || *bytes != data_bytes)
		fail(Code::Format, "{}: the .npy shape needs {} bytes of data, the file has {}; copy the file again", name,
		     all && bytes ? std::to_string(*bytes) : "over 2^64", data_bytes);
	return out;
}

void check_bools(const NpyArray& a, std::string_view name) {
	if (a.type != NpyType::Bool) return;
	for (const std::byte b : a.data)
		if (std::to_integer<unsigned>(b) > 1)
			fail(Code::Format, "{}: a bool in the .npy data is {}, not 0 or 1; write the file again", name,
			     std::to_integer<unsigned>(b));
}

} // namespace

const NpyTypeInfo& npy_type_info(NpyType t) { return kTypes.at(size_t(t)); }

uint64_t NpyHeader::count() const {
	uint64_t n = 1;
	for (const uint64_t d : shape) n *= d;
	return n;
}

uint64_t NpyHeader::bytes() const { return count() * npy_type_info(type).bytes; }

void NpyArray::wrong_type(NpyType want) const {
	fail(Code::Format, "the .npy array holds {}, not the {} asked for; check which file was meant",
	     npy_type_info(type).name, npy_type_info(want).name);
}

NpyArray npy_parse(std::span<const std::byte> file, std::string_view name) {
	const Start s = parse_start(file.first(std::min(file.size(), kStartBytes)), file.size(), name);
	const std::span<const std::byte> data = file.subspan(s.header_at + s.header_bytes);
	NpyArray out;
	static_cast<NpyHeader&>(out) = parse_header(file.subspan(s.header_at, s.header_bytes), data.size(), name);
	out.data.assign(data.begin(), data.end());
	check_bools(out, name);
	return out;
}

NpyArray npy_read(const std::filesystem::path& path, const NpyCheck& check) {
	std::error_code ec;
	if (!std::filesystem::exists(path, ec))
		fail(Code::NotFound, "{}: cannot be read as a file; check the path and its permissions",
		     one_line(path.string()));
	const RegularFile file(path.string(), "name a .npy file");
	std::vector<std::byte> bytes(size_t(std::min<uint64_t>(file.bytes(), kStartBytes)));
	file.read_at(0, bytes);
	const Start s = parse_start(bytes, file.bytes(), file.name());
	bytes.resize(s.header_bytes);
	file.read_at(s.header_at, bytes);
	const uint64_t data_at = s.header_at + s.header_bytes;
	NpyArray out;
	static_cast<NpyHeader&>(out) = parse_header(bytes, file.bytes() - data_at, file.name());
	if (check) check(out);
	if (out.bytes() > kMaxNpyBytes)
		fail(Code::OutOfMemory, "{}: the array has {} bytes, at most {} are read; save a part of it", file.name(),
		     out.bytes(), kMaxNpyBytes);
	out.data.resize(size_t(out.bytes()));
	file.read_at(data_at, out.data);
	check_bools(out, file.name());
	return out;
}

void npy_write(const std::filesystem::path& path, NpyType type, std::span<const uint64_t> shape,
               std::span<const std::byte> data) {
	const NpyTypeInfo& info = npy_type_info(type);
	std::string dims;
	uint64_t n = 1;
	for (const uint64_t d : shape) {
		dims += fmt::format("{}, ", d);
		n *= d;
	}
	if (shape.size() > 1)
		dims.resize(dims.size() - 2); // (2, 3) but (2,)
	else if (shape.size() == 1)
		dims.resize(dims.size() - 1);
	KV_ASSERT(n * info.bytes == data.size());
	std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", info.descr, dims);
	// As in NumPy the data starts at a multiple of 64 bytes, so that the file can be mapped.
	const bool wide = header.size() + 64 > UINT16_MAX;
	const size_t prefix = wide ? 12 : 10, total = align_up(prefix + header.size() + 1, 64);
	header.append(total - prefix - header.size() - 1, ' ');
	header += '\n';
	std::string start(kMagic, sizeof kMagic);
	start += wide ? '\2' : '\1';
	start += '\0';
	for (size_t i = 0; i < prefix - 8; ++i) start += char(header.size() >> (8 * i) & 255u);
	start += header;
	std::ofstream out(path, std::ios::binary | std::ios::trunc);
	out.write(start.data(), std::streamsize(start.size()));
	out.write(reinterpret_cast<const char*>(data.data()), std::streamsize(data.size()));
	out.close();
	if (!out) {
		std::error_code ec;
		if (std::filesystem::is_regular_file(path, ec)) std::filesystem::remove(path, ec); // removes an incomplete file
		fail(Code::Io, "{}: writing {} bytes failed; check the folder and the free space", path.string(),
		     start.size() + data.size());
	}
}

} // namespace kvrun
