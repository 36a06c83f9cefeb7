// Files of a repository into the hub's cache on this machine.
#include "tools/hub/fetch.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/commands.h"
#include "tools/hub/checksum.h"
#include "tools/hub/folders.h"
#include "tools/hub/http.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kReserve = uint64_t(64) << 20; // bytes of the disk that must stay free
constexpr int kTries = 4;                         // consecutive attempts without progress

bool is_no_room(int error) {
#ifdef EDQUOT
	if (error == EDQUOT) return true;
#endif
	return error == ENOSPC || error == EFBIG;
}

[[noreturn]] void fail_file(const fs::path& p, int error) {
	fail(Code::Io, "{}: {}{}", one_line(p.string()), sys::error_text(error),
	     is_no_room(error) ? "; HF_HUB_CACHE names another folder" : "");
}

void make_folder(const fs::path& p) {
	std::error_code ec;
	fs::create_directories(p, ec);
	if (ec) fail(Code::Io, "{}: {}; HF_HUB_CACHE names another folder", one_line(p.string()), ec.message());
}

fs::path blob_path(const RemoteRepo& r, const HubFile& f) { return repo_folder(r.repo) / "blobs" / content_name(f); }
fs::path part_path(const RemoteRepo& r, const HubFile& f) { return blob_path(r, f) += ".incomplete"; }

uint64_t size_of(const fs::path& p) {
	std::error_code ec;
	const uint64_t n = fs::file_size(p, ec);
	return ec ? 0 : n;
}

// Lets only one program at a time fetch a file; huggingface_hub uses the same lock.
class DownloadLock {
 public:
	DownloadLock(const RemoteRepo& r, const HubFile& f) {
		const fs::path repo = repo_folder(r.repo), folder = repo.parent_path() / ".locks" / repo.filename();
		make_folder(folder);
		path_ = folder / (content_name(f) + ".lock");
		fd_ = sys::open_file(path_.string(), sys::Open::CreateShared);
		if (fd_ < 0) fail_file(path_, errno);
		if (!sys::lock_file(fd_)) {
			sys::close_file(fd_);
			fail(Code::Io, "another program fetches {}; wait for it, or end it", one_line(f.path));
		}
	}
	~DownloadLock() { sys::close_file(fd_); }
	DownloadLock(const DownloadLock&) = delete;

 private:
	fs::path path_;
	int fd_ = -1;
};

class PartFile {
 public:
	explicit PartFile(const fs::path& p) : path_(p) {
		fd_ = sys::open_file(p.string(), sys::Open::CreateShared);
		if (fd_ < 0) fail_file(p, errno);
		sys::FileInfo info;
		if (!sys::stat_file(fd_, info) || !info.regular()) {
			sys::close_file(fd_);
			fail(Code::Io, "{}: is not a file; remove it", one_line(p.string()));
		}
		bytes_ = info.bytes;
	}
	~PartFile() {
		if (fd_ >= 0) sys::close_file(fd_);
	}
	PartFile(const PartFile&) = delete;

	uint64_t bytes() const { return bytes_; }
	void cut(uint64_t bytes) {
		if (!sys::cut_file(fd_, bytes)) fail_file(path_, errno);
		bytes_ = bytes;
	}
	void append(std::span<const std::byte> data) {
		if (!sys::write_at(fd_, bytes_, data)) fail_file(path_, errno);
		bytes_ += data.size();
	}
	void read_into(Checksum& sum) const {
		std::vector<std::byte> piece(size_t(1) << 20);
		for (uint64_t at = 0; at < bytes_;) {
			const ptrdiff_t n = sys::read_at(fd_, at, piece);
			if (n <= 0) fail_file(path_, n < 0 ? errno : EIO);
			sum.add({piece.data(), size_t(n)});
			at += uint64_t(n);
		}
	}
	void finish() { // on the disk, and closed: Windows renames no open file
		if (!sys::sync_file(fd_)) fail_file(path_, errno);
		sys::close_file(fd_);
		fd_ = -1;
	}

 private:
	fs::path path_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
};

// Shows progress over all files: a bar on a terminal, else lines at intervals.
class Meter {
 public:
	Meter(std::string name, uint64_t total, uint64_t here)
	    : name_(std::move(name)), total_(total), done_(here), came_(0) {}
	void set_file(const std::string& what) { what_ = what; }
	void add(int64_t n) {
		done_ = uint64_t(int64_t(done_) + n);
		if (n > 0) came_ += uint64_t(n);
		const double share = total_ ? double(done_) / double(total_) : 0;
		const double left = seconds_left();
		bar_.show(what_, share, left);
		if (stderr_is_terminal() || n <= 0 || Clock::now() - said_ < kPause) return;
		said_ = Clock::now();
		say_stats(fmt::format("{}: {:.0f} % of {}, {}/s, {:.0f} s left", name_, share * 100,
		                      human_bytes(double(total_)), human_bytes(speed()), left));
	}
	void clear() { bar_.clear(); }

 private:
	static constexpr std::chrono::seconds kPause{10};
	double speed() const {
		return double(came_) / std::max(std::chrono::duration<double>(Clock::now() - began_).count(), 1e-3);
	}
	double seconds_left() const { return came_ ? double(total_ - std::min(total_, done_)) / speed() : 0; }
	std::string name_, what_;
	uint64_t total_, done_, came_;
	Clock::time_point began_ = Clock::now(), said_ = began_;
	Progress bar_;
};

long patience() { // by huggingface_hub's variable
	const char* text = std::getenv("HF_HUB_DOWNLOAD_TIMEOUT");
	long v = 0;
	if (!text || std::from_chars(text, text + std::char_traits<char>::length(text), v).ec != std::errc() || v < 1)
		return 30;
	return v;
}

// Fetches bytes [part.bytes(), to) of a file, over as many connections as needed.
void fetch_range(const RemoteRepo& r, const HubFile& f, PartFile& part, uint64_t to, std::optional<Checksum>& sum,
                 Meter& meter) {
	const std::string url = file_url(r, f), token = hub_token();
	std::exception_ptr broken;    // exception inside libcurl's callbacks
	uint64_t most = part.bytes(); // largest size reached so far
	for (int tries = 0; part.bytes() < to;) {
		const uint64_t before = part.bytes();
		RangeRequest q{url, token, before, to, {}, {}, {}, patience()};
		q.begin = [&](uint64_t first) {
			if (first == part.bytes()) return;
			meter.add(-int64_t(part.bytes())); // the server sends the whole file again
			part.cut(0);
			if (sum) sum.emplace(f);
		};
		q.data = [&](std::span<const std::byte> d) {
			try {
				const uint64_t room = to - part.bytes();
				const bool last = d.size() >= room;
				d = d.first(std::min<uint64_t>(d.size(), room));
				part.append(d);
				if (sum) sum->add(d);
				meter.add(int64_t(d.size()));
				return !last;
			} catch (...) { return broken = std::current_exception(), false; }
		};
		q.go_on = [] { return !Interrupt::requested(); };
		const HttpReply reply = get_range(q);
		if (broken) std::rethrow_exception(broken);
		if (Interrupt::requested()) {
			meter.clear();
			say_stats("stopped; what has come is kept, and the same command goes on");
			throw Exit{kInterrupted};
		}
		if (part.bytes() >= to) return;
		const std::string what = "the file " + one_line(f.path);
		const bool temporary = !reply.error.empty() || reply.status < 300 || reply.status == 408 ||
		                       reply.status == 416 || reply.status == 429 || reply.status >= 500;
		if (part.bytes() > most) tries = 0, most = part.bytes();
		if (!temporary || ++tries >= kTries || (reply.unreachable && tries >= 2)) {
			meter.clear();
			if (!reply.error.empty() && !reply.unreachable && part.bytes() > 0)
				fail(Code::Io, "the transfer of {} was cut {} times at {} of {} bytes ({}); the same command goes on",
				     what, tries, part.bytes(), f.bytes, one_line(reply.error));
			if (reply.error.empty() && reply.status < 300)
				fail(Code::Io, "the hub sends {} of {} bytes of {}; try again later", part.bytes(), f.bytes, what);
			fail_reply(reply, what);
		}
		for (int i = 0; i < 1 << tries && !Interrupt::requested(); ++i) // 0.2, 0.4, 0.8 .. s
			std::this_thread::sleep_for(std::chrono::milliseconds(100));
	}
}

// Creates snapshots/COMMIT/PATH: a link to the blob, or the file itself where the file system has no links.
void give_name(const RemoteRepo& r, const HubFile& f) {
	const fs::path path = snapshot_path(r, f), blob = blob_path(r, f);
	std::error_code ec;
	make_folder(path.parent_path());
	if (fs::exists(path, ec)) return;
	fs::remove(path, ec); // removes a dangling link
	fs::create_symlink(blob.lexically_relative(path.parent_path()), path, ec);
	if (!ec || fs::exists(path)) return;
	fs::create_hard_link(blob, path, ec);
	if (ec) fs::rename(blob, path, ec);
	if (ec) fail(Code::Io, "{}: {}", one_line(path.string()), ec.message());
}

void write_ref(const RemoteRepo& r) {
	const fs::path ref = repo_folder(r.repo) / "refs" / "main";
	make_folder(ref.parent_path());
	fs::path fresh = ref;
	fresh += fmt::format(".{}", sys::process_id());
	std::ofstream(fresh, std::ios::binary) << r.commit;
	std::error_code ec;
	fs::rename(fresh, ref, ec);
	if (ec) fail(Code::Io, "{}: {}", one_line(ref.string()), ec.message());
}

bool is_here(const RemoteRepo& r, const HubFile& f) {
	return size_of(blob_path(r, f)) == f.bytes || size_of(snapshot_path(r, f)) == f.bytes;
}

void fetch_file(const RemoteRepo& r, const HubFile& f, Meter& meter) {
	const DownloadLock lock(r, f);
	if (is_here(r, f)) return; // another program has fetched it
	const fs::path path = part_path(r, f);
	PartFile part(path);
	if (part.bytes() > f.bytes) part.cut(0);
	const bool resumed = part.bytes() > 0;
	for (bool again = false;; again = true) {
		std::optional<Checksum> sum(std::in_place, f);
		part.read_into(*sum);
		fetch_range(r, f, part, f.bytes, sum, meter);
		if (sum->is_right()) break;
		meter.add(-int64_t(part.bytes()));
		part.cut(0);
		if (again || !resumed) {
			meter.clear();
			std::error_code ec;
			fs::remove(path, ec);
			fail(Code::Format, "{} came with another content than the hub says ({}); nothing of it is kept, try again",
			     one_line(f.path), f.sha256.empty() ? "SHA-1" : "SHA-256");
		}
	}
	part.finish();
	if (!sys::replace_file(path.string(), blob_path(r, f).string())) fail_file(path, errno);
}

} // namespace

fs::path snapshot_path(const RemoteRepo& r, const HubFile& f) {
	return repo_folder(r.repo) / "snapshots" / r.commit / sys::path_of(f.path);
}

uint64_t bytes_here(const RemoteRepo& r, const HubFile& f) {
	return is_here(r, f) ? f.bytes : std::min(size_of(part_path(r, f)), f.bytes);
}

void check_room(const RemoteRepo& r, const std::vector<HubFile>& files) {
	const fs::path folder = repo_folder(r.repo);
	uint64_t missing = 0;
	for (const HubFile& f : files) missing += f.bytes - bytes_here(r, f);
	make_folder(folder / "blobs");
	std::error_code ec;
	const fs::space_info space = fs::space(folder, ec);
	if (ec || space.available >= missing + kReserve) return;
	fail(Code::Io, "{} more are needed in {}, and {} are free; make room, or name another folder in HF_HUB_CACHE",
	     human_bytes(double(missing)), one_line(folder.string()), human_bytes(double(space.available)));
}

fs::path fetch_beginning(const RemoteRepo& r, const HubFile& f, uint64_t bytes) {
	if (is_here(r, f)) return size_of(blob_path(r, f)) ? blob_path(r, f) : snapshot_path(r, f);
	make_folder(repo_folder(r.repo) / "blobs");
	const DownloadLock lock(r, f);
	const Interrupt interrupt;
	PartFile part(part_path(r, f));
	std::optional<Checksum> none;
	const uint64_t to = std::min(bytes, f.bytes);
	Meter meter("header", to, part.bytes());
	meter.set_file("header");
	fetch_range(r, f, part, to, none, meter);
	return part_path(r, f);
}

fs::path fetch_files(const RemoteRepo& r, const std::vector<HubFile>& files) {
	check_room(r, files);
	uint64_t total = 0, here = 0;
	for (const HubFile& f : files) total += f.bytes, here += bytes_here(r, f);
	const Interrupt interrupt;
	Meter meter(r.repo, total, here);
	for (size_t i = 0; i < files.size(); ++i) {
		meter.set_file(files.size() > 1 ? fmt::format("part {}/{}", i + 1, files.size()) : "fetching");
		if (!is_here(r, files[i])) fetch_file(r, files[i], meter);
		give_name(r, files[i]);
	}
	meter.clear();
	write_ref(r);
	return snapshot_path(r, files.front());
}

} // namespace kvrun
