// Tries the installed Vulkan drivers in helper processes.
//
// A helper says "begin" on its standard output when it starts, and "done" with its process id when the devices are
// listed: nothing else counts, for a driver may exit, or fork and let the copy go on. What it writes to stderr is where
// a crashing driver often says why.
#include "backends/vulkan/probe.h"
#include "backends/driver_memory.h"
#include "backends/vulkan/icd_files.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace kvrun::vk {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kQuiet{3000}; // time before the log names the drivers that are still running
constexpr std::chrono::milliseconds kPause{2};    // between two checks: the end of a process has no descriptor

std::string last_line(const std::string& text) {
	const size_t end = text.find_last_not_of("\r\n \t");
	if (end == text.npos) return "";
	const size_t begin = text.find_last_of("\r\n", end);
	return text.substr(begin == text.npos ? 0 : begin + 1, end - (begin == text.npos ? 0 : begin + 1) + 1);
}

// The environment of a helper that loads this driver only.
std::vector<std::string> environment_for(const std::string& icd) {
	std::vector<std::string> out;
	for (std::string& v : sys::environment())
		if (!v.starts_with("VK_DRIVER_FILES=") && !v.starts_with("VK_ICD_FILENAMES=")) out.push_back(std::move(v));
	out.push_back("VK_DRIVER_FILES=" + icd);
	out.push_back("VK_ICD_FILENAMES=" + icd); // the variable's name for older loaders
	return out;
}

class Trial { // one driver in one helper
 public:
	explicit Trial(const IcdFile& icd) : icd_(icd) {}
	Trial(Trial&&) = delete;

	const IcdFile& icd() const { return icd_; }
	const std::string& why() const { return why_; } // empty: no problem found
	bool running() const { return helper_.running(); }

	bool late() const { return late_; }

	void start(const std::string& helper);
	void look(); // reads its output, and checks whether it has ended
	void give_up(double seconds) {
		if (!running()) return;
		look();
		if (running() && begun()) {
			late_ = true;
			why_ = fmt::format("did not list its devices within {} s", seconds);
		}
		helper_.stop();
	}

 private:
	bool begun() const { return reported_.starts_with("begin\n"); }
	bool done() const { return reported_ == fmt::format("begin\ndone {}\n", helper_.id()); }
	void ended();

	const IcdFile& icd_;
	sys::HelperProcess helper_;
	std::string reported_, text_, why_;
	bool late_ = false; // refused only for taking too long: it may be faster the next time
};

// A probe that cannot run is no reason to refuse a device.
void Trial::start(const std::string& helper) {
	const std::string why = helper_.start(helper, environment_for(icd_.file));
	if (!why.empty()) log_at(1, "# {}: {}: drivers are not tried before they are used", helper, why);
}

void Trial::look() {
	if (!running()) return;
	const bool over = helper_.look(reported_, text_);
	if (!done() && over) ended();
	if (done() || over) helper_.stop();
}

void Trial::ended() {
	if (!begun()) { // the helper itself does not run here, which is not the driver's fault
		log_at(1, "# the helper that tries drivers ended before it began: {}", one_line(last_line(text_)));
		return;
	}
	const std::string said = one_line(last_line(text_));
	const sys::HelperProcess::End end = helper_.end();
	if (!end.crash.empty())
		why_ = fmt::format("crashed with {}", end.crash);
	else if (end.known)
		why_ = fmt::format("ended its process with exit code {} instead of listing its devices", end.code);
	else // somebody else waited for it
		why_ = "ended its process instead of listing its devices";
	if (!said.empty()) why_ += ": " + said;
}

// Tries all drivers in parallel, each in its own helper.
std::vector<std::unique_ptr<Trial>> try_all(const std::vector<const IcdFile*>& drivers, const std::string& helper,
                                            double seconds) {
	std::vector<std::unique_ptr<Trial>> trials;
	for (const IcdFile* d : drivers) trials.push_back(std::make_unique<Trial>(*d));
	for (auto& t : trials) t->start(helper);
	const Clock::time_point start = Clock::now();
	const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
	for (bool said = false;;) {
		bool running = false;
		for (auto& t : trials) t->look(), running |= t->running();
		const Clock::time_point now = Clock::now();
		if (!running || now >= end) break;
		if (!said && now >= start + kQuiet) {
			said = true;
			for (auto& t : trials)
				if (t->running())
					log_line(0, fmt::format("waiting for driver {}, {} s at most", t->icd().file, seconds));
		}
		std::this_thread::sleep_for(kPause);
	}
	for (auto& t : trials) t->give_up(seconds);
	return trials;
}

struct Memo { // results of this process
	std::mutex mutex;
	bool full = false;
	std::string key, key_after; // identify the drivers tried; after the loader was told to leave drivers out
	Drivers drivers;
};
Memo& memo() {
	static Memo m;
	return m;
}

std::string key_of(const BackendOptions& o) {
	return fmt::format("{} {}\n{}\n{}\n{}", o.probe, o.probe_seconds, o.cache_dir, bool(o.set_driver_files),
	                   driver_environment(true));
}

Drivers find_bad(const BackendOptions& o) {
	Drivers out;
	const std::vector<IcdFile> all = icd_files();
	DriverMemory known(sys::path_of(o.probe.empty() ? "" : o.cache_dir));
	std::vector<const IcdFile*> good, untried;
	const auto refuse = [&](const IcdFile& icd, const std::string& why) { out.bad.push_back({icd.file, why}); };
	for (const IcdFile& icd : all) {
		const std::string* before = known.find(icd.file, driver_build(icd));
		if (!icd.problem.empty())
			refuse(icd, icd.problem);
		else if (before && !before->empty())
			refuse(icd, *before + " (remembered; `kvrun devices --retry` tries it again)");
		else if (o.probe.empty())
			good.push_back(&icd);
		else
			untried.push_back(&icd);
	}
	if (!untried.empty()) {
		for (const auto& t : try_all(untried, o.probe, o.probe_seconds))
			if (t->why().empty()) {
				good.push_back(&t->icd());
			} else {
				refuse(t->icd(), t->why());
				if (!t->late()) known.add(t->icd().file, driver_build(t->icd()), t->why());
			}
		known.save();
	}
	for (const IcdFile* icd : good) {
		if (!out.good.empty()) out.good += sys::kListSeparator;
		out.good += icd->file;
	}
	return out;
}

} // namespace

Drivers probe_drivers(const BackendOptions& o) {
	Memo& m = memo();
	std::lock_guard lock(m.mutex);
	const std::string key = key_of(o);
	if (m.full && (key == m.key || key == m.key_after)) return m.drivers;
	m.full = false;
	m.drivers = find_bad(o);
	// a path that does not exist, so that the loader does not use its own search
	if (!m.drivers.bad.empty() && o.set_driver_files)
		o.set_driver_files(m.drivers.good.empty() ? "/nonexistent/no-driver-is-good.json" : m.drivers.good);
	m.key = key, m.key_after = key_of(o);
	m.full = true;
	return m.drivers;
}

} // namespace kvrun::vk
