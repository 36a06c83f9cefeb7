// The page as a response: policies and a nonce take their places in the text that page.cmake has put together.
#include "tools/serve/page/page.h"
#include "engine/kvrun.h"
#include <fmt/format.h>
#include <random>

namespace kvrun::serve {
namespace {

constexpr char kPage[] =
#include "tools/serve/page.inc"
    ;

void put(std::string& text, std::string_view place, std::string_view what) {
	for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += what.size())
		text.replace(at, place.size(), what);
}

std::string page_with_policies() {
	std::string names, page = kPage;
	for (size_t i = 0; i < kvrun_policy_count(); ++i) {
		kvrun_policy_info info = KVRUN_POLICY_INFO_INIT;
		if (kvrun_policy_get(i, &info) == KVRUN_OK) names += fmt::format("<option>{}", info.name);
	}
	put(page, "@policies@", names);
	return page;
}

} // namespace

Response page_response() {
	static const std::string page = page_with_policies();
	std::random_device random;
	const std::string nonce = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
	Response r{200, page, "text/html; charset=utf-8"};
	put(r.body, "@nonce@", nonce);
	r.headers = {
	    {"Content-Security-Policy",
	     fmt::format("default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; connect-src 'self'; "
	                 "img-src data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	                 nonce)},
	    {"X-Content-Type-Options", "nosniff"},
	    {"Referrer-Policy", "no-referrer"},
	    {"Cache-Control", "no-store"}};
	return r;
}

} // namespace kvrun::serve
