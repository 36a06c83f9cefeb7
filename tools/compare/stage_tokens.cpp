// Stages `tokens` and `stability`: greedy tokens under each policy; whether a repetition gives the same bits; messages
// of the validation layer.
#include "tools/args_engine.h"
#include "tools/compare/compare.h"
#include "tools/compare/sequences.h"
#include <algorithm>

namespace kvrun::comparison {
namespace {

constexpr uint32_t kPrompt = 160; // tokens: longer than the f16 windows of most policies

std::unique_ptr<Engine> open_engine_on(const Options& o, const Device& d, const char* validate = nullptr) {
	EngineOptions e;
	e.model = o.model;
	e.backend = backend_options(d.select, /*check=*/false);
	if (validate) e.backend.validate = validate;
	return Engine::open(e);
}

std::vector<Step> run_policy(Engine& e, const std::string& policy, int64_t n, uint64_t& hash) {
	const std::vector<uint32_t> prompt = text_tokens(e, std::min<size_t>(kPrompt, e.config().max_seq / 2));
	const auto steps = uint32_t(std::min<int64_t>(n, int64_t(e.config().max_seq - prompt.size())));
	Session s(e, {.kv = parse_policy(policy), .ctx = uint32_t(prompt.size()) + steps});
	return greedy(s, prompt, steps, hash);
}

// "ok", the layer's message, or why it could not be used.
std::string validate(const Options& o, const Device& d) {
	if (d.report.value("backend", "") != "vulkan") return "not a Vulkan device";
	try {
		const auto engine = open_engine_on(o, d, "1");
		uint64_t hash = 0;
		for (const std::string& policy : policies(o)) run_policy(*engine, policy, 4, hash);
	} catch (const Error& e) { return e.what(); }
	return "ok";
}

} // namespace

Json run_tokens(const Options& o, const Device& d) {
	const auto engine = open_engine_on(o, d);
	Json out = Json::object();
	for (const std::string& policy : policies(o)) {
		uint64_t hash = 0;
		Json ids = Json::array(), top = Json::array(), margin = Json::array(), spread = Json::array();
		for (const Step& s : run_policy(*engine, policy, o.tokens, hash))
			ids.push_back(s.token), top.push_back(s.top), margin.push_back(s.margin), spread.push_back(s.spread);
		out[policy] = {{"ids", ids}, {"top", top}, {"margin", margin}, {"spread", spread}};
	}
	return {{"policies", out}};
}

Json run_stability(const Options& o, const Device& d) {
	Json same = Json::object();
	{
		const auto engine = open_engine_on(o, d);
		for (const std::string& policy : policies(o)) {
			uint64_t first = 0, second = 0;
			run_policy(*engine, policy, std::min<int64_t>(o.tokens, 16), first);
			run_policy(*engine, policy, std::min<int64_t>(o.tokens, 16), second);
			same[policy] = first == second;
		}
	}
	return {{"same_bits_again", same}, {"validation", validate(o, d)}};
}

} // namespace kvrun::comparison
