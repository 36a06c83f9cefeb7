// Patterns for the formats of strings in JSON schemas: every text of a pattern has the format.
#include "models/grammar/formats.h"
#include <utility>

namespace kvrun::grammar {
namespace {

// Without 29 February and leap seconds.
#define DATE                                                                                                           \
	"[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,2}"
#define NAME LABEL "(\\." LABEL "){0,8}"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", "^" DATE "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"time", "^" TIME "$"},
    {"duration", "^P([0-9]{1,4}D|[0-9]{1,4}W|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{"
                 "1,4}S)?|[0-9]{1,4}S))$"},
    {"email", "^[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" NAME "$"},
    {"hostname", "^" NAME "$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}$"},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]{0,20}://" NAME
            "(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,200}){0,20}(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,500})?$"},
    {"uuid", "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
};

} // namespace

std::string_view format_pattern(std::string_view format) {
	for (const auto& [name, pattern] : kFormats)
		if (name == format) return pattern;
	return {};
}

std::string format_names() {
	std::string out;
	for (const auto& f : kFormats) out += (out.empty() ? "" : ", ") + std::string(f.first);
	return out;
}

} // namespace kvrun::grammar
