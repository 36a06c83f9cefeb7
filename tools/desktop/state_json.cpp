// The app's settings as a file, and its whole state as JSON for tests.
#include "tools/desktop/state.h"
#include "tools/json_text.h"
#include "tools/text.h"
#include <algorithm>

namespace kvrun::desktop {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSettingsFormat = 1;
constexpr const char* kSettingsKey = "kvrun_desktop_settings";

constexpr const char* kPhases[] = {"off", "loading", "ready", "failed"};

} // namespace

std::string to_json(const Settings& s) {
	const Sampling& p = s.sampling;
	Json j = {{kSettingsKey, kSettingsFormat},
	          {"device", s.device},
	          {"kv", s.kv},
	          {"ctx", s.ctx},
	          {"system", s.system},
	          {"chat_template", s.chat_template},
	          {"max_tokens", p.max_tokens},
	          {"seed", p.seed},
	          {"scale", s.scale},
	          {"theme", s.theme},
	          {"expert", s.expert},
	          {"show_cache", s.show_cache},
	          {"recent", s.recent},
	          {"encoders", s.encoders}};
	for (const SamplingOption& o : sampling_options()) std::visit([&](auto at) { j[o.field] = p.*at; }, o.at);
	return json_lines(j);
}

Settings settings_from_json(std::string_view json, const std::string& file) {
	Settings s;
	Sampling& p = s.sampling;
	try {
		const Json j = Json::parse(json);
		const auto read = [&](const char* name, auto& to) { to = j.value(name, to); };
		if (j.at(kSettingsKey).get<int>() != kSettingsFormat)
			fail_status(KVRUN_EUNSUPPORTED, "{}: {} is not {}", file, kSettingsKey, kSettingsFormat);
		read("device", s.device), read("kv", s.kv), read("ctx", s.ctx), read("system", s.system);
		read("chat_template", s.chat_template), read("scale", s.scale), read("theme", s.theme);
		read("expert", s.expert), read("show_cache", s.show_cache), read("recent", s.recent);
		read("encoders", s.encoders);
		read("max_tokens", p.max_tokens), read("seed", p.seed);
		for (const SamplingOption& o : sampling_options()) std::visit([&](auto at) { read(o.field, p.*at); }, o.at);
	} catch (const Json::exception& e) { fail_status(KVRUN_EFORMAT, "{}: damaged settings: {}", file, e.what()); }
	return s;
}

std::string State::dump() const {
	Json list = Json::array();
	for (const Conversation& c : conversations) {
		const Live& l = live(c.id);
		Json shown = Json::array();
		for (const int m : c.branch()) {
			const Message& one = c.messages[size_t(m)];
			shown.push_back({{"number", m},
			                 {"role", one.user ? "user" : "assistant"},
			                 {"text", one.text},
			                 {"note", one.note},
			                 {"images", one.images},
			                 {"siblings", c.siblings(m).size()}});
		}
		Json tiers = Json::array();
		for (int t = 0; t < 4; ++t) tiers.push_back(std::ranges::count(l.cache.tiers, uint8_t(t)));
		list.push_back({{"id", c.id},
		                {"title", c.title},
		                {"kv", c.kv},
		                {"answering", l.answering != kNone},
		                {"read_share", l.read_share},
		                {"tokens_per_second", l.tokens_per_second},
		                {"messages", c.messages.size()},
		                {"shown", std::move(shown)},
		                {"tiers", std::move(tiers)},
		                {"cache_bytes", l.cache.total_bytes()}});
	}
	return json_lines({{"model", model},
	                   {"phase", kPhases[int(phase)]},
	                   {"device", facts.device},
	                   {"reads_images", phase == EnginePhase::Ready && facts.reads_images},
	                   {"current", current_id},
	                   {"problem", problem},
	                   {"settings", Json::parse(to_json(settings))},
	                   {"conversations", std::move(list)}});
}

} // namespace kvrun::desktop
