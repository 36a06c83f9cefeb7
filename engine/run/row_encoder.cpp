// Takes rows that see each other through layers, one layer at a time.
#include "engine/run/row_encoder.h"
#include "engine/run/arena.h"
#include "engine/run/memory_plan.h"
#include "models/text_encoder.h"
#include <algorithm>
#include <optional>

namespace kvrun {

static bool has_slopes(const Config& c) { return std::ranges::any_of(c.layers, &Layer::alibi); }

// Keys and values of layers without a window and with one; all of a kind are alike. If both are alike, or all layers
// are of one kind, there is no other. An encoder may have no layers.
struct LayerKinds {
	struct Heads {
		uint32_t n, channels;
		bool operator==(const Heads&) const = default;
	};
	Heads usual;
	std::optional<Heads> other;
	explicit LayerKinds(const Config& c) : usual{c.n_kv_heads, c.head_dim} {
		std::optional<Heads> kinds[2];
		for (const Layer& l : c.layers)
			if (auto& kind = kinds[bool(l.window)]; !kind) kind = Heads{l.n_kv_heads, l.head_dim};
		if (kinds[0] || kinds[1]) usual = kinds[0] ? *kinds[0] : *kinds[1];
		if (kinds[0] && kinds[1] != kinds[0]) other = kinds[1];
	}
};

std::vector<float> read_view(Backend& be, const View& from) {
	std::vector<float> out(from.elements());
	be.read(*from.buf, from.at, std::as_writable_bytes(std::span(out)));
	be.submit();
	be.wait();
	return out;
}

RowEncoder::RowEncoder(Backend& be, const Config& c, const Weights& w, uint32_t n, uint32_t room, uint32_t groupings,
                       uint32_t most_rows, const Loras* loras)
    : be_(be), config_(c), n_(n), most_rows_(std::min(n, most_rows)), runner_(be, c, w, most_rows_, loras),
      places_(groupings) {
	KV_ASSERT(n > 0 && room >= widest(c).q);
	allocate(be, memory_, "rows", [&](Arena& a) {
		x_ = a.take(DType::F32, n, c.dim);
		q_ = a.take(DType::F32, n, room);
		att_ = a.take(DType::F32, n, room);
		ids_ = a.take(DType::U32, n);
		for (size_t i = 0; i < c.ropes.size(); ++i) ropes_[i] = a.take(DType::F32, n, c.ropes[i].dim / 2, 2);
		k_ = a.take(DType::F16, n, widest(c).kv);
		v_ = a.take(DType::F16, n, widest(c).kv);
		const LayerKinds kinds(c);
		for (auto& [usual, other] : places_) {
			usual = a.take(DType::U32, n, kinds.usual.n, 2);
			if (kinds.other) other = a.take(DType::U32, n, kinds.other->n, 2);
		}
		if (has_slopes(c)) slopes_ = a.take(DType::F32, c.n_heads);
	});
	if (slopes_) write_view(be, slopes_, alibi_slopes(c.n_heads));
}

uint64_t RowEncoder::bytes(const Config& config, uint64_t n, uint32_t room, uint32_t groupings) {
	Config c = config;
	const LayerKinds kinds(c);
	const uint64_t kv = widest(c).kv, placed = kinds.usual.n + (kinds.other ? kinds.other->n : 0);
	const uint64_t row = 4 * (c.dim + 2 * uint64_t(room) + rope_width(c) + 1) + 2 * 2 * kv + groupings * 8ull * placed;
	c.max_seq = uint32_t(std::min<uint64_t>(n, kRows));
	return n * row + activation_bytes(c, c.max_seq) + (has_slopes(c) ? 4ull * c.n_heads : 0);
}

// Keys and values of a group lie one head after the other.
RowGroups RowEncoder::write_groups(std::vector<uint32_t> begins) {
	KV_ASSERT(given_ < places_.size() && begins.size() >= 2 && begins.back() == n_);
	RowGroups out{std::move(begins), places_[given_++]};
	const auto write = [&](const View& to, const LayerKinds::Heads& heads) {
		std::vector<uint32_t> places;
		for (size_t g = 0; g + 1 < out.begins.size(); ++g) {
			const uint32_t first = out.begins[g], n = out.begins[g + 1] - first;
			for (uint32_t t = 0; t < n; ++t)
				for (uint32_t h = 0; h < heads.n; ++h)
					places.insert(places.end(), 2, (heads.n * first + h * n + t) * (heads.channels / 2));
		}
		write_view(be_, to, places);
	};
	const LayerKinds kinds(config_);
	write(out.places[0], kinds.usual);
	if (kinds.other)
		write(out.places[1], *kinds.other);
	else
		out.places[1] = out.places[0];
	return out;
}

LayerRows RowEncoder::rows_of(uint32_t layer, uint32_t first) const {
	const Layer& l = config_.layers[layer];
	const uint32_t n = std::min(most_rows_, n_ - first);
	LayerRows r = runner_.rows_of(layer, x_, {ids_, {}}, ropes_, first, n);
	const auto queries = [&](const View& v) { return rows(shaped(v, n_, l.n_heads, l.head_dim), first, n); };
	r.q = queries(q_), r.att = queries(att_);
	return r;
}

void RowEncoder::run(uint32_t l, const RowGroups& groups) {
	const Config& c = config_;
	const Layer& layer = c.layers[l];
	const View& places = groups.places[bool(layer.window)];
	be_.at_layer(0); // of a split the first device has the encoder
	for (uint32_t first = 0; first < n_; first += most_rows_) {
		const LayerRows r = rows_of(l, first);
		runner_.project_in(l, r, /*decode=*/false);
		runner_.rotate(l, r, 0, r.n, {as_words(k_), as_words(v_), rows(places, first, r.n), 1});
	}
	const View q = shaped(q_, n_, layer.n_heads, layer.head_dim), att = shaped(att_, n_, layer.n_heads, layer.head_dim);
	const uint32_t side = layer.window.tokens / 2;
	for (size_t g = 0; g + 1 < groups.begins.size(); ++g) {
		const uint32_t from = groups.begins[g], m = groups.begins[g + 1] - from;
		const auto part = [&](const View& all_rows) {
			const size_t offset = size_t(layer.n_kv_heads) * from * layer.head_dim * sizeof(uint16_t);
			return view(*all_rows.buf, all_rows.at + offset, DType::F16, layer.n_kv_heads, m, layer.head_dim);
		};
		const bool windowed = layer.window && m > side + 1;
		KvRows own{part(k_), part(v_), 0, {windowed ? side + 1 : 0}, {}, windowed ? side : kAllRows};
		own.softmax = runner_.softmax(l, {});
		if (layer.alibi) own.slopes = slopes_;
		be_.attend_prompt(rows(att, from, m), {}, rows(q, from, m), own, nullptr);
	}
	for (uint32_t first = 0; first < n_; first += most_rows_)
		runner_.project_out(l, rows_of(l, first), /*decode=*/false);
	be_.submit();
}

} // namespace kvrun
