// A comparison on one machine: every stage on every device, each in its own process.
#include "engine/core/new_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "engine/run/tuning_file.h"
#include "models/fingerprint.h"
#include "models/model.h"
#include "models/synth/shape.h"
#include "tools/commands.h"
#include "tools/compare/compare.h"
#include "tools/compare/compilers_peer.h"
#include "tools/env.h"
#include "tools/host.h"
#include "tools/terminal.h"
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fstream>

namespace kvrun::comparison {
namespace {

constexpr double kSlowReference = 100e6; // parameters; for larger models the cpu backend skips slow stages

std::string slug(std::string s) {
	for (char& c : s)
		if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
	return s;
}

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

Json describe_model(const std::string& path) {
	const Model m = open_model(path);
	const Config& c = m.config;
	return {{"file", is_synth(path) ? path : sys::path_of(path).filename().string()},
	        {"name", one_line(c.name)},
	        {"architecture", c.arch},
	        {"fingerprint", fmt::format("{:016x}", fingerprint(m.file))},
	        {"parameters", parameter_count(c)},
	        {"bytes", m.file.tensor_bytes()},
	        {"dim", c.dim},
	        {"layers", c.n_layers},
	        {"heads", c.n_heads},
	        {"kv_heads", c.n_kv_heads},
	        {"head_dim", c.head_dim},
	        {"context", c.max_seq}};
}

Json describe_options(const Options& o) {
	return {{"kv", policies(o)},      {"depths", o.depths}, {"sequences", o.sequences}, {"prompt", o.prompt},
	        {"generate", o.generate}, {"rounds", o.rounds}, {"tokens", o.tokens},       {"quick", o.quick}};
}

// Changes with a file's content; null without a file.
Json stamp_of(const std::string& path) {
	std::error_code error;
	const auto time = std::filesystem::last_write_time(sys::path_of(path), error);
	if (path.empty() || error) return nullptr;
	return {std::filesystem::file_size(sys::path_of(path), error), time.time_since_epoch().count()};
}

// The measurements of kvrun tune that policies take.
Json tuning_stamp(const std::string& model) {
	if (is_synth(model)) return nullptr;
	Gguf file = Gguf::open(model);
	file.set_cache_folder(pipeline_cache_folder());
	return stamp_of(found_tuning_path(file));
}

// Environment variables that change what devices compute.
Json environment() {
	Json j = Json::object();
	for (const char* name : {"KVRUN_SHADERS", "KVRUN_PRECISION", "KVRUN_TEST_CAPS", "KVRUN_SUBMIT_MS"})
		if (const char* value = std::getenv(name); value && *value) j[name] = value;
	return j;
}

bool asked(const Options& o, const Stage& s) {
	const std::vector<std::string> names = split(o.stages, ',');
	return o.stages == "all" || std::ranges::find(names, s.name) != names.end();
}

struct PlannedUnit {
	const Stage* stage;
	size_t device;
};

std::vector<PlannedUnit> plan(const Options& o, const std::vector<Device>& devices, double parameters) {
	for (const std::string& name : split(o.stages, ','))
		if (o.stages != "all" && std::ranges::none_of(stages(), [&](const Stage& s) { return name == s.name; }))
			fail(Code::Invalid, "--stages has no '{}'; there are ops tokens codes speed quality stability",
			     one_line(name));
	std::vector<PlannedUnit> out;
	for (const Stage& s : stages())
		for (size_t i = 0; i < devices.size(); ++i)
			if (asked(o, s) && !(devices[i].reference && s.slow_reference && parameters > kSlowReference))
				out.push_back({&s, i});
	return out;
}

void write_text(const std::string& path, const std::string& text) {
	NewFile file(path, Readers::ByUmask);
	file.write(std::as_bytes(std::span(text)));
	file.commit();
}

void write_tokens(const Json& run, const std::string& folder) {
	std::filesystem::create_directories(sys::path_of(folder + "/tokens"));
	for (const Json& d : run["devices"]) {
		const Json tokens = d["stages"].value("tokens", Json::object()).value("policies", Json::object());
		for (const auto& [policy, t] : tokens.items()) {
			std::string ids;
			for (const Json& id : t["ids"]) ids += fmt::format("{}\n", id.get<uint32_t>());
			write_text(fmt::format("{}/tokens/{}.{}.txt", folder, slug(d["label"]), slug(policy)), ids);
		}
	}
}

// Results of one model are not mixed with those of another.
void check_folder(const Options& o, const Json& model) {
	std::ifstream in(sys::path_of(o.folder + "/run.json"));
	if (!in) return;
	const Json before = Json::parse(in, nullptr, /*allow_exceptions=*/false);
	const Json of = before.is_object() ? before.value("model", Json::object()) : Json::object();
	if (of.is_object() && of.contains("fingerprint") && of["fingerprint"] != model["fingerprint"])
		fail(Code::Invalid, "-o {}: has the results of {}; name another folder, or remove this one", one_line(o.folder),
		     one_line(of.value("file", "another model")));
}

// Nor are results of two models compared.
void check_baseline(const Options& o, const Json& baseline, const Json& model) {
	if (baseline["model"].value("fingerprint", Json()) != model["fingerprint"])
		fail(Code::Invalid, "--baseline {}: was measured with another model", one_line(o.baseline));
}

} // namespace

const std::vector<Stage>& stages() {
	static const std::vector<Stage> all = {
	    {"ops", "every operation at the model's shapes, against the cpu backend", run_ops, false},
	    {"codes", "packed pages of the same input, bit by bit; rankings of tokens", run_codes, false},
	    {"tokens", "greedy tokens under each policy; where devices part", run_tokens, true},
	    {"speed", "prompts, generation at depths, several sequences, memory", run_speed, true},
	    {"quality", "perplexity, KL divergence, recall", run_quality, true},
	    {"stability", "the same bits again; messages of the validation layer", run_stability, true}};
	return all;
}

std::vector<std::string> policies(const Options& o) { // commas separate policies, and keys within a policy
	std::vector<std::string> out;
	for (const KvPolicy& p : parse_policies(o.kv)) out.push_back(p.text);
	return out;
}

double parameter_count(const Config& c) {
	double sum = 0;
	for (const TensorSpec& t : tensor_specs(c)) sum += double(t.rows) * t.cols;
	return sum;
}

Json compare_devices(const Options& o, const Json* baseline) {
	std::error_code error;
	std::filesystem::create_directories(sys::path_of(o.folder + "/parts"), error);
	if (error) fail(Code::Io, "-o {}: {}; name a folder that can be made", one_line(o.folder), error.message());
	if (o.text.empty()) write_text(o.folder + "/text.txt", made_up_text(32 << 10));
	Json run = {{"schema", kSchema}, {"version", KVRUN_VERSION}, {"commit", build_commit()}, {"time", utc_now()}};
	run["machine"] = find_machine(o.anonymous);
	run["model"] = describe_model(o.model);
	check_folder(o, run["model"]);
	if (baseline) check_baseline(o, *baseline, run["model"]);
	run["options"] = describe_options(o);
	run["environment"] = environment();
	const std::vector<Device> devices = find_devices(o);
	run["devices"] = Json::array();
	for (const Device& d : devices)
		run["devices"].push_back({{"label", d.label},
		                          {"machine", run["machine"]["name"]},
		                          {"reference", d.reference},
		                          {"report", d.report},
		                          {"stages", Json::object()}});
	const std::vector<PlannedUnit> all = plan(o, devices, run["model"]["parameters"]);
	const Json tuned = tuning_stamp(o.model);
	const auto start = std::chrono::steady_clock::now();
	for (size_t i = 0; i < all.size(); ++i) {
		const Device& d = devices[all[i].device];
		const Json key = {{"schema", kSchema},
		                  {"version", run["version"]},
		                  {"commit", run["commit"]},
		                  {"model", run["model"]["fingerprint"]},
		                  {"options", run["options"]},
		                  {"text", {o.text, stamp_of(o.text)}},
		                  {"tuned", {tuned, d.report.value("tuned", Json())}},
		                  {"environment", run["environment"]},
		                  {"device", {d.report["name"], d.report["driver"], d.report["uuid"]}}};
		const double seconds = seconds_since(start);
		const Job job = {fmt::format("{}.{}", all[i].stage->name, slug(d.label)), key,
		                 [&] { return all[i].stage->run(o, d); }};
		run["devices"][all[i].device]["stages"][all[i].stage->name] =
		    run_job(o, job, double(i) / double(all.size()), i ? seconds / double(i) * double(all.size() - i) : 0);
	}
	add_static_columns(run, o);
	add_peer(run, o);
	return run;
}

Json read_run(const std::string& folder) {
	const std::string path = folder + "/run.json";
	std::ifstream in(sys::path_of(path));
	if (!in) fail(Code::NotFound, "{}: cannot be read; name the folder of a comparison", one_line(path));
	Json run = Json::parse(in, nullptr, /*allow_exceptions=*/false);
	if (!run.is_object() || !run.value("devices", Json()).is_array() || !run.value("model", Json()).is_object())
		fail(Code::Format, "{}: is not what kvrun compare writes; measure again", one_line(path));
	if (const int schema = run.value("schema", 0); schema != kSchema)
		fail(Code::Unsupported, "{}: has schema {}, this program reads {}; measure again", one_line(path), schema,
		     kSchema);
	return run;
}

void write_reports(const Json& run, const std::string& folder) {
	write_text(folder + "/run.json", json_lines(run));
	std::string warnings;
	for (const Json& f : run["findings"])
		warnings += fmt::format("{}: {}: {}: {}\n", f["level"].get<std::string>(), f["device"].get<std::string>(),
		                        f["stage"].get<std::string>(), f["text"].get<std::string>());
	write_text(folder + "/warnings.txt", warnings);
	write_text(folder + "/results.csv", results_csv(run));
	write_text(folder + "/report.md", report_markdown(run));
	write_text(folder + "/report.html", report_html(run));
	write_tokens(run, folder);
}

} // namespace kvrun::comparison
