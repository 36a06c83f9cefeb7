// Answers: blocks of styled words, wrapped; code with a button that copies it.
#include "tools/desktop/gui/ui.h"
#include <algorithm>
#include <imgui.h>

namespace kvrun::desktop {
namespace {

constexpr ImU32 kCodeBack = IM_COL32(36, 40, 48, 255), kCodeText = IM_COL32(206, 222, 160, 255),
                kItalic = IM_COL32(190, 200, 255, 255);

// Words of spans, from the cursor to the right edge, line by line.
void draw_spans(const std::vector<Span>& spans, const Fonts& fonts, float indent, float size_factor = 1,
                bool bold = false) {
	ImDrawList& draw = *ImGui::GetWindowDrawList();
	const ImVec2 start = ImGui::GetCursorScreenPos();
	const float left = start.x + indent, right = start.x + ImGui::GetContentRegionAvail().x;
	const float size = ImGui::GetFontSize() * size_factor, line = size * 1.3f;
	const ImU32 normal = ImGui::GetColorU32(ImGuiCol_Text);
	float x = left, y = start.y;
	const auto new_line = [&] { x = left, y += line; };
	for (const Span& span : spans) {
		ImFont* font = span.style == Style::Code           ? fonts.mono
		               : bold || span.style == Style::Bold ? fonts.bold
		                                                   : fonts.text;
		const ImU32 color = span.style == Style::Code ? kCodeText : span.style == Style::Italic ? kItalic : normal;
		const char *at = span.text.data(), *end = at + span.text.size();
		while (at < end) {
			if (*at == '\n') {
				new_line(), ++at;
				continue;
			}
			const char* word = at; // with the spaces behind it
			while (at < end && *at != ' ' && *at != '\n') ++at;
			const char* word_end = at;
			while (at < end && *at == ' ') ++at;
			if (x + font->CalcTextSizeA(size, FLT_MAX, 0, word, word_end).x > right && x > left) new_line();
			while (word < word_end) { // a word longer than a line is cut
				const char* cut = word_end;
				font->CalcTextSizeA(size, std::max(right - x, size), 0, word, word_end, &cut);
				if (cut == word) cut = std::min(word_end, word + 1);
				const float width = font->CalcTextSizeA(size, FLT_MAX, 0, word, cut).x;
				if (span.style == Style::Code) draw.AddRectFilled({x, y}, {x + width, y + size * 1.2f}, kCodeBack);
				draw.AddText(font, size, {x, y}, color, word, cut);
				x += width, word = cut;
				if (word < word_end) new_line();
			}
			x += font->CalcTextSizeA(size, FLT_MAX, 0, word_end, at).x;
		}
	}
	ImGui::Dummy({right - start.x, y + line - start.y});
}

void draw_code(const Block& b, const Fonts& fonts, int number) {
	const std::string& code = b.spans[0].text;
	ImGui::PushID(number);
	ImGui::PushFont(fonts.mono);
	const ImGuiStyle& style = ImGui::GetStyle();
	const float lines = float(std::count(code.begin(), code.end(), '\n') + 1);
	const float height = lines * ImGui::GetTextLineHeight() + ImGui::GetFrameHeight() + 4 * style.WindowPadding.y;
	ImGui::PushStyleColor(ImGuiCol_ChildBg, kCodeBack);
	ImGui::BeginChild("code", {0, height}, true, ImGuiWindowFlags_HorizontalScrollbar);
	ImGui::TextDisabled("%s", b.mark.empty() ? "code" : b.mark.c_str());
	ImGui::SameLine(std::max(ImGui::GetWindowWidth() - 6 * ImGui::GetFontSize() + ImGui::GetScrollX(), 0.f));
	if (ImGui::SmallButton("copy")) ImGui::SetClipboardText(code.c_str());
	ImGui::PushStyleColor(ImGuiCol_Text, kCodeText);
	ImGui::TextUnformatted(code.data(), code.data() + code.size());
	ImGui::PopStyleColor();
	ImGui::EndChild();
	ImGui::PopStyleColor();
	ImGui::PopFont();
	ImGui::PopID();
}

} // namespace

void draw_markdown(const std::vector<Block>& blocks, const Fonts& fonts) {
	const float em = ImGui::GetFontSize();
	for (size_t i = 0; i < blocks.size(); ++i) {
		const Block& b = blocks[i];
		switch (b.kind) {
		case BlockKind::Paragraph: draw_spans(b.spans, fonts, 0); break;
		case BlockKind::Heading:
			draw_spans(b.spans, fonts, 0, std::max(1.f, 1.5f - 0.12f * float(b.level)), /*bold=*/true);
			break;
		case BlockKind::Rule: ImGui::Separator(); break;
		case BlockKind::Code: draw_code(b, fonts, int(i)); break;
		case BlockKind::Item: {
			const float indent = em * float(std::min(b.level, 8));
			const ImVec2 at = ImGui::GetCursorScreenPos();
			const std::string mark = b.mark.size() == 1 ? "-" : b.mark;
			ImGui::GetWindowDrawList()->AddText({at.x + indent, at.y}, ImGui::GetColorU32(ImGuiCol_Text), mark.c_str());
			draw_spans(b.spans, fonts, indent + em * (b.mark.size() == 1 ? 1.f : 2.f));
			break;
		}
		case BlockKind::Quote: {
			const ImVec2 from = ImGui::GetCursorScreenPos();
			ImGui::PushStyleColor(ImGuiCol_Text, ImGui::GetStyleColorVec4(ImGuiCol_TextDisabled));
			draw_spans(b.spans, fonts, em);
			ImGui::PopStyleColor();
			const float bottom = ImGui::GetCursorScreenPos().y - ImGui::GetStyle().ItemSpacing.y;
			ImGui::GetWindowDrawList()->AddRectFilled(from, {from.x + em / 4, bottom},
			                                          ImGui::GetColorU32(ImGuiCol_TextDisabled));
			break;
		}
		}
	}
}

} // namespace kvrun::desktop
