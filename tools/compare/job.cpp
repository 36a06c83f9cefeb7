// Jobs of a comparison, each in its own process: a driver that crashes or hangs ends only its job, and finished jobs do
// not run again.
#include "engine/core/new_file.h"
#include "engine/core/utf8.h"
#include "tools/commands.h"
#include "tools/compare/compare.h"
#include "tools/terminal.h"
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvrun::comparison {
namespace {

namespace fs = std::filesystem;

void write_json(const std::string& path, const Json& j) {
	const std::string text = json_lines(j);
	NewFile file(path);
	file.write(std::as_bytes(std::span(text)));
	file.commit();
}

// Null if the file does not exist or is not JSON.
Json read_json(const std::string& path) {
	std::ifstream in(path);
	return in ? Json::parse(in, nullptr, /*allow_exceptions=*/false) : Json();
}

std::string read_text(const std::string& path) {
	std::ifstream in(path, std::ios::binary);
	return {std::istreambuf_iterator<char>(in), {}};
}

// The message of the last "error: " line; else the last line.
std::string last_words(const std::string& log) {
	std::string error, last;
	for (const std::string& line : split(read_text(log), '\n')) {
		if (line.starts_with("error: ")) error = line.substr(7);
		if (!line.empty()) last = line;
	}
	return one_line(error.empty() ? last : error, 600);
}

[[noreturn]] void child(const Job& u, const std::string& part, const std::string& log) {
	const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd >= 0) ::dup2(fd, 2);
	int code = 0;
	try {
		write_json(part, {{"key", u.key}, {"result", u.work()}});
	} catch (const Exit& e) { code = e.code ? e.code : 1; } catch (const std::exception& e) {
		const std::string line = fmt::format("error: {}\n", one_line(e.what(), 4000));
		code = ::write(2, line.data(), line.size()) < 0 ? 2 : 1;
	}
	std::fflush(nullptr);
	::_exit(code); // must not close the parent's streams and drivers
}

// Waits for the child; a second Ctrl-C ends this program and, by the terminal, the child.
int wait_for(pid_t pid, const std::function<void()>& tick) {
	int status = 0;
	for (;;) {
		const pid_t got = ::waitpid(pid, &status, WNOHANG);
		if (got == pid) return status;
		if (got < 0 && errno != EINTR) fail(Code::Internal, "waitpid: {}", std::strerror(errno));
		tick();
		std::this_thread::sleep_for(std::chrono::milliseconds(50));
	}
}

std::string how_it_ended(int status, const std::string& log) {
	const std::string words = last_words(log);
	if (WIFSIGNALED(status))
		return fmt::format("ended by signal {} ({}){}{}", WTERMSIG(status), strsignal(WTERMSIG(status)),
		                   words.empty() ? "" : ": ", words);
	return words.empty() ? fmt::format("ended with exit code {}", WEXITSTATUS(status)) : words;
}

} // namespace

std::vector<std::string> split(const std::string& text, char at) {
	std::vector<std::string> out;
	for (size_t begin = 0; begin < text.size();) {
		const size_t end = std::min(text.find(at, begin), text.size());
		if (end > begin) out.push_back(text.substr(begin, end - begin));
		begin = end + 1;
	}
	return out;
}

Json run_job(const Options& o, const Job& u, double done, double seconds_left) {
	const std::string part = fmt::format("{}/parts/{}.json", o.folder, u.name),
	                  log = fmt::format("{}/parts/{}.log", o.folder, u.name);
	const Json kept = o.again ? Json() : read_json(part);
	if (kept.is_object() && kept.contains("key") && kept.contains("result") && kept["key"] == u.key)
		return kept["result"];
	std::error_code ignored;
	fs::remove(part, ignored);
	std::fflush(nullptr);
	const auto start = std::chrono::steady_clock::now();
	Interrupt interrupt;
	const pid_t pid = ::fork();
	if (pid < 0) fail(Code::Internal, "no process can be made: {}", std::strerror(errno));
	if (pid == 0) child(u, part, log);
	Progress progress;
	const int status = wait_for(pid, [&] { progress.show(u.name, done, seconds_left); });
	progress.clear();
	if (Interrupt::requested()) throw Exit{kInterrupted};
	const double seconds = seconds_since(start);
	const Json made = read_json(part);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !made.is_object()) {
		fs::remove(part, ignored);
		const std::string error = how_it_ended(status, log);
		say_stats(fmt::format("{}: {}", u.name, error));
		return {{"error", error}};
	}
	fs::remove(log, ignored);
	say_stats(fmt::format("{}: {:.1f} s", u.name, seconds));
	return made["result"];
}

Json run_command(const std::vector<std::string>& words) {
	std::fflush(stdout);
	std::FILE* out = std::tmpfile();
	const int before = ::dup(1);
	if (!out || before < 0) fail(Code::Io, "no temporary file can be made: {}", std::strerror(errno));
	::dup2(::fileno(out), 1);
	const int code = run_words(words);
	std::fflush(stdout);
	::dup2(before, 1);
	::close(before);
	std::string text(size_t(std::max(0l, (std::fseek(out, 0, SEEK_END), std::ftell(out)))), 0);
	std::rewind(out);
	text.resize(std::fread(text.data(), 1, text.size(), out));
	std::fclose(out);
	if (code == kInterrupted) throw Exit{code};
	if (code == 0 && text.empty()) return {}; // a command that writes files
	Json j = Json::parse(text, nullptr, /*allow_exceptions=*/false);
	if (code != 0 && (j.is_discarded() || j.empty())) throw Exit{code}; // it printed the reason on stderr
	if (j.is_discarded()) fail(Code::Internal, "kvrun {} printed no JSON", words.empty() ? "" : words[0]);
	return j;
}

} // namespace kvrun::comparison
