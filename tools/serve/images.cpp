// Images in the messages of requests.
#include "tools/serve/images.h"
#include "tools/image/image_file.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {
namespace {

constexpr const char* kField = "messages";

// The file that a URL holds.
std::vector<std::byte> file_of(std::string_view url, const std::string& where) {
	constexpr std::string_view begin = "data:", base64 = ";base64,";
	const size_t at = url.find(base64);
	if (!url.starts_with(begin) || at == url.npos)
		throw ApiError(400,
		               where + " has an image whose url is not data:image/...;base64,...; this server fetches none, "
		                       "send the image itself",
		               kField, "unsupported_parameter");
	std::vector<std::byte> file = decode_base64(url.substr(at + base64.size()));
	if (file.empty()) throw ApiError(400, where + " has an image that is not valid base64", kField);
	return file;
}

} // namespace

Json image_part(std::string url) { return {{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}}; }

void check_image_part(const Json& part, const std::string& where, const char* param) {
	const auto image = part.find("image_url");
	if (image == part.end() || !image->is_object() || !image->contains("url") || !(*image)["url"].is_string())
		throw ApiError(400, where + " has an image without image_url.url", param);
}

std::string take_images(kvrun_engine* engine, std::string messages) {
	if (messages.find("\"image_url\"") == messages.npos) return messages;
	Json all = json_or_null(messages);
	bool any = false;
	for (size_t i = 0; i < all.size(); ++i) {
		if (!all[i].is_object() || !all[i].contains("content") || !all[i]["content"].is_array()) continue;
		const std::string where = "messages[" + std::to_string(i) + "]";
		for (Json& part : all[i]["content"]) {
			if (!part.is_object() || part.value("type", Json()) != Json("image_url")) continue;
			try {
				const std::vector<std::byte> file =
				    file_of(part["image_url"]["url"].get_ref<const std::string&>(), where);
				part = {{"type", "image"}, {"id", add_image(engine, decode_image(file, where))}};
			} catch (const StatusError& e) {
				const bool none = e.status == KVRUN_EUNSUPPORTED && !engine_info(engine).reads_images;
				throw ApiError(400,
				               none ? "this model reads no images: its vision encoder was not given (--mmproj)"
				                    : std::string(e.what()),
				               kField, none ? "unsupported_parameter" : "invalid_image");
			}
			any = true;
		}
	}
	return any ? dump(all) : messages;
}

} // namespace kvrun::serve
