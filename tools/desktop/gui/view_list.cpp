// The list of conversations: choose, rename, fork, delete.
#include "tools/desktop/gui/ui.h"
#include <imgui.h>
#include <imgui_stdlib.h>
#include <utility>

namespace kvrun::desktop {
namespace {

void draw_name(Ui& ui, const Conversation& c) {
	if (ui.renaming == c.id) {
		ImGui::SetNextItemWidth(-1);
		if (std::exchange(ui.focus_name, false)) ImGui::SetKeyboardFocusHere();
		const bool entered = ImGui::InputText("##title", &ui.new_title,
		                                      ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_AutoSelectAll);
		if (entered) ui.state.rename(c.id, ui.new_title);
		if (entered || ImGui::IsItemDeactivated()) {
			ui.renaming.clear();
			ui.focus_input = true;
		}
		return;
	}
	const std::string label = (ui.state.answering(c.id) ? "* " : "") + c.title + "##name";
	if (ImGui::Selectable(label.c_str(), c.id == ui.state.current_id)) {
		ui.state.select(c.id);
		ui.focus_input = ui.scroll_to_end = true;
	}
	if (ImGui::IsItemHovered()) ImGui::SetTooltip("%s\npolicy %s", c.title.c_str(), c.kv.c_str());
}

void draw_delete(Ui& ui) {
	if (!begin_dialog("Delete?", !ui.deleting.empty(), 26 * ImGui::GetFontSize())) return;
	const Conversation* c = ui.state.find(ui.deleting);
	ImGui::TextWrapped("Delete '%s' with all its messages?", c ? c->title.c_str() : "");
	if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
	const bool yes = ImGui::Button("Delete");
	ImGui::SameLine();
	const bool no = ImGui::Button("Keep (Esc)");
	if (yes) ui.state.remove(ui.deleting);
	if (yes || no || !c) {
		ui.deleting.clear();
		ui.focus_input = true;
	}
	ImGui::EndPopup();
}

} // namespace

void begin_rename(Ui& ui, const Conversation& c) {
	ui.renaming = c.id, ui.new_title = c.title;
	ui.focus_name = true;
}

void draw_list(Ui& ui) {
	if (ImGui::Button("New (Ctrl+N)", {-1, 0})) {
		ui.state.create();
		ui.focus_input = true;
	}
	const float buttons = 2 * ImGui::GetFrameHeightWithSpacing();
	ImGui::BeginChild("names", {0, -buttons});
	// over numbers: a click may put another one in front
	for (size_t i = 0; i < ui.state.conversations.size(); ++i) {
		ImGui::PushID(int(i));
		draw_name(ui, ui.state.conversations[i]);
		ImGui::PopID();
	}
	ImGui::EndChild();
	const float width = (ImGui::GetContentRegionAvail().x - 2 * ImGui::GetStyle().ItemSpacing.x) / 3;
	const Conversation* c = ui.state.current();
	if (ImGui::Button("Rename", {width, 0}) && c) begin_rename(ui, *c);
	ImGui::SameLine();
	if (ImGui::Button("Fork", {width, 0}) && c) ui.state.fork(c->id);
	ImGui::SameLine();
	if (ImGui::Button("Delete", {width, 0}) && c) ui.deleting = c->id;
	if (ImGui::Button("Settings (Ctrl+,)", {-1, 0})) open_settings(ui);
	draw_delete(ui);
}

} // namespace kvrun::desktop
