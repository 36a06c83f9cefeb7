// Parses values of policy options and sets fields of a Quant; refuses an invalid value in one line.
#pragma once
#include "engine/kv_host/policy.h"
#include <optional>

namespace kvrun {

// Throw Error{Invalid}, naming `key`, if the value is not of the right kind.
double number(std::string_view key, std::string_view v, double lo, double hi); // also as a percentage
uint32_t whole(std::string_view key, std::string_view v, uint32_t lo, uint32_t hi);
uint16_t layer_number(std::string_view key, std::string_view v); // or "all": UINT16_MAX
bool on_off(std::string_view key, std::string_view v);
double eta_value(std::string_view key, std::string_view v);

std::vector<std::string_view> quant_fields(); // bits, group, ...
// Sets the field with this name. Returns the QuantFields that changed, 0 if there is no such field.
uint8_t set_field(Quant&, std::string_view field, std::string_view key, std::string_view v);

struct Path { // [salient.|regular.][k.|v.]field
	bool salient = true, regular = true, k = true, v = true, named_tier = false, named_side = false;
	std::string_view field;
};
Path read_path(std::string_view key);

// "auto" or "tuned:BITS", with options; empty for other texts (choose.h).
std::optional<KvPolicy> parse_choice(std::string_view text);

} // namespace kvrun
