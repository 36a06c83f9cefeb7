// The app's files: one per conversation and one for settings, written by a separate thread so that no frame waits.
#include "tools/desktop/store.h"
#include "tools/text.h"
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <xxhash.h>

namespace kvrun::desktop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "settings";    // name of their file
constexpr size_t kMostBytes = size_t(256) << 20; // of a conversation

// A file that a second start of the program writes, and the first one removes when it shows its window.
fs::path call_file(const std::string& folder) { return fs::path(folder) / "call"; }

} // namespace

bool call_window(const std::string& folder, double seconds) {
	const fs::path file = call_file(folder);
	write_private_file(file.string(), "");
	std::error_code ec;
	const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
	while (std::chrono::steady_clock::now() < end) {
		if (!fs::exists(file, ec)) return true;
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
	}
	return !fs::remove(file, ec); // gone: at the last moment
}

std::string default_folder() {
	const std::string state = state_folder();
	if (state.empty()) fail_status(KVRUN_ENOTFOUND, "there is no folder for conversations: set XDG_STATE_HOME or HOME");
	return state + "/desktop";
}

Store::Store(std::string folder) : folder_(std::move(folder)) {
	make_private_folder(folder_);
	std::error_code ec;
	lock_.emplace(folder_ + "/lock");
	if (!lock_->held())
		fail_status(KVRUN_EBUSY,
		            "{}: another kvrun-desktop has these conversations open; use that one, or --state FOLDER", folder_);
	take_call();                                                  // of a program that has ended
	for (const auto& entry : fs::directory_iterator(folder_, ec)) // removes files of a killed program
		if (entry.path().filename().string().find(std::string(".json") + kUnfinished) != std::string::npos)
			fs::remove(entry.path(), ec);
	thread_ = std::thread([this] { run(); });
}

Store::~Store() {
	{
		std::lock_guard lock(mutex_);
		ending_ = true;
	}
	wake_.notify_all();
	thread_.join();
}

bool Store::take_call() const {
	std::error_code ec;
	return fs::remove(call_file(folder_), ec);
}

std::string Store::put_aside(const std::string& file) {
	std::error_code ec;
	std::string name = file + ".damaged";
	for (int i = 2; fs::exists(fs::symlink_status(name, ec)); ++i) name = fmt::format("{}.damaged-{}", file, i);
	fs::rename(file, name, ec);
	return ec ? "" : name;
}

Store::Saved Store::read() {
	Saved out;
	const auto report = [&](const std::string& text) { out.problem += (out.problem.empty() ? "" : "\n") + text; };
	std::error_code ec;
	std::vector<fs::path> files; // listed first: settings may be renamed
	for (const auto& entry : fs::directory_iterator(folder_, ec))
		if (entry.path().extension() == ".json") files.push_back(entry.path());
	for (const fs::path& p : files) {
		const bool settings = p.stem() == kSettings;
		try {
			const std::string text = read_private_file(p.string(), kMostBytes);
			if (settings) {
				out.settings = settings_from_json(text, p.string());
			} else {
				out.conversations.push_back(conversation_from_json(text, p.string()));
				out.conversations.back().id = p.stem().string();
			}
		} catch (const StatusError& e) {
			const std::string said = e.what();
			if (!settings) {
				report(said + ". It was left as it is.");
			} else if (const std::string name = put_aside(p.string()); !name.empty()) {
				report(said + ". The usual settings are used. The file is now " + name + ".");
			} else {
				keeps_settings_ = true;
				report(said + ". The usual settings are used. The file was left as it is, and settings are not saved.");
			}
		}
	}
	return out;
}

void Store::save(const Conversation& c) { put(path(c.id), to_json(c)); }
void Store::save(const Settings& s) {
	if (!keeps_settings_) put(path(kSettings), to_json(s));
}
void Store::remove(const std::string& id) { put(path(id), {}); }

std::string Store::add_image(std::string_view content, std::string_view extension) {
	make_private_folder(images_folder());
	const std::string name =
	    fmt::format("{:016x}.{}", uint64_t(XXH3_64bits(content.data(), content.size())), extension);
	const std::string file = images_folder() + "/" + name;
	std::error_code ec;
	if (!fs::exists(file, ec)) write_private_file(file, content);
	return name;
}

void Store::keep_images_of(const std::vector<Conversation>& all) const {
	std::set<std::string> kept;
	for (const Conversation& c : all)
		for (const Message& m : c.messages) kept.insert(m.images.begin(), m.images.end());
	std::error_code ec;
	std::vector<fs::path> gone;
	for (const auto& entry : fs::directory_iterator(images_folder(), ec))
		if (!kept.count(entry.path().filename().string())) gone.push_back(entry.path());
	for (const fs::path& p : gone) fs::remove(p, ec);
}

void Store::put(const std::string& file, std::optional<std::string> content) {
	{
		std::lock_guard lock(mutex_);
		waiting_[file] = std::move(content); // replaces older content that is not written yet
	}
	wake_.notify_all();
}

void Store::flush() {
	std::unique_lock lock(mutex_);
	idle_.wait(lock, [&] { return waiting_.empty() && !writing_; });
}

std::string Store::take_problem() {
	std::lock_guard lock(mutex_);
	return std::exchange(problem_, {});
}

void Store::run() {
	std::unique_lock lock(mutex_);
	for (;;) {
		wake_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
		if (waiting_.empty()) return;
		const auto next = waiting_.extract(waiting_.begin());
		writing_ = true;
		lock.unlock();
		std::string problem;
		std::error_code ec;
		try {
			if (next.mapped())
				write_private_file(next.key(), *next.mapped());
			else if (fs::remove(next.key(), ec); ec)
				problem = fmt::format("{}: {}", next.key(), ec.message());
		} catch (const std::exception& e) { problem = e.what(); }
		lock.lock();
		writing_ = false;
		if (!problem.empty()) problem_ = "Not saved: " + problem + ". Make room or check the folder's permissions.";
		if (waiting_.empty()) idle_.notify_all();
	}
}

} // namespace kvrun::desktop
