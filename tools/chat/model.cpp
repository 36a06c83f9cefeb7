// The model of a chat: opens it on its device, applies its chat template, and suggests policies that fit its memory.
#include "tools/chat/model.h"
#include "tools/api_model.h"
#include "tools/output.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

constexpr uint32_t kCheckpoints = 4; // states kept for /undo and /retry under policies that compress
constexpr const char* kSmaller[] = {"rtn8", "kivi4", "kivi2"}; // policies to suggest, best first

} // namespace

ChatModel::ChatModel(const ChatArgs& a) : path_(a.model), gbnf_(a.form.gbnf()), schema_(a.form.schema()) {
	check_call(open_model(a, a.draft, a.kv, /*answers=*/1, /*canceller=*/nullptr, /*show=*/true, engine_));
	if (engine_info(engine()).encodes) created<SessionHandle>(kvrun_session_open, engine(), nullptr); // says why not
	new_grammar(nullptr); // reports a bad grammar before the first question
	choose_template(prompt_, engine(), a.chat_template);
	prompt_.variables = a.template_variables;
	const kvrun_status known = chat_features(engine(), prompt_, features_);
	if (known == KVRUN_ENOTFOUND) fail_status(known, "{} (--chat-template NAME|FILE)", kvrun_last_error());
	check_call(known);
	const kvrun_engine_info i = engine_info(engine());
	if (*i.weights) say(i.weights);
	if (i.device_is_cpu) say(fmt::format("running on a CPU device: {}, driver {}", i.device_name, i.device_driver));
}

ChatPrompt ChatModel::prompt(std::string messages_json, std::optional<bool> think) const {
	ChatPrompt p = prompt_;
	p.messages = std::move(messages_json);
	if (!think) return p;
	nlohmann::ordered_json all = nlohmann::ordered_json::object();
	if (!p.variables.empty()) all = nlohmann::ordered_json::parse(p.variables);
	all["enable_thinking"] = *think;
	p.variables = all.dump();
	return p;
}

std::vector<uint32_t> ChatModel::tokens(const ChatPrompt& p) const {
	std::vector<uint32_t> out;
	check_call(chat_tokens(engine(), p, out));
	return out;
}

GrammarHandle ChatModel::new_grammar(const ChatPrompt* prompt) const {
	if (gbnf_.empty() && schema_.empty()) return nullptr;
	kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
	o.gbnf = or_null(gbnf_), o.json_schema = or_null(schema_);
	const kvrun_chat_options chat = prompt ? prompt->options() : kvrun_chat_options KVRUN_CHAT_OPTIONS_INIT;
	if (prompt) o.chat = &chat;
	return created<GrammarHandle>(kvrun_grammar_new, engine(), &o);
}

std::string ChatModel::text(const uint32_t* tokens, size_t count) const {
	return filled<std::string>(count * 6 + 64, [&](char* to, size_t room, size_t* n) {
		return kvrun_detokenize(engine(), tokens, count, KVRUN_TOKENS_SPECIAL, to, room, n);
	});
}

SessionHandle ChatModel::session(const std::string& kv, int64_t ctx, uint64_t seed) const {
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = or_null(kv);
	o.ctx = uint32_t(ctx);
	o.checkpoints = kCheckpoints;
	o.seed = seed;
	return created<SessionHandle>(kvrun_session_open, engine(), &o);
}

std::optional<kvrun_plan> ChatModel::plan(const std::string& kv, uint64_t ctx) const {
	const kvrun_engine_info i = engine_info(engine());
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = path_.c_str();
	o.kv = kv.c_str();
	o.ctx = uint32_t(ctx);
	// the plan counts all weights, on the device and in host memory
	o.memory_bytes = i.weight_bytes + i.host_weight_bytes + i.activation_bytes + i.kv_budget_bytes;
	kvrun_plan p = KVRUN_PLAN_INIT;
	if (kvrun_plan_memory(&p, &o) != KVRUN_OK) return {}; // nothing to suggest then
	return p;
}

std::vector<std::string> ChatModel::larger_contexts(const std::string& kv, uint32_t ctx, size_t needed) const {
	const kvrun_engine_info i = engine_info(engine());
	const uint64_t wanted = std::min<uint64_t>(i.ctx_train, std::max<uint64_t>(uint64_t(ctx) * 2, needed * 3 / 2));
	std::vector<std::string> out;
	const std::optional<kvrun_plan> now = wanted > needed ? plan(kv, wanted) : std::nullopt;
	if (!now) return out;
	const auto offer = [&](const std::string& name, uint64_t bytes) {
		out.push_back(fmt::format("/kv {} {} ({} of the {} for caches)", name, wanted, human_bytes(double(bytes)),
		                          human_bytes(double(i.kv_budget_bytes))));
	};
	if (now->kv_bytes <= i.kv_budget_bytes) offer(kv, now->kv_bytes);
	for (const char* name : kSmaller) {
		const std::optional<kvrun_plan> p = plan(name, wanted);
		if (!p || p->kv_bytes >= now->kv_bytes || p->kv_bytes > i.kv_budget_bytes) continue;
		offer(name, p->kv_bytes);
		break;
	}
	return out;
}

std::vector<uint32_t> session_tokens(kvrun_session* session) {
	return filled<std::vector<uint32_t>>(session_info(session).n_tokens, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_session_tokens(session, to, room, n);
	});
}

} // namespace kvrun
