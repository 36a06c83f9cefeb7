// Layers that draft from a model's hidden states as a drafter.
#include "engine/run/draft_states.h"
#include "engine/core/log.h"
#include "engine/run/positions.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kPiece = 8 * DraftLayers::kRows; // rows that are read between two steps

// Reads hidden states with the tokens behind them. The entry of the text's last position but one gives the first guess;
// further guesses go on from the layer's own hidden state, and their entries are removed again.
class StateDrafter final : public Drafter {
 public:
	explicit StateDrafter(StateDrafts& m) : model_(m), layers_(m.layers()), positions_(layers_.config().ropes[0].axes) {
		model_.add(text_);
	}
	~StateDrafter() override { model_.end(text_); }
	void accept(std::span<const uint32_t> tokens) override {
		text_.tokens.insert(text_.tokens.end(), tokens.begin(), tokens.end());
	}
	bool reads_states() const override { return !lost_; }
	uint32_t prompt_states() const override { return lost_ ? 0 : layers_.prompt_rows(); }
	void states(uint32_t position, std::span<const float> rows) override {
		if (lost_) return;
		if (!begun_) attempt([&] { model_.begin(text_, position); });
		begun_ = true;
		if (position != text_.waiting_at + n_waiting()) take(n_waiting()); // these never get an entry
		if (n_waiting() == 0) text_.waiting_at = position;
		text_.waiting.insert(text_.waiting.end(), rows.begin(), rows.end());
	}
	void work() override {
		attempt([&] {
			if (n_waiting() >= DraftLayers::kRows) read(kPiece);
		});
	}
	std::span<const uint32_t> draft(uint32_t most) override {
		drafted_.clear();
		attempt([&] {
			if (most == 0 || !read(kPiece)) return;
			const uint32_t kept = text_.cache->n_tokens();
			layers_.guess(*text_.cache, position(text_.at.back()), text_.tokens.back(), most, drafted_);
			text_.cache->truncate(kept);
		});
		return drafted_;
	}

 private:
	uint32_t n_waiting() const { return uint32_t(text_.waiting.size() / layers_.state_width() - text_.used); }
	// Of token i of the text.
	uint32_t position(uint32_t i) { return positions_.next(std::span(text_.tokens).first(i)); }
	void take(uint32_t n) { // removes the first n states
		text_.waiting_at += n, text_.used += n;
		if (n_waiting() == 0) text_.waiting.clear(), text_.used = 0;
	}
	// Where memory is short, ended texts are forgotten, then this one; an error that stays ends the drafts.
	template <class F> void attempt(F f) {
		while (!lost_) try {
				return f();
			} catch (const Error& e) {
				drafted_.clear();
				if (e.code == Code::OutOfMemory && model_.forget()) continue;
				const bool empty = !text_.cache || text_.cache->n_tokens() == 0;
				text_.cache.reset(), text_.at.clear();
				take(n_waiting());
				lost_ = e.code != Code::OutOfMemory || empty;
				if (lost_) log_at(1, "what drafts (--draft) drafts no further: {}", e.what());
				return;
			}
	}
	// At most so many waiting states; returns whether the guess after the whole text is there.
	bool read(uint32_t most) {
		const uint32_t width = layers_.state_width(), vocab = layers_.vocab();
		const std::vector<uint32_t>& tokens = text_.tokens;
		bool guessed = false;
		while (most && n_waiting() && text_.waiting_at + 1 < tokens.size()) {
			const uint32_t first = text_.waiting_at, known = uint32_t(tokens.size()) - 1 - first;
			uint32_t n = std::min({most, n_waiting(), known, DraftLayers::kRows});
			const auto next = std::span(tokens).subspan(first + 1, n);
			n = uint32_t(std::ranges::find_if(next, [vocab](uint32_t t) { return t >= vocab; }) - next.begin());
			guessed = first + n + 1 == tokens.size();
			if (n) {
				if (!text_.cache) text_.cache = layers_.cache();
				const DraftRows rows{position(first), next.first(n),
				                     std::span(text_.waiting).subspan(text_.used * width, size_t(n) * width)};
				layers_.read(*text_.cache, rows, guessed);
				for (uint32_t i = 0; i < n; ++i) text_.at.push_back(first + i);
			} else {
				n = 1; // noise in place of a token has no entry
			}
			take(n), most -= std::min(most, n);
		}
		return guessed;
	}

	StateDrafts& model_;
	DraftLayers& layers_;
	DraftedText text_;
	TextPositions positions_;
	std::vector<uint32_t> drafted_;
	bool begun_ = false, lost_ = false;
};

} // namespace

std::unique_ptr<Drafter> StateDrafts::drafter() { return std::make_unique<StateDrafter>(*this); }

void StateDrafts::begin(DraftedText& t, uint32_t position) {
	DraftedText* best = nullptr;
	uint32_t most = 0;
	size_t most_common = 0;
	const auto consider = [&](DraftedText& other) {
		if (&other == &t || !other.cache) return;
		const size_t common = size_t(std::ranges::mismatch(other.tokens, t.tokens).in1 - other.tokens.begin());
		const size_t usable = std::min<size_t>(common ? common - 1 : 0, position); // positions
		const auto n = uint32_t(std::ranges::lower_bound(other.at, usable) - other.at.begin());
		if (n > most) best = &other, most = n, most_common = common;
	};
	for (DraftedText* other : live_) consider(*other);
	for (DraftedText& other : kept_) consider(other);
	if (!best) return;
	t.cache = best->cache->fork();
	t.cache->truncate(most);
	t.at.assign(best->at.begin(), best->at.begin() + most);
	// The state before the position, where that text ended: its token has come only now.
	const uint32_t width = layers_->state_width(), last = t.at.back() + 1;
	const std::span<const float> states = std::span(best->waiting).subspan(best->used * width);
	const size_t wanted = size_t(position - last) * width;
	if (best->waiting_at != last || most_common < position || states.size() < wanted) return;
	t.waiting_at = last;
	t.waiting.assign(states.begin(), states.begin() + ptrdiff_t(wanted));
}

void StateDrafts::end(DraftedText& t) noexcept {
	std::erase(live_, &t);
	if (!t.cache || t.at.empty()) return;
	try {
		kept_.push_front(std::move(t));
		if (kept_.size() > kKept) kept_.pop_back();
	} catch (const std::bad_alloc&) {} // it is optional
}

bool StateDrafts::forget() {
	if (kept_.empty()) return false;
	kept_.pop_back();
	return true;
}

} // namespace kvrun
