// Settings, with the memory that each policy would take drawn before anything is loaded; and the list of keys.
#include "tools/desktop/gui/colors.h"
#include "tools/desktop/gui/ui.h"
#include <algorithm>
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

namespace kvrun::desktop {
namespace {

constexpr const char* kKeys[][2] = {
    {"Enter, Ctrl+Enter", "send; new line"},
    {"Esc", "stop the answer, leave a dialog"},
    {"Ctrl+N", "new conversation"},
    {"Ctrl+Tab, Ctrl+Shift+Tab", "next, previous conversation"},
    {"F2", "rename the conversation"},
    {"Ctrl+K", "fork the conversation"},
    {"Ctrl+Delete", "delete the conversation"},
    {"Ctrl+R", "another answer to the last question"},
    {"Ctrl+E", "edit the last question"},
    {"Alt+Left, Alt+Right", "other versions of the last answer"},
    {"Ctrl+Shift+C", "copy the last answer"},
    {"Ctrl+L", "to the field for questions"},
    {"PageUp, PageDown", "scroll the messages"},
    {"Ctrl+,", "settings"},
    {"Ctrl++, Ctrl+-, Ctrl+0", "larger, smaller, display's size"},
    {"Tab, arrows, Space", "move among buttons and fields, press one"},
    {"F1", "this list"},
};

PlanRequest plan_request(const Ui& ui) {
	const Settings& s = ui.draft_settings;
	PlanRequest r{ui.draft_model, s.device, s.kv, s.ctx, 0};
	const Loaded& f = ui.state.facts;
	// what is loaded gives its memory back before the next is
	if (ui.state.phase == EnginePhase::Ready && s.device == ui.state.settings.device)
		r.memory_bytes = f.weight_bytes + f.activation_bytes + f.kv_budget_bytes;
	return r;
}

void draw_plan_bar(const kvrun_plan& p, ImVec2 from, ImVec2 size) {
	ImDrawList& draw = *ImGui::GetWindowDrawList();
	const uint64_t work = p.activation_bytes + p.prompt_bytes + p.reserve_bytes,
	               need = p.weight_bytes + work + p.kv_bytes;
	const double all = double(std::max({need, p.memory_bytes, uint64_t(1)}));
	const bool too_much = need > p.memory_bytes || !p.fits;
	draw.AddRectFilled(from, {from.x + size.x, from.y + size.y}, kFreeColor);
	float x = from.x;
	const auto part = [&](uint64_t bytes, ImU32 color) {
		const float width = float(double(bytes) / all * size.x);
		draw.AddRectFilled({x, from.y}, {x + width, from.y + size.y}, color);
		x += width;
	};
	part(p.weight_bytes, kWeightColor);
	part(work, kWorkColor);
	part(p.kv_bytes, too_much ? kTooMuchColor : kTierColors[2]);
	if (need > p.memory_bytes) { // where the memory ends
		const float end = from.x + float(double(p.memory_bytes) / all * size.x);
		draw.AddLine({end, from.y - 2}, {end, from.y + size.y + 2}, IM_COL32_WHITE, 2);
	}
}

void draw_plan(Ui& ui) {
	const PlanRequest request = plan_request(ui);
	ui.planner.ask(request);
	const std::optional<Plan> plan = ui.planner.plan();
	if (!plan) return ImGui::TextDisabled("planning...");
	const float em = ImGui::GetFontSize();
	for (const PolicyPlan& one : plan->policies) {
		if (ImGui::Selectable(one.kv.c_str(), one.kv == ui.draft_settings.kv, 0, {8 * em, 0}))
			ui.draft_settings.kv = one.kv;
		ImGui::SameLine(9 * em);
		if (!one.error.empty()) {
			ImGui::PushStyleColor(ImGuiCol_Text, kTooMuchColor);
			ImGui::TextWrapped("%s", one.error.c_str());
			ImGui::PopStyleColor();
			continue;
		}
		const kvrun_plan& p = one.plan;
		const ImVec2 size{14 * em, em};
		draw_plan_bar(p, ImGui::GetCursorScreenPos(), size);
		ImGui::Dummy(size);
		ImGui::SameLine();
		const std::string cache = fmt::format("{} for {} tokens", human_size(p.kv_bytes), p.ctx);
		const uint64_t others = p.weight_bytes + p.activation_bytes + p.prompt_bytes + p.reserve_bytes;
		if (p.fits)
			ImGui::Text("%s, %s free%s", cache.c_str(),
			            human_size(p.memory_bytes - std::min(p.memory_bytes, others + p.kv_bytes)).c_str(),
			            p.evicts ? "; forgets old tokens" : "");
		else
			ImGui::TextColored(ImGui::ColorConvertU32ToFloat4(kTooMuchColor), "does not fit: needs %s; %llu tokens fit",
			                   human_size(p.kv_bytes).c_str(), static_cast<unsigned long long>(p.most_tokens));
	}
	mark_region(ui, "plan");
	ImGui::TextDisabled("violet: weights; yellow: work space; green: cache; red: does not fit");
}

void draw_device(Ui& ui) {
	Settings& s = ui.draft_settings;
	if (!ImGui::BeginCombo("device", s.device.empty() ? "the best" : s.device.c_str())) return;
	if (ImGui::Selectable("the best", s.device.empty())) s.device.clear();
	for (const DeviceEntry& d : ui.planner.devices()) {
		const std::string label = d.refused.empty()
		                              ? fmt::format("{} ({}, {} free)", d.name, d.backend, human_size(d.free_bytes))
		                              : fmt::format("{}: {}", d.name, d.refused);
		if (ImGui::Selectable(label.c_str(), d.name == s.device, d.refused.empty() ? 0 : ImGuiSelectableFlags_Disabled))
			s.device = d.name;
	}
	ImGui::EndCombo();
}

void draw_sampling(Sampling& p) {
	const auto real = [](const char* name, double& value, double lowest, double highest) {
		ImGui::InputDouble(name, &value, 0.05, 0.2, "%.2f");
		value = std::clamp(value, lowest, highest);
	};
	const auto whole = [](const char* name, int& value, int highest) {
		ImGui::InputInt(name, &value);
		value = std::clamp(value, 0, highest);
	};
	real("temperature", p.temperature, 0, 100);
	whole("top-k (0: all)", p.top_k, 1 << 20);
	real("top-p", p.top_p, 0.01, 1);
	real("min-p", p.min_p, 0, 1);
	real("repeat penalty", p.repeat_penalty, 0.1, 10);
	whole("most tokens (0: no limit)", p.max_tokens, 1 << 30);
	int seed = int(std::clamp<int64_t>(p.seed, -1, 1 << 30));
	if (ImGui::InputInt("seed (-1: drawn)", &seed)) p.seed = std::max(seed, -1);
}

} // namespace

bool begin_dialog(const char* name, bool open, float width) {
	if (open && !ImGui::IsPopupOpen(name)) ImGui::OpenPopup(name);
	const ImVec2 all = ImGui::GetMainViewport()->Size;
	ImGui::SetNextWindowSize({std::min(all.x * 0.95f, width), 0});
	ImGui::SetNextWindowSizeConstraints({0, 0}, {all.x * 0.95f, all.y * 0.95f});
	ImGui::SetNextWindowPos({all.x / 2, all.y / 2}, ImGuiCond_Always, {0.5f, 0.5f});
	if (!ImGui::BeginPopupModal(name, nullptr, ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoResize)) return false;
	if (open) return true;
	ImGui::CloseCurrentPopup(); // a key has closed it
	ImGui::EndPopup();
	return false;
}

void open_settings(Ui& ui) {
	ui.draft_settings = ui.state.settings;
	ui.draft_model = ui.state.model;
	if (const Conversation* c = ui.state.current()) ui.draft_settings.kv = c->kv, ui.draft_settings.ctx = c->ctx;
	ui.settings_open = true;
}

void close_settings(Ui& ui, bool apply) {
	ui.settings_open = false;
	ui.focus_input = true;
	if (!apply) return;
	const bool other_model = ui.draft_model != ui.state.model;
	if (other_model) ui.state.model = ui.draft_model;
	const EnginePhase before = ui.state.phase;
	ui.state.apply(ui.draft_settings);
	if (other_model && ui.state.phase == before && before != EnginePhase::Loading) ui.state.load(ui.draft_model);
}

void draw_settings(Ui& ui) {
	const float em = ImGui::GetFontSize();
	if (!begin_dialog("Settings", ui.settings_open, 50 * em)) return;
	Settings& s = ui.draft_settings;
	ImGui::PushItemWidth(-13 * em);
	if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
	ImGui::InputText("cache policy", &s.kv);
	int ctx = int(std::min<uint32_t>(s.ctx, 1u << 30));
	if (ImGui::InputInt("context (0: what fits)", &ctx, 1024, 8192)) s.ctx = uint32_t(std::max(ctx, 0));
	draw_plan(ui);
	ImGui::InputText("model file", &ui.draft_model);
	draw_device(ui);
	ImGui::InputText("chat template (name or file)", &s.chat_template);
	ImGui::InputTextMultiline("instructions", &s.system, {0, 2.5f * ImGui::GetTextLineHeight()});
	if (ImGui::CollapsingHeader("Sampling")) draw_sampling(s.sampling);
	ImGui::PopItemWidth();
	const bool apply = ImGui::Button("Apply (Ctrl+Enter)");
	ImGui::SameLine();
	const bool cancel = ImGui::Button("Cancel (Esc)");
	if (apply || cancel) close_settings(ui, apply);
	ui.regions["settings"] = {ImGui::GetWindowPos().x, ImGui::GetWindowPos().y, ImGui::GetWindowSize().x,
	                          ImGui::GetWindowSize().y};
	ImGui::EndPopup();
}

void draw_help(Ui& ui) {
	if (!begin_dialog("Keys", ui.help_open, 34 * ImGui::GetFontSize())) return;
	for (const auto& [keys, what] : kKeys) {
		ImGui::TextUnformatted(keys);
		ImGui::SameLine(14 * ImGui::GetFontSize());
		ImGui::TextUnformatted(what);
	}
	if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
	if (ImGui::Button("Close (Esc)")) ui.help_open = false, ui.focus_input = true;
	ImGui::EndPopup();
}

} // namespace kvrun::desktop
