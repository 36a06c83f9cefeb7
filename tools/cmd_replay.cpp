// kvrun replay: runs keys and values from files through the KV cache of a device; writes the stored values and the
// attention results.
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/eval/replay.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <filesystem>
#include <fstream>

namespace kvrun {
namespace {

namespace fs = std::filesystem;

struct ReplayArgs {
	ReplayFiles::Paths files;
	std::string kv, device, out;
	int64_t seed = 1;
	bool check = false;
};

Json report(const ReplayArgs& a, const Backend& be, const KvPlan& plan, const ReplayInput& in, const ReplayResult& r) {
	const double elements = double(plan.f16_bytes(in.n_tokens)) / 2;
	const double stored = double(r.bytes.total()) * 8 / elements;
	Json j;
	j["device"] = device_json(be.info());
	j["policy"] = a.kv;
	j["source"] = plan.policy.source;
	j["shape"] = {{"n_layers", in.n_layers},     {"n_tokens", in.n_tokens}, {"n_heads", in.n_heads},
	              {"n_kv_heads", in.n_kv_heads}, {"head_dim", in.head_dim}, {"n_queries", in.n_queries}};
	j["bytes"] = {{"f16", r.bytes.f16},           {"codes", r.bytes.codes},  {"k_params", r.bytes.k_params},
	              {"v_params", r.bytes.v_params}, {"slack", r.bytes.slack},  {"tables", r.bytes.tables},
	              {"live", r.bytes.live},         {"total", r.bytes.total()}};
	j["pool_bytes"] = r.pool_bytes;
	j["stored_bits_per_element"] = stored;
	j["code_bits_per_element"] = code_bits(plan);
	j["ratio"] = 16 / stored;
	return j;
}

void run_replay(const ReplayArgs& a) {
	const KvPolicy policy = parse_policy(a.kv);
	const ReplayFiles files(a.files);
	ReplayInput in = files.input;
	in.seed = uint64_t(a.seed);
	const KvPlan plan = make_plan(policy, {in.n_layers, in.n_kv_heads, in.head_dim});
	std::error_code error;
	const fs::path out = sys::path_of(a.out);
	fs::create_directories(out, error);
	if (!fs::is_directory(out)) fail(Code::Io, "--out {}: is not a folder and cannot be created", a.out);

	const std::unique_ptr<Backend> be = open_backend(backend_options(a.device, a.check));
	Progress progress;
	const ReplayResult r =
	    replay(*be, plan, in, [&](uint32_t done) { progress.show("layers", double(done) / in.n_layers); });
	progress.clear();

	const uint64_t L = in.n_layers, T = in.n_tokens, H = in.n_kv_heads, D = in.head_dim;
	npy_write(out / "k_hat.npy", {L, T, H, D}, std::span(r.k_hat));
	npy_write(out / "v_hat.npy", {L, T, H, D}, std::span(r.v_hat));
	npy_write(out / "tier.npy", {L, T, H}, std::span(r.tier));
	npy_write(out / "out.npy", {in.n_queries, in.n_heads, D}, std::span(r.out));
	if (!r.score.empty())
		npy_write(out / "score.npy", {L, T, H}, std::span(r.score));
	else
		fs::remove(out / "score.npy", error); // left by an earlier run
	const Json j = report(a, *be, plan, in, r);
	std::ofstream file(out / "report.json", std::ios::trunc);
	file << json_lines(j);
	file.close();
	if (!file)
		fail(Code::Io, "{}: writing failed; check the folder and the free space", (out / "report.json").string());
	say_stats(
	    fmt::format("{} tokens of {} layers as {}: {:.3f} bits per element, {:.2f} times smaller than f16  device {}",
	                in.n_tokens, in.n_layers, one_line(a.kv), j["stored_bits_per_element"].get<double>(),
	                j["ratio"].get<double>(), one_line(be->info().name)));
}

} // namespace

void add_replay(Command& root) {
	auto a = std::make_shared<ReplayArgs>();
	Command& c = add_command(
	    root, "replay", "Stores given keys and values as a KV cache policy would, on a device, and attends to them.");
	c.examples = {{"kvrun replay --kv kivi2 --q q.npy --k k.npy --v v.npy --dq dq.npy --out results",
	               "compare what results/ holds with other code"}};
	add_text(c, "--kv", a->kv, kPolicy, "policy of the KV cache; kvrun help plan lists them")->required();
	add_text(c, "--q", a->files.q, kFile, "queries of the prompt")->required();
	add_text(c, "--k", a->files.k, kFile, "keys of the prompt")->required();
	add_text(c, "--v", a->files.v, kFile, "values of the prompt")->required();
	add_text(c, "--dq", a->files.dq, kFile, "queries of decode steps, which attend to the last layer's cache")
	    ->required();
	add_text(c, "--probes", a->files.probes, kFile,
	         "prompt rows whose attention is the score, where a policy scores some rows only [its choice]");
	add_device(c, a->device);
	add_text(c, "--out", a->out, kFolder, "write the results to this folder, which is created if needed")->required();
	add_integer(c, "-s,--seed", a->seed, 0, INT64_MAX, "seed of the policy's random rows [1]");
	add_flag(c, "--check", a->check,
	         "run every operation on the cpu backend too and stop at the first difference (slow)");
	c.sections = {
	    {"Input",
	     "NumPy files (.npy, C order). The T tokens are a prompt: it goes through each layer and is stored as the "
	     "policy "
	     "says; then every row of dq attends to the last layer's cache.",
	     {{"q", "(L, T, heads, D) float32, after RoPE"},
	      {"k, v", "(L, T, kv heads, D) float32; keys after RoPE"},
	      {"dq", "(N, heads, D) float32, after RoPE"},
	      {"probes", "(P) int64"}}},
	    {"Output",
	     "",
	     {{"k_hat.npy, v_hat.npy", "(L, T, kv heads, D) as attention reads them; NaN: evicted"},
	      {"tier.npy", "(L, T, kv heads) uint8: 0 f16 window or log survivor, 1 salient, 2 regular, 3 evicted"},
	      {"score.npy", "(L, T, kv heads), where the policy scores tokens"},
	      {"out.npy", "(N, heads, D)"},
	      {"report.json", "device {name, driver, type, cpu}, policy, shape, bytes by part, stored_bits_per_element, "
	                      "code_bits_per_element, ratio, pool_bytes (device memory allocated for pages)"}}}};
	c.run = [a] { run_replay(*a); };
}

} // namespace kvrun
