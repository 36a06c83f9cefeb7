// Images and sounds in conversations.
#include "models/chat/images.h"
#include "engine/core/error.h"
#include <charconv>
#include <random>

namespace kvrun {
namespace {

// Nobody can write a mark into a message: it has a number of this process.
const std::string& mark_begin() {
	static const std::string text = [] {
		std::random_device random;
		return fmt::format("[image {:08x}{:08x} ", random(), random());
	}();
	return text;
}
constexpr size_t kDigits = 16;

std::optional<uint64_t> id_of(std::string_view text) {
	uint64_t id = 0;
	const auto r = std::from_chars(text.data(), text.data() + text.size(), id, 16);
	if (text.size() != kDigits || r.ec != std::errc() || r.ptr != text.data() + text.size()) return {};
	return id;
}

// Or a sound; the rest is the same.
bool is_image(const Json& part) {
	const Json type = part.is_object() ? part.value("type", Json()) : Json();
	return type == Json("image") || type == Json("audio");
}

// Texts beside an image are joined with it, others stay parts of their own.
Json marked(const Json& parts, size_t message) {
	Json out = Json::array();
	bool behind = false; // an image
	for (const Json& part : parts) {
		const bool text = part.is_object() && part.value("type", Json()) == Json("text") && part.contains("text") &&
		                  part["text"].is_string();
		if (!is_image(part)) {
			if (text && behind)
				out.back()["text"].get_ref<std::string&>() += part["text"].get_ref<const std::string&>();
			else
				out.push_back(part);
			behind = false;
			continue;
		}
		const auto id = part.find("id");
		if (id == part.end() || !id->is_string() || !id_of(id->get_ref<const std::string&>()))
			fail(Code::Invalid, "messages[{}]: a part of type {} needs an id of {} hexadecimal digits", message,
			     part["type"].get<std::string>(), kDigits);
		// the first letter says what it is
		const std::string mark = mark_begin() + part["type"].get<std::string>()[0] + id->get<std::string>() + "]";
		const bool joins = !out.empty() && out.back().is_object() && out.back().contains("text");
		if (joins)
			out.back()["text"].get_ref<std::string&>() += mark;
		else
			out.push_back({{"type", "text"}, {"text", mark}});
		behind = true;
	}
	return out;
}

} // namespace

std::string image_id_text(uint64_t id) { return fmt::format("{:016x}", id); }

void mark_images(Json& messages) {
	if (!messages.is_array()) return;
	for (size_t i = 0; i < messages.size(); ++i) {
		if (!messages[i].is_object() || !messages[i].contains("content")) continue;
		Json& content = messages[i]["content"];
		if (content.is_array() && std::ranges::any_of(content, is_image)) content = marked(content, i);
	}
}

std::vector<ChatPiece> split_at_images(const Rendered& r) {
	std::vector<ChatPiece> out(1);
	const auto add = [&](std::string_view text, bool from_template) {
		if (!text.empty()) out.back().text.segments.push_back({std::string(text), from_template});
	};
	for (const Rendered::Segment& s : r.segments) {
		std::string_view rest = s.text;
		while (!s.from_template) {
			const size_t at = rest.find(mark_begin()), number = at + mark_begin().size() + 1;
			if (at == rest.npos || number + kDigits >= rest.size()) break;
			const auto id = id_of(rest.substr(number, kDigits));
			if (!id) break;
			add(rest.substr(0, at), false);
			out.back().image = id, out.back().audio = rest[number - 1] == 'a';
			out.emplace_back();
			rest.remove_prefix(number + kDigits + 1);
		}
		add(rest, s.from_template);
	}
	return out;
}

} // namespace kvrun
