// Prefill: reads a prompt into a session, in pieces of bounded time.
#include "engine/run/prefill.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include "engine/run/prefill_work.h"
#include "engine/run/session.h"
#include "engine/run/usable.h"
#include <algorithm>
#include <chrono>

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

} // namespace

Prefill::Prefill(Session& s, std::span<const uint32_t> tokens, PrefillHooks hooks)
    : session_(s), runner_(s.engine().runner()), tokens_(tokens.begin(), tokens.end()), hooks_(std::move(hooks)),
      layers_(s.engine().config().n_layers), ubatch_(s.engine().ubatch()), block_(s.engine().prefill_block()) {
	s.check_room(tokens);
	s.hold_scales();
	if (!hooks_.states.layers.empty()) for_drafter_.emplace(runner_, hooks_.states);
	images_.emplace(s.engine().images(), tokens, std::min(ubatch_, block_), ubatch_ <= block_);
	if (tokens.size() > block_)
		warn_once(fmt::format(
		    "a prompt of {} tokens is taken in blocks of {}: later blocks attend to the packed cache of earlier ones",
		    tokens.size(), block_));
	total_ = images_->work_left();
	for (uint32_t at = 0; at < n_tokens(); at += block_)
		total_ += block_work(s.n_tokens() + at, std::min(block_, n_tokens() - at));
	s.reserve_hint(n_tokens());
	memory_ = s.engine().take_prompt_memory();
	s.reading_ = true;
}

Prefill::~Prefill() {
	if (reading_) try { // an error occurred while reads into this object were pending
			runner_.backend().submit();
			runner_.backend().wait();
		} catch (...) {} // the device is lost: nothing is pending
	give_up_block();     // no effect if it has ended
	session_.sync_history();
	session_.reading_ = false;
	session_.engine().give_prompt_memory(std::move(memory_));
}

double Prefill::progress() const { return done() ? 1 : std::min(done_ / total_, 1.); }

double Prefill::seconds_left() const { return done_ > 0 ? std::max(total_ - done_, 0.) / done_ * seconds_ : 0; }

bool Prefill::finish() {
	while (!step())
		if (hooks_.progress && !hooks_.progress(*this)) return false;
	return !hooks_.progress || hooks_.progress(*this);
}

bool Prefill::step(double seconds) {
	if (done()) return true;
	session_.check_scales();
	const auto start = Clock::now();
	double& pace = session_.engine().pace(); // work per second of the last piece; 0: unknown
	const double room = pace * seconds;
	double work = 0;
	Backend& be = runner_.backend();
	reading_ = true;
	while (!done()) {
		const double w = piece(room - work, work == 0);
		work += w;
		if (w == 0 || work >= room || !read_.empty() || (for_drafter_ && for_drafter_->leaving())) break;
	}
	be.submit();
	be.wait();
	delivered();
	reading_ = false;
	const double took = std::chrono::duration<double>(Clock::now() - start).count();
	done_ += work;
	seconds_ += took;
	if (work > 0) pace = work / std::max(took, 1e-6);
	return done();
}

double Prefill::piece(double room, bool must) {
	switch (stage_) {
	case Stage::Block:
		if (const double work = images_->encode_next()) return work;
		return begin_block();
	case Stage::Rows: return rows(room, must);
	case Stage::Moves: return moves(room);
	case Stage::Logits: return logits_piece();
	case Stage::Done: break;
	}
	return 0;
}

// Rows of images are embedded as token 0, and then written over.
void Prefill::write_tokens(std::span<const Position> positions) {
	std::vector<uint32_t> tokens(tokens_.begin() + n_read_, tokens_.begin() + n_read_ + n_);
	std::ranges::replace_if(tokens, is_image_row, 0u);
	std::vector<uint32_t> places;
	if (memory_->tokens.places)
		for (const Position& p : positions) places.push_back(p.time);
	runner_.write_tokens(memory_->tokens, tokens, places);
}

double Prefill::begin_block() {
	Backend& be = runner_.backend();
	KvSequence& seq = session_.seq();
	n_ = images_->whole(n_read_, n_read_ + std::min(block_, n_tokens() - n_read_)) - n_read_;
	if (session_.index() && session_.engine().cache_layers().shares_index())
		n_ = std::min(n_, PromptMemory::rows_that_choose(IndexStep::words(session_.n_tokens() + n_)));
	choose_form();
	const bool by_layer = begin_lanes();
	if (!session_.entries().empty()) memory_->fit_entries(n_, session_.entry_rows());
	session_.engine().note_prompt_bytes(memory_->bytes());
	const std::vector<Position> positions = session_.positions(std::span(tokens_).subspan(n_read_, n_));
	write_tokens(positions);
	std::vector<float> rope;
	for (size_t i = 0; i < runner_.config().ropes.size(); ++i, rope.clear()) {
		for (const Position& at : positions) session_.rope()[i].append(at, rope);
		be.write(*memory_->rope[i].buf, memory_->rope[i].at, std::as_bytes(std::span(rope)));
	}
	if (const View& t = memory_->rope[kBlockStart]) {
		for (const Position& at : session_.block_starts(positions)) session_.rope()[0].append(at, rope);
		be.write(*t.buf, t.at, std::as_bytes(std::span(rope)));
		rope.clear();
	}
	if (const View& t = memory_->rope[kLongStart]) {
		const uint32_t back = started_blocks(runner_.config())[1] - 1;
		for (const Position& at : positions) session_.rope()[0].append(at.time - std::min(at.time, back), rope);
		be.write(*t.buf, t.at, std::as_bytes(std::span(rope)));
		rope.clear();
	}
	if (const View& t = memory_->rope[kTemperature]) {
		session_.rope().append_temperature(seq.n_tokens(), n_, rope);
		be.write(*t.buf, t.at, std::as_bytes(std::span(rope)));
	}
	session_.make_room_for([&] {
		Engine& e = session_.engine();
		const CacheLayers& layers = e.cache_layers();
		give_up_block(); // of an earlier attempt with less room
		if (session_.index()) session_.index()->make_room(n_);
		if (session_.index() && layers.shares_index() && layers.index_shape().chooses(session_.n_tokens() + n_))
			memory_->fit_choices(n_, IndexStep::words(session_.n_tokens() + n_));
		kv_.emplace(be, e.scratch(), seq, n_, memory_->kv(false, session_.window()), layers.n_heads(false), ubatch_,
		            std::span<const uint32_t>(), memory_->by_layer(false));
		if (const StateOfRow s{session_.states()}; s.seq)
			states_step_.emplace(be, e.scratch().states, std::span(&s, 1), /*in_place=*/false);
		if (KvSequence* w = session_.window_seq())
			window_kv_.emplace(be, e.window_scratch(), *w, n_, memory_->kv(true, layers.window()), layers.n_heads(true),
			                   ubatch_, std::span<const uint32_t>(), memory_->by_layer(true));
		for (size_t i = 0; i < session_.entries().size(); ++i) {
			KvSequence& s = *session_.entries()[i];
			const uint32_t n = (session_.n_tokens() + n_) / s.plan().block - s.n_tokens();
			entries_kv_[i].emplace(be, e.entry_scratch(i), s, n, memory_->entries(), layers.n_heads(false), ubatch_);
		}
	});
	for (uint32_t at = 0; at < n_; at += ubatch_) {
		const uint32_t m = std::min(ubatch_, n_ - at);
		runner_.embed(memory_->x, at, memory_->tokens.part(at, m), /*decode=*/false,
		              images_->writer(be, n_read_ + at, m));
	}
	std::vector<bool> whole(layers_);
	for (uint32_t l = 0; l < layers_; ++l) whole[l] = computes_all(l);
	ring_.emplace(session_.engine().ring(), n_, ubatch_, whole);
	layer_ = at_ = 0;
	if (for_drafter_) for_drafter_->begin_block(n_read_, n_);
	stage_ = Stage::Rows;
	if (by_layer) be.submit();
	return 2. * n_ * runner_.config().dim;
}

// Divides the block into slices where devices can work on it together; false: one lane. Where weights in host memory
// are copied through a ring the devices work in turn: a layer's weights cross the bus once for all rows, and the bus is
// what takes the time. Slices take the keys and values of all layers, in f16, until a device's last slice has passed.
// They may take a quarter of what is free: the tokens' pages need no more than them.
bool Prefill::begin_lanes() {
	constexpr uint32_t kFewRows = 128; // fewer rows in a slice would read weights more often
	Engine& e = session_.engine();
	Backend& be = runner_.backend();
	const uint32_t parts = be.n_parts();
	uint32_t slices = ceil_div(n_, ubatch_);
	slices = std::max(slices, std::min(2 * parts, n_ / kFewRows));
	bool together =
	    parts > 1 && slices > 1 && !e.ring().bytes() && !looking_ && !hooks_.queries; // queries come layer by layer
	for (uint32_t l = 0; l < layers_ && together; ++l)
		together = be.part_of(e.cache_layers().last_reader(l)) == be.part_of(l);
	together = together && !images_->together(); // slices would cut images
	together = together && !expanded_;           // keys and values of heads have memory for one layer
	together = together && memory_->fit_layers(n_, session_.prompt_rows(), be.info().free_bytes / 4);
	lanes_.clear(), lane_ = 0, slice_rows_ = n_;
	if (!together) {
		memory_->fit(n_, session_.prompt_rows());
		lanes_.push_back({0, layers_, 0});
		return false;
	}
	slice_rows_ = std::min(ubatch_, align_up(ceil_div(n_, slices), 64u));
	for (uint32_t l = 0; l < layers_; ++l) {
		if (l == 0 || be.part_of(l) != be.part_of(l - 1)) lanes_.push_back({l, l, l});
		++lanes_.back().end;
	}
	return true;
}

// Goes to the next cell: that of the lane that is furthest behind, if each lane is to be one slice behind the one
// before it. So consecutive cells are those of different devices.
void Prefill::next_cell() {
	const uint32_t slices = ceil_div(n_, slice_rows_);
	do {
		Lane& now = lanes_[lane_];
		if (++now.layer == now.end) {
			if (lane_ + 1 < lanes_.size()) {
				const View& x = memory_->x;
				View rows = kvrun::rows(x, now.slice * slice_rows_, cell_end() - now.slice * slice_rows_);
				const Config& c = runner_.config();
				for (uint32_t i = 0; i < (c.streams.hyper() ? 1 : rows_per_token(c)); ++i, rows.at += x.bytes())
					runner_.backend().hand_over(rows, runner_.backend().part_of(now.end));
			}
			now.layer = now.first, ++now.slice;
		}
		const auto position = [&](uint32_t i) {
			const Lane& l = lanes_[i];
			return l.slice + i + double(l.layer - l.first) / (l.end - l.first);
		};
		const auto ready = [&](uint32_t i) { return lanes_[i].slice < (i ? lanes_[i - 1].slice : slices); };
		uint32_t best = uint32_t(lanes_.size());
		for (uint32_t i = 0; i < lanes_.size(); ++i)
			if (ready(i) && (best == lanes_.size() || position(i) < position(best))) best = i;
		at_ = 0;
		if (best == lanes_.size()) {
			stage_ = Stage::Logits;
			return;
		}
		lane_ = best;
		layer_ = lanes_[lane_].layer, at_ = lanes_[lane_].slice * slice_rows_;
	} while (cell_end() < n_ && !needs_rows(layer_));
	stage_ = Stage::Rows;
}

KvPrefill& Prefill::cache_of(uint32_t l) { return session_.engine().cache_layers()[l].window ? *window_kv_ : *kv_; }

bool Prefill::computes_all(uint32_t l) const {
	return wants_all() || runner_.config().layers[l].mlp_shift || l < session_.engine().cache_layers().last_own() ||
	       (for_drafter_ && l < for_drafter_->last_layer());
}

void Prefill::give_up_block() {
	ring_.reset();
	states_step_.reset();
	for (std::optional<KvPrefill>& kv : entries_kv_) kv.reset();
	window_kv_.reset();
	kv_.reset();
	if (session_.index()) session_.index()->truncate(session_.n_tokens());
}

double Prefill::rows(double room, bool must) {
	const uint32_t entered = needs_rows(layer_) ? at_ : 0;
	if (!needs_rows(layer_)) at_ = n_ - 1; // the others are not needed
	const uint32_t m = rows_that_fit(room), l = layer_;
	const bool last = at_ + m == n_;
	if (!must && m < std::min(ubatch_, cell_end() - at_))
		return 0; // the rest of the room is less than a device processes at a time
	runner_.backend().at_layer(l);
	struct Copied { // decode steps between pieces read weights where they lie
		LayerRunner& runner;
		~Copied() { runner.use(0, nullptr); }
	} copied{runner_};
	runner_.use(l, ring_->enter(l));
	if (for_drafter_) for_drafter_->enter(l, kvrun::rows(memory_->x, entered, at_ + m - entered), n_read_ + entered);
	const double work = attends(runner_.config().layers[l]) ? layer_rows(m) : recurrent_rows(m);
	if (last) ring_->leave(l);
	ring_->ahead(l);
	if (lanes_.size() > 1) runner_.backend().submit(); // its device begins while others get their cells
	return work;
}

// Of the rows from at_ on; of a layer whose rows are not all needed, the last one.
void Prefill::project_out(const LayerRows& r, bool all) {
	LayerRows out = all ? r : LayerRunner::last_row(r);
	const uint32_t first = n_read_ + at_ + r.n - out.n;
	const std::function<void(const View&)> write_images = images_->writer(runner_.backend(), first, out.n);
	if (write_images) out.replace = &write_images;
	runner_.project_out(layer_, out, /*decode=*/false);
	images_->add_deep(runner_.backend(), layer_, out.x, out.h, first, out.n);
	if (looking_)
		runner_.read_rows(kvrun::rows(memory_->x, first - n_read_, out.n),
		                  looks_.emplace_back(Look{fmt::format("the output of layer {} is", layer_), {}}).rows);
}

// The next m rows of a layer that attends.
double Prefill::layer_rows(uint32_t m) {
	const uint32_t k = session_.engine().cache_layers()[layer_].index;
	KvPrefill& kv = cache_of(layer_);
	const bool all = computes_all(layer_), owns = owns_kv(layer_);
	if (at_ == 0 && owns) kv.begin_layer(k);
	LayerRows r = runner_.rows_of(layer_, memory_->x, memory_->tokens, memory_->rope, at_, m);
	r.expanded = expanded_ && runner_.config().layers[layer_].latent.rank;
	enter(r);
	recur(r);
	const ExpandedMemory& heads = memory_->expanded();
	KvRows from = kv.own(k); // of these rows
	from.first += at_;
	if (r.expanded && at_ == 0) {
		unpacked_ = kv.unpack_older(k, heads.older);
		runner_.expand(layer_, heads, 0, {heads.older.k, heads.older.v}, unpacked_);
	}
	runner_.project_in(layer_, r, /*decode=*/false);
	runner_.rotate(layer_, r, 0, m, owns ? kv.destination(k, at_, m) : KvDst());
	std::optional<IndexStep> index = store_index(r);
	const bool blocks = runner_.config().layers[layer_].blocks.tokens != 0;
	if (blocks) store_entries(r);
	if (hooks_.queries && !looking_) {
		Queries& read = queries_.emplace_back(Queries{layer_, n_read_ + at_, m, {}, {}});
		runner_.read_rows(r.q, read.rows);
		if (r.q_rope) runner_.read_rows(r.q_rope, read.rope);
	}
	// Of the last layer with keys and values only these and one row of logits are needed.
	const bool last_rows = at_ + m == n_;
	if (all || last_rows || kv.wants_queries()) {
		if (r.expanded)
			attend_expanded(r, kv, from);
		else if (blocks)
			attend_blocks(kv, k, r, index ? &*index : nullptr);
		else
			attend(kv, k, r, owns, index ? &*index : nullptr);
		if (all || last_rows) project_out(r, all);
	} else if (r.expanded) { // later rows attend to these
		runner_.expand(layer_, heads, unpacked_ + at_, from, m);
	}
	const double work = rows_work(layer_, at_, m);
	at_ += m;
	if (at_ == n_)
		stage_ = Stage::Moves, begin_moves(0);
	else if (at_ == cell_end())
		next_cell();
	return work;
}

void Prefill::enter(LayerRows& r) {
	if (looking_ && layer_ == 0)
		runner_.read_rows(kvrun::rows(memory_->x, at_, r.n), looks_.emplace_back(Look{"the embeddings are", {}}).rows);
	const NGrams& grams = runner_.config().ngrams;
	if (!grams.longest || grams.layer != layer_) return runner_.enter(layer_, r, {}, /*decode=*/false);
	const NGramTable& table = *session_.engine().ngram_table();
	// Of the tokens of this block, and behind the history, those that n-grams of these rows reach.
	const std::span<const uint32_t> history = session_.history();
	const uint32_t in_block = std::min(table.reach(), at_);
	const size_t older = std::min<size_t>(table.reach() - in_block, history.size());
	std::vector<uint32_t> text(history.end() - ptrdiff_t(older), history.end());
	const auto begin = tokens_.begin() + n_read_ + at_;
	text.insert(text.end(), begin - in_block, begin + r.n);
	const std::vector<float> values = table.read(text, r.n);
	r.ngrams = values;
	const uint32_t k = *session_.engine().cache_layers().ngram_state();
	states_step_->piece(k, at_ == 0, r.n);
	runner_.enter(layer_, r, states_step_->groups(k), /*decode=*/false);
	r.ngrams = {};
}

// Takes rows through the layer's state, if it has one.
void Prefill::recur(LayerRows& r) {
	if (!has_state(layer_)) return;
	const uint32_t k = session_.engine().cache_layers().state(layer_);
	states_step_->piece(k, at_ == 0, r.n);
	r.states = states_step_->groups(k);
	runner_.recur(layer_, r, /*decode=*/false);
}

// The next m rows of a recurrent layer, whose state needs all rows, or of an MLP alone.
double Prefill::recurrent_rows(uint32_t m) {
	const bool all = computes_all(layer_), last_rows = at_ + m == n_;
	LayerRows r = runner_.rows_of(layer_, memory_->x, memory_->tokens, memory_->rope, at_, m);
	enter(r);
	recur(r);
	if (all || last_rows) project_out(r, all);
	const double work = rows_work(layer_, at_, m);
	at_ += m;
	if (at_ == cell_end()) next_cell();
	return work;
}

// Finds the next layer, from `from` on, whose keys and values no layer after layer_ reads: they can go into pages.
void Prefill::begin_moves(uint32_t from) {
	const CacheLayers& layers = session_.engine().cache_layers();
	for (moving_ = from; moving_ <= layer_; ++moving_)
		if (owns_kv(moving_) && layers.last_reader(moving_) == layer_) break;
	planned_ = false, moved_ = 0;
	if (moving_ > layer_) next_cell();
}

double Prefill::moves(double room) {
	const double each = move_work(runner_.config().layers[moving_]), all = each * n_;
	runner_.backend().at_layer(moving_);
	if (!planned_) {
		cache_of(moving_).plan_moves(session_.engine().cache_layers()[moving_].index);
		if (runner_.config().layers[moving_].blocks.tokens) { // a fraction of the layer's own
			const CacheLayers::BlockPlace& at = session_.engine().cache_layers().block(moving_);
			entries_kv_[at.cache]->end_layer(at.index);
		}
	}
	planned_ = true;
	const double most = std::clamp(room / each, 64., double(UINT32_MAX)); // tokens
	if (!cache_of(moving_).move(uint64_t(most))) {
		const double work = std::min(most * each, all - moved_);
		moved_ += work;
		return std::max(work, each);
	}
	const double work = std::max(all - moved_, each);
	begin_moves(moving_ + 1);
	return work;
}

double Prefill::logits_piece() {
	if (for_drafter_)
		if (const uint32_t n = for_drafter_->leave(memory_->x, ubatch_)) return double(n) * runner_.config().dim;
	const uint32_t first = wants_all() ? at_ : n_ - 1, n = std::min(LayerRunner::kLogitRows, n_ - first);
	const View x = runner_.merge_streams(memory_->x, first, n, /*decode=*/false);
	uint32_t m = n; // rows whose logits are read
	if (hooks_.all_states && !hooks_.all_logits) runner_.read_states(x, states_), m = 1;
	runner_.logits(kvrun::rows(x, n - m, m), /*decode=*/false);
	read_.resize(size_t(m) * runner_.config().vocab);
	runner_.read_logits(0, m, read_);
	runner_.read_rows(x, hidden_);
	at_ = first + n;
	return 2. * runner_.config().vocab * runner_.config().dim * m;
}

void Prefill::delivered() {
	for (const Queries& q : queries_) hooks_.queries({q.layer, q.first, q.n, q.rows, q.rope});
	queries_.clear();
	if (for_drafter_) for_drafter_->arrived();
	if (read_.empty()) return;
	if (!usable()) throw fault(locate_fault());
	const size_t vocab = runner_.config().vocab, n = read_.size() / vocab;
	if (hooks_.all_logits) hooks_.all_logits(n_read_ + at_ - uint32_t(n), uint32_t(n), read_);
	if (!states_.empty()) {
		const uint32_t rows = uint32_t(states_.size() / runner_.config().dim);
		hooks_.all_states(n_read_ + at_ - rows, rows, states_);
		states_.clear();
	}
	if (at_ == n_) {
		logits_.assign(read_.end() - ptrdiff_t(vocab), read_.end());
		end_block();
	}
	read_.clear();
}

bool Prefill::usable() const {
	const size_t vocab = runner_.config().vocab, dim = runner_.config().dim;
	for (size_t at = 0; at < hidden_.size(); at += dim)
		if (!has_norm(std::span(hidden_).subspan(at, dim))) return false;
	for (size_t at = 0; at < read_.size(); at += vocab)
		if (!has_choice(std::span(read_).subspan(at, vocab))) return false;
	return true;
}

Error Prefill::fault(const std::string& where) {
	return {Code::Device, where + " not finite in f32: weights of the model, or keys and values of the session, are "
	                              "damaged; KVRUN_CHECK=1 names the operation"};
}

std::string Prefill::locate_fault() {
	constexpr double kWholeUbatch = 1e30;
	std::string where;
	give_up_block();
	stage_ = Stage::Block, looking_ = true;
	while (where.empty() && stage_ != Stage::Logits) {
		piece(kWholeUbatch, true);
		runner_.backend().submit();
		runner_.backend().wait();
		for (const Look& look : looks_)
			for (size_t at = 0, dim = runner_.config().dim; at < look.rows.size() && where.empty(); at += dim)
				if (!has_norm(std::span(look.rows).subspan(at, dim))) where = look.where;
		looks_.clear();
	}
	give_up_block();
	looking_ = false;
	return where.empty() ? kLogits : where;
}

void Prefill::end_block() {
	session_.history_room(n_);
	kv_->end();
	if (window_kv_) window_kv_->end();
	for (std::optional<KvPrefill>& kv : entries_kv_)
		if (kv) kv->end();
	if (states_step_) states_step_->end(n_);
	if (session_.index()) session_.index()->append(n_);
	give_up_block();
	session_.append_history(std::span(tokens_).subspan(n_read_, n_));
	n_read_ += n_;
	stage_ = n_read_ < n_tokens() ? Stage::Block : Stage::Done;
	if (done()) session_.prompt_read();
}

} // namespace kvrun
