// kvrun tune --kernels: opens the device, prints what was measured, writes the file.
#include "tools/tune/kernels.h"
#include "backends/cpu/open_cpu.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/tune/measure.h"

namespace kvrun {
namespace {

// Times as a factor of speed: 1.25 is a quarter faster than kvrun's own choice.
std::string speed_text(double ratio) { return fmt::format("{:.2f}", 1 / ratio); }

void print_choices(const std::vector<TuneChoice>& all) {
	std::vector<std::vector<Column>> table;
	for (const TuneChoice& c : all)
		for (size_t i = 0; i < c.values.size(); ++i) {
			const TuneValue& v = c.values[i];
			std::string fault;
			for (const TuneSample& s : v.samples)
				if (!s.fault.empty()) fault = "wrong: " + s.load;
			table.push_back({{"choice", i ? "" : c.name},
			                 {"value", v.value},
			                 {"speed", v.samples.empty() ? "-" : speed_text(v.ratio)},
			                 {"", !fault.empty() ? fault
			                      : i == c.best  ? "chosen"
			                                     : ""}});
		}
	print_table(table);
	write_stdout("\n");
}

Json choices_json(const std::vector<TuneChoice>& all) {
	Json out = Json::array();
	for (const TuneChoice& c : all) {
		Json values = Json::array();
		for (const TuneValue& v : c.values) {
			Json loads = Json::array();
			for (const TuneSample& s : v.samples)
				loads.push_back({{"load", s.load}, {"ms", s.ms}, {"speed", 1 / s.ratio}, {"fault", s.fault}});
			values.push_back({{"value", v.value}, {"speed", 1 / v.ratio}, {"agrees", v.agrees()}, {"loads", loads}});
		}
		out.push_back({{"choice", c.name}, {"what", c.what}, {"chosen", c.values[c.best].value}, {"values", values}});
	}
	return out;
}

Json tuned_json(const TunedValues& values) {
	Json out = Json::object();
	for (const auto& [name, value] : values) out[name] = value;
	return out;
}

void print_untunable(const TuneKernels& a, const DeviceReport& r) {
	if (a.as_json) return print_json({{"device", device_json(r.info)}, {"choices", Json::array()}, {"file", Json()}});
	write_stdout(fmt::format("{} has one kernel of each kind: there is nothing to tune\n", one_line(r.info.name)));
}

void forget_tuning(const TuneKernels& a, const DeviceReport& r, const std::filesystem::path& path) {
	const bool was = !path.empty() && sys::remove_file(path.string());
	if (a.as_json) return print_json({{"device", device_json(r.info)}, {"forgotten", was}});
	write_stdout(fmt::format("{}{}\n", one_line(r.info.name), was ? ": forgotten" : " is not tuned"));
}

} // namespace

void tune_kernels(const TuneKernels& a) {
	if (a.device.find(',') != a.device.npos)
		fail(Code::Invalid, "--device is '{}', and --kernels measures one device at a time", one_line(a.device));
	BackendOptions o = backend_options(a.device, /*check=*/false);
	if (o.check || !o.dump.empty())
		fail(Code::Invalid, "--kernels measures times, which KVRUN_CHECK and KVRUN_DUMP change; unset them");
	o.tuned = false;
	const DeviceReport r = find_device(o);
	const std::filesystem::path path = device_tuning_path(sys::path_of(o.cache_dir), r.tuning_id);
	if (a.forget) return forget_tuning(a, r, r.tuning_id.empty() ? std::filesystem::path() : path);
	if (!r.tunable) return print_untunable(a, r);
	if (path.empty())
		fail(Code::Invalid, "there is no cache folder in which choices would be kept; set KVRUN_CACHE_DIR to one");
	const std::unique_ptr<Backend> device = open_backend(o), reference = make_cpu_backend();
	const DeviceInfo d = device->info();
	const auto loads = make_loads(*device, a.model.empty() ? typical_shapes(d) : shapes_of(a.model, d));
	const auto start = std::chrono::steady_clock::now();
	Progress progress;
	Interrupt interrupt;
	const std::vector<TuneChoice> all = measure_choices(
	    *device, *reference, loads,
	    {[&](double done) { progress.show("measuring", done); }, [] { return Interrupt::requested().load(); }});
	progress.clear();
	if (Interrupt::requested()) throw Exit{kInterrupted}; // the file is left unchanged
	TunedValues values;
	for (const TuneChoice& c : all)
		if (c.best) values.emplace_back(c.name, c.values[c.best].value);
	write_device_tuning(path, r.tuning_key, r.info.name, values);
	if (a.as_json)
		return print_json({{"device", device_json(d)},
		                   {"seconds", seconds_since(start)},
		                   {"tuned", tuned_json(values)},
		                   {"choices", choices_json(all)},
		                   {"file", path.string()}});
	print_choices(all);
	write_stdout(fmt::format("{}: {}, in {:.0f} s; written to {}\n", one_line(r.info.name), tuning_text(values),
	                         seconds_since(start), one_line(path.string())));
}

} // namespace kvrun
