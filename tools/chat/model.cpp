// The model of a chat: opens it on its device, applies its chat template, and suggests policies that fit its memory.
#include "tools/chat/model.h"
#include "tools/api_device.h"
#include "tools/chat/store.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr size_t kLongestTemplate = size_t(1) << 20; // bytes
constexpr uint32_t kCheckpoints = 4;                 // states kept for /undo and /retry under policies that compress
constexpr const char* kSmaller[] = {"rtn8", "kivi4", "kivi2"}; // policies to suggest, best first

int show_loading(double done, double, void* payload) {
	Progress& bar = *static_cast<Progress*>(payload);
	if (done < 1)
		bar.show("loading", done);
	else
		bar.clear(); // so that later warnings begin on an empty line
	return 0;
}

template <class T, class F> std::vector<T> filled(size_t guess, F&& call) {
	std::vector<T> out;
	check_call(fill_vector(out, guess, call));
	return out;
}

} // namespace

ChatModel::ChatModel(const ChatArgs& a) : path_(a.model), gbnf_(a.form.gbnf()), schema_(a.form.schema()) {
	ApiDevice device(a.device);
	device.options.check |= a.check;
	Progress bar;
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = a.model.c_str();
	o.device = &device.options;
	o.kv_budget_bytes = a.kv_budget;
	const kvrun_weight_options weights = api_weights(a, a.kv);
	o.weights = &weights;
	o.ubatch = a.ubatch_within_ctx();
	o.max_rows = a.draft.rows(1);
	if (a.draft.given() && !a.draft.looks_up()) o.draft_model = a.draft.what.c_str();
	o.progress = show_loading;
	o.payload = &bar;
	kvrun_engine* engine = nullptr;
	const kvrun_status opened = kvrun_engine_open(&engine, &o);
	engine_.reset(engine);
	bar.clear();
	check_call(opened);
	check_call(set_host_memory(engine, a.host_budget, a.offload_dir));

	new_grammar(nullptr); // reports a bad grammar before the first question
	if (a.chat_template.find_first_of("/.") != std::string::npos)
		template_text_ = read_text_file(a.chat_template, kLongestTemplate);
	else
		template_name_ = a.chat_template;
	const kvrun_chat_options chat = chat_options(nullptr, {});
	const kvrun_status known = kvrun_chat_get_features(engine_.get(), &chat, &features_);
	if (known == KVRUN_ENOTFOUND) fail_chat(known, "{} (--chat-template NAME|FILE)", kvrun_last_error());
	check_call(known);
	if (const kvrun_engine_info i = info(); *i.weights) say(i.weights);
	if (const kvrun_engine_info i = info(); i.device_is_cpu)
		say(fmt::format("running on a CPU device: {}, driver {}", i.device_name, i.device_driver));
}

kvrun_engine_info ChatModel::info() const {
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	check_call(kvrun_engine_get_info(engine_.get(), &i));
	return i;
}

kvrun_chat_options ChatModel::chat_options(const std::string* messages_json, std::optional<bool> think) const {
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	if (messages_json) o.messages_json = messages_json->c_str();
	if (!template_name_.empty()) o.template_name = template_name_.c_str();
	if (!template_text_.empty()) o.template_text = template_text_.c_str();
	if (think) o.variables_json = *think ? R"({"enable_thinking": true})" : R"({"enable_thinking": false})";
	return o;
}

std::vector<uint32_t> ChatModel::tokens(const std::string& messages_json, std::optional<bool> think,
                                        bool answer) const {
	kvrun_chat_options o = chat_options(&messages_json, think);
	o.no_answer = !answer;
	return filled<uint32_t>(messages_json.size() / 2 + 64, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_chat_tokens(engine_.get(), &o, to, room, n);
	});
}

GrammarHandle ChatModel::new_grammar(const kvrun_chat_options* chat) const {
	if (gbnf_.empty() && schema_.empty()) return nullptr;
	kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
	if (!gbnf_.empty()) o.gbnf = gbnf_.c_str();
	if (!schema_.empty()) o.json_schema = schema_.c_str();
	o.chat = chat;
	kvrun_grammar* out = nullptr;
	check_call(kvrun_grammar_new(&out, engine_.get(), &o));
	return GrammarHandle(out);
}

GrammarHandle ChatModel::grammar(const std::string& messages_json, std::optional<bool> think) const {
	const kvrun_chat_options o = chat_options(&messages_json, think);
	return new_grammar(&o);
}

ReplyHandle ChatModel::reply(const std::string& messages_json, std::optional<bool> think) const {
	const kvrun_chat_options o = chat_options(&messages_json, think);
	kvrun_reply* reply = nullptr;
	check_call(kvrun_reply_new(&reply, engine_.get(), &o));
	return ReplyHandle(reply);
}

std::string ChatModel::text(const uint32_t* tokens, size_t count) const {
	const auto out = filled<char>(count * 6 + 64, [&](char* to, size_t room, size_t* n) {
		return kvrun_detokenize(engine_.get(), tokens, count, KVRUN_TOKENS_SPECIAL, to, room, n);
	});
	return {out.begin(), out.end()};
}

SessionHandle ChatModel::session(const std::string& kv, int64_t ctx, uint64_t seed) const {
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = kv.empty() ? nullptr : kv.c_str();
	o.ctx = uint32_t(ctx);
	o.checkpoints = kCheckpoints;
	o.seed = seed;
	kvrun_session* session = nullptr;
	check_call(kvrun_session_open(&session, engine_.get(), &o));
	return SessionHandle(session);
}

std::optional<kvrun_plan> ChatModel::plan(const std::string& kv, uint64_t ctx) const {
	const kvrun_engine_info i = info();
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
	const kvrun_engine_info i = info();
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

kvrun_session_info session_info(kvrun_session* session) {
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	check_call(kvrun_session_get_info(session, &i));
	return i;
}

std::vector<uint32_t> session_tokens(kvrun_session* session) {
	return filled<uint32_t>(session_info(session).n_tokens, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_session_tokens(session, to, room, n);
	});
}

} // namespace kvrun
