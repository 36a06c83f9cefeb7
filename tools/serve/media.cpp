// Images and sounds in the messages of requests.
#include "tools/serve/media.h"
#include "tools/audio/audio_file.h"
#include "tools/image/image_file.h"
#include "tools/serve/requests.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr const char* kField = "messages";
constexpr std::string_view kData = "data:", kBase64 = ";base64,";
using File = std::vector<std::byte>;

// What a part of a message can be: {"type": TYPE, TYPE: {CONTENT: "..."}}.
struct Medium {
	const char *type, *content;
	const char* is;   // for messages
	const char* part; // the type of the engine's part
	bool (*read)(const kvrun_engine_info&);
	const char* none; // what is missing where the model reads none
	bool must_be_url; // rather than base64 alone
	std::string (*add)(kvrun_engine*, const kvrun_engine_info&, std::span<const std::byte> file,
	                   const std::string& where);
	const char* code; // of an error
};

constexpr Medium kMedia[] = {
    {"image_url", "url", "an image", "image", [](const kvrun_engine_info& i) { return i.reads_images != 0; },
     "this model reads no images: its vision encoder was not given (--mmproj)", true,
     [](kvrun_engine* e, const kvrun_engine_info&, std::span<const std::byte> file, const std::string& where) {
	     return add_image(e, decode_image(file, where));
     },
     "invalid_image"},
    {"input_audio", "data", "audio", "audio", [](const kvrun_engine_info& i) { return i.audio_rate != 0; },
     "this model reads no sounds: its audio encoder was not given (--mmproj)", false,
     [](kvrun_engine* e, const kvrun_engine_info& i, std::span<const std::byte> file, const std::string& where) {
	     return add_audio(e, decode_audio(file, where, i.audio_rate));
     },
     "invalid_audio"},
};

const Medium* medium_of(const Json& part) {
	if (!part.is_object()) return nullptr;
	const Json type = part.value("type", Json());
	const auto m = std::ranges::find_if(kMedia, [&](const Medium& k) { return type == Json(k.type); });
	return m == std::end(kMedia) ? nullptr : m;
}

// The text that holds the file; null: the part has none.
const std::string* held_text(const Medium& m, const Json& part) {
	const auto inner = part.find(m.type);
	if (inner == part.end() || !inner->is_object()) return nullptr;
	const auto text = inner->find(m.content);
	return text == inner->end() ? nullptr : text->get_ptr<const std::string*>();
}

// The file that a text in base64 or a URL holds.
File file_of(const Medium& m, std::string_view text, const std::string& where) {
	const size_t at = text.find(kBase64);
	const bool url = text.starts_with(kData) && at != text.npos;
	if (m.must_be_url && !url)
		throw ApiError(400,
		               where + " has an image whose url is not data:image/...;base64,...; this server fetches none, "
		                       "send the image itself",
		               kField, "unsupported_parameter");
	File file = decode_base64(url ? text.substr(at + kBase64.size()) : text);
	if (file.empty()) throw ApiError(400, where + " has " + m.is + " that is not valid base64", kField);
	return file;
}

std::string add(const Medium& m, kvrun_engine* engine, std::span<const std::byte> file, const std::string& where,
                const char* field) {
	const kvrun_engine_info info = engine_info(engine);
	if (!m.read(info)) throw ApiError(400, m.none, field, "unsupported_parameter");
	try {
		return m.add(engine, info, file, where);
	} catch (const StatusError& e) { throw ApiError(400, e.what(), field, m.code); }
}

} // namespace

Json image_part(std::string url) { return {{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}}; }
Json audio_part(std::string base64) {
	return {{"type", "input_audio"}, {"input_audio", {{"data", std::move(base64)}}}};
}

bool is_media_part(const Json& part, const std::string& where, const char* param) {
	const Medium* m = medium_of(part);
	if (m && !held_text(*m, part))
		throw ApiError(400, where + " has " + m->is + " without " + m->type + "." + m->content, param);
	return m != nullptr;
}

std::string take_media(kvrun_engine* engine, std::string messages) {
	const auto has = [&](const Medium& m) { return messages.find('"' + std::string(m.type) + '"') != messages.npos; };
	if (std::ranges::none_of(kMedia, has)) return messages;
	Json all = json_or_null(messages);
	bool any = false;
	for (size_t i = 0; i < all.size(); ++i) {
		if (!all[i].is_object() || !all[i].contains("content") || !all[i]["content"].is_array()) continue;
		const std::string where = "messages[" + std::to_string(i) + "]";
		for (Json& part : all[i]["content"])
			if (const Medium* m = medium_of(part)) {
				const File file = file_of(*m, *held_text(*m, part), where);
				part = {{"type", m->part}, {"id", add(*m, engine, file, where, kField)}};
				any = true;
			}
	}
	return any ? dump(all) : messages;
}

std::string take_sound(kvrun_engine* engine, std::string_view file, const char* field) {
	return add(kMedia[1], engine, std::as_bytes(std::span(file)), field, field);
}

} // namespace kvrun::serve
