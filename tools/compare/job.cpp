// Jobs of a comparison, each in its own process: a driver that crashes or hangs ends only its job, and finished jobs do
// not run again.
#include "engine/core/new_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "tools/commands.h"
#include "tools/compare/job_process.h"
#include "tools/terminal.h"
#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>

namespace kvrun::comparison {
namespace {

namespace fs = std::filesystem;

void write_json(const std::string& path, const Json& j) {
	const std::string text = json_lines(j);
	NewFile file(path, Readers::ByUmask);
	file.write(std::as_bytes(std::span(text)));
	file.commit();
}

// Null if the file does not exist or is not JSON.
Json read_json(const std::string& path) {
	std::ifstream in(sys::path_of(path));
	return in ? Json::parse(in, nullptr, /*allow_exceptions=*/false) : Json();
}

std::string read_text(const std::string& path) {
	std::ifstream in(sys::path_of(path), std::ios::binary);
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

// `ended`: by run_apart(). A crash is said even where the log has words.
std::string how_it_ended(const std::string& ended, const std::string& log) {
	const std::string words = last_words(log);
	if (!ended.starts_with("exit code")) return fmt::format("ended by {}{}{}", ended, words.empty() ? "" : ": ", words);
	return words.empty() ? "ended with " + ended : words;
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

void write_part(const std::string& part, const Job& u) { write_json(part, {{"key", u.key}, {"result", u.work()}}); }

Json run_job(const Options& o, const Job& u, double done, double seconds_left) {
	const std::string part = fmt::format("{}/parts/{}.json", o.folder, u.name),
	                  log = fmt::format("{}/parts/{}.log", o.folder, u.name), only = only_job();
	const Json kept = o.again && only.empty() ? Json() : read_json(part);
	if (kept.is_object() && kept.contains("key") && kept.contains("result") && kept["key"] == u.key)
		return kept["result"];
	if (only == u.name) {
		write_part(part, u);
		throw Exit{0};
	}
	if (!only.empty()) return {{"error", "failed before"}};
	std::error_code ignored;
	fs::remove(sys::path_of(part), ignored);
	std::fflush(nullptr);
	const auto start = std::chrono::steady_clock::now();
	Interrupt interrupt;
	Progress progress;
	const std::string ended = run_apart(u, part, log, [&] { progress.show(u.name, done, seconds_left); });
	progress.clear();
	if (Interrupt::requested()) throw Exit{kInterrupted};
	const double seconds = seconds_since(start);
	const Json made = read_json(part);
	if (!ended.empty() || !made.is_object()) {
		fs::remove(sys::path_of(part), ignored);
		const std::string error = how_it_ended(ended.empty() ? "exit code 0" : ended, log);
		say_stats(fmt::format("{}: {}", u.name, error));
		return {{"error", error}};
	}
	fs::remove(sys::path_of(log), ignored);
	say_stats(fmt::format("{}: {:.1f} s", u.name, seconds));
	return made["result"];
}

// Standard output goes to a file meanwhile. The user's settings are for commands that the user starts: what is compared
// depends on the options of kvrun compare alone, which are part of a job's key.
Json run_command(const std::vector<std::string>& words) {
	std::fflush(stdout);
	const int out = sys::create_unnamed(fs::temp_directory_path().string()), before = sys::copy_descriptor(1);
	if (out < 0 || before < 0) fail(Code::Io, "no temporary file can be made: {}", sys::error_text(errno));
	sys::replace_descriptor(out, 1);
	const int code = run_words(words, /*settings=*/false);
	std::fflush(stdout);
	sys::replace_descriptor(before, 1);
	sys::close_file(before);
	sys::FileInfo info;
	std::string text(sys::stat_file(out, info) ? size_t(info.bytes) : 0, 0);
	for (size_t at = 0; at < text.size();) {
		const ptrdiff_t n = sys::read_at(out, at, std::as_writable_bytes(std::span(text)).subspan(at));
		if (n <= 0) text.resize(at);
		if (n > 0) at += size_t(n);
	}
	sys::close_file(out);
	if (code == kInterrupted) throw Exit{code};
	if (code == 0 && text.empty()) return {}; // a command that writes files
	Json j = Json::parse(text, nullptr, /*allow_exceptions=*/false);
	// it printed the reason on stderr; what it finished before an error is no result of a stage
	if (code != 0 && (j.is_discarded() || j.empty() || j.contains("error"))) throw Exit{code};
	if (j.is_discarded()) fail(Code::Internal, "kvrun {} printed no JSON", words.empty() ? "" : words[0]);
	return j;
}

} // namespace kvrun::comparison
