// A KV-cache method as plain data: what its paper says, in numbers. No behaviour, no device.
#pragma once
#include <cstdint>

namespace kvrun {

// Where a cached token lives. Every live token of a (layer, kv head) is in exactly one tier, K and V together.
enum class Tier : uint8_t {
	Recent,  // f16 pages: the window of the newest tokens and whatever a method keeps in full precision
	Salient, // packed in better precision
	Regular, // everything else; bits = 0 makes this tier "evicted"
};
constexpr int kTiers = 3;

enum class Scale : uint8_t {
	PerChannel, // one (scale, zero) per channel and run of `group` tokens   (KIVI keys)
	PerToken,   // one (scale, zero) per token and run of `group` channels   (KIVI values)
};
enum class Norm : uint8_t {
	None,
	SqrtMax, // x_c / sqrt(max|x_c|) before quantising                       (ZipCache, channel-separable)
	Balance, // k_c * b_c, q_c / b_c with b_c = sqrt(max|q_c| / max|k_c|)    (MiKV; keys only)
};

struct Quant {                       // how K, or V, is stored inside one tier
	uint8_t  bits  = 16;             // 0 = not stored, 1|2|4|8 = packed codes, 16 = f16
	Scale    scale = Scale::PerToken;
	uint16_t group = 32;             // elements per (scale, zero); PerChannel: tokens, PerToken: channels
	Norm     norm  = Norm::None;
	float    relax = 0;              // XQuant eta in [0, .5): zero += eta*scale*(2^bits-1), scale *= 1-2*eta
	bool operator==(const Quant&) const = default;
};
struct Format {
	Quant k, v;
	bool operator==(const Format&) const = default;
};

} // namespace kvrun
