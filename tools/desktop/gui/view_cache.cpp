// The cache of the current conversation, live: a column per token coloured by tier, and its bytes by kind.
#include "tools/desktop/gui/colors.h"
#include "tools/desktop/gui/ui.h"
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <imgui.h>

namespace kvrun::desktop {
namespace {

constexpr const char* kTierNames[] = {"f16", "salient", "regular", "evicted"};

void swatch(ImU32 color, const std::string& text) {
	const float side = ImGui::GetFontSize() * 0.7f;
	ImGui::SameLine();
	const ImVec2 at = ImGui::GetCursorScreenPos();
	ImGui::GetWindowDrawList()->AddRectFilled({at.x, at.y + side / 4}, {at.x + side, at.y + side * 5 / 4}, color);
	ImGui::Dummy({side, side});
	ImGui::SameLine(0, side / 2);
	ImGui::TextUnformatted(text.c_str());
}

// Where tokens outnumber pixels a column stands for several, in the share of their tiers.
void draw_strip(const std::vector<uint8_t>& tiers, uint32_t ctx, ImVec2 from, ImVec2 size) {
	ImDrawList& draw = *ImGui::GetWindowDrawList();
	draw.AddRectFilled(from, {from.x + size.x, from.y + size.y}, kFreeColor);
	const size_t n = tiers.size(), room = std::max<size_t>({n, std::min<size_t>(ctx, 2 * n), 128});
	const size_t columns = std::min(n, std::max(size_t(float(n) / float(room) * size.x), size_t(1)));
	const float width = size.x / float(room) * float(n) / float(std::max<size_t>(columns, 1));
	for (size_t c = 0; c < columns; ++c) {
		std::array<size_t, 4> count{};
		const size_t first = c * n / columns, end = (c + 1) * n / columns;
		for (size_t t = first; t < end; ++t) ++count[std::min<size_t>(tiers[t], 3)];
		float y = from.y;
		for (size_t t = 0; t < 4; ++t) {
			if (!count[t]) continue;
			const float height = size.y * float(count[t]) / float(end - first);
			draw.AddRectFilled({from.x + float(c) * width, y}, {from.x + float(c + 1) * width, y + height},
			                   kTierColors[t]);
			y += height;
		}
	}
}

void draw_bytes(const CacheView& v, ImVec2 from, ImVec2 size) {
	ImDrawList& draw = *ImGui::GetWindowDrawList();
	draw.AddRectFilled(from, {from.x + size.x, from.y + size.y}, kFreeColor);
	const double all = double(std::max({v.total_bytes(), v.f16_equivalent, uint64_t(1)}));
	float x = from.x;
	for (const auto& [bytes, color] : {std::pair{v.f16_bytes, kTierColors[0]},
	                                   {v.code_bytes, kTierColors[2]},
	                                   {v.param_bytes, kParamColor},
	                                   {v.overhead_bytes, kOverheadColor}}) {
		const float width = float(double(bytes) / all * size.x);
		draw.AddRectFilled({x, from.y}, {x + width, from.y + size.y}, color);
		x += width;
	}
}

void draw_watch(Ui& ui) {
	if (ui.state.phase != EnginePhase::Ready) return;
	int layer = int(ui.state.watched_layer), head = int(ui.state.watched_head);
	const float width = 5 * ImGui::GetFontSize();
	ImGui::SameLine(ImGui::GetContentRegionMax().x - 2 * width - ImGui::GetStyle().ItemSpacing.x);
	ImGui::SetNextItemWidth(width);
	bool changed = ImGui::DragInt("##layer", &layer, 0.1f, 0, int(ui.state.facts.n_layers) - 1, "layer %d",
	                              ImGuiSliderFlags_AlwaysClamp);
	ImGui::SameLine();
	ImGui::SetNextItemWidth(width);
	changed |= ImGui::DragInt("##head", &head, 0.1f, 0, int(ui.state.facts.n_kv_heads) - 1, "head %d",
	                          ImGuiSliderFlags_AlwaysClamp);
	if (changed) ui.state.watch(uint32_t(layer), uint32_t(head));
}

} // namespace

std::string human_size(uint64_t bytes) {
	double v = double(bytes);
	const char* unit = "B";
	for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
		if (v < 1000) break;
		v /= 1024, unit = next;
	}
	return fmt::format("{:.{}f} {}", v, v < 10 && *unit != 'B' ? 1 : 0, unit);
}

void draw_cache(Ui& ui, float height) {
	ImGui::BeginChild("cache", {0, height});
	const Conversation* c = ui.state.current();
	const Live& l = ui.state.live(ui.state.current_id);
	const CacheView& v = l.cache;
	ImGui::AlignTextToFramePadding();
	const std::string speed = l.tokens_per_second > 0 ? fmt::format(", {:.1f} tok/s", l.tokens_per_second) : "";
	ImGui::Text("%zu%s tokens%s", v.tiers.size(), v.ctx ? fmt::format(" of {}", v.ctx).c_str() : "", speed.c_str());
	for (size_t t = 0; t < 4; ++t)
		if (const auto n = std::ranges::count(v.tiers, uint8_t(t)))
			swatch(kTierColors[t], fmt::format("{} {}", kTierNames[t], n));
	draw_watch(ui);
	const float em = ImGui::GetFontSize(), width = ImGui::GetContentRegionAvail().x;
	draw_strip(v.tiers, v.ctx, ImGui::GetCursorScreenPos(), {width, 1.6f * em});
	ImGui::Dummy({width, 1.6f * em});
	mark_region(ui, "strip");
	draw_bytes(v, ImGui::GetCursorScreenPos(), {width, 0.5f * em});
	ImGui::Dummy({width, 0.5f * em});
	const std::string& kv = c ? c->kv : ui.state.settings.kv;
	std::string size = "no cache yet";
	if (v.f16_equivalent)
		size = fmt::format("{} (in f16: {})", human_size(v.total_bytes()), human_size(v.f16_equivalent));
	ImGui::Text("%s: %s", kv.c_str(), size.c_str());
	const auto part = [](ImU32 color, const char* name, uint64_t bytes) {
		if (bytes) swatch(color, fmt::format("{} {}", name, human_size(bytes)));
	};
	part(kTierColors[0], "f16", v.f16_bytes);
	part(kTierColors[2], "codes", v.code_bytes);
	part(kParamColor, "scales", v.param_bytes);
	part(kOverheadColor, "overhead", v.overhead_bytes);
	ImGui::EndChild();
	mark_region(ui, "cache");
}

} // namespace kvrun::desktop
