// A comparison of devices: options, and results as one JSON value from which reports are made.
#pragma once
#include "tools/args.h"
#include "tools/output.h"
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvrun {
struct Config;
}

namespace kvrun::comparison {

constexpr int kSchema = 1;             // version of run.json; raised if a key changes its meaning
constexpr int kWrong = 7, kSlower = 8; // exit codes

struct Options {
	std::string model, folder;
	std::string devices = "all"; // or indices and parts of names, comma-separated
	std::string kv;              // policies, comma-separated
	std::vector<int64_t> depths;
	std::vector<int64_t> sequences = {1, 4};
	int64_t prompt = 512, generate = 32, rounds = 5, tokens = 256;
	std::string stages = "all"; // of kStages, comma-separated
	std::string text;           // file on which quality is measured; empty: synthetic records
	std::string families;       // AMD chips to compile for
	std::string vendor;         // folder with vendor drivers, and the chips to compile for: DIR:CHIP,CHIP
	std::string peer;           // command of llama-bench
	std::string baseline;       // folder of an earlier comparison
	bool quick = false, anonymous = false, again = false;
};

// A device of a comparison.
struct Device {
	std::string label;      // short and distinct: "llvmpipe", "cpu"
	std::string select;     // argument of --device
	Json report;            // output of `kvrun devices --json`
	bool reference = false; // the cpu backend
};

// Measurement of a stage on one device; runs in its own process.
using Work = std::function<Json(const Options&, const Device&)>;
struct Stage {
	const char* name; // "ops"
	const char* what; // one line of help
	Work run;
	bool slow_reference; // skipped on the cpu backend for large models
};
const std::vector<Stage>& stages();

// ---- functions used by stages

Json run_ops(const Options&, const Device&);
Json run_tokens(const Options&, const Device&);
Json run_codes(const Options&, const Device&);
Json run_speed(const Options&, const Device&);
Json run_quality(const Options&, const Device&);
Json run_stability(const Options&, const Device&);

std::vector<std::string> split(const std::string& text, char at);
std::vector<std::string> policies(const Options&); // names as given
double parameter_count(const Config&);
std::string made_up_text(size_t bytes); // records and sentences
// A measured number; NaN for null, which is how JSON stores NaN.
inline double number(const Json& j) {
	return j.is_number() ? j.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// ---- jobs: work in separate processes, whose results are kept

struct Job {
	std::string name; // "ops.llvmpipe"
	Json key;         // everything the result depends on; if it differs, the job runs again
	std::function<Json()> work;
};
// The result; from an earlier run if the key is the same. A process that fails or crashes gives {"error": "..."}, which
// is not kept. Throws Exit{kInterrupted} on Ctrl-C.
Json run_job(const Options&, const Job&, double done, double seconds_left);
// Runs a command of this program in this process; its output must be JSON. Throws Error with its message.
Json run_command(const std::vector<std::string>& words);

// ---- a run as a whole

std::vector<Device> find_devices(const Options&);
Json find_machine(bool anonymous); // processor, system, GPUs as reported by the kernel
// All stages on all devices. A baseline (null: none) of another model is refused before the first stage.
Json compare_devices(const Options&, const Json* baseline);
int judge(Json& run, const Json* baseline); // adds "findings"; returns the exit code
// Whether more of a policy's stored keys or values differ from the cpu backend's than rounding explains.
bool codes_wrong(const Json& policy);
Json merge(const std::vector<std::string>& folders, const std::string& base);
Json read_run(const std::string& folder); // throws Error{Format} naming the file
void write_reports(const Json& run, const std::string& folder);

std::string report_markdown(const Json& run);
std::string report_html(const Json& run);
std::string results_csv(const Json& run);

} // namespace kvrun::comparison
