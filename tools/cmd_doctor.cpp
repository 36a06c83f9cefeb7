// kvrun doctor: checks everything that a run needs in turn, and prints one line that says whether it will work.
#include "backends/vulkan/icd_files.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/commands_setup.h"
#include "tools/config_file.h"
#include "tools/doctor.h"
#include "tools/env.h"
#include "tools/host.h"
#include "tools/hub/folders.h"
#include "tools/hub/http.h"
#include "tools/hub/local.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

// ---- Vulkan

void look_at_drivers(Checkup& f) {
	const std::vector<vk::IcdFile> files = vk::icd_files();
	if (files.empty()) f.bad("Vulkan drivers", kWhereDriversComeFrom);
	for (const vk::IcdFile& i : files) {
		const std::string text = one_line(i.file) + (i.library.empty() ? "" : " -> " + one_line(i.library));
		if (!i.problem.empty())
			f.bad("Vulkan driver", text + ": " + one_line(i.problem));
		else if (sys::FileInfo info;
		         sys::path_of(i.library).has_parent_path() && !sys::stat_file(i.library, /*follow_link=*/true, info))
			f.bad("Vulkan driver", text + ": the library is not there");
		else
			f.ok("Vulkan driver", text);
	}
}

// An installation may lack it. KVRUN_PROBE has a line of its own, with the other variables.
void look_at_probe(Checkup& f) {
	if (!env_text(Env::Probe).empty()) return;
	if (const std::string probe = probe_program(); !probe.empty()) return f.ok("driver probe", one_line(probe));
	f.note("driver probe",
	       "there is no kvrun-probe beside kvrun, so a driver that crashes ends kvrun, too; install it, "
	       "or name it in KVRUN_PROBE");
}

// Time limits after which the system resets a GPU, whose work is then lost.
void look_at_watchdog(Checkup& f) {
	const double submit = env_number(Env::SubmitMs, 100);
	const std::string limits = gpu_time_limits(),
	                  ours = fmt::format("work is given to the device in pieces of about {:.0f} ms (KVRUN_SUBMIT_MS)",
	                                     submit);
	if (submit > 1000)
		f.note("watchdog", ours + ": more than a second can make the system reset the GPU");
	else
		f.ok("watchdog", limits.empty() ? ours : fmt::format("{}; {}", limits, ours));
}

// ---- devices

struct Chosen { // the device that a run without --device uses
	std::string name;
	bool is_cpu = false;
	std::string why_none; // empty if there is one
};

Chosen look_at_devices(Checkup& f) {
	const BackendOptions options = options_from_environment();
	try {
		for (const DeviceReport& r : list_devices(options)) {
			const std::string name = fmt::format("{}{}", one_line(r.info.name.empty() ? r.backend : r.info.name),
			                                     r.info.driver.empty() ? "" : ", " + one_line(r.info.driver));
			if (!r.refused.empty())
				f.note("device", fmt::format("{}: refused: {}", name, one_line(r.refused, 400)));
			else
				f.ok("device",
				     fmt::format("{}: {}, {} free of {}", name, r.info.type, human_bytes(double(r.info.free_bytes)),
				                 human_bytes(double(r.info.memory_bytes))));
		}
	} catch (const Error& e) { f.bad("device", e.what()); }
	Chosen c;
	try {
		const auto start = std::chrono::steady_clock::now();
		const std::unique_ptr<Backend> b = open_backend(options);
		const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
		c.name = one_line(b->info().name), c.is_cpu = b->info().is_cpu;
		if (options.cache_dir.empty())
			f.note("self-test", "left out: without a cache folder (KVRUN_CACHE_DIR=off) no device is tested");
		else
			f.ok("self-test", fmt::format("{} computes what the cpu backend does; opened in {:.0f} ms", c.name, ms));
	} catch (const Error& e) {
		c.why_none = e.what();
		f.bad("self-test", one_line(e.what(), 400));
	}
	return c;
}

// ---- folders and files

uint64_t bytes_below(const fs::path& folder) {
	uint64_t sum = 0;
	std::error_code ec;
	for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
		if (std::error_code e; it->is_regular_file(e)) sum += it->file_size(e);
	return sum;
}

// Whether a folder can be made below this one, or its nearest parent that exists. By doing so: a user's rights alone do
// not tell of folders that are read-only, or not of files at all, like /proc.
bool can_write_below(const fs::path& folder) {
	std::error_code ec;
	fs::path there = folder;
	while (!there.empty() && !fs::exists(there, ec) && there != there.parent_path()) there = there.parent_path();
	const fs::path probe = there / fmt::format(".kvrun-doctor-{}", sys::process_id());
	if (!sys::may_write(there.string()) || !fs::create_directory(probe, ec)) return false;
	fs::remove(probe, ec);
	return true;
}

void look_at_chats(Checkup& f) {
	const std::string state = sys::state_folder();
	if (state.empty()) return f.note("chats", "neither XDG_STATE_HOME nor HOME is set: chats cannot be saved");
	const std::string folder = state + "/kvrun/chats";
	if (!can_write_below(sys::path_of(folder)))
		return f.bad("chats", fmt::format("{} may not be written by you, so chats are not saved; XDG_STATE_HOME names "
		                                  "another folder",
		                                  one_line(folder)));
	std::error_code ec;
	f.ok("chats", fmt::format("{}{}", one_line(folder),
	                          fs::exists(sys::path_of(folder), ec) ? "" : ": not there yet, which is fine"));
}

void look_at_cache(Checkup& f) {
	const std::string folder = pipeline_cache_folder();
	if (folder.empty())
		return f.note("cache", "none (KVRUN_CACHE_DIR is off, or HOME is not set): shaders are compiled at each start");
	if (!can_write_below(sys::path_of(folder)))
		return f.bad("cache",
		             fmt::format("{} may not be written by you; XDG_CACHE_HOME or KVRUN_CACHE_DIR names another "
		                         "folder",
		                         folder));
	if (sys::FileInfo info; sys::stat_file(folder, /*follow_link=*/true, info) && info.others_write)
		return f.note("cache",
		              fmt::format("{} may be written by others, so what is in it is not used; chmod 700 it", folder));
	f.ok("cache", fmt::format("{}, {}", folder, human_bytes(double(bytes_below(sys::path_of(folder))))));
}

void look_at_settings(Checkup& f, const Command& root) {
	try {
		const ConfigFile file = ConfigFile::read(root);
		if (config_path().empty())
			f.note("settings", "neither XDG_CONFIG_HOME nor HOME is set: no settings file is read");
		else
			f.ok("settings", config_path() + (file.exists() ? "" : ": not there, which is fine"));
	} catch (const Error& e) { f.bad("settings", e.what()); }
	for (const EnvInfo& e : env_table())
		if (const char* v = std::getenv(e.name); v && *v)
			f.note("environment", fmt::format("{}={}: {}", e.name, one_line(v), e.help));
}

size_t look_at_models(Checkup& f) {
	const std::vector<LocalModel> models = local_models();
	uint64_t bytes = 0;
	for (const LocalModel& m : models) bytes += m.bytes;
	const fs::path hub = hub_cache();
	std::error_code ec;
	fs::path there = hub;
	while (!there.empty() && !fs::exists(there, ec) && there != there.parent_path()) there = there.parent_path();
	const fs::space_info space = fs::space(there, ec);
	const std::string room = ec ? "" : fmt::format(", {} free there", human_bytes(double(space.available)));
	const std::string text = fmt::format("{} here, {}; fetched into {}{}", models.size(), human_bytes(double(bytes)),
	                                     one_line(hub.string()), room);
	if (hub.empty())
		f.note("models", fmt::format("{} here; none can be fetched: neither HF_HUB_CACHE, HF_HOME nor HOME is set",
		                             models.size()));
	else if (!can_write_below(hub))
		f.note("models", text + ", which you may not write: HF_HUB_CACHE names another folder");
	else
		f.ok("models", text);
	if (*why_no_http())
		f.note("fetching", why_no_http());
	else if (hub_is_offline())
		f.note("fetching", "HF_HUB_OFFLINE is set: no hub is asked");
	else
		f.ok("fetching",
		     fmt::format("from {}{}", hub_endpoint(), hub_token().empty() ? ", without a token" : ", with a token"));
	return models.size();
}

void examine(const Command& root, bool as_json) {
	Checkup f;
	f.ok("kvrun", fmt::format("{}, commit {}; {}; {}", KVRUN_VERSION, build_commit(), os_name(), processor_name()));
	look_at_loader(f);
	look_at_drivers(f);
	look_at_probe(f);
	look_at_layers(f);
	look_at_permissions(f);
	const Chosen device = look_at_devices(f);
	look_at_watchdog(f);
	look_at_cache(f);
	look_at_chats(f);
	look_at_settings(f, root);
	const size_t models = look_at_models(f);
	look_at_limits(f);

	const auto bad = std::ranges::count(f.all(), "bad", &Finding::state);
	std::string verdict;
	if (!device.why_none.empty())
		verdict = "cannot run models: " + one_line(device.why_none, 400);
	else if (device.is_cpu)
		verdict = fmt::format("runs models, on the processor alone: {}; no GPU is used", device.name);
	else
		verdict = fmt::format("runs models on {}", device.name);
	if (bad) verdict += fmt::format("; {} of the lines above want{} a look", bad, bad == 1 ? "s" : "");
	if (!models) verdict += "; no model is here yet: kvrun pull USER/REPO";
	if (as_json) {
		Json out = {{"verdict", verdict}, {"runs", device.why_none.empty()}, {"findings", Json::array()}};
		for (const Finding& x : f.all())
			out["findings"].push_back({{"state", x.state}, {"about", x.about}, {"text", x.text}});
		print_json(out);
	} else {
		std::string out;
		for (const Finding& x : f.all()) out += fmt::format("{:<5} {:<15} {}\n", x.state, x.about, x.text);
		write_stdout(out + "\n" + verdict + "\n");
	}
	if (!device.why_none.empty()) throw Exit{4};
}

} // namespace

void add_doctor(Command& root) {
	auto as_json = std::make_shared<bool>(false);
	Command& c = add_command(root, "doctor", "Looks at everything a run needs, and says in one line whether it works.");
	c.examples = {{"kvrun doctor", "loader, drivers, devices, self-test, folders, settings, models"}};
	add_flag(c, "--json", *as_json, "print JSON");
	c.sections = {{"Lines",
	               "ok: as it should be. note: worth knowing. bad: something does not work, and what to do. The last "
	               "line is the verdict; the exit code is 4 where no device can run a model."},
	              json_section({{"verdict, runs", "the last line; whether a device can run models"},
	                            {"findings", "[{state, about, text}]"}})};
	c.run = [as_json, &root] { examine(root, *as_json); };
}

} // namespace kvrun
