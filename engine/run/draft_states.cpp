// Layers that draft from a model's hidden states as a drafter.
#include "engine/run/draft_states.h"
#include "engine/core/log.h"
#include "engine/run/positions.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kPiece = 8 * DraftLayers::kRows; // rows of a text that are read between two steps

// Reads hidden states with the tokens behind them. The entry of the text's last position but one gives the first guess;
// entries of guesses are removed again.
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
		if (n_waiting() < DraftLayers::kRows) return;
		StateDrafter* const self = this;
		attempt([&] { read({&self, 1}); });
	}
	std::span<const uint32_t> draft(uint32_t most) override {
		request_ = {this, most};
		model_.draft({&request_, 1});
		return request_.tokens;
	}
	DraftGroup* group() override { return &model_; }

	// ---- of several drafters of one model: reads at most kPiece waiting states of each; guesses. They throw.
	static void read(std::span<StateDrafter* const>);
	static void guess(std::span<DraftRequest>);
	// Where memory is short, ended texts are forgotten, then this one; an error that stays ends the drafts.
	template <class F> void attempt(F f) {
		while (!lost_) try {
				return f();
			} catch (const Error& e) {
				if (e.code == Code::OutOfMemory && model_.forget()) continue;
				const bool empty = !text_.cache || text_.cache->n_tokens() == 0;
				text_.cache.reset(), text_.at.clear();
				take(n_waiting());
				lost_ = e.code != Code::OutOfMemory || empty;
				if (lost_) log_at(1, "drafting has stopped: {}", e.what());
				return;
			}
	}
	bool lost() const { return lost_; }

 private:
	uint32_t n_waiting() const { return uint32_t(text_.waiting.size() / layers_.state_width() - text_.used); }
	// Of token i of the text.
	uint32_t position(uint32_t i) { return positions_.next(std::span(text_.tokens).first(i)); }
	void take(uint32_t n) { // removes the first n states
		text_.waiting_at += n, text_.used += n;
		if (n_waiting() == 0) text_.waiting.clear(), text_.used = 0;
	}
	// The next states that get an entry, at most so many.
	DraftRows next_rows(uint32_t most) {
		const uint32_t width = layers_.state_width(), vocab = layers_.vocab();
		const std::span<const uint32_t> tokens = text_.tokens;
		while (most && n_waiting() && text_.waiting_at + 1 < tokens.size()) {
			const uint32_t first = text_.waiting_at, known = uint32_t(tokens.size()) - 1 - first;
			const auto next = tokens.subspan(first + 1, std::min({most, n_waiting(), known}));
			const auto n =
			    uint32_t(std::ranges::find_if(next, [vocab](uint32_t t) { return t >= vocab; }) - next.begin());
			if (n == 0) { // noise in place of a token has no entry
				take(1);
				continue;
			}
			if (!text_.cache) text_.cache = layers_.cache();
			return {&*text_.cache, position(first),
			        next.first(n), std::span(text_.waiting).subspan(text_.used * width, size_t(n) * width),
			        false,         first + n + 1 == tokens.size() ? &text_.guess : nullptr};
		}
		return {};
	}
	void took(uint32_t n) {
		for (uint32_t i = 0; i < n; ++i) text_.at.push_back(text_.waiting_at + i);
		take(n);
	}
	// Whether the entry is there that the guess after the whole text needs.
	bool has_read() const { return !text_.at.empty() && text_.at.back() + 2 == text_.tokens.size(); }
	void take_back_guesses() {
		if (text_.cache) text_.cache->truncate(uint32_t(text_.at.size()));
	}

	StateDrafts& model_;
	DraftLayers& layers_;
	DraftedText text_;
	TextPositions positions_;
	DraftRequest request_ = {};
	bool begun_ = false, lost_ = false;
};

void StateDrafter::read(std::span<StateDrafter* const> drafters) {
	std::vector<uint32_t> left(drafters.size(), kPiece);
	for (;;) {
		std::vector<DraftRows> rows;
		std::vector<size_t> of;
		uint32_t room = DraftLayers::kRows;
		for (size_t i = 0; i < drafters.size() && room; ++i) {
			const DraftRows next = drafters[i]->next_rows(std::min(room, left[i]));
			if (next.tokens.empty()) continue;
			rows.push_back(next), of.push_back(i);
			room -= uint32_t(next.tokens.size());
		}
		if (rows.empty()) return;
		drafters[0]->layers_.read(rows);
		for (size_t i = 0; i < rows.size(); ++i) {
			const auto n = uint32_t(rows[i].tokens.size());
			drafters[of[i]]->took(n), left[of[i]] -= n;
		}
	}
}

void StateDrafter::guess(std::span<DraftRequest> requests) {
	std::vector<StateDrafter*> drafters;
	for (DraftRequest& r : requests) {
		r.tokens.clear();
		if (r.most) drafters.push_back(static_cast<StateDrafter*>(r.drafter));
	}
	if (drafters.empty()) return;
	for (StateDrafter* d : drafters) d->take_back_guesses(); // of an attempt that failed
	read(drafters);
	std::vector<DraftGuess> guesses;
	std::vector<std::vector<uint32_t>> tokens(requests.size()); // handed out once nothing can fail
	for (size_t i = 0; i < requests.size(); ++i) {
		const DraftRequest& r = requests[i];
		auto* d = static_cast<StateDrafter*>(r.drafter);
		if (!r.most || !d->has_read()) continue;
		DraftedText& t = d->text_;
		guesses.push_back({&*t.cache, d->position(t.at.back()), t.tokens.back(), r.most, &t.guess, &tokens[i]});
	}
	if (guesses.empty()) return;
	drafters[0]->layers_.guess(guesses);
	for (StateDrafter* d : drafters) d->take_back_guesses();
	for (size_t i = 0; i < requests.size(); ++i) requests[i].tokens = std::move(tokens[i]);
}

} // namespace

std::unique_ptr<Drafter> StateDrafts::drafter() { return std::make_unique<StateDrafter>(*this); }

// If one of them fails, each is tried alone.
void StateDrafts::draft(std::span<DraftRequest> requests) {
	if (requests.size() > 1) try {
			std::vector<DraftRequest> able;
			for (const DraftRequest& r : requests)
				if (!static_cast<StateDrafter*>(r.drafter)->lost()) able.push_back({r.drafter, r.most});
			StateDrafter::guess(able);
			size_t next = 0;
			for (DraftRequest& r : requests)
				if (next < able.size() && able[next].drafter == r.drafter) r.tokens = std::move(able[next++].tokens);
			return;
		} catch (const Error&) {}
	for (DraftRequest& r : requests) {
		r.tokens.clear();
		static_cast<StateDrafter*>(r.drafter)->attempt([&] { StateDrafter::guess({&r, 1}); });
	}
}

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
