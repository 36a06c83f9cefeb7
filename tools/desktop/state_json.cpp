// The app's settings as a file, and its whole state as JSON for tests.
#include "tools/desktop/state.h"
#include "tools/desktop/words.h"
#include "tools/json_text.h"
#include "tools/text.h"
#include <algorithm>
#include <type_traits>

namespace kvrun::desktop {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSettingsFormat = 1;
constexpr const char* kSettingsKey = "kvrun_desktop_settings";

constexpr double kLeastScale = 0.5, kMostScale = 4; // as --scale
constexpr uint32_t kMostTokens = 1u << 30;

constexpr const char* kPhases[] = {"off", "loading", "ready", "failed"};

// Every field of the settings, by name.
template <class F> void for_each_field(F&& f) {
	f("device", &Settings::device), f("kv", &Settings::kv), f("ctx", &Settings::ctx), f("system", &Settings::system);
	f("chat_template", &Settings::chat_template), f("scale", &Settings::scale), f("theme", &Settings::theme);
	f("expert", &Settings::expert), f("show_cache", &Settings::show_cache), f("recent", &Settings::recent);
	f("encoders", &Settings::encoders);
}

// Values that the window could not be used with become usable ones.
void clamp(Settings& s) {
	if (!(s.scale >= kLeastScale && s.scale <= kMostScale)) s.scale = 0;
	if (s.theme != "light" && s.theme != "dark") s.theme = "system";
	s.ctx = std::min(s.ctx, kMostTokens);
	Sampling& p = s.sampling;
	p.max_tokens = std::clamp(p.max_tokens, 0, int(kMostTokens));
	p.seed = std::max<int64_t>(p.seed, -1);
	for (const SamplingOption& o : sampling_options())
		std::visit(
		    [&](auto at) {
			    auto& v = p.*at;
			    using V = std::remove_reference_t<decltype(v)>;
			    if (!(o.also_minus_one && v == V(-1))) v = V(std::clamp(double(v), o.lowest, o.highest));
		    },
		    o.at);
}

} // namespace

Settings with_changes(Settings to, const Settings& before, const Settings& after) {
	const auto take = [](auto& t, const auto& b, const auto& a) {
		if (a != b) t = a;
	};
	for_each_field([&](const char*, auto at) { take(to.*at, before.*at, after.*at); });
	Sampling& p = to.sampling;
	const Sampling &b = before.sampling, &a = after.sampling;
	take(p.max_tokens, b.max_tokens, a.max_tokens), take(p.seed, b.seed, a.seed);
	for (const SamplingOption& o : sampling_options()) std::visit([&](auto at) { take(p.*at, b.*at, a.*at); }, o.at);
	return to;
}

std::string to_json(const Settings& s) {
	const Sampling& p = s.sampling;
	Json j = {{kSettingsKey, kSettingsFormat}, {"max_tokens", p.max_tokens}, {"seed", p.seed}};
	for_each_field([&](const char* name, auto at) { j[name] = s.*at; });
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
		for_each_field([&](const char* name, auto at) { read(name, s.*at); });
		read("max_tokens", p.max_tokens), read("seed", p.seed);
		for (const SamplingOption& o : sampling_options()) std::visit([&](auto at) { read(o.field, p.*at); }, o.at);
	} catch (const Json::exception& e) {
		fail_status(KVRUN_EFORMAT, "{}: damaged settings: {}", file, json_fault(e.what()));
	}
	clamp(s);
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
	                   {"reads_audio", phase == EnginePhase::Ready && facts.reads_audio},
	                   {"current", current_id},
	                   {"problem", problem},
	                   {"offered", offered},
	                   {"settings", Json::parse(to_json(settings))},
	                   {"conversations", std::move(list)}});
}

} // namespace kvrun::desktop
