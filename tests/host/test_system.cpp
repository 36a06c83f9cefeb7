// The system behind engine/core/system: the same on POSIX and on Windows.
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/system/process.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <doctest/doctest.h>
#include <random>
#include <span>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes(std::string_view s) { return std::as_bytes(std::span(s)); }

struct Folder { // with a name that no single-byte code page has
	std::string path;
	Folder() {
		static int number = 0;
		path = (fs::temp_directory_path() / "kvrun-system-").string() + std::to_string(sys::process_id()) + "-" +
		       std::to_string(++number) + "-\xe6\xa8\xa1\xe5\x9e\x8b \xc3\xa9";
		CHECK(sys::make_folder(path));
	}
	~Folder() {
		std::error_code ec;
		fs::remove_all(sys::path_of(path), ec);
	}
	std::string operator/(const char* name) const { return path + "/" + name; }
};

std::string text_of(const std::string& path) {
	const int fd = sys::open_file(path, sys::Open::Read);
	if (fd < 0) return "(none)";
	char text[100];
	const ptrdiff_t n = sys::read_file(fd, text);
	sys::close_file(fd);
	return {text, size_t(std::max<ptrdiff_t>(n, 0))};
}

} // namespace

TEST_CASE("system: a file with a UTF-8 name is created, written, replaced and removed") {
	const Folder folder;
	std::string name = folder / "new-XXXXXX.md", other = folder / "new-XXXXXX.md";
	const int fd = sys::create_unique(name, 3), second = sys::create_unique(other, 3);
	REQUIRE(fd >= 0);
	REQUIRE(second >= 0);
	CHECK(name != other);
	CHECK(name.ends_with(".md"));
	CHECK(sys::write_file(fd, bytes("one\r\ntwo")));
	CHECK(sys::write_at(fd, 2, bytes("E")));
	CHECK(sys::sync_file(fd));
	sys::FileInfo info;
	CHECK(sys::stat_file(fd, info));
	CHECK(info.bytes == 8);
	CHECK(sys::close_file(fd));
	CHECK(sys::close_file(second));
	const std::string target = folder / "target";
	CHECK(sys::replace_file(name, target));
	CHECK(text_of(target) == "onE\r\ntwo");
	const int reader = sys::open_file(target, sys::Open::Read);
#ifdef _WIN32 // it refuses that (tools/windows.md); nothing is lost
	CHECK(!sys::replace_file(other, target));
	CHECK(text_of(target) == "onE\r\ntwo");
#else
	CHECK(sys::replace_file(other, target)); // while it is being read
#endif
	std::byte old[3];
	CHECK(sys::read_at(reader, 5, old) == 3);
	CHECK(std::memcmp(old, "two", 3) == 0);
	sys::close_file(reader);
#ifdef _WIN32
	CHECK(sys::replace_file(other, target));
#endif
	CHECK(text_of(target).empty());
	CHECK(fs::exists(sys::path_of(target)));
	CHECK(sys::path_of(target).filename().string() == "target");
	CHECK(sys::path_of(target).parent_path().string() == folder.path);
	CHECK(sys::remove_file(target));
	errno = 0;
	CHECK(!sys::stat_file(target, true, info));
	CHECK(errno == ENOENT);
	errno = 0;
	CHECK(!sys::make_folder(folder.path));
	CHECK(errno == EEXIST);
	CHECK(sys::stat_file(folder.path, true, info));
	CHECK(info.kind == sys::FileKind::Folder);
	CHECK(sys::claim_folder(folder.path) == sys::Claim::Ours);
}

TEST_CASE("system: a name longer than 260 bytes") {
	const Folder folder;
	std::string deep = folder.path;
	for (int i = 0; i < 3; ++i) CHECK(sys::make_folder(deep += "/" + std::string(100, char('a' + i))));
	const int fd = sys::open_file(deep + "/file", sys::Open::Create);
	CHECK(fd >= 0);
	CHECK(sys::write_file(fd, bytes("deep")));
	sys::close_file(fd);
	CHECK(text_of(deep + "/file") == "deep");
}

TEST_CASE("system: a lock is held by one descriptor") {
	const Folder folder;
	const int a = sys::open_file(folder / "lock", sys::Open::Create),
	          b = sys::open_file(folder / "lock", sys::Open::Create);
	CHECK(sys::lock_file(a));
	CHECK(!sys::lock_file(b));
	sys::close_file(a);
	CHECK(sys::lock_file(b));
	sys::close_file(b);
}

TEST_CASE("system: pieces of an unnamed file are memory, and zeroed when they are given back") {
	const Folder folder;
	const int fd = sys::create_unnamed(folder.path);
	REQUIRE(fd >= 0);
	const size_t unit = sys::map_unit();
	REQUIRE(sys::reserve_room(fd, 0, 2 * unit) == 0);
	auto* memory = static_cast<char*>(sys::map_file(fd, unit, unit));
	REQUIRE(memory);
	CHECK(memory[0] == 0);
	CHECK(sys::prepare_write(memory, unit));
	std::memset(memory, 7, unit);
	std::byte read[4];
	CHECK(sys::read_at(fd, unit, read) == 4);
	CHECK(read[3] == std::byte(7));
	sys::unmap_file(memory, unit);
	sys::give_room(fd, unit, unit);
	memory = static_cast<char*>(sys::map_file(fd, unit, unit));
	REQUIRE(memory);
	CHECK(memory[unit - 1] == 0);
	sys::unmap_file(memory, unit);
	sys::close_file(fd);
}

TEST_CASE("system: an unnamed file has a name for this process, and any length") {
	const Folder folder;
	std::string name;
	const int fd = sys::create_unnamed(folder.path, &name);
	REQUIRE(fd >= 0);
	const std::string text = "twelve bytes";
	REQUIRE(sys::write_file(fd, std::as_bytes(std::span(text))));
	for (const uint64_t bytes : {uint64_t(1) << 36, uint64_t(6)}) {
		REQUIRE(sys::cut_file(fd, bytes));
		sys::FileInfo info;
		CHECK(sys::stat_file(fd, info));
		CHECK(info.bytes == bytes);
	}
	const int again = sys::open_file(name, sys::Open::Read);
	REQUIRE(again >= 0);
	char read[12] = "";
	CHECK(sys::read_file(again, read) == 6);
	CHECK(std::string(read) == "twelve");
	sys::close_file(again);
	sys::close_file(fd);
}

TEST_CASE("system: a command of the shell: its output without stderr, its exit code") {
	std::string out;
	CHECK(sys::run_shell("echo " + sys::shell_word("two  words"), out) == 0);
	CHECK(out.find("two  words") != out.npos);
	out.clear();
	CHECK(sys::run_shell("no-such-program-of-kvrun", out) != 0);
	CHECK(out == "");
	CHECK(sys::run_shell("exit 3", out) == 3);
}

TEST_CASE("system: processes, environment, machine") {
	CHECK(!sys::has_ended(sys::process_id()));
	CHECK(fs::exists(sys::path_of(sys::program_path())));
	sys::set_variable("KVRUN_TEST_VARIABLE", "\xe6\xa8\xa1");
	const std::vector<std::string> all = sys::environment();
	CHECK(std::ranges::find(all, "KVRUN_TEST_VARIABLE=\xe6\xa8\xa1") != all.end());
	CHECK(sys::memory_bytes() > (size_t(64) << 20));
	CHECK(sys::memory_free_bytes() <= sys::memory_bytes());
	CHECK(sys::resident_bytes(/*most_so_far=*/true) >= (size_t(1) << 20));
	bool missing = false;
	CHECK(sys::load_problem("no-such-library-of-kvrun", missing) != "");
	CHECK(missing);
}

TEST_CASE("system: text is found as std::string finds it; times are written as in the C locale") {
	std::mt19937 random(1);
	for (int i = 0; i < 2000; ++i) {
		std::string text, what;
		for (uint32_t n = random() % 40; n; --n) text += char('a' + random() % 2);
		for (uint32_t n = 1 + random() % 6; n; --n) what += char('a' + random() % 2);
		const size_t from = random() % (text.size() + 1);
		REQUIRE(sys::find_bytes(text, what, from) == text.find(what, from));
	}
	std::tm t{};
	t.tm_year = 126, t.tm_mon = 6, t.tm_mday = 4, t.tm_hour = 15, t.tm_min = 5, t.tm_wday = 6, t.tm_yday = 184;
	const std::pair<const char*, const char*> expected[] = {
	    {"%d", "04"},         {"%-d", "4"},       {"%_d", " 4"},      {"%e", " 4"},   {"%b", "Jul"},
	    {"%^b", "JUL"},       {"%B", "July"},     {"%A", "Saturday"}, {"%Y", "2026"}, {"%I", "03"},
	    {"%-I", "3"},         {"%p", "PM"},       {"%P", "pm"},       {"%j", "185"},  {"%T", "15:05:00"},
	    {"%F", "2026-07-04"}, {"%D", "07/04/26"}, {"%%", "%"}};
	for (const auto& [conversion, text] : expected) CHECK(sys::format_time(conversion, t) == text);
}
