// Findings of a comparison: wrong results, devices whose tokens differ, slower speeds. The rules are in the README.
#include "tools/compare/compare.h"
#include <algorithm>
#include <map>

namespace kvrun::comparison {
namespace {

constexpr double kNearTie = 0.02;     // share of the logits' deviation: rounding can reverse a smaller margin
constexpr double kCodesShare = 0.005; // share of elements that may have a neighbouring code, for values between two
constexpr double kLeastSpread = 0.03; // relative change of a speed; less is not a change
constexpr double kThrottled = 0.9;    // speed of the last third of the rounds relative to the first

class Findings {
 public:
	explicit Findings(Json& run) : all_(run["findings"] = Json::array()) {}
	void add(const char* level, const Json& device, const char* stage, std::string text) {
		all_.push_back({{"level", level}, {"device", device["label"]}, {"stage", stage}, {"text", std::move(text)}});
	}
	bool any(std::string_view level) const {
		return std::ranges::any_of(all_, [&](const Json& f) { return f["level"] == level; });
	}

 private:
	Json& all_;
};

// A stage's result on a device; null if it was not run or failed.
const Json* result(const Json& device, const char* stage) {
	const auto& stages = device["stages"];
	const auto it = stages.find(stage);
	return it == stages.end() || it->contains("error") ? nullptr : &*it;
}

void judge_ops(Findings& f, const Json& d) {
	const Json* r = result(d, "ops");
	if (!r) return;
	for (const Json& op : (*r)["ops"])
		if (op["bad"] > 0)
			f.add("wrong", d, "ops",
			      fmt::format("{}: {} of {} elements outside the tolerance, max error {:.3g}, worst in {} of {}",
			                  op["op"].get<std::string>(), op["bad"].get<uint64_t>(), op["elements"].get<uint64_t>(),
			                  number(op["max_error"]), op["worst_output"].get<std::string>(),
			                  op["worst_shape"].get<std::string>()));
}

void judge_codes(Findings& f, Json& d) {
	const Json* r = result(d, "codes");
	if (!r) return;
	for (const auto& [policy, c] : (*r)["policies"].items()) {
		const uint64_t n = c["elements"], k = c["k_differs"], v = c["v_differs"], tiers = c["tier_differs"];
		if (k + v + tiers == 0) continue;
		f.add(codes_wrong(c) ? "wrong" : "note", d, "codes",
		      fmt::format("{}: {} keys and {} values of {} stored with other bits than by the cpu backend, {} of {} "
		                  "tokens in another tier",
		                  policy, k, v, n, tiers, c["tokens"].get<uint64_t>()));
		if (c.contains("rank_correlation") && !(number(c["rank_correlation"]) >= 0.999))
			f.add("wrong", d, "codes",
			      fmt::format("{}: tokens are ranked differently, correlation {:.4f}", policy,
			                  number(c["rank_correlation"])));
	}
}

// First position at which two lists of greedy tokens differ; -1: none.
int64_t parting(const Json& a, const Json& b) {
	const size_t n = std::min(a["ids"].size(), b["ids"].size());
	for (size_t i = 0; i < n; ++i)
		if (a["ids"][i] != b["ids"][i]) return int64_t(i);
	return -1;
}

// Sets "parting" of each policy: {position, near_tie, margin} against the reference.
void judge_tokens(Findings& f, Json& d, const Json& reference) {
	d["partings"] = Json::object(); // inserted before pointers into d are taken: a new key moves the others
	const Json* r = result(d, "tokens");
	const Json* ref = result(reference, "tokens");
	if (!r || !ref || d["label"] == reference["label"]) return;
	Json& partings = d["partings"];
	for (const auto& [policy, t] : (*r)["policies"].items()) {
		if (!(*ref)["policies"].contains(policy)) continue;
		const Json& other = (*ref)["policies"][policy];
		const int64_t at = parting(t, other);
		partings[policy] = {{"position", at}, {"against", reference["label"]}};
		if (at < 0) continue;
		const double margin = std::min(number(t["margin"][size_t(at)]), number(other["margin"][size_t(at)])),
		             spread = number(other["spread"][size_t(at)]);
		const bool tied = margin <= kNearTie * spread; // false for NaN
		partings[policy]["near_tie"] = tied, partings[policy]["margin"] = margin;
		// a code that rounds the other way changes later logits by more than rounding does
		const bool exact = policy == "fp16" || policy == "f16";
		f.add(exact && !tied ? "wrong" : "note", d, "tokens",
		      fmt::format("{}: parts from {} at token {} of {}, where the best two logits are {:.4g} apart ({:.2g} "
		                  "deviations{})",
		                  policy, reference["label"].get<std::string>(), at, t["ids"].size(), margin, margin / spread,
		                  tied ? ", a near tie" : ""));
	}
}

void judge_stability(Findings& f, const Json& d) {
	if (const Json* r = result(d, "stability")) {
		for (const auto& [policy, same] : (*r)["same_bits_again"].items())
			if (!same.get<bool>())
				f.add("wrong", d, "stability", policy + ": the same input gave other bits a second time");
		const std::string said = (*r)["validation"];
		if (said.find("not installed") != said.npos)
			f.add("note", d, "stability", "the validation layer is not installed");
		else if (said != "ok" && said != "not a Vulkan device")
			f.add("wrong", d, "stability", "validation: " + said);
	}
	const Json* speed = result(d, "speed");
	if (!speed) return;
	for (const Json& test : (*speed)["results"]) {
		const std::vector<double> s = test["tok_s"];
		const size_t third = s.size() / 3;
		if (third == 0 || s.size() < 6) continue;
		double first = 0, last = 0;
		for (size_t i = 0; i < third; ++i) first += s[i], last += s[s.size() - 1 - i];
		if (last < kThrottled * first)
			f.add("note", d, "stability",
			      fmt::format("{} {}: the last rounds are {:.0f} % slower than the first; throttled, or other load",
			                  test["test"].get<std::string>(), test["kv"].get<std::string>(),
			                  100 * (1 - last / first)));
	}
}

double spread(const Json& test) {
	const double median = test["tok_s_median"];
	return median > 0 ? (test["tok_s_max"].get<double>() - test["tok_s_min"].get<double>()) / median : 0;
}

// Sets "change" of each test: speed now / speed in the baseline.
void judge_baseline(Findings& f, Json& d, const Json& baseline) {
	if (!result(d, "speed")) return;
	std::map<std::string, const Json*> before;
	for (const Json& old : baseline["devices"])
		if (old["label"] == d["label"])
			if (const Json* r = result(old, "speed"))
				for (const Json& t : (*r)["results"])
					before[t["test"].get<std::string>() + " " + t["kv"].get<std::string>()] = &t;
	for (Json& t : d["stages"]["speed"]["results"]) {
		const std::string name = t["test"].get<std::string>() + " " + t["kv"].get<std::string>();
		const auto it = before.find(name);
		if (it == before.end()) continue;
		const Json& old = *it->second;
		const double ratio = t["tok_s_median"].get<double>() / old["tok_s_median"].get<double>(),
		             noise = std::max(kLeastSpread, spread(t) + spread(old));
		t["change"] = ratio;
		const std::string text = fmt::format("{}: {:.2f} tok/s, was {:.2f} ({:+.1f} %, spread {:.1f} %)", name,
		                                     t["tok_s_median"].get<double>(), old["tok_s_median"].get<double>(),
		                                     (ratio - 1) * 100, noise * 100);
		if (ratio < 1 - noise) f.add("slower", d, "speed", text);
		if (ratio > 1 + noise) f.add("faster", d, "speed", text);
	}
}

// The device with which tokens are compared: the cpu backend if it ran, else the first.
const Json& reference_of(const Json& run) {
	for (const Json& d : run["devices"])
		if (d["reference"].get<bool>() && result(d, "tokens")) return d;
	for (const Json& d : run["devices"])
		if (result(d, "tokens")) return d;
	return run["devices"][0];
}

} // namespace

bool codes_wrong(const Json& c) {
	const uint64_t n = c["elements"], k = c["k_differs"], v = c["v_differs"], tiers = c["tier_differs"];
	return double(std::max(k, v)) > kCodesShare * double(n) && tiers == 0;
}

int judge(Json& run, const Json* baseline) {
	const Json reference = reference_of(run);
	run["token_reference"] = reference["label"];
	Findings f(run); // after the other keys: it keeps a reference, and a new key moves the others
	for (Json& d : run["devices"]) {
		for (const auto& [stage, r] : d["stages"].items())
			if (r.contains("error")) f.add("failed", d, stage.c_str(), r["error"]);
		judge_ops(f, d);
		judge_codes(f, d);
		judge_tokens(f, d, reference);
		judge_stability(f, d);
		if (baseline) judge_baseline(f, d, *baseline);
	}
	if (run.contains("static"))
		for (const Json& column : run["static"])
			if (column.contains("error")) f.add("failed", {{"label", column["chip"]}}, "static", column["error"]);
	if (run.contains("peer") && run["peer"].contains("error"))
		f.add("failed", {{"label", "peer"}}, "speed", run["peer"]["error"]);
	return f.any("wrong") ? kWrong : f.any("failed") ? 4 : f.any("slower") ? kSlower : 0;
}

} // namespace kvrun::comparison
