// kvrun replay: tensors from files through a device's own cache path; what was stored and attended to, as files again.
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

constexpr const char* kFiles =
    "Input (.npy, C order): q (L, T, heads, D), k and v (L, T, kv heads, D), dq (N, heads, D), all float32, keys and\n"
    "  queries after RoPE; probes (P), int64. The T tokens are a prompt: it goes through each layer and is stored as\n"
    "  the policy says; then every row of dq attends to the last layer's cache.\n"
    "Output: k_hat.npy, v_hat.npy (L, T, kv heads, D) as attention sees them, NaN = evicted; tier.npy (L, T, kv "
    "heads)\n"
    "  uint8: 0 f16 window or log survivor, 1 salient, 2 regular, 3 evicted; score.npy (L, T, kv heads) where the\n"
    "  policy scores; out.npy (N, heads, D); report.json: device {name, driver, type, cpu}, policy, shape, bytes by\n"
    "  part, stored_bits_per_element, code_bits_per_element, ratio, pool_bytes (device memory taken for pages).";

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
	fs::create_directories(a.out, error);
	if (!fs::is_directory(a.out)) fail(Code::Io, "--out {}: no folder there, and none could be made", a.out);

	const std::unique_ptr<Backend> be = open_backend(backend_options(a.device, a.check));
	Progress progress;
	const ReplayResult r =
	    replay(*be, plan, in, [&](uint32_t done) { progress.show("layers", double(done) / in.n_layers); });
	progress.clear();

	const fs::path out = a.out;
	const uint64_t L = in.n_layers, T = in.n_tokens, H = in.n_kv_heads, D = in.head_dim;
	npy_write(out / "k_hat.npy", {L, T, H, D}, std::span(r.k_hat));
	npy_write(out / "v_hat.npy", {L, T, H, D}, std::span(r.v_hat));
	npy_write(out / "tier.npy", {L, T, H}, std::span(r.tier));
	npy_write(out / "out.npy", {in.n_queries, in.n_heads, D}, std::span(r.out));
	if (!r.score.empty())
		npy_write(out / "score.npy", {L, T, H}, std::span(r.score));
	else
		fs::remove(out / "score.npy", error); // of an earlier run
	const Json j = report(a, *be, plan, in, r);
	std::ofstream file(out / "report.json", std::ios::trunc);
	file << j.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
	file.close();
	if (!file)
		fail(Code::Io, "{}: writing failed; check the folder and the free space", (out / "report.json").string());
	say_stats(
	    fmt::format("{} tokens of {} layers as {}: {:.3f} bits per element, {:.2f} times smaller than f16  device {}",
	                in.n_tokens, in.n_layers, one_line(a.kv), j["stored_bits_per_element"].get<double>(),
	                j["ratio"].get<double>(), one_line(be->info().name)));
}

} // namespace

void add_replay(CLI::App& app) {
	auto a = std::make_shared<ReplayArgs>();
	CLI::App* c = app.add_subcommand(
	    "replay", "Stores given keys and values as a KV cache policy would, on a device, and attends to them.");
	add_text(*c, "--kv", a->kv, "POLICY", "store them this way; see `kvrun plan --help`")->required();
	add_text(*c, "--q", a->files.q, "FILE", "the prompt's queries")->required();
	add_text(*c, "--k", a->files.k, "FILE", "the prompt's keys")->required();
	add_text(*c, "--v", a->files.v, "FILE", "the prompt's values")->required();
	add_text(*c, "--dq", a->files.dq, "FILE", "queries of decode rows that attend to the last layer's cache")
	    ->required();
	add_text(*c, "--probes", a->files.probes, "FILE",
	         "prompt rows whose attention is the score, where a policy takes some rows only [its choice]");
	add_text(*c, "--device", a->device, "NAME",
	         "run on this device: its index or part of its name in `kvrun devices`, or cpu [best; a CPU only if there "
	         "is no GPU]");
	add_text(*c, "--out", a->out, "FOLDER", "write the results there; the folder is made if needed")->required();
	add_integer(*c, "--seed", a->seed, 0, INT64_MAX, "draw a policy's random rows from this [1]");
	c->add_flag("--check", a->check,
	            "run every operation on the cpu backend too and stop at the first that differs (slow)");
	c->footer(kFiles);
	c->callback([a] { run_replay(*a); });
}

} // namespace kvrun
