// The tables of a report.
#include "tools/compare/tables.h"
#include <algorithm>
#include <map>

namespace kvrun::comparison {
namespace {

std::string text(const Json& j, const char* key) {
	const auto it = j.find(key);
	return it == j.end() ? "" : it->is_string() ? it->get<std::string>() : it->dump();
}

// Names in order of first occurrence in the devices.
void add_name(std::vector<std::string>& names, const std::string& name) {
	if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

Cell op_cell(const Json& d, const std::string& op) {
	if (d["stages"].contains("ops") && d["stages"]["ops"].contains("error"))
		return {"failed", Mark::Bad, text(d["stages"]["ops"], "error")};
	for (const Json& o : list(d["stages"], "ops", "ops")) {
		if (o["op"] != op) continue;
		const std::string hint = fmt::format("{} calls, {} elements, max error {:.3g}, {:.0f} % of the tolerance",
		                                     o["calls"].get<uint64_t>(), o["elements"].get<uint64_t>(),
		                                     number(o["max_error"]), 100 * number(o["share_of_tolerance"]));
		if (o["bad"] > 0) return {fmt::format("{} wrong", o["bad"].get<uint64_t>()), Mark::Bad, hint};
		const double error = number(o["max_error"]);
		return {error == 0 ? "same bits" : fmt::format("{:.1e}", error), Mark::Good, hint};
	}
	return {"-"};
}

Cell codes_cell(const Json& d, const std::string& policy) {
	const Json* r = find(d["stages"], "codes");
	if (!r || !(*r)["policies"].contains(policy)) return {"-"};
	const Json& c = (*r)["policies"][policy];
	const uint64_t n = c["k_differs"].get<uint64_t>() + c["v_differs"].get<uint64_t>(), tiers = c["tier_differs"];
	if (n + tiers == 0) return {"same bits", Mark::Good, text(c, "hash")};
	return {fmt::format("{} differ", n + tiers), codes_wrong(c) ? Mark::Bad : Mark::Note};
}

Cell tokens_cell(const Json& d, const std::string& policy, const Json& run) {
	if (d["label"] == run["token_reference"]) return {find(d["stages"], "tokens") ? "reference" : "-"};
	const Json p = d.value("partings", Json::object()).value(policy, Json());
	if (p.is_null()) return {"-"};
	const int64_t at = p["position"];
	if (at < 0) return {"same", Mark::Good};
	const bool wrong = (policy == "fp16" || policy == "f16") && !p.value("near_tie", false);
	return {fmt::format("part at {}", at), wrong ? Mark::Bad : Mark::Note,
	        fmt::format("margin {:.4g}", number(p["margin"]))};
}

} // namespace

const Json* find(const Json& stages, const char* stage) {
	const auto it = stages.find(stage);
	return it == stages.end() || it->contains("error") ? nullptr : &*it;
}

const Json& list(const Json& stages, const char* stage, const char* key) {
	static const Json none = Json::array();
	const Json* r = find(stages, stage);
	if (!r) return none;
	const auto it = r->find(key);
	return it == r->end() ? none : *it;
}

std::string title(const Json& run) {
	return fmt::format("kvrun compare: {} on {} devices", text(run["model"], "name"), run["devices"].size());
}

std::string summary(const Json& run) {
	std::map<std::string, int> n;
	for (const Json& f : run["findings"]) ++n[f["level"].get<std::string>()];
	std::string s = n["wrong"]    ? fmt::format("{} results are wrong.", n["wrong"])
	                : n["failed"] ? fmt::format("{} stages failed; what was measured agrees.", n["failed"])
	                              : "The devices agree.";
	if (n["slower"]) s += fmt::format(" {} tests are slower than the baseline by more than the spread.", n["slower"]);
	if (n["note"]) s += fmt::format(" {} notes.", n["note"]);
	const double parameters = number(run["model"]["parameters"]);
	return s + fmt::format(" {} of {} parameters, kvrun {} ({}), {}.", text(run["model"], "architecture"),
	                       parameters >= 1e9 ? fmt::format("{:.1f}B", parameters / 1e9)
	                                         : fmt::format("{:.0f}M", parameters / 1e6),
	                       text(run, "version"), text(run, "commit"), text(run, "time"));
}

Table devices_table(const Json& run) {
	Table t{"Devices", {"device", "name", "driver", "type", "memory", "machine"}, {}};
	for (const Json& d : run["devices"]) {
		const Json& r = d["report"];
		const double memory = r["memory_bytes"];
		t.rows.push_back({{text(d, "label")},
		                  {text(r, "name")},
		                  {text(r, "driver")},
		                  {text(r, "type")},
		                  {memory > 1e15 ? "host's" : human_bytes(memory)},
		                  {text(d, "machine")}});
	}
	return t;
}

Table parity_table(const Json& run) {
	Table t{"Parity", {"result"}, {}};
	std::vector<std::string> ops, policies;
	for (const Json& d : run["devices"]) {
		t.heads.push_back(text(d, "label"));
		for (const Json& o : list(d["stages"], "ops", "ops")) add_name(ops, o["op"]);
		for (const char* stage : {"tokens", "codes"})
			if (const Json* r = find(d["stages"], stage))
				for (const auto& [policy, value] : (*r)["policies"].items()) add_name(policies, policy);
	}
	const auto row = [&](const std::string& name, const std::function<Cell(const Json&)>& cell) {
		std::vector<Cell> cells = {{name}};
		for (const Json& d : run["devices"]) cells.push_back(cell(d));
		t.rows.push_back(std::move(cells));
	};
	for (const std::string& op : ops) row(op, [&](const Json& d) { return op_cell(d, op); });
	for (const std::string& p : policies) row("stored, " + p, [&](const Json& d) { return codes_cell(d, p); });
	for (const std::string& p : policies) row("tokens, " + p, [&](const Json& d) { return tokens_cell(d, p, run); });
	row("same bits again", [](const Json& d) -> Cell {
		const Json* r = find(d["stages"], "stability");
		if (!r) return {"-"};
		for (const auto& [policy, same] : (*r)["same_bits_again"].items())
			if (!same.get<bool>()) return {policy + " differs", Mark::Bad};
		return {"yes", Mark::Good};
	});
	row("validation", [](const Json& d) -> Cell {
		const Json* r = find(d["stages"], "stability");
		if (!r) return {"-"};
		const std::string said = text(*r, "validation");
		if (said == "ok") return {"ok", Mark::Good};
		if (said == "not a Vulkan device") return {"-"};
		const bool absent = said.find("not installed") != said.npos;
		return {absent ? "no layer" : "messages", absent ? Mark::Note : Mark::Bad, said};
	});
	return t;
}

Table tokens_table(const Json& run) {
	Table t{"Greedy tokens", {"device", "policy", "tokens", "first that differs", "margin there"}, {}};
	for (const Json& d : run["devices"]) {
		const Json partings = d.value("partings", Json::object());
		for (const auto& [policy, p] : partings.items()) {
			const int64_t at = p["position"];
			t.rows.push_back({{text(d, "label")},
			                  {policy},
			                  {std::to_string((*find(d["stages"], "tokens"))["policies"][policy]["ids"].size())},
			                  {at < 0 ? "none" : std::to_string(at)},
			                  {at < 0 ? "-"
			                          : fmt::format("{:.4g}{}", number(p["margin"]),
			                                        p["near_tie"].get<bool>() ? ", a near tie" : "")}});
		}
	}
	return t;
}

Table speed_table(const Json& run) {
	const std::string base = run.value("base", "");
	Table t{"Speed", {"device", "test", "policy", "tok/s", "spread", "cache", "time to first token"}, {}};
	if (!base.empty()) t.heads.push_back("of " + base);
	std::map<std::string, double> of_base;
	for (const Json& d : run["devices"])
		if (d["label"] == base)
			for (const Json& s : list(d["stages"], "speed", "results"))
				of_base[text(s, "test") + text(s, "kv")] = s["tok_s_median"];
	for (const Json& d : run["devices"])
		for (const Json& s : list(d["stages"], "speed", "results")) {
			const double median = number(s["tok_s_median"]);
			const double prompt = s["n_prompt"], change = s.value("change", 0.0);
			auto& row = t.rows.emplace_back();
			row = {{text(d, "label")},
			       {text(s, "test")},
			       {text(s, "kv")},
			       {fmt::format("{:.2f}{}", median, change > 0 ? fmt::format(" ({:+.1f} %)", (change - 1) * 100) : "")},
			       {fmt::format("{:.1f} %",
			                    median > 0 ? 100 * (number(s["tok_s_max"]) - number(s["tok_s_min"])) / median : 0)},
			       {human_bytes(number(s["kv_device_bytes"]))},
			       {prompt > 0 && median > 0 ? fmt::format("{:.2f} s", prompt / median) : "-"}};
			if (base.empty()) continue;
			const auto it = of_base.find(text(s, "test") + text(s, "kv"));
			row.push_back({it == of_base.end() ? "-" : fmt::format("{:.2f}", median / it->second)});
		}
	return t;
}

Table quality_table(const Json& run) {
	Table t{
	    "Quality", {"device", "policy", "bits stored", "perplexity", "KL divergence", "same top token", "recall"}, {}};
	for (const Json& d : run["devices"]) {
		const Json* q = find(d["stages"], "quality");
		if (!q) continue;
		std::map<std::string, std::string> recall;
		for (const Json& r : (*q)["recall"]["results"])
			recall[text(r, "policy")] = fmt::format("{} of {}", r["right"].get<int64_t>(), r["n"].get<int64_t>());
		for (const Json& r : (*q)["text"]["results"])
			t.rows.push_back({{text(d, "label")},
			                  {text(r, "policy")},
			                  {fmt::format("{:.2f}", number(r["stored_bits_per_element"]))},
			                  {fmt::format("{:.3f}", number(r["ppl"]))},
			                  {fmt::format("{:.5f}", number(r["kld_mean"]))},
			                  {fmt::format("{:.1f} %", 100 * number(r["top1"]))},
			                  {recall[text(r, "policy")]}});
	}
	return t;
}

// Result of one chip's compiler for a kernel, over all its uses.
static Cell static_cell(const Json& chip, const std::string& kernel) {
	if (chip.contains("error")) return {"failed", Mark::Bad, text(chip, "error")};
	uint64_t uses = 0, registers = 0, waves = UINT64_MAX, lanes = UINT64_MAX, instructions = 0, spilling = 0;
	for (const Json& k : chip["kernels"]) {
		if (k["kernel"] != kernel) continue;
		++uses;
		registers = std::max(registers, k["registers"].get<uint64_t>());
		waves = std::min(waves, k["waves"].get<uint64_t>());
		lanes = std::min(lanes, k["lanes"].get<uint64_t>());
		instructions = std::max(instructions, k["instructions"].get<uint64_t>());
		spilling += k["spills"] > 0;
	}
	if (!uses) return {"-"};
	const std::string occupancy = waves ? std::to_string(waves) : lanes ? fmt::format("SIMD{}", lanes) : "-";
	return {fmt::format("{}, {}, {}", registers, occupancy, instructions), spilling ? Mark::Bad : Mark::None,
	        fmt::format("{} uses, {} spill", uses, spilling)};
}

Table static_table(const Json& run) {
	Table t{"Compilers of GPUs that are not here: most registers, fewest waves (Intel: lanes of a thread), most "
	        "instructions of any use",
	        {"kernel"},
	        {}};
	std::vector<std::string> kernels;
	const Json chips = run.value("static", Json::array());
	for (const Json& chip : chips) {
		t.heads.push_back(text(chip, "chip"));
		for (const Json& k : chip.value("kernels", Json::array())) add_name(kernels, k["kernel"]);
		if (chip.contains("error")) add_name(kernels, "all");
	}
	for (const std::string& kernel : kernels) {
		std::vector<Cell> row = {{kernel}};
		for (const Json& chip : chips) row.push_back(static_cell(chip, kernel));
		t.rows.push_back(std::move(row));
	}
	return t;
}

Table peer_table(const Json& run) {
	Table t{"llama.cpp", {"device", "test", "depth", "cache", "tok/s", "rounds"}, {}};
	for (const Json& r : run.value("peer", Json::object()).value("results", Json::array()))
		t.rows.push_back({{text(r, "device")},
		                  {text(r, "test")},
		                  {text(r, "depth")},
		                  {text(r, "cache")},
		                  {fmt::format("{:.2f}", number(r["tok_s"]))},
		                  {std::to_string(r["samples"].size())}});
	return t;
}

Table ops_table(const Json& device) {
	Table t{"Operations against the cpu backend",
	        {"operation", "calls", "elements", "wrong", "max error", "of tolerance", "ULP 0", "1", "2-3", "4-7", "8-15",
	         "16-63", "64-1023", "1k-64k", "more"},
	        {}};
	for (const Json& o : list(device["stages"], "ops", "ops")) {
		auto& row = t.rows.emplace_back();
		row = {{text(o, "op")},
		       {text(o, "calls")},
		       {text(o, "elements")},
		       {text(o, "bad"), o["bad"] > 0 ? Mark::Bad : Mark::None},
		       {fmt::format("{:.2e}", number(o["max_error"]))},
		       {fmt::format("{:.0f} %", 100 * number(o["share_of_tolerance"]))}};
		for (const Json& n : o["ulp"]) row.push_back({n == 0 ? "" : n.dump()});
	}
	return t;
}

} // namespace kvrun::comparison
