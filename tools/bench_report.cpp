// Rows of kvrun bench: what a test measured, as text and JSON.
#include "tools/bench_report.h"
#include "engine/core/utf8.h"
#include "tools/terminal.h"
#include <fmt/ranges.h>

namespace kvrun {
namespace {

struct PartOps {
	const char* name; // in JSON
	std::vector<std::string_view> ops;
};
const PartOps kPartOps[kAttentionParts] = {
    {"attend", {"attend", "attend_prompt", "join_heads", "unpack_latents"}},
    {"saliency", {"score_prompt", "score_slots", "channel_max", "kv_balance"}},
    {"packing", {"kv_load", "kv_block", "kv_pack", "kv_store"}},
};

// The first row of the same test with the same share of the weights in host memory.
const BenchRow& first_like(const std::vector<BenchRow>& all, const BenchRow& m) {
	return *std::ranges::find_if(
	    all, [&](const BenchRow& r) { return r.test.name() == m.test.name() && r.host_share == m.host_share; });
}

std::string of_peak(double rate, double peak) { return peak > 0 ? fmt::format("{:.1f} %", rate / peak * 100) : "-"; }

} // namespace

BenchPart BenchRow::part(AttentionPart p) const {
	BenchPart t;
	for (const OpTime& o : ops)
		if (std::ranges::count(kPartOps[p].ops, o.op)) t.ms += o.ms, t.bytes += o.bytes;
	return t;
}

Json bench_row_json(const BenchRow& m, bool ops) {
	Json j = {{"test", m.test.name()},
	          {"kv", m.policy},
	          {"n_prompt", m.test.prompt},
	          {"n_gen", m.test.generate},
	          {"n_depth", m.test.depth},
	          {"warmup_s", m.warmup_s},
	          {"sequences", m.test.sequences},
	          {"kv_bytes", m.kv_bytes},
	          {"host_weight_bytes", m.host_bytes},
	          {"bus_bytes_per_token", m.bus_bytes},
	          {"plan_bus_bytes_per_token", m.plan_bus_bytes},
	          {"kv_device_bytes", m.device_bytes},
	          {"resident_bytes", m.resident},
	          {"tok_s_median", m.median()},
	          {"tok_s_min", m.min()},
	          {"tok_s_max", m.max()},
	          {"tok_s", m.tok_s}};
	if (m.host_share >= 0) j["host_share"] = m.host_share;
	if (!m.ops.empty()) {
		j["device_ms"] = m.device_ms();
		for (int p = 0; p < kAttentionParts; ++p) {
			const BenchPart t = m.part(AttentionPart(p));
			j[kPartOps[p].name] = {{"ms", t.ms}, {"bytes", t.bytes}, {"bytes_per_s", t.rate()}};
		}
		j["attend"]["of_peak"] = m.peak > 0 ? Json(m.part(kAttend).rate() / m.peak) : nullptr;
	}
	if (ops)
		for (const OpTime& o : m.ops)
			j["ops"].push_back({{"op", o.op},
			                    {"calls", o.calls},
			                    {"calls_per_layer", m.per_layer(o)},
			                    {"ms", o.ms},
			                    {"bytes", o.bytes},
			                    {"bytes_per_s", o.ms > 0 ? o.bytes / o.ms * 1e3 : 0},
			                    {"kernels", o.kernels}});
	return j;
}

void print_bench_ops(const BenchRow& m) {
	write_stdout(fmt::format("\n{}, kv {}: one run, device time\n\n", m.test.name(), one_line(m.policy)));
	if (m.ops.empty()) return write_stdout("This device gives no timestamps.\n");
	const double all = m.device_ms();
	const bool has_kernels = std::ranges::any_of(m.ops, [](const OpTime& o) { return !o.kernels.empty(); });
	std::vector<std::vector<Column>> table;
	for (const OpTime& o : m.ops) {
		const double rate = o.ms > 0 ? o.bytes / o.ms * 1e3 : 0;
		auto& row = table.emplace_back();
		row = {{"op", o.op}, {"calls", std::to_string(o.calls)}};
		if (m.test.generate) row.push_back({"per layer and step", fmt::format("{:.2f}", m.per_layer(o))});
		row.push_back({"ms", fmt::format("{:.3f}", o.ms)});
		row.push_back({"share", fmt::format("{:.1f} %", all > 0 ? o.ms / all * 100 : 0)});
		row.push_back({"bytes", human_bytes(o.bytes)});
		row.push_back({"GB/s", fmt::format("{:.2f}", rate / 1e9)});
		row.push_back({"of peak", of_peak(rate, m.peak)});
		if (has_kernels) row.push_back({"kernels", fmt::format("{}", fmt::join(o.kernels, ", "))});
	}
	print_table(table);
}

void print_bench_speeds(const std::vector<BenchRow>& all, const std::string& model, const std::string& device,
                        bool ratio) {
	write_stdout(fmt::format("{} on {}\n\n", model, device));
	std::vector<std::vector<Column>> table;
	const bool bus = std::ranges::any_of(all, [](const BenchRow& m) { return m.bus_bytes > 0; });
	const bool shares = std::ranges::any_of(all, [](const BenchRow& m) { return m.host_share >= 0; });
	for (const BenchRow& m : all) {
		auto& row = table.emplace_back();
		row = {{"test", m.test.name()},
		       {"kv", one_line(m.policy)},
		       {"tok/s median", fmt::format("{:.2f}", m.median())},
		       {"min", fmt::format("{:.2f}", m.min())},
		       {"max", fmt::format("{:.2f}", m.max())}};
		if (ratio) row.push_back({"of the first", fmt::format("{:.2f}", m.median() / first_like(all, m).median())});
		row.push_back({"kv bytes", human_bytes(double(m.kv_bytes))});
		if (bus || shares) row.push_back({"weights in host memory", human_bytes(double(m.host_bytes))});
		if (bus || shares) row.push_back({"bus bytes per token", human_bytes(m.bus_bytes)});
	}
	print_table(table);
}

// What the cache costs each policy, in device time of one run.
void print_bench_cache(const std::vector<BenchRow>& all) {
	write_stdout("\nThe cache's part of one run, device time\n\n");
	if (all.front().ops.empty()) return write_stdout("This device gives no timestamps.\n");
	std::vector<std::vector<Column>> table;
	for (const BenchRow& m : all) {
		const BenchPart attend = m.part(kAttend), score = m.part(kScore), store = m.part(kStore);
		const double ms = m.device_ms(), both = score.ms + store.ms;
		table.push_back({{"test", m.test.name()},
		                 {"kv", one_line(m.policy)},
		                 {"device ms", fmt::format("{:.1f}", ms)},
		                 {"attend ms", fmt::format("{:.2f}", attend.ms)},
		                 {"bytes", human_bytes(attend.bytes)},
		                 {"GB/s", fmt::format("{:.2f}", attend.rate() / 1e9)},
		                 {"of peak", of_peak(attend.rate(), m.peak)},
		                 {"saliency ms", fmt::format("{:.2f}", score.ms)},
		                 {"packing ms", fmt::format("{:.2f}", store.ms)},
		                 {"saliency + packing",
		                  fmt::format("{:.1f} of {:.0f} ms, {:.1f} %", both, ms, ms > 0 ? both / ms * 100 : 0)}});
	}
	print_table(table);
}

} // namespace kvrun
