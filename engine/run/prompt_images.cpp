// The rows of images in a prompt.
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
		if (!runs_.empty() && runs_.back().end == i && tokens[i] == tokens[i - 1] + 1 &&
		    tokens[i] - runs_.back().image->first < runs_.back().image->n_rows) {
			++runs_.back().end;
			continue;
		}
		const auto image = std::ranges::find_if(
		    images_, [&](const auto& x) { return tokens[i] >= x->first && tokens[i] - x->first < x->n_rows; });
		runs_.push_back({i, i + 1, image->get(), tokens[i] - (*image)->first});
	}
	together_ = store->encoder().config().projector->together;
	for (const Run& r : runs_)
		if (together_ && r.end - r.begin > most_rows)
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
	for (const auto& image : images_)
		if (const double work = store_->encode_next(*image)) return work;
	return 0;
}

const PromptImages::Run* PromptImages::run_behind(uint32_t token) const {
	const auto run = std::ranges::upper_bound(runs_, token, {}, &Run::end);
	return run == runs_.end() ? nullptr : &*run;
}

void PromptImages::write(Backend& be, const View& x, uint32_t first, uint32_t n) const {
	const size_t dim = x.shape[1];
	for (uint32_t at = first; const Run* r = run_behind(at); at = r->end) {
		const uint32_t begin = std::max(r->begin, first), end = std::min(r->end, first + n);
		if (begin >= end) return;
		const std::span rows(r->image->rows);
		be.write(*x.buf, x.at + (begin - first) * dim * sizeof(float),
		         std::as_bytes(rows.subspan((r->row + begin - r->begin) * dim, (end - begin) * dim)));
	}
}

uint32_t PromptImages::whole(uint32_t from, uint32_t end) const {
	const Run* r = together_ && end > from ? run_behind(end - 1) : nullptr;
	if (!r || r->begin >= end) return end;
	return r->end == end ? end : r->begin > from ? r->begin : r->end;
}

PromptImages::Part PromptImages::part(uint32_t from, uint32_t end) const {
	const Run* r = together_ ? run_behind(from) : nullptr;
	if (!r || r->begin >= end) return {end, false};
	if (r->begin > from) return {r->begin, false};
	return {std::min(r->end, end), true};
}

} // namespace kvrun
