// The GGUF reader with files on disk: truncated, split, sparse, shrinking ones, and paths that are not files.
#include "models/model.h"
#include "tests/support/assets.h"
#include "tests/support/bytes_read.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

using namespace kvrun;

namespace {

struct Folder : TempFolder {
	std::string write(const std::string& name, const std::vector<std::byte>& bytes) const {
		const std::string p = path / name;
		std::ofstream(p, std::ios::binary)
		    .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
		return p;
	}
};

} // namespace

TEST_CASE("T01: truncated files on disk, empty and short ones") {
	const Folder folder;
	const auto whole = tiny_model().bytes();
	for (size_t n : {size_t(0), size_t(1), size_t(23), size_t(64), whole.size() - 1}) {
		const std::string path = folder.write("cut.gguf", {whole.begin(), whole.begin() + std::ptrdiff_t(n)});
		Code code{};
		const std::string said = error_of([&] { open_model(path); }, &code);
		CHECK(said.find(fmt::format("cut.gguf: truncated at byte {}", n)) != said.npos);
		CHECK(code == Code::Format);
	}
	CHECK(error_of([&] { open_model(folder.write("whole.gguf", whole)); }) == "");
}

// ---- split models

namespace {

struct Split {
	Folder folder;
	std::vector<GgufBuilder> parts;
	explicit Split(GgufBuilder whole, uint16_t n = 3) {
		const size_t total = whole.tensors.size();
		for (uint16_t i = 0; i < n; ++i) {
			GgufBuilder p;
			if (i == 0) p.keys = whole.keys;
			p.set("split.no", GgufType::U16, p.raw(i)).set("split.count", GgufType::U16, p.raw(n));
			p.set("split.tensors.count", GgufType::I32, p.raw(int32_t(total)));
			for (size_t t = i; t < total; t += n) p.tensors.push_back(whole.tensors[t]);
			parts.push_back(p);
		}
	}
	std::string name(size_t i) const { return fmt::format("m-{:05}-of-{:05}.gguf", i + 1, parts.size()); }
	std::string write() const {
		for (size_t i = 0; i < parts.size(); ++i) folder.write(name(i), parts[i].bytes());
		return folder.path / name(0);
	}
	std::string refusal() const {
		const std::string path = write();
		return error_of([&] { open_model(path); });
	}
};

} // namespace

TEST_CASE("T14: a split model is one model") {
	const auto whole_bytes = tiny_model().bytes();
	const Gguf whole = Gguf::parse("whole", whole_bytes);
	const Split split(tiny_model());
	const Model m = open_model(split.write());
	CHECK(m.file.n_parts() == 3);
	REQUIRE(m.file.tensors().size() == whole.tensors().size());
	for (const GgufTensor& t : whole.tensors()) {
		const GgufTensor* s = m.file.find_tensor(t.name);
		REQUIRE(s);
		std::vector<std::byte> a(t.bytes), b(s->bytes);
		whole.read(t, 0, a);
		m.file.read(*s, 0, b);
		CHECK(a == b);
	}
}

TEST_CASE("T14: a split model is found by any name that leads to it, and names in its metadata lead nowhere") {
	Split split(tiny_model());
	// keys that a converter, or another program, wrote with the names of other files
	split.parts[0]
	    .text("general.name", "../../etc/passwd")
	    .text("split.prefix", "/etc/passwd")
	    .text("split.path", "../x");
	const std::string path = split.write(), folder = split.folder.path, name = split.name(0);
	const std::string above = split.folder.path.filename(), here = std::filesystem::current_path();
	REQUIRE(path[0] == '/');
	std::filesystem::create_directory(split.folder.path / "sub");
	struct Back {
		std::string to;
		~Back() { std::filesystem::current_path(to); }
	} back{here};
	for (const std::string& from : {folder, folder + "/sub", split.folder.path.parent_path().string()}) {
		std::filesystem::current_path(from);
		const std::string relative = from == folder            ? name
		                             : from == folder + "/sub" ? "../" + name
		                                                       : above + "/sub/../" + name;
		for (const std::string& way : {relative, path, folder + "/../" + above + "/./" + name, folder + "//" + name}) {
			CAPTURE(way);
			CHECK(open_model(way).file.n_parts() == 3);
		}
	}
	// parts are searched next to the given name, even if that is a link to another folder
	const Folder other;
	std::filesystem::create_symlink(path, other.path / name);
	has(error_of([&] { open_model(other.path / name); }), "m-00002-of-00003.gguf: no such file");
	// a name with the suffix in the middle, or with too many digits, is not the name of a part
	for (const char* bad : {"m-00001-of-00003.gguf.gguf", "m-000001-of-00003.gguf", "m-00001-of-00003.GGUF"}) {
		std::filesystem::copy_file(path, split.folder.path / bad);
		CAPTURE(bad);
		if (std::string_view(bad) != "m-000001-of-00003.gguf")
			has(error_of([&] { open_model(folder + "/" + bad); }), "its name does not end in -00001-of-00003.gguf");
		else
			CHECK(!error_of([&] { open_model(folder + "/" + bad); }).empty());
	}
}

TEST_CASE("T14: split models with a part missing, renamed, or of another model are refused") {
	{
		Split s(tiny_model());
		const std::string path = s.write();
		std::filesystem::remove(s.folder.path / s.name(1));
		Code code{};
		has(error_of([&] { open_model(path); }, &code),
		    "m-00002-of-00003.gguf: no such file; the model has 3 parts, which belong into one folder");
		CHECK(code == Code::NotFound);
		has(error_of([&] { open_model(s.folder.path / s.name(2)); }), "is part 3 of 3; name the first part");
		std::filesystem::rename(path, s.folder.path / "renamed.gguf");
		has(error_of([&] { open_model(s.folder.path / "renamed.gguf"); }),
		    "its name does not end in -00001-of-00003.gguf");
	}
	{
		Split s(tiny_model());
		s.parts[1] = s.parts[2];
		has(s.refusal(), "says it is part 3 of 3, expected part 2 of 3");
	}
	{
		Split s(tiny_model());
		s.parts[2].set("split.count", GgufType::U16, GgufBuilder::raw(uint16_t(4)));
		has(s.refusal(), "says it is part 3 of 4");
	}
	{
		Split s(tiny_model());
		s.parts[1].erase("split.no");
		has(s.refusal(), "key split.no is missing");
		s.parts[1].text("split.no", "two");
		has(s.refusal(), "key split.no is not a number");
	}
	{
		Split s(tiny_model());
		s.parts[1].tensors.pop_back();
		has(s.refusal(), "tensors, split.tensors.count is");
	}
	for (size_t i = 0; i < 3; ++i) {
		Split s(tiny_model());
		s.parts[i].n_tensors = s.parts[i].tensors.size() - 1;
		has(s.refusal(), fmt::format("{}: ", s.name(i)));
		has(s.refusal(), "belong to no tensor, of which the file says it has 3");
	}
	{
		Split s(tiny_model());
		s.parts[1].tensors[0] = s.parts[0].tensors[0];
		has(s.refusal(), "is in another part too");
	}
	{
		Split s(tiny_model());
		s.parts[1].text("general.architecture", "qwen2");
		has(s.refusal(), "has architecture qwen2, the first part has llama");
	}
	{
		Split s(tiny_model());
		s.parts[0].set("split.count", GgufType::U16, GgufBuilder::raw(uint16_t(60000)));
		has(s.refusal(), "split.count is 60000, at most 512");
	}
}

// ---- special files

TEST_CASE("T16: folders, FIFOs, sockets, devices, loops, unreadable files and odd names are refused in clear text") {
	const Folder folder;
	auto said = [&](const std::string& path) { return error_of([&] { open_model(path); }); };
	has(said(folder.path), "is a folder, not a regular file; name a GGUF file");
	has(said("/dev/zero"), "is a character device, not a regular file; name a GGUF file");
	has(said("/dev/null"), "is a character device, not a regular file");
	const std::string fifo = folder.path / "fifo";
	REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
	has(said(fifo), "fifo: is a FIFO, not a regular file"); // without waiting for a writer
	std::filesystem::create_symlink(fifo, folder.path / "m-00001-of-00002.gguf");
	has(said(folder.path / "m-00001-of-00002.gguf"), "is a FIFO, not a regular file");
	sockaddr_un address{.sun_family = AF_UNIX, .sun_path = ""};
	const std::string socket_path = folder.path / "socket";
	REQUIRE(socket_path.size() < sizeof address.sun_path);
	std::strcpy(address.sun_path, socket_path.c_str());
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
	has(said(socket_path), "socket: is a socket, not a regular file");
	close(fd);
	const std::string loop = folder.path / "loop";
	std::filesystem::create_symlink(loop, loop);
	has(said(loop), "check the path");
	has(said(folder.path / "none.gguf"), "none.gguf: no such file");
	has(said(folder.write("f", {}) + "/g"), "check the path");
	has(said(std::string(5000, 'x')), "check the path");
	has(said(""), "empty");
	has(said(std::string("a\0b", 3)), "a\\x00b: a file name cannot hold a zero byte");
	has(said(folder.path / "a\nb\xff.gguf"), "a\\nb\\xff.gguf: no such file");
}

TEST_CASE("T16: a block device is refused in clear text" * doctest::test_suite("block_device")) {
	std::string disk;
	for (const auto& e : std::filesystem::directory_iterator("/dev"))
		if (e.is_block_file()) disk = e.path();
	if (disk.empty()) return skip("there is no block device here");
	has(error_of([&] { open_model(disk); }), "is a block device, not a regular file");
}

TEST_CASE("T16: a file that may not be read is refused in clear text" * doctest::test_suite("ordinary_user")) {
	if (geteuid() == 0) return skip("no file is unreadable to root");
	const Folder folder;
	const std::string secret = folder.write("secret.gguf", tiny_model().bytes());
	REQUIRE(chmod(secret.c_str(), 0) == 0);
	Code code{};
	has(error_of([&] { open_model(secret); }, &code), "secret.gguf: cannot be opened");
	CHECK(code == Code::Io);
}

TEST_CASE("T17: a sparse file of 100 GB is judged by its header, at once") {
	const Folder folder;
	auto sparse = [&](const std::vector<std::byte>& head) {
		const std::string path = folder.write("sparse.gguf", head);
		REQUIRE(truncate(path.c_str(), off_t(100) << 30) == 0);
		return path;
	};
	const uint64_t before = bytes_read();
	{ // only magic and version: no keys, no tensors
		std::vector<std::byte> head(8);
		std::memcpy(head.data(), "GGUF\3\0\0\0", 8);
		has(error_of([&] { open_model(sparse(head)); }), "bytes after the table of tensors belong to no tensor");
	}
	// a valid model with 100 GB after it
	has(error_of([&] { open_model(sparse(tiny_model().bytes())); }), "bytes after tensor output.weight belong to no");
	{ // a valid model that needs them
		GgufBuilder b = tiny_model();
		b.find("output.weight").dims[1] += (uint64_t(100) << 30) / 64;
		const std::string path = folder.write("sparse.gguf", b.bytes());
		const uint64_t bytes = b.bytes().size() + (uint64_t(100) << 30);
		REQUIRE(truncate(path.c_str(), off_t(bytes)) == 0);
		has(error_of([&] { open_model(path); }), "tensor output.weight is (");
	}
	{ // counts and lengths that fit the size of the file
		GgufBuilder b = tiny_model();
		b.n_tensors = 1000000000;
		has(error_of([&] { open_model(sparse(b.bytes())); }), "the number of tensors");
		b = tiny_model();
		b.array("big", GgufType::U8, uint64_t(50) << 30, "");
		has(error_of([&] { open_model(sparse(b.bytes())); }), "metadata is longer than 256 MiB");
		b = tiny_model();
		b.tensors.clear(); // so that only zeros, which are empty strings, follow
		b.array("big", GgufType::String, uint64_t(10) << 30, "");
		has(error_of([&] { open_model(sparse(b.bytes())); }), "metadata is longer than 256 MiB");
	}
	CHECK(bytes_read() - before < uint64_t(1) << 30); // each reads at most the limit of metadata
}

TEST_CASE("T18: a file that shrinks after it was opened is an error, one that is replaced does not matter") {
	const Folder folder;
	const auto bytes = tiny_model().bytes();
	const std::string path = folder.write("m.gguf", bytes);
	const Model m = open_model(path);
	const GgufTensor* t = m.file.find_tensor("output.weight");
	std::vector<std::byte> before(t->bytes), after(t->bytes);
	m.file.read(*t, 0, before);
	std::filesystem::rename(folder.write("other.gguf", std::vector<std::byte>(10)), path);
	m.file.read(*t, 0, after);
	CHECK(before == after);

	const Model cut = open_model(folder.write("cut.gguf", bytes));
	REQUIRE(truncate((folder.path / "cut.gguf").c_str(), off_t(bytes.size() / 2)) == 0);
	Code code{};
	has(error_of([&] { cut.file.read(*cut.file.find_tensor("output.weight"), 0, after); }, &code),
	    "do not change a file in use");
	CHECK(code == Code::Io);
	CHECK(cut.tokenizer.encode("ab") == m.tokenizer.encode("ab")); // metadata was copied
	CHECK(cut.file.text("general.name") == "tiny");
}

TEST_CASE("gguf: the shared models and vocabularies open") {
	for (const char* name : {"models/stories260K.gguf", "models/recall-4m-f16.gguf"}) {
		const std::string path = shared_asset(name);
		if (path.empty()) continue;
		const Model m = open_model(path);
		CHECK(m.config.arch == "llama");
		CHECK(m.config.vocab == m.tokenizer.vocab());
		CHECK(m.tokenizer.bos() == 1u);
	}
	const std::string vocab_only = shared_asset("vocab/ggml-vocab-llama-spm.gguf");
	if (!vocab_only.empty()) has(error_of([&] { open_model(vocab_only); }), "a vocabulary-only file cannot be run");
}
