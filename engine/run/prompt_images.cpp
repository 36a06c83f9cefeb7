// The rows of images and sounds in a prompt.
#include "engine/run/prompt_images.h"
#include <algorithm>

namespace kvrun {

PromptImages::PromptImages(ImageStore* store, std::span<const uint32_t> tokens, uint32_t most_rows, bool ubatch_limits)
    : store_(store) {
	if (!store) return;
	images_ = store->of(tokens);
	if (images_.empty()) return;
	for (uint32_t i = 0; i < tokens.size(); ++i) {
		if (!is_image_row(tokens[i])) continue;
		const uint32_t row = image_row(tokens[i]);
		if (!runs_.empty() && runs_.back().end == i && row == image_row(tokens[i - 1]) + 1 &&
		    row - runs_.back().image->first < runs_.back().image->n_rows) {
			++runs_.back().end;
			continue;
		}
		const auto image =
		    std::ranges::find_if(images_, [&](const auto& x) { return row >= x->first && row - x->first < x->n_rows; });
		runs_.push_back({i, i + 1, image->get(), row - (*image)->first});
	}
	deep_layers_ = store->deep_layers();
	for (const Run& r : runs_)
		if (together(r) && r.end - r.begin > most_rows)
			fail(Code::Invalid, "rows of an image see each other, so its {} rows are read together, but {} is {}; {}",
			     r.end - r.begin, ubatch_limits ? "--ubatch-size" : "the longest block of a prompt", most_rows,
			     ubatch_limits ? "raise it" : "free device memory, or take a smaller cache");
}

double PromptImages::work_left() const {
	double work = 0;
	for (const auto& image : images_) work += store_->work_left(*image);
	return work;
}

double PromptImages::encode_next() {
	for (const auto& image : images_) {
		if (image->encoded == image->tiles.size()) continue;
		const EncoderInput& tile = image->tiles[image->encoded];
		if (tile_of_ != image.get() || tile_number_ != image->encoded) { // another prompt may have finished the tile
			tile_.reset();
			tile_ = store_->begin(tile);
			tile_of_ = image.get(), tile_number_ = image->encoded;
		}
		const double work = store_->layer_work(tile);
		if (!tile_->done()) tile_->step(); // an encoder may have no layers
		if (!tile_->done()) return work;
		store_->add_rows(*image, tile_->finish());
		tile_.reset(), tile_of_ = nullptr;
		return work;
	}
	tile_.reset();
	return 0;
}

const PromptImages::Run* PromptImages::run_behind(uint32_t token) const {
	const auto run = std::ranges::upper_bound(runs_, token, {}, &Run::end);
	return run == runs_.end() ? nullptr : &*run;
}

// Calls f(rows of x, values of them) for rows of images among these; values_of(image): (n_rows, dim).
void PromptImages::each_run(const View& x, uint32_t first, uint32_t n, auto values_of, auto f) const {
	const size_t dim = x.shape[1];
	for (uint32_t at = first; const Run* r = run_behind(at); at = r->end) {
		const uint32_t begin = std::max(r->begin, first), end = std::min(r->end, first + n);
		if (begin >= end) return;
		const std::span<const float> values(values_of(*r->image));
		if (values.empty()) continue;
		f(rows(x, begin - first, end - begin),
		  std::as_bytes(values.subspan((r->row + begin - r->begin) * dim, (end - begin) * dim)));
	}
}

void PromptImages::write(Backend& be, const View& x, uint32_t first, uint32_t n) const {
	each_run(
	    x, first, n, [](const StoredImage& i) { return std::span(i.rows); },
	    [&](const View& to, std::span<const std::byte> values) { be.write(*to.buf, to.at, values); });
}

std::function<void(const View&)> PromptImages::writer(Backend& be, uint32_t first, uint32_t n) const {
	if (runs_.empty()) return {};
	return [this, &be, first, n](const View& x) { write(be, x, first, n); };
}

void PromptImages::add_deep(Backend& be, uint32_t l, const View& x, const View& room, uint32_t first,
                            uint32_t n) const {
	if (l >= deep_layers_) return;
	each_run(
	    x, first, n,
	    [l](const StoredImage& i) { return l < i.deep.size() ? std::span(i.deep[l]) : std::span<const float>(); },
	    [&](const View& to, std::span<const std::byte> values) {
		    const View from = rows(room, 0, to.shape[0]);
		    be.write(*from.buf, from.at, values);
		    be.activate(to, from, {}, {.add = true});
	    });
}

uint32_t PromptImages::whole(uint32_t from, uint32_t end) const {
	const Run* r = end > from ? run_behind(end - 1) : nullptr;
	if (!r || !together(*r) || r->begin >= end) return end;
	return r->end == end ? end : r->begin > from ? r->begin : r->end;
}

PromptImages::Part PromptImages::part(uint32_t from, uint32_t end, bool windowed) const {
	const auto sees = [&](const Run& x) {
		return x.image->sight == Sight::All || (x.image->sight == Sight::AllInWindows && windowed);
	};
	const Run* r = run_behind(from);
	while (r && r->begin < end && !sees(*r)) r = run_behind(r->end);
	if (!r || r->begin >= end) return {end, false};
	if (r->begin > from) return {r->begin, false};
	return {std::min(r->end, end), true};
}

} // namespace kvrun
