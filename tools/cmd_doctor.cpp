// kvrun doctor: checks everything that a run needs in turn, and prints one line that says whether it will work.
#include "backends/vulkan/icd_files.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/commands_setup.h"
#include "tools/config_file.h"
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
#include <dlfcn.h>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

struct Finding {
	std::string state; // "ok", "note", "bad"
	std::string about, text;
};

class Checkup {
 public:
	void ok(const std::string& about, const std::string& text) { all_.push_back({"ok", about, text}); }
	void note(const std::string& about, const std::string& text) { all_.push_back({"note", about, text}); }
	void bad(const std::string& about, const std::string& text) { all_.push_back({"bad", about, text}); }
	const std::vector<Finding>& all() const { return all_; }

 private:
	std::vector<Finding> all_;
};

std::string first_word(const fs::path& p) {
	std::string s;
	std::ifstream(p) >> s;
	return s;
}

// ---- Vulkan

void look_at_loader(Checkup& f) {
	void* loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!loader) return f.bad("Vulkan loader", "there is no libvulkan.so.1; install package libvulkan1");
	using Version = int (*)(uint32_t*);
	const auto version = reinterpret_cast<Version>(dlsym(loader, "vkEnumerateInstanceVersion"));
	uint32_t v = 0;
	if (!version || version(&v) != 0)
		f.bad("Vulkan loader", "libvulkan.so.1 is one of Vulkan 1.0; kvrun needs 1.3");
	else
		f.ok("Vulkan loader",
		     fmt::format("libvulkan.so.1, Vulkan {}.{}.{}", v >> 22 & 0x7f, v >> 12 & 0x3ff, v & 0xfff));
	// stays loaded: drivers that it opened may crash if it is unloaded
}

void look_at_drivers(Checkup& f) {
	const std::vector<vk::IcdFile> files = vk::icd_files();
	if (files.empty())
		f.bad("Vulkan drivers", "none is installed; a GPU's come with its vendor's driver or package "
		                        "mesa-vulkan-drivers, which has one for the processor too");
	for (const vk::IcdFile& i : files) {
		const std::string text = one_line(i.file) + (i.library.empty() ? "" : " -> " + one_line(i.library));
		if (!i.problem.empty())
			f.bad("Vulkan driver", text + ": " + one_line(i.problem));
		else if (i.library.find('/') != std::string::npos && access(i.library.c_str(), R_OK) != 0)
			f.bad("Vulkan driver", text + ": the library is not there");
		else
			f.ok("Vulkan driver", text);
	}
}

void look_at_layers(Checkup& f) {
	std::vector<fs::path> folders = {"/etc/vulkan", "/usr/local/share/vulkan", "/usr/share/vulkan"};
	if (!home_folder().empty()) folders.push_back(home_folder() / ".local/share/vulkan");
	std::string implicit;
	bool validation = false;
	for (const fs::path& folder : folders)
		for (const char* kind : {"implicit_layer.d", "explicit_layer.d"}) {
			std::error_code ec;
			for (fs::directory_iterator it(folder / kind, ec), end; !ec && it != end; it.increment(ec)) {
				const std::string name = it->path().stem().native();
				validation |= name.find("validation") != name.npos;
				if (kind[0] == 'i') implicit += (implicit.empty() ? "" : ", ") + one_line(name);
			}
		}
	if (!implicit.empty())
		f.note("Vulkan layers", implicit +
		                            ": the loader puts these into every program; one that misbehaves can be left "
		                            "out with VK_LOADER_LAYERS_DISABLE=~implicit~");
	f.ok("Vulkan layers", validation ? "the validation layer is there (KVRUN_VALIDATE=1)"
	                                 : "no validation layer, which only developers need");
}

void look_at_permissions(Checkup& f) {
	std::error_code ec;
	size_t nodes = 0;
	for (fs::directory_iterator it("/dev/dri", ec), end; !ec && it != end; it.increment(ec)) {
		const fs::path p = it->path();
		if (!p.filename().native().starts_with("renderD")) continue;
		++nodes;
		if (access(p.c_str(), R_OK | W_OK) != 0)
			f.bad("permissions", fmt::format("{} may not be opened by you; add yourself to its group: sudo usermod -aG "
			                                 "render $USER, then log in again",
			                                 p.native()));
	}
	if (access("/dev/nvidiactl", F_OK) == 0) {
		++nodes;
		if (access("/dev/nvidiactl", R_OK | W_OK) != 0) f.bad("permissions", "/dev/nvidiactl may not be opened by you");
	}
	if (nodes == 0)
		f.note("permissions", "no GPU has a device file here (/dev/dri, /dev/nvidiactl): in a container, give it one "
		                      "(--device /dev/dri, --gpus all)");
	else
		f.ok("permissions", fmt::format("{} device files of GPUs were looked at", nodes));
}

// Kernel time limits after which it resets a GPU, whose work is then lost.
void look_at_watchdog(Checkup& f) {
	std::string text;
	if (const std::string amd = first_word("/sys/module/amdgpu/parameters/lockup_timeout"); !amd.empty())
		text += fmt::format("amdgpu.lockup_timeout {} ms", amd);
	if (const std::string intel = first_word("/sys/class/drm/card0/engine/rcs0/preempt_timeout_ms"); !intel.empty())
		text += fmt::format("{}i915 preempt_timeout_ms {}", text.empty() ? "" : ", ", intel);
	const double submit = env_number(Env::SubmitMs, 100);
	const std::string ours =
	    fmt::format("work is given to the device in pieces of about {:.0f} ms (KVRUN_SUBMIT_MS)", submit);
	if (submit > 1000)
		f.note("watchdog", ours + ": more than a second can make the system reset the GPU");
	else
		f.ok("watchdog", text.empty() ? ours : fmt::format("{}; {}", text, ours));
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

void look_at_cache(Checkup& f) {
	const std::string folder = pipeline_cache_folder();
	if (folder.empty())
		return f.note("cache", "none (KVRUN_CACHE_DIR is off, or HOME is not set): shaders are compiled at each start");
	std::error_code ec;
	fs::path there = folder;
	while (!there.empty() && !fs::exists(there, ec) && there != there.parent_path()) there = there.parent_path();
	if (access(there.c_str(), W_OK) != 0)
		return f.bad("cache",
		             fmt::format("{} may not be written by you; KVRUN_CACHE_DIR names another folder", folder));
	struct stat st {};
	if (stat(folder.c_str(), &st) == 0 && (st.st_mode & 022))
		return f.note("cache",
		              fmt::format("{} may be written by others, so what is in it is not used; chmod 700 it", folder));
	f.ok("cache", fmt::format("{}, {}", folder, human_bytes(double(bytes_below(folder)))));
}

void look_at_settings(Checkup& f, const Command& root) {
	try {
		const ConfigFile file = ConfigFile::read(root);
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
	                                     one_line(hub.native()), room);
	if (hub.empty() || access(there.c_str(), W_OK) != 0)
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

void look_at_limits(Checkup& f) {
	struct {
		int what;
		const char* name;
		uint64_t least;
	} const limits[] = {{RLIMIT_AS, "address space (ulimit -v)", uint64_t(8) << 30},
	                    {RLIMIT_FSIZE, "length of a file (ulimit -f)", uint64_t(8) << 30},
	                    {RLIMIT_NOFILE, "open files (ulimit -n)", 256}};
	size_t low = 0;
	for (const auto& l : limits) {
		rlimit r{};
		if (getrlimit(__rlimit_resource_t(l.what), &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= l.least)
			continue;
		++low;
		f.note("limits", fmt::format("{}: {}, which is little", l.name, uint64_t(r.rlim_cur)));
	}
	if (!low) f.ok("limits", "of this process are wide enough");
}

void examine(const Command& root, bool as_json) {
	Checkup f;
	f.ok("kvrun", fmt::format("{}, commit {}; {}; {}", KVRUN_VERSION, build_commit(), os_name(), processor_name()));
	look_at_loader(f);
	look_at_drivers(f);
	look_at_layers(f);
	look_at_permissions(f);
	const Chosen device = look_at_devices(f);
	look_at_watchdog(f);
	look_at_cache(f);
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
