// Forms as bodies of requests: multipart/form-data (RFC 7578). Boost.Beast has no parser of them, and those of other
// libraries in Debian come with servers of their own.
#pragma once
#include "tools/serve/error.h"
#include <optional>
#include <vector>

namespace kvrun::serve {

constexpr size_t kMostFormParts = 64;
constexpr size_t kMostPartHeader = 4096; // bytes

struct FormPart {
	std::string name;
	std::optional<std::string> file; // name of a file, possibly empty; nullopt: a field
	std::string_view content;        // of the body
};
// In order. content_type: of the request. The parts point into the body. Throws ApiError 400 (415 for another type)
// whose message says what is wrong.
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

} // namespace kvrun::serve
