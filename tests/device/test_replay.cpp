// Replay on every device: the device stores and attends to what numpy computed for each method; bad files.
#include "engine/core/f16.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tools/eval/replay.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

using Floats = std::vector<float>;

const std::string kSmall = test_root() + "/tests/golden/replay";

struct Case {
	std::string folder; // expected tensors and case.json
	std::string inputs; // folder of q, k, v, dq, probes
	std::string text() const { return folder; }
};

// Every case below a folder: inputs in the case's own folder, or in the one above.
std::vector<Case> cases_in(const std::string& root) {
	std::vector<Case> out;
	for (const auto& e : fs::directory_iterator(root))
		if (fs::exists(e.path() / "case.json"))
			out.push_back({e.path().string(), fs::exists(e.path() / "q.npy") ? e.path().string() : root});
	std::sort(out.begin(), out.end(), [](const Case& a, const Case& b) { return a.folder < b.folder; });
	return out;
}

class Scratch { // a temporary folder
 public:
	Scratch() : path(fs::temp_directory_path() / fmt::format("kvrun-replay-{}", getpid())) {
		fs::create_directories(path);
	}
	~Scratch() {
		std::error_code error;
		fs::remove_all(path, error);
	}
	const fs::path path;
};

Floats floats(const fs::path& file) {
	const NpyArray a = npy_read(file);
	const auto x = a.as<float>();
	return {x.begin(), x.end()};
}

// Elements that rounding may change: for each element the width of its code, its distance from the boundary between two
// codes, and the allowed difference of stored parameters that were rounded to f16 from f16 inputs.
struct Lattice {
	Floats step, distance,
	    slack; // (n_tokens, n_kv_heads, head_dim); step in units of x, distance in codes, slack in both
};
struct Side { // K or V of one layer
	uint32_t H, D;
	std::span<const float> x; // (n_tokens, H, D)
	Floats factor;            // (H, D) divisor of x before quantising; empty: 1
};

void add_group(Lattice& L, const Side& s, const Quant& q, const std::vector<size_t>& group) {
	const auto at = [&](size_t i) { return s.x[i] / (s.factor.empty() ? 1.f : s.factor[i % (size_t(s.H) * s.D)]); };
	float lo = at(group[0]), hi = lo, most = 0;
	for (const size_t i : group)
		lo = std::min(lo, at(i)), hi = std::max(hi, at(i)), most = std::max(most, std::fabs(at(i)));
	const float step = round_f16((hi - lo) / float((1 << q.bits) - 1)), zero = round_f16(lo);
	for (const size_t i : group) {
		const float back = s.factor.empty() ? 1.f : s.factor[i % (size_t(s.H) * s.D)];
		const float code = step > 0 ? (at(i) - zero) / step : 0;
		L.step[i] = step * back;
		L.distance[i] = std::fabs(code - std::floor(code) - 0.5f);
		L.slack[i] = 4e-3f * most * back; // four roundings to 11 bits: x, scale times code, zero, a channel's factor
	}
}

// tokens: those of one tier in the order of their positions, which is the order of groups except for log windows.
void add_tier(Lattice& L, const Side& s, const Quant& q, const std::vector<uint32_t>& tokens) {
	const size_t row = size_t(s.H) * s.D;
	if (q.scale == Scale::PerToken) {
		for (const uint32_t t : tokens)
			for (size_t c = 0; c < row; c += q.group) {
				std::vector<size_t> group;
				for (size_t i = c; i < c + q.group; ++i) group.push_back(t * row + i);
				add_group(L, s, q, group);
			}
		return;
	}
	const size_t run = q.group == kGroupAll ? tokens.size() : q.group;
	for (size_t first = 0; first < tokens.size(); first += run)
		for (size_t c = 0; c < row; ++c) {
			std::vector<size_t> group;
			for (size_t i = first; i < std::min(first + run, tokens.size()); ++i) group.push_back(tokens[i] * row + c);
			add_group(L, s, q, group);
		}
}

// sqrt(max|x|) of each channel over some tokens, as f16.
Floats channel_factors(const Side& s, const std::vector<uint32_t>& tokens) {
	const size_t row = size_t(s.H) * s.D;
	Floats f(row, 0);
	for (const uint32_t t : tokens)
		for (size_t c = 0; c < row; ++c) f[c] = std::max(f[c], std::fabs(s.x[t * row + c]));
	for (float& x : f) x = x > 0 ? round_f16(std::sqrt(x)) : 1;
	return f;
}
// 1 / sqrt(max|q| / max|k|): keys are multiplied by the balancer.
Floats balancers(const ReplayInput& in, uint32_t l, const Side& k) {
	const size_t row = size_t(k.H) * k.D, q_row = size_t(in.n_heads) * k.D, per = in.n_heads / k.H;
	Floats q_max(row, 0), k_max(row, 0);
	const auto q = in.q.subspan(l * in.n_tokens * q_row, in.n_tokens * q_row);
	for (size_t i = 0; i < q.size(); ++i) {
		float& m = q_max[i % q_row / k.D / per * k.D + i % k.D];
		m = std::max(m, std::fabs(q[i]));
	}
	for (size_t i = 0; i < k.x.size(); ++i) k_max[i % row] = std::max(k_max[i % row], std::fabs(k.x[i]));
	for (size_t c = 0; c < row; ++c) q_max[c] = 1 / round_f16(std::sqrt(q_max[c] / k_max[c]));
	return q_max;
}

// Packed elements: the same code, or the neighbouring one where x lies on the boundary.
void check_codes(const std::string& what, std::span<const float> got, std::span<const float> want, const Lattice& L,
                 const Lattice& codes) {
	size_t n = 0, flipped = 0, bad = 0;
	std::string first;
	for (size_t i = 0; i < got.size(); ++i) {
		if (!(L.step[i] >= 0)) continue; // not packed
		++n;
		const float diff = std::fabs(got[i] - want[i]);
		if (diff <= L.slack[i]) continue;
		// x itself was rounded to f16, which may be a visible fraction of a code
		const bool boundary = codes.distance[i] <= 1e-3f + codes.slack[i] / codes.step[i];
		if (boundary && diff <= L.step[i] * 1.01f + L.slack[i]) {
			++flipped;
			continue;
		}
		if (bad++ == 0)
			first = fmt::format("[{}] {}, expected {}, step {}, {} codes from a boundary", i, got[i], want[i],
			                    L.step[i], codes.distance[i]);
	}
	CHECK_MESSAGE(bad == 0, what << ": " << bad << " of " << n << " codes differ, first " << first);
	CHECK_MESSAGE(flipped <= n / 100,
	              what << ": " << flipped << " of " << n << " codes went the other way at a boundary");
}

struct Run {
	ReplayInput in;
	KvPlan plan;
	ReplayResult r;
	Floats k_hat, v_hat;       // expected
	std::vector<uint8_t> tier; // expected
	size_t row() const { return size_t(in.n_kv_heads) * in.head_dim; }
	size_t at(uint32_t l, uint32_t t) const { return (size_t(l) * in.n_tokens + t) * row(); }
};

// The tokens of a class. If a class is chosen by score, two tokens of nearly equal score may be exchanged.
void check_tiers(const Run& run, const std::string& folder) {
	std::vector<size_t> differ;
	for (size_t i = 0; i < run.tier.size(); ++i)
		if (run.r.tier[i] != run.tier[i]) differ.push_back(i);
	if (run.r.score.empty()) {
		CHECK_MESSAGE(differ.empty(), differ.size() << " tokens are in another tier");
		return;
	}
	const Floats score = floats(folder + "/score.npy");
	REQUIRE(run.r.score.size() == score.size());
	float most = 0, error = 0;
	for (size_t i = 0; i < score.size(); ++i)
		most = std::max(most, score[i]), error = std::max(error, std::fabs(run.r.score[i] - score[i]));
	CHECK(error <= 2e-3f * most);
	// by layer: the lowest score among the chosen tokens is the threshold
	const uint32_t H = run.in.n_kv_heads;
	float line = INFINITY;
	for (size_t t = 0; t < score.size(); t += H) {
		float mean = 0;
		for (uint32_t h = 0; h < H; ++h) mean += score[t + h] / float(H);
		if (run.tier[t] == 1) line = std::min(line, mean);
	}
	for (const size_t i : differ) {
		float mean = 0;
		for (uint32_t h = 0; h < H; ++h) mean += score[i / H * H + h] / float(H);
		CHECK_MESSAGE(std::fabs(mean - line) <= 2e-3f * most,
		              "token " << i / H << " is in tier " << int(run.r.tier[i]) << ", expected " << int(run.tier[i]));
	}
}

// One side of one layer: f16 tokens exactly, evicted ones NaN, packed ones by their codes.
void check_side(const Run& run, uint32_t l, bool is_k) {
	const uint32_t T = run.in.n_tokens;
	const size_t n = T * run.row();
	const auto side_of = [&](uint32_t layer) {
		return Side{run.in.n_kv_heads, run.in.head_dim, (is_k ? run.in.k : run.in.v).subspan(run.at(layer, 0), n), {}};
	};
	const Side s = side_of(l);
	const std::span<const float> got = std::span(is_k ? run.r.k_hat : run.r.v_hat).subspan(run.at(l, 0), n);
	const std::span<const float> want = std::span<const float>(is_k ? run.k_hat : run.v_hat).subspan(run.at(l, 0), n);
	const auto tier = [&](uint32_t t) { return run.tier[(size_t(l) * T + t) * s.H]; };
	size_t bad = 0;
	for (uint32_t t = 0; t < T; ++t) {
		const bool f16 = tier(t) == 0 || (tier(t) == 1 && run.plan.salient_stays);
		for (size_t i = t * run.row(); i < (t + 1) * run.row(); ++i) {
			if (std::isnan(want[i]) != std::isnan(got[i])) ++bad;
			if (f16 && got[i] != round_f16(s.x[i])) ++bad;
		}
	}
	CHECK_MESSAGE(bad == 0, (is_k ? "k" : "v")
	                            << " of layer " << l << ": " << bad << " elements of f16 or evicted tokens");

	Lattice L{Floats(n, -1), Floats(n, -1), Floats(n, 0)}, codes = L;
	for (const Tier t : {Tier::Salient, Tier::Regular}) {
		if (run.plan.fill[int(t)] == Fill::None) continue;
		const LayerPlan& P = run.plan.layers[l];
		const Quant& q = is_k ? P.tier[int(t)].fmt.k : P.tier[int(t)].fmt.v;
		std::vector<uint32_t> tokens;
		for (uint32_t i = 0; i < T; ++i)
			if (tier(i) == uint8_t(t)) tokens.push_back(i);
		if (tokens.empty() || q.bits == 16) continue;
		const uint32_t owner = t != Tier::Regular ? l : is_k ? P.k_codes_of : P.v_codes_of;
		Side own = s, other = side_of(owner);
		if (q.prescale == Prescale::SqrtMax) own.factor = other.factor = channel_factors(s, tokens);
		if (q.prescale == Prescale::Balance) own.factor = other.factor = balancers(run.in, l, s);
		add_tier(L, own, q, tokens);
		add_tier(codes, other, q, tokens);
	}
	const std::string what = fmt::format("{} of layer {}", is_k ? "k" : "v", l);
	if (is_k &&
	    run.plan.policy.select.rank == Rank::LogWindow) { // groups are those of each flush: within half a code of x
		size_t outside = 0;
		for (uint32_t c = 0; c < run.row(); ++c) {
			float lo = INFINITY, hi = -INFINITY;
			for (uint32_t t = 0; t < T; ++t)
				if (tier(t) == 2) lo = std::min(lo, s.x[t * run.row() + c]), hi = std::max(hi, s.x[t * run.row() + c]);
			for (uint32_t t = 0; t < T; ++t) {
				const size_t i = t * run.row() + c;
				const float half =
				    (hi - lo) / 6 + 3e-3f * std::max(std::fabs(lo), std::fabs(hi)); // 2 bits: three steps
				if (tier(t) == 2 && !(std::fabs(got[i] - s.x[i]) <= half)) ++outside;
			}
		}
		CHECK_MESSAGE(outside == 0,
		              what << ": " << outside << " elements are further than half a code from their value");
		return;
	}
	check_codes(what, got, want, L, codes);
}

// Attention of dq over the last layer as stored, in double; `spread`: standard deviation of the scores of each query
// head.
Floats attention(const Run& run, std::vector<double>& spread) {
	const ReplayInput& in = run.in;
	const uint32_t D = in.head_dim, H = in.n_kv_heads;
	Floats out;
	for (uint32_t r = 0; r < in.n_queries; ++r)
		for (uint32_t h = 0; h < in.n_heads; ++h) {
			const uint32_t kv = h / (in.n_heads / H);
			const float* q = &in.dq[(size_t(r) * in.n_heads + h) * D];
			std::vector<double> p(in.n_tokens), sum(D);
			double top = -INFINITY, all = 0;
			const auto row = [&](uint32_t t) { return run.at(in.n_layers - 1, t) + size_t(kv) * D; };
			for (uint32_t t = 0; t < in.n_tokens; ++t) {
				for (uint32_t c = 0; c < D; ++c) p[t] += double(q[c]) * double(run.r.k_hat[row(t) + c]);
				p[t] = std::isnan(p[t]) ? -INFINITY : p[t] / std::sqrt(double(D));
				top = std::max(top, p[t]);
			}
			double n = 0, mean = 0, squares = 0;
			for (const double s : p)
				if (!std::isinf(s)) n += 1, mean += s, squares += s * s;
			spread.push_back(std::sqrt(std::max(0.0, squares / n - mean / n * mean / n)));
			for (uint32_t t = 0; t < in.n_tokens; ++t) {
				if (std::isinf(p[t])) continue;
				all += p[t] = std::exp(p[t] - top);
				for (uint32_t c = 0; c < D; ++c) sum[c] += p[t] * double(run.r.v_hat[row(t) + c]);
			}
			for (const double x : sum) out.push_back(float(x / all));
		}
	return out;
}

void check_attention(const Run& run, const DeviceInfo& info) {
	std::vector<double> spread;
	const Floats ref = attention(run, spread);
	const uint32_t D = run.in.head_dim;
	REQUIRE(run.r.out.size() == ref.size());
	for (size_t head = 0; head < ref.size(); head += D) {
		float most = 0, error = 0;
		for (size_t i = head; i < head + D; ++i)
			most = std::max(most, std::fabs(ref[i])), error = std::max(error, std::fabs(run.r.out[i] - ref[i]));
		// A query rounded to 8 bits changes scores by about 1 % of their spread, and weights by the same relative
		// amount.
		const float allowed = 2e-3f + (info.int8_attend ? 0.05f * float(1 + spread[head / D]) : 0);
		CHECK_MESSAGE(error <= allowed * most,
		              "attention of row and head " << head / D << " is off by " << error << " of " << most);
	}
}

void check_case(Backend& be, const Case& c) {
	const nlohmann::json j = nlohmann::json::parse(file_text(c.folder + "/case.json"));
	const std::string kv = j.at("kv");
	CAPTURE(kv);
	const auto path = [&](const char* name) { return c.inputs + "/" + name + ".npy"; };
	const ReplayFiles files({path("q"), path("k"), path("v"), path("dq"), path("probes")});
	Run run{files.input, {}, {}, {}, {}, {}};
	run.k_hat = floats(c.folder + "/k_hat.npy");
	run.v_hat = floats(c.folder + "/v_hat.npy");
	// A case may cover the first layers only.
	ReplayInput& in = run.in;
	in.n_layers = uint32_t(run.k_hat.size() / (in.n_tokens * run.row()));
	REQUIRE(in.n_layers <= files.input.n_layers);
	const size_t kv_n = size_t(in.n_layers) * in.n_tokens * run.row();
	in.q = in.q.first(kv_n / in.n_kv_heads * in.n_heads), in.k = in.k.first(kv_n), in.v = in.v.first(kv_n);
	const NpyArray tier = npy_read(c.folder + "/tier.npy");
	run.tier.assign(tier.as<uint8_t>().begin(), tier.as<uint8_t>().end());
	run.plan = make_plan(parse_policy(kv), {in.n_layers, in.n_kv_heads, in.head_dim});
	run.r = replay(be, run.plan, in);

	REQUIRE(run.r.k_hat.size() == run.k_hat.size());
	REQUIRE(run.r.v_hat.size() == run.v_hat.size());
	REQUIRE(run.r.tier.size() == run.tier.size());
	CHECK(run.r.score.empty() != fs::exists(c.folder + "/score.npy"));
	check_tiers(run, c.folder);
	if (run.r.tier == run.tier) // otherwise the classes differ by a tie
		for (uint32_t l = 0; l < in.n_layers; ++l) check_side(run, l, true), check_side(run, l, false);
	check_attention(run, be.info());
	CHECK(run.r.bytes.total() == bytes_at(run.plan, in.n_tokens).total());
}

// Compares heads of packed tokens with those stored by numpy. Single precision may choose another code than double if a
// value lies between two, which changes all channels of a rotated head; this is very rare.
void check_heads(const char* side, std::span<const float> got, std::span<const float> want, uint32_t D) {
	size_t differ = 0, far = 0;
	for (size_t head = 0; head < want.size(); head += D) {
		float most = 0, error = 0;
		for (size_t i = head; i < head + D; ++i)
			most = std::max(most, std::fabs(want[i])), error = std::max(error, std::fabs(got[i] - want[i]));
		differ += !(error <= 6e-3f * most), far += !(error <= 0.5f * most);
	}
	CHECK_MESSAGE(differ <= want.size() / D / 50,
	              side << ": " << differ << " of " << want.size() / D << " heads differ");
	CHECK_MESSAGE(far == 0, side << ": " << far << " heads are something else");
}

void check_codebook(Backend& be, const Case& c) {
	const std::string kv = nlohmann::json::parse(file_text(c.folder + "/case.json")).at("kv");
	CAPTURE(kv);
	const auto path = [&](const char* name) { return c.inputs + "/" + name + ".npy"; };
	const ReplayFiles files({path("q"), path("k"), path("v"), path("dq"), path("probes")});
	Run run{files.input, {}, {}, floats(c.folder + "/k_hat.npy"), floats(c.folder + "/v_hat.npy"), {}};
	run.in.n_layers = 1;
	const size_t n = run.in.n_tokens * run.row();
	run.in.q = run.in.q.first(n / run.in.n_kv_heads * run.in.n_heads);
	run.in.k = run.in.k.first(n), run.in.v = run.in.v.first(n);
	run.plan = make_plan(parse_policy(kv), {1, run.in.n_kv_heads, run.in.head_dim});
	run.r = replay(be, run.plan, run.in);
	REQUIRE(run.r.k_hat.size() > run.k_hat.size());
	const uint32_t D = run.in.head_dim;
	check_heads("k", std::span(run.r.k_hat).first(run.k_hat.size()), run.k_hat, D);
	check_heads("v", std::span(run.r.v_hat).first(run.v_hat.size()), run.v_hat, D);
	for (size_t i = run.k_hat.size(); i < run.r.k_hat.size(); ++i) REQUIRE(run.r.k_hat[i] == round_f16(run.in.k[i]));
	check_attention(run, be.info());
	CHECK(run.r.bytes.total() == bytes_at(run.plan, run.in.n_tokens).total());
}

void check_all(const std::vector<Case>& cases) {
	REQUIRE(cases.size() >= 10);
	each_row(cases, [](Backend& be, const Case& c, const TestRow&) { check_case(be, c); });
}

} // namespace

TEST_CASE("replay stores and attends to what numpy computed: small cases") { check_all(cases_in(kSmall)); }

TEST_CASE("replay stores and attends to what numpy computed: rotations, codebooks and parameters in bytes") {
	std::vector<Case> cases = cases_in(test_root() + "/tests/golden/codebook");
	REQUIRE(cases.size() == 7);
	for (Case& c : cases) c.inputs = kSmall;
	each_row(cases, [](Backend& be, const Case& c, const TestRow&) { check_codebook(be, c); });
}

TEST_CASE("replay stores and attends to what numpy computed: the reference's cases") {
	const std::string root = shared_file("reference/golden");
	if (!root.empty()) check_all(cases_in(root));
}

TEST_CASE("replay stores and attends to what numpy computed: other seeds") {
	const std::string script = shared_file("reference/make_golden.py");
	if (script.empty()) return;
	const char* given = std::getenv("KVRUN_TEST_PYTHON");
	std::string python;
	for (const std::string p :
	     {given ? given : "", "python3", "/usr/bin/python3"}) // the distribution's may be shadowed
		if (python.empty() && !p.empty() && std::system((p + " -c 'import numpy' 2>/dev/null").c_str()) == 0)
			python = p;
	if (python.empty()) {
		std::fprintf(stderr,
		             "skipped: no python3 with numpy (KVRUN_TEST_PYTHON names one); no cases from other seeds\n");
		return;
	}
	for (const int seed : {1, 20, 300}) {
		const Scratch scratch;
		REQUIRE(std::system(fmt::format("{} -B '{}' '{}' {}", python, script, scratch.path.string(), seed).c_str()) ==
		        0);
		CAPTURE(seed);
		check_all(cases_in(scratch.path.string()));
	}
}

TEST_CASE("replay refuses policies that fetch, which need decode steps") {
	const ReplayFiles files({kSmall + "/q.npy", kSmall + "/k.npy", kSmall + "/v.npy", kSmall + "/dq.npy", ""});
	const ReplayInput& in = files.input;
	const KvPlan plan = make_plan(parse_policy("rtn2,fetch=4"), {in.n_layers, in.n_kv_heads, in.head_dim});
	each_row(std::vector<Case>{{"rtn2,fetch=4", ""}}, [&](Backend& be, const Case&, const TestRow&) {
		CHECK_THROWS_WITH_AS(replay(be, plan, in), doctest::Contains("replay has no steps; give fetch=0"), Error);
	});
}

TEST_CASE("tensors that do not fit each other are refused in one line that names the file") {
	const Scratch scratch;
	const auto file = [&](const char* name) { return (scratch.path / name).string(); };
	const auto write = [&](const char* name, std::initializer_list<uint64_t> shape, float value = 1) {
		size_t n = 1;
		for (const uint64_t d : shape) n *= d;
		npy_write(file(name), shape, std::span<const float>(Floats(n, value)));
	};
	const auto rows = [&](const char* name, std::vector<int64_t> x) {
		npy_write(file(name), {x.size()}, std::span<const int64_t>(x));
	};
	write("q", {2, 8, 4, 16});
	write("k", {2, 8, 2, 16});
	write("dq", {3, 4, 16});
	rows("rows", {0, 3, 7});
	const ReplayFiles::Paths good{file("q"), file("k"), file("k"), file("dq"), file("rows")};
	const ReplayFiles ok(good);
	CHECK(ok.input.n_tokens == 8);
	CHECK(ok.input.probes == std::vector<uint32_t>{0, 3, 7});

	write("k3", {2, 8, 3, 16});
	write("k9", {2, 9, 2, 16});
	write("k_flat", {2, 8, 32});
	write("k_empty", {2, 8, 0, 16});
	write("k_nan", {2, 8, 2, 16}, NAN);
	write("k_large", {2, 8, 2, 16}, 70000);
	write("k1", {1, 8, 2, 16});
	write("dq8", {3, 4, 8});
	write("q_one", {2, 8, 1, 16});
	rows("far", {0, 8});
	rows("twice", {3, 3});
	rows("back", {-1});
	std::ofstream(file("text")) << "no array";
	struct Bad {
		std::string ReplayFiles::Paths::*which;
		const char* name;
		const char* says;
	};
	const Bad bad[] = {
	    {&ReplayFiles::Paths::k, "k3", "kv heads"},
	    {&ReplayFiles::Paths::k, "k9", "tokens"},
	    {&ReplayFiles::Paths::v, "k9", "tokens"},
	    {&ReplayFiles::Paths::k, "k_flat", "expected float32 of shape"},
	    {&ReplayFiles::Paths::k, "k_empty", "dimension"},
	    {&ReplayFiles::Paths::v, "k_nan", "element 0 is nan"},
	    {&ReplayFiles::Paths::k, "k_large", "70000"},
	    {&ReplayFiles::Paths::k, "k1", "layers"},
	    {&ReplayFiles::Paths::dq, "dq8", "channels"},
	    {&ReplayFiles::Paths::q, "q_one", "heads"},
	    {&ReplayFiles::Paths::q, "text", ".npy"},
	    {&ReplayFiles::Paths::q, "absent", "cannot be read"},
	    {&ReplayFiles::Paths::q, "rows", "int64"},
	    {&ReplayFiles::Paths::probes, "q", "expected int64"},
	    {&ReplayFiles::Paths::probes, "far", "row 8"},
	    {&ReplayFiles::Paths::probes, "twice", "row 3 after row 3"},
	    {&ReplayFiles::Paths::probes, "back", "row -1"},
	};
	for (const Bad& b : bad) {
		ReplayFiles::Paths p = good;
		p.*b.which = file(b.name);
		CAPTURE(b.name);
		std::string said;
		try {
			const ReplayFiles files(p);
		} catch (const Error& e) { said = e.what(); }
		CHECK(said.find(b.says) != std::string::npos);
		CHECK(said.find(b.name) != std::string::npos);
		CHECK(said.find('\n') == std::string::npos);
		if (said.find(b.says) == std::string::npos) MESSAGE(said);
	}
}
