// kvrun bench --draft: generation with and without drafts, in turns.
#include "tools/bench_draft.h"
#include "engine/core/utf8.h"
#include "engine/run/batch.h"
#include "tools/terminal.h"
#include <algorithm>
#include <random>

namespace kvrun {
namespace {

double median(std::vector<double> x) {
	if (x.empty()) return 0;
	std::ranges::sort(x);
	const size_t h = x.size() / 2;
	return x.size() % 2 ? x[h] : (x[h - 1] + x[h]) / 2;
}

double ratio(const DraftMeasured& m) {
	const double plain = median(m.plain);
	return plain > 0 ? median(m.drafted) / plain : 0;
}

// The first n tokens of the text, or of a repeated sequence of kPeriod tokens.
std::vector<uint32_t> prompt_of(const Engine& e, const std::string& text, uint32_t n) {
	constexpr uint32_t kPeriod = 64;
	std::vector<uint32_t> out;
	if (!text.empty()) {
		out = e.tokenizer().encode(text);
		if (out.size() < n)
			fail(Code::Invalid, "--file has {} tokens, a depth of {} needs as many; give a longer text or a smaller -d",
			     out.size(), n);
		out.resize(n);
		return out;
	}
	std::mt19937 random(1);
	for (uint32_t i = 0; i < n; ++i)
		out.push_back(i < kPeriod ? uint32_t(random() % e.config().vocab) : out[i - kPeriod]);
	return out;
}

} // namespace

void bench_drafts(Engine& e, DraftModel* small, const DraftBench& b, std::vector<DraftMeasured>& all,
                  const std::function<void(const std::string&, double)>& progress) {
	const double turns = double(b.policies.size() * b.generate.size() * b.depth.size()) * (b.repeat + b.warm_up) * 2;
	double done = 0;
	for (const uint32_t depth : b.depth)
		for (const uint32_t n : b.generate)
			for (const KvPolicy& policy : b.policies) {
				DraftMeasured m{
				    depth ? fmt::format("tg{} @ d{}", n, depth) : fmt::format("tg{}", n), policy.text, {}, {}};
				const std::vector<uint32_t> prompt = prompt_of(e, b.text, depth ? depth : kDraftPrompt);
				GenerateOptions o;
				o.n = n, o.ignore_end = true, o.sampling.temperature = 0, o.cancel = &Interrupt::requested();
				std::vector<uint32_t> plain;
				for (uint32_t round = 0; round < b.repeat + b.warm_up; ++round)
					for (const bool drafts : {false, true}) {
						progress(fmt::format("{}, {}{}", m.test, one_line(m.kv), drafts ? ", drafts" : ""),
						         done++ / turns);
						Session s(e, {.kv = policy, .ctx = b.ctx});
						o.draft_max = drafts ? b.draft_max : 0;
						if (small) o.drafter = [small] { return small->drafter(); };
						const GenerateResult r = generate(s, prompt, o);
						if (r.reason == StopReason::Cancelled) {
							if (!m.drafted.empty()) all.push_back(m);
							return;
						}
						if (drafts)
							m.same = m.same && r.tokens == plain, m.draft_n = r.draft.drafted,
							m.accepted = r.draft.accepted;
						else
							plain = r.tokens;
						if (round >= b.warm_up && r.decode_s > 0)
							(drafts ? m.drafted : m.plain).push_back(r.decode_steps / r.decode_s);
					}
				all.push_back(std::move(m));
			}
}

void print_drafts(const std::vector<DraftMeasured>& all) {
	std::vector<std::vector<Column>> table;
	for (const DraftMeasured& m : all)
		table.push_back(
		    {{"test", m.test},
		     {"kv", one_line(m.kv)},
		     {"tok/s plain", fmt::format("{:.2f}", median(m.plain))},
		     {"with drafts", fmt::format("{:.2f}", median(m.drafted))},
		     {"ratio", fmt::format("{:.2f}", ratio(m))},
		     {"drafted", std::to_string(m.draft_n)},
		     {"taken", m.draft_n ? fmt::format("{:.1f} %", 100. * double(m.accepted) / double(m.draft_n)) : "-"},
		     {"tokens", m.same ? "equal" : "DIFFER"}});
	if (!table.empty()) print_table(table);
}

Json drafts_json(const std::vector<DraftMeasured>& all) {
	Json out = Json::array();
	for (const DraftMeasured& m : all)
		out.push_back({{"test", m.test},
		               {"kv", m.kv},
		               {"tok_s_plain", m.plain},
		               {"tok_s_drafts", m.drafted},
		               {"ratio", ratio(m)},
		               {"draft_n", m.draft_n},
		               {"draft_n_accepted", m.accepted},
		               {"tokens_equal", m.same}});
	return out;
}

} // namespace kvrun
