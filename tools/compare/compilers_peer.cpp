// Columns beside the devices: compilers of absent GPUs, and the peer.
#include "tools/compare/compilers_peer.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "models/synth/shape.h"
#include "tools/host.h"
#include <filesystem>
#include <fmt/ranges.h>

namespace kvrun::comparison {
namespace {

// The output of a shell command, parsed as JSON.
Json json_of(const std::string& command) {
	std::string text;
	const int code = sys::run_shell(command, text);
	const size_t begin = text.find_first_of("[{"); // skips messages of a loader
	Json j = Json::parse(begin == text.npos ? "" : text.substr(begin), nullptr, /*allow_exceptions=*/false);
	if (j.is_discarded()) fail(Code::Io, "printed no JSON (exit code {}): {}", code, one_line(command, 300));
	return j;
}

// {"chip", "kernels": [...]} with the relevant numbers.
Json column(const std::string& chip, const Json& run) {
	Json kernels = Json::array();
	for (const Json& k : run["kernels"])
		kernels.push_back({{"kernel", k["kernel"]},
		                   {"use", k["use"]},
		                   {"registers", k["vector_registers"]},
		                   {"waves", k["waves"]},
		                   {"lanes", k["lanes"]},
		                   {"instructions", k["instructions"]},
		                   {"code_bytes", k["code_bytes"]},
		                   {"spills", k["spills"]}});
	return {{"chip", chip}, {"device", run["device"]}, {"kernels", kernels}};
}

void add_unit(Json& columns, const Options& o, const std::string& chip, const std::string& how,
              const std::function<Json()>& work) {
	const Json key = {{"how", how}, {"version", KVRUN_VERSION}, {"commit", build_commit()}};
	const Json result = run_job(o, {"static." + chip, key, work}, 0.95, 0);
	if (result.contains("error"))
		columns.push_back({{"chip", chip}, {"error", result["error"]}});
	else
		columns.push_back(column(chip, result));
}

// Adds tests of llama-bench under one type of cache.
void add_results(Json& out, const Json& rows, const std::string& cache) {
	for (const Json& r : rows) {
		const int64_t prompt = r.value("n_prompt", 0), generate = r.value("n_gen", 0);
		out.push_back({{"test", prompt ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate)},
		               {"depth", r.value("n_depth", 0)},
		               {"cache", cache},
		               {"device", r.value("gpu_info", "").empty() ? r.value("cpu_info", "") : r.value("gpu_info", "")},
		               {"build", r.value("build_commit", "")},
		               {"tok_s", r.value("avg_ts", 0.0)},
		               {"samples", r.value("samples_ts", Json::array())}});
	}
}

} // namespace

void add_static_columns(Json& run, const Options& o) {
	run["static"] = Json::array();
	for (const std::string& chip : split(o.families, ','))
		add_unit(run["static"], o, chip, "radv", [&] {
			const Json all = run_command({"devices", "--shaders", "--family", chip, "--json"});
			return all.at(0);
		});
	if (o.vendor.empty()) return;
	const size_t colon = o.vendor.rfind(':');
	if (colon == o.vendor.npos)
		fail(Code::Invalid, "--vendor-drivers is '{}', expected FOLDER:CHIP,CHIP", one_line(o.vendor));
	const std::string folder = o.vendor.substr(0, colon);
	for (const std::string& chip : split(o.vendor.substr(colon + 1), ','))
		add_unit(run["static"], o, chip, folder, [&] {
			return json_of(fmt::format("{} {} {} devices --shaders --json", sys::shell_word(folder + "/run"),
			                           sys::shell_word(chip), sys::shell_word(sys::program_path())))
			    .at(0);
		});
}

void add_peer(Json& run, const Options& o) {
	if (o.peer.empty()) return;
	const Json key = {{"peer", o.peer}, {"model", run["model"]["fingerprint"]}, {"options", run["options"]}};
	const auto work = [&] {
		std::string model =
		    std::filesystem::absolute(sys::path_of(o.model)).string(); // the peer may run in another folder
		if (is_synth(o.model)) { // written to a file, so that the peer can read it
			model = std::filesystem::absolute(sys::path_of(o.folder + "/model.gguf")).string();
			const std::vector<std::string> parts = split(o.model.substr(kSynthPrefix.size()), ':');
			const size_t comma = parts[0].find(',');
			std::vector<std::string> words = {"synth", "--like", parts[0].substr(0, comma), "--type", parts.at(1), "-o",
			                                  model,   "--force"};
			if (comma != std::string::npos) words.insert(words.end(), {"--shape", parts[0].substr(comma + 1)});
			if (parts.size() > 2) words.insert(words.end(), {"--seed", parts[2]});
			run_command(words);
		}
		Json out = Json::array();
		for (const char* cache : {"f16", "q4_0"}) {
			const std::string command = fmt::format(
			    "{} -m {} -p {} -n {} -d {} -r {} -ngl 99 -fa 1 -ctk {} -ctv {} -o json", o.peer,
			    sys::shell_word(model), o.prompt, o.generate, fmt::join(o.depths, ","), o.rounds, cache, cache);
			add_results(out, json_of(command), cache);
		}
		return Json{{"results", out}};
	};
	run["peer"] = run_job(o, {"peer", key, work}, 0.98, 0);
	run["peer"]["command"] = one_line(o.peer);
}

} // namespace kvrun::comparison
