// The messages of a conversation as they come, and the field for the next question.
#include "tools/desktop/gui/ui.h"
#include "tools/desktop/text_parts.h"
#include <algorithm>
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

namespace kvrun::desktop {
namespace {

const ImVec4 kUserName{0.55f, 0.75f, 1, 1}, kModelName{0.6f, 0.9f, 0.6f, 1}, kError{1, 0.55f, 0.5f, 1};

void draw_siblings(Ui& ui, const Conversation& c, int m) {
	const std::vector<int> all = c.siblings(m);
	if (all.size() < 2) return;
	const size_t at = size_t(std::ranges::find(all, m) - all.begin());
	ImGui::SameLine();
	if (ImGui::SmallButton("<") && at > 0) ui.state.show(all[at - 1]);
	ImGui::SameLine();
	ImGui::Text("%zu/%zu", at + 1, all.size());
	ImGui::SameLine();
	if (ImGui::SmallButton(">") && at + 1 < all.size()) ui.state.show(all[at + 1]);
}

void draw_buttons(Ui& ui, const Conversation& c, int m) {
	const Message message = c.messages[size_t(m)]; // retry and edit change the list
	if (ImGui::SmallButton("copy")) ImGui::SetClipboardText(message.text.c_str());
	if (!ui.state.answering(c.id)) {
		ImGui::SameLine();
		if (message.user ? ImGui::SmallButton("edit") : ImGui::SmallButton("retry")) {
			if (message.user)
				ui.editing = m, ui.edited = message.text;
			else
				ui.state.retry(m), ui.scroll_to_end = true;
		}
	}
	draw_siblings(ui, c, m);
}

void draw_progress(const Live& l) {
	if (l.read_share < 1) {
		const std::string text = fmt::format("reading the prompt: {:.0f} %{}", l.read_share * 100,
		                                     l.read_left > 0 ? fmt::format(", {:.0f} s left", l.read_left) : "");
		ImGui::ProgressBar(float(l.read_share), {-1, 0}, text.c_str());
	} else {
		ImGui::TextDisabled("answering%s  %.1f tok/s", &"..."[3 - int(ImGui::GetTime() * 2) % 4], l.tokens_per_second);
	}
	ImGui::SameLine();
	ImGui::TextDisabled("Esc stops");
}

void draw_editor(Ui& ui, int m) {
	ImGui::SetKeyboardFocusHere();
	const float height = ImGui::GetTextLineHeight() * 6;
	const bool entered =
	    ImGui::InputTextMultiline("##edit", &ui.edited, {-1, height},
	                              ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_CtrlEnterForNewLine);
	const bool send = entered || ImGui::Button("Ask this instead (Enter)");
	ImGui::SameLine();
	const bool cancel = ImGui::Button("Cancel (Esc)");
	if (send) ui.state.edit(m, ui.edited), ui.scroll_to_end = true;
	if (send || cancel) ui.editing = kNone, ui.focus_input = true;
}

// A text as it was typed. In parts: Dear ImGui reserves vertices for all characters of a wrapped text, seen or not, and
// shows nothing of one that is too long.
void draw_plain(const std::string& text) {
	constexpr size_t kPart = 4096; // bytes
	ImGui::PushTextWrapPos(0);
	ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {ImGui::GetStyle().ItemSpacing.x, 0});
	for (const std::string_view part : text_parts(text, kPart))
		ImGui::TextUnformatted(part.data(), part.data() + part.size());
	ImGui::PopStyleVar();
	ImGui::PopTextWrapPos();
	ImGui::Spacing();
}

void draw_message(Ui& ui, const Conversation& c, int m, Laid& laid) {
	const Message& message = c.messages[size_t(m)];
	ImGui::TextColored(message.user ? kUserName : kModelName, message.user ? "You" : "Model");
	if (!message.note.empty()) {
		ImGui::SameLine();
		ImGui::TextDisabled("%s", message.note.c_str());
	}
	if (message.user && ui.editing == m) return draw_editor(ui, m);
	if (!message.reasoning.empty()) {
		ImGui::PushStyleColor(ImGuiCol_Text, ImGui::GetStyleColorVec4(ImGuiCol_TextDisabled));
		draw_plain(message.reasoning);
		ImGui::PopStyleColor();
	}
	if (message.user) {
		draw_plain(message.text);
	} else {
		if (laid.bytes != message.text.size()) laid.blocks = parse_markdown(message.text);
		draw_markdown(laid.blocks, ui.fonts);
	}
	if (message.unfinished)
		draw_progress(ui.state.live(c.id));
	else
		draw_buttons(ui, c, m);
}

// A message, or room as high as it was where it is out of sight.
void draw_or_skip(Ui& ui, const Conversation& c, int m) {
	Laid& laid = ui.laid[{c.id, m}];
	const Message& message = c.messages[size_t(m)];
	const size_t bytes = message.text.size() + message.reasoning.size();
	const float width = ImGui::GetContentRegionAvail().x, top = ImGui::GetCursorPosY();
	const float seen = ImGui::GetScrollY(), below = seen + ImGui::GetWindowHeight();
	const bool known = laid.height > 0 && laid.width == width && laid.bytes == message.text.size() && bytes > 0;
	if (known && !message.unfinished && ui.editing != m && (top + laid.height < seen || top > below)) {
		ImGui::Dummy({1, laid.height - ImGui::GetStyle().ItemSpacing.y});
		return;
	}
	ImGui::PushID(m);
	draw_message(ui, c, m, laid);
	ImGui::Dummy({1, ImGui::GetFontSize() / 2});
	ImGui::PopID();
	laid.height = ImGui::GetCursorPosY() - top;
	laid.width = width;
	laid.bytes = message.text.size();
}

void draw_nothing_yet(const State& s) {
	ImGui::TextDisabled("Ask something below. Enter sends, Ctrl+Enter begins a new line, F1 lists all keys.");
	if (s.phase == EnginePhase::Ready)
		ImGui::TextDisabled("%s (%s) on %s", s.facts.name.empty() ? s.model.c_str() : s.facts.name.c_str(),
		                    s.facts.architecture.c_str(), s.facts.device.c_str());
}

} // namespace

void draw_messages(Ui& ui, float height) {
	ImGui::BeginChild("messages", {0, height});
	if (ui.state.phase == EnginePhase::Loading)
		ImGui::ProgressBar(float(ui.state.load_share), {-1, 0},
		                   fmt::format("loading the model: {:.0f} %", ui.state.load_share * 100).c_str());
	const bool at_end = ImGui::GetScrollY() >= ImGui::GetScrollMaxY() - ImGui::GetFontSize();
	if (const Conversation* c = ui.state.current(); c && !c->messages.empty()) {
		const std::string id = c->id;
		for (const int m : c->branch()) {
			c = ui.state.find(id); // a button may have changed the list
			if (c && m < int(c->messages.size())) draw_or_skip(ui, *c, m);
		}
	} else {
		draw_nothing_yet(ui.state);
	}
	if (ui.scroll_pages) {
		ImGui::SetScrollY(std::clamp(ImGui::GetScrollY() + float(ui.scroll_pages) * 0.9f * ImGui::GetWindowHeight(),
		                             0.f, ImGui::GetScrollMaxY()));
		ui.scroll_pages = 0;
	} else if (ui.scroll_to_end || (at_end && ui.state.answering(ui.state.current_id))) {
		ImGui::SetScrollHereY(1);
		ui.scroll_to_end = false;
	}
	ImGui::EndChild();
	mark_region(ui, "messages");
}

void draw_input(Ui& ui, float height) {
	const bool answering = ui.state.answering(ui.state.current_id);
	const float button = 7 * ImGui::GetFontSize();
	if (ui.focus_input && ui.editing == kNone && ui.renaming.empty() && ui.deleting.empty() && !ui.settings_open &&
	    !ui.help_open) {
		ImGui::SetKeyboardFocusHere();
		ui.focus_input = false;
	}
	const bool entered =
	    ImGui::InputTextMultiline("##question", &ui.draft, {-button - ImGui::GetStyle().ItemSpacing.x, height},
	                              ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_CtrlEnterForNewLine);
	mark_region(ui, "question");
	ImGui::SameLine();
	bool send = entered;
	if (answering) {
		if (ImGui::Button("Stop (Esc)", {button, height})) ui.state.stop();
	} else if (ImGui::Button("Send (Enter)", {button, height})) {
		send = true;
	}
	if (!send) return;
	if (ui.state.ask(ui.draft)) ui.draft.clear();
	ui.focus_input = ui.scroll_to_end = true;
}

void draw_problem(Ui& ui) {
	if (ui.state.problem.empty()) return;
	ImGui::PushStyleColor(ImGuiCol_Text, kError);
	ImGui::PushTextWrapPos(ImGui::GetContentRegionMax().x - 4 * ImGui::GetFontSize());
	ImGui::TextUnformatted(ui.state.problem.c_str());
	ImGui::PopTextWrapPos();
	ImGui::PopStyleColor();
	mark_region(ui, "problem");
	ImGui::SameLine(ImGui::GetContentRegionMax().x - 3.5f * ImGui::GetFontSize());
	if (ImGui::SmallButton("dismiss")) ui.state.problem.clear();
}

} // namespace kvrun::desktop
