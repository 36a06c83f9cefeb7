// A file that takes its name only when it is whole.
#include "engine/core/new_file.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include <cerrno>
#include <charconv>
#include <utility>

namespace kvrun {

namespace fs = std::filesystem;

void remove_leftovers(const fs::path& file) {
	const std::string begin = file.filename().string() + ".";
	std::error_code ec;
	for (fs::directory_iterator it(file.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
		const std::string name = it->path().filename().string();
		if (!name.starts_with(begin)) continue;
		int pid = 0;
		const char *first = name.data() + begin.size(), *last = name.data() + name.size();
		const auto [rest, error] = std::from_chars(first, last, pid);
		if (error != std::errc() || pid <= 0 || last - rest != 7 || *rest != '.') continue;
		if (sys::has_ended(pid)) sys::remove_file(it->path().string());
	}
}

void NewFile::fail_io(const char* what) const {
	const int error = errno;
	const Code code = error == ENOENT || error == ENOTDIR ? Code::NotFound : Code::Io;
	fail(code, "{}: {}: {}", one_line(path_), what, sys::error_text(error));
}

NewFile::NewFile(std::string path, Readers readers) : path_(std::move(path)), readers_(readers) {
	sys::FileInfo info;
	if (sys::stat_file(path_, /*follow_link=*/true, info) && !info.regular())
		fail(Code::Io, "{}: not a regular file; give another name", one_line(path_));
	remove_leftovers(sys::path_of(path_));
	std::string name = fmt::format("{}.{}.XXXXXX", path_, sys::process_id());
	fd_ = sys::create_unique(name);
	if (fd_ < 0) fail_io("no file can be made there");
	temporary_ = std::move(name);
}

NewFile::~NewFile() {
	if (fd_ >= 0) sys::close_file(fd_);
	if (!temporary_.empty()) sys::remove_file(temporary_);
}

void NewFile::write(std::span<const std::byte> from) {
	write_at(bytes_, from);
	bytes_ += from.size();
}

void NewFile::write_at(uint64_t at, std::span<const std::byte> from) {
	if (!sys::write_at(fd_, at, from)) fail_io("writing failed");
}

void NewFile::commit() {
	if (readers_ == Readers::ByUmask) sys::share_file(fd_); // not every file system keeps modes
	if (!sys::sync_file(fd_)) fail_io("writing failed");
	const int fd = std::exchange(fd_, -1);
	if (!sys::close_file(fd)) fail_io("writing failed");
	if (!sys::replace_file(temporary_, path_)) fail_io("the file cannot be replaced");
	temporary_.clear();
	sys::sync_folder(sys::path_of(path_).parent_path().string());
}

} // namespace kvrun
