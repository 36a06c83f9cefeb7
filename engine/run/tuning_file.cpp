// MODEL.kv.json, beside the model or in the cache folder: measurements of `kvrun tune`, and the policy that `auto` and
// `tuned:BITS` derive from them.
#include "engine/run/tuning_file.h"
#include "engine/core/error.h"
#include "engine/core/new_file.h"
#include "engine/core/regular_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "engine/run/key_outliers.h"
#include "models/fingerprint.h"
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostBytes = 4 << 20;
constexpr const char* kFormat = "kvrun tuning 3";

std::string model_of(const Gguf& g) { return fmt::format("{:016x}", fingerprint(g)); }

const char* kind_of(SideFormat f) { return f.uniform ? "uniform" : "codebook"; }

// What the file calls the two sides of a layer.
const char* side_name(bool is_k, bool of_latent) { return of_latent ? (is_k ? "latent" : "rope") : is_k ? "k" : "v"; }

// Costs in the formats that the side has, each a number of 0 or more.
bool read_costs(const Json& j, SideCost& cost, bool is_k, bool of_latent) {
	if (!j.is_object()) return false;
	size_t next[2] = {}; // next index: codebooks, uniform codes
	for (int i = 0; i < kNSideFormats; ++i) {
		cost[i] = std::numeric_limits<double>::infinity();
		if (!has_side_format(kSideFormats[i], is_k, of_latent)) continue;
		const Json costs = j.value(kind_of(kSideFormats[i]), Json());
		const size_t at = next[kSideFormats[i].uniform]++;
		if (!costs.is_array() || at >= costs.size() || !costs[at].is_number()) return false;
		cost[i] = costs[at].get<double>();
		if (!(cost[i] >= 0) || !std::isfinite(cost[i])) return false;
	}
	return true;
}
Json costs_json(const SideCost& cost) {
	Json j;
	for (int i = 0; i < kNSideFormats; ++i)
		if (std::isfinite(cost[i])) j[kind_of(kSideFormats[i])].push_back(cost[i]);
	return j;
}

Tuning read_layers(const Json& j, const KvShape& shape, const std::string& path) {
	const uint32_t n_layers = shape.n_layers;
	const bool latent = shape.rope_dim != 0;
	const Json layers = j.is_object() ? j.value("layers", Json()) : Json();
	if (!layers.is_array() || layers.size() != n_layers)
		fail(Code::Format, "{}: expected costs of {} layers; remove it or run kvrun tune again", path, n_layers);
	Tuning t{std::vector<LayerCost>(n_layers)};
	const auto side = [&](uint32_t l, bool is_k) {
		const Json& layer = layers[l];
		return layer.is_object() && read_costs(layer.value(side_name(is_k, latent), Json()),
		                                       is_k ? t.layers[l].k : t.layers[l].v, is_k, latent);
	};
	for (uint32_t l = 0; l < n_layers; ++l)
		if (!side(l, true) || !side(l, false))
			fail(Code::Format, "{}: layer {} needs {}; remove it or run kvrun tune again", path, l,
			     latent ? "latent, with the KL divergence as codebook at 1 to 4 bits and as uniform at 1 to 4 and 8, "
			              "and rope, as uniform at 4 and 8"
			            : "k and v, each with the KL divergence as codebook at 1 to 4 bits and as uniform at 1 to 4 "
			              "and 8");
	return t;
}

namespace fs = std::filesystem;

// In the cache folder, for the model at this place; empty if there is no folder.
std::string cached_path(const Gguf& g) {
	constexpr size_t kLongest = 64; // characters of the model's name
	std::error_code error;
	const fs::path model = fs::absolute(sys::path_of(g.name()), error).lexically_normal();
	if (g.cache_folder().empty() || error) return {};
	std::string name;
	for (const char c : model.stem().string().substr(0, kLongest))
		name += std::isalnum(uint8_t(c)) || c == '-' || c == '.' ? c : '_';
	const std::string place = model.string();
	return fmt::format("{}/tuning/{}-{:016x}.kv.json", g.cache_folder(), name, XXH3_64bits(place.data(), place.size()));
}

bool exists(const std::string& path) {
	std::error_code error;
	return !path.empty() && fs::exists(sys::path_of(path), error);
}

} // namespace

std::string tuning_path(const Gguf& g) { return g.name() + ".kv.json"; }

std::string found_tuning_path(const Gguf& g) {
	for (const std::string& path : {cached_path(g), tuning_path(g)})
		if (exists(path)) return path;
	return {};
}

std::string new_tuning_path(const Gguf& g) {
	const std::string beside = tuning_path(g), cached = cached_path(g);
	try {
		NewFile{beside, Readers::ByUmask}; // removed again
		return beside;
	} catch (const Error&) {
		if (cached.empty()) throw;
	}
	std::error_code error;
	fs::create_directories(sys::path_of(cached).parent_path(), error);
	return cached;
}

void write_tuning(const std::string& path, const Gguf& g, const Tuning& t, const std::string& how) {
	Json j = {{"format", kFormat}, {"model", model_of(g)}, {"measured", how}, {"layers", Json::array()}};
	for (const LayerCost& c : t.layers) {
		const bool latent = !std::isfinite(c.v[0]);
		j["layers"].push_back(
		    {{side_name(true, latent), costs_json(c.k)}, {side_name(false, latent), costs_json(c.v)}});
	}
	const std::string text = j.dump(1, '\t') + "\n";
	NewFile file(path, Readers::ByUmask);
	file.write(std::as_bytes(std::span(text)));
	file.commit();
	std::error_code error;
	if (const std::string cached = cached_path(g); path == tuning_path(g) && exists(cached))
		fs::remove(sys::path_of(cached), error);
}

std::optional<Tuning> read_tuning(const Gguf& g, const KvShape& shape) {
	const std::string path = found_tuning_path(g);
	if (path.empty()) return {};
	const RegularFile file(path, "it is what kvrun tune writes");
	if (file.bytes() > kMostBytes)
		fail(Code::Format, "{} has {} bytes, more than {}; remove it or run kvrun tune again", one_line(path),
		     file.bytes(), kMostBytes);
	std::string text(size_t(file.bytes()), 0);
	file.read_at(0, std::as_writable_bytes(std::span(text)));
	const Json j = Json::parse(text, nullptr, /*allow_exceptions=*/false);
	const Json format = j.is_object() ? j.value("format", Json()) : Json(),
	           model = j.is_object() ? j.value("model", Json()) : Json();
	if (format != kFormat)
		fail(Code::Format, "{} is not what kvrun tune writes; remove it or run kvrun tune again", one_line(path));
	if (model != model_of(g))
		fail(Code::Format, "{} was measured on another model; remove it or run kvrun tune again", one_line(path));
	return read_layers(j, shape, one_line(path));
}

Choice choose_policy(const KvPolicy& p, const KvShape& shape, const Gguf& g, uint64_t n_tokens, size_t budget_bytes,
                     bool or_fewer) {
	if (!is_choice(p)) return suit_to_keys(p, g);
	const std::optional<Tuning> tuning = read_tuning(g, shape);
	Choice c = choose_policy(p, shape, tuning ? &*tuning : nullptr, n_tokens, budget_bytes, or_fewer);
	c.why += tuning ? " (measured)" : " (not measured on this model: kvrun tune does)";
	if (tuning) return c;
	const Choice suited = suit_to_keys(c.policy, g);
	c.policy = suited.policy;
	if (!suited.why.empty()) c.why += "; " + suited.why;
	return c;
}

std::vector<CacheStep> auto_steps(const KvPolicy& p, const KvShape& shape, const Gguf& g) {
	const std::optional<Tuning> tuning = read_tuning(g, shape);
	return auto_steps(p, shape, tuning ? &*tuning : nullptr);
}

} // namespace kvrun
