// One sequence on a device: page table and live bits kept equal to the cache's.
#include "engine/kv_device/sequence.h"
#include "engine/core/round.h"
#include "engine/kv_device/fetch.h"
#include "engine/kv_device/row_mask.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>
#include <utility>

namespace kvrun {

KvSequence::KvSequence(Backend& be, const KvPlan& plan, KvPool& pool, uint32_t max_tokens, uint64_t seed)
    : be_(be), plan_(plan), pool_(pool), cache_(plan, pool, seed), layers_(plan.shape.n_layers) {
	// Initial sizes; fit_tables() enlarges them when a method needs more.
	for (const Tier t : kAllTiers) {
		const bool used = t == Tier::F16 || plan.fill[int(t)] != Fill::None;
		const bool whole = t == Tier::F16 ? plan.keeps_all : true;
		const uint32_t guess = std::min(max_tokens, 1u << 14) / std::max(plan.page[int(t)], 1u) + 2;
		if (used) tier_pages_[int(t)] = whole ? guess : 8;
	}
	for (const LayerPlan& L : plan.layers) {
		balanced_ |= L.balanced;
		for (const TierPlan& t : L.tier) has_factors_ |= t.fmt.v.bits < 16 && t.fmt.v.prescale == Prescale::SqrtMax;
	}
	if (plan.fetches()) fetch_ = std::make_unique<KvFetch>(be, plan, pool);
	if (balanced_) balance_at_ = pool_.balances().take(balance_words());
}

KvSequence::~KvSequence() {
	give_tables();
	give_sums();
	if (balanced_) pool_.balances().give(balance_at_, balance_words());
}

void KvSequence::give_tables() {
	if (table_pages_) pool_.tables().give(table_at_, table_words());
	table_pages_ = 0;
}
void KvSequence::give_sums() {
	if (sum_slots_) pool_.sums().give(sums_at_, sums_words());
	sum_slots_ = 0;
}

std::unique_ptr<KvSequence> KvSequence::fork() {
	auto other = std::make_unique<KvSequence>(be_, plan_, pool_, 0, 0);
	if (balanced_)
		be_.copy(pool_.balances().view(other->balance_at_, balance_words()),
		         pool_.balances().view(balance_at_, balance_words()));
	other->balance_exact_from_ = balance_exact_from_;
	other->cache_ = cache_.fork();
	if (fetch_) other->fetch_->fork_from(*fetch_);
	std::copy_n(tier_pages_, kTiers, other->tier_pages_);
	if (sum_slots_) {
		other->fit_sums();
		// The fork's sums have room for all slots; behind a prompt this sequence may have slots without sums yet.
		const uint32_t n = uint32_t(layers_.size()) * plan_.shape.n_kv_heads,
		               slots = std::min(sum_slots_, cache_.n_f16_slots());
		for (uint32_t r = 0; r < n; ++r)
			be_.copy(pool_.sums().view(other->sums_at_ + r * other->sum_slots_, slots),
			         pool_.sums().view(sums_at_ + r * sum_slots_, slots));
	}
	return other;
}

size_t KvSequence::table_bytes() const {
	return 4 * size_t((table_pages_ ? table_words() : 0) + sums_words() + (balanced_ ? balance_words() : 0));
}

void KvSequence::reset() {
	cache_.reset();
	if (fetch_) fetch_->reset();
	balance_exact_from_ = 0;
	give_sums(); // not cleared: reset() must also work on a lost device
}

uint32_t KvSequence::exact_position(uint32_t n) const {
	const uint32_t p = fetch_ ? fetch_->exact_position(cache_, n) : cache_.exact_position(n);
	return p < balance_exact_from_ ? 0 : p;
}

void KvSequence::truncate(uint32_t n) {
	if (fetch_ && n < n_tokens()) fetch_->truncate(n);
	cache_.truncate(n);
}

uint32_t KvSequence::tier_first(Tier t) const {
	uint32_t first = 0;
	for (int i = 0; i < int(t); ++i) first += tier_pages_[i];
	return first;
}

uint32_t KvSequence::live_word(uint32_t l, uint32_t row) const {
	const uint32_t group = plan_.n_groups == 1 ? 0 : l;
	return live_at() + (group * plan_.n_heads * table_pages_ + row) * 4;
}

uint32_t KvSequence::position_word(uint32_t l, uint32_t head, uint32_t row) const {
	if (!plan_.has_positions()) return LIVE_IN_ORDER;
	const uint32_t group = plan_.n_groups == 1 ? 0 : l;
	return positions_at() + ((group * plan_.n_heads + head) * table_pages_ + row) * LIVE_POSITIONS;
}

void KvSequence::begin_balance(uint32_t n) {
	if (!balanced_) return;
	balance_exact_from_ = n;
	if (n) return;
	const std::vector<uint32_t> ones(balance_words(), 0x3c003c00u); // two halves each
	be_.write(pool_.balances().buffer(), size_t(balance_at_) * 4, std::as_bytes(std::span(ones)));
}

View KvSequence::balance(uint32_t l) const {
	if (!plan_.layers[l].balanced) return {};
	return view(pool_.balances().buffer(), size_t(balance_word(l)) * 4, DType::F16, plan_.shape.n_kv_heads,
	            plan_.shape.head_dim);
}

void KvSequence::copy_pages() {
	for (const PageCopy& c : cache_.copies()) {
		const KvPool::Addr from = pool_.addr(c.from), to = pool_.addr(c.to);
		const auto words = [&](const KvPool::Addr& a) {
			const View v = pool_.chunk(a.chunk);
			return view(*v.buf, v.at + size_t(a.at) * 4, DType::U32, c.words);
		};
		be_.copy(words(to), words(from));
	}
	cache_.copies_done();
}

// Enlarges the tables to what the longest tier needs; a larger table starts empty and is written completely.
void KvSequence::fit_tables() {
	uint32_t pages[kTiers];
	bool longer = table_pages_ == 0;
	for (const Tier t : kAllTiers) {
		pages[int(t)] = tier_pages_[int(t)];
		if (const uint32_t n = cache_.n_pages(0, t); n > pages[int(t)]) {
			pages[int(t)] = std::max(n, pages[int(t)] + pages[int(t)] / 2);
			longer = true;
		}
	}
	if (!longer) return;
	give_tables();
	std::copy_n(pages, kTiers, tier_pages_);
	table_pages_ = pages[0] + pages[1] + pages[2];
	try {
		table_at_ = pool_.tables().take(table_words());
	} catch (...) { // the next attempt allocates again
		table_pages_ = 0;
		throw;
	}
	live_.assign(n_live_words(), 0x5a5a5a5au);
	positions_.assign(n_position_words(), kNone - 1); // no token's
	for (Layer& L : layers_) {
		L.table.assign(size_t(table_pages_) * 4, kNone); // no page starts at this word, so every entry differs
		L.factors.assign(has_factors_ ? table_pages_ : 0, kNone);
		std::fill(std::begin(L.version), std::end(L.version), UINT64_MAX);
	}
	pages_version_ = UINT64_MAX;
}

// Writes the range in which `now` differs from `mirror` to the device, at word `at`, in one write.
void KvSequence::write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now,
                               size_t device_word) {
	size_t first = 0, last = now.size();
	while (first < last && mirror[at + first] == now[first]) ++first;
	while (last > first && mirror[at + last - 1] == now[last - 1]) --last;
	if (first == last) return;
	be_.write(pool_.tables().buffer(), (device_word + first) * 4, std::as_bytes(now.subspan(first, last - first)));
	std::copy(now.begin() + ptrdiff_t(first), now.begin() + ptrdiff_t(last), mirror.begin() + ptrdiff_t(at + first));
}

// Table rows and runs of a tier's pages from logical page `from` on.
void KvSequence::sync_pages(uint32_t l, Tier t, uint32_t from) {
	std::vector<PageRun>& runs = layers_[l].runs;
	if (from == 0) std::erase_if(runs, [&](const PageRun& r) { return r.tier == t; });
	const std::span<const uint32_t> ids = cache_.pages(l, t), blocks = cache_.blocks(l, t);
	if (ids.size() == from) return; // the layer may not have the tier at all
	const LayerPlan& L = plan_.layers[l];
	// Shared codes lie in the owner's page of the same number; only the Regular tier shares.
	const uint32_t k_layer = t == Tier::Regular ? L.k_codes_of : l, v_layer = t == Tier::Regular ? L.v_codes_of : l;
	const std::span<const uint32_t> k_ids = cache_.pages(k_layer, t), v_ids = cache_.pages(v_layer, t);
	const PageFormat& own_format = plan_.page_format(l, t);
	const PageFormat& block_format = blocks.empty() ? own_format : plan_.block_format(l, t);
	const bool k_in_block = block_format.k_params > 0;
	const uint32_t first = tier_first(t), n = uint32_t(ids.size()) - from;
	std::vector<uint32_t> now(size_t(n) * 4), factors(has_factors_ ? n : 0);
	auto next = std::ranges::find_if(runs, [&](const PageRun& r) { return r.tier > t; });
	for (uint32_t p = from; p < ids.size(); ++p) {
		const KvPool::Addr own = pool_.addr(ids[p]), k = pool_.addr(k_ids[p]), v = pool_.addr(v_ids[p]);
		const KvPool::Addr block = blocks.empty() ? own : pool_.addr(blocks[p]);
		const KvPool::Addr k_params = k_in_block ? block : own;
		uint32_t* const row = now.data() + size_t(p - from) * 4;
		row[0] = k.at + plan_.page_format(k_layer, t).k_codes_at;
		row[1] = v.at + plan_.page_format(v_layer, t).v_codes_at;
		row[2] = k_params.at + (k_in_block ? block_format : own_format).k_params_at;
		row[3] = own.at + own_format.v_params_at;
		if (has_factors_) factors[p - from] = block.at + block_format.v_params_at;
		const PageChunks chunk{k.chunk, v.chunk, k_params.chunk, own.chunk, block.chunk};
		if (next != runs.begin() && next[-1].tier == t && next[-1].chunk == chunk)
			++next[-1].n;
		else
			next = runs.insert(next, {t, chunk, first + p, 1}) + 1;
	}
	write_changed(layers_[l].table, size_t(first + from) * 4, now, page_word(l, first + from));
	if (has_factors_) write_changed(layers_[l].factors, first + from, factors, factor_word(l, first + from));
}

void KvSequence::sync_live(uint32_t l, Tier t) {
	const uint32_t group = plan_.n_groups == 1 ? 0 : l;
	for (uint32_t h = 0; h < plan_.n_heads; ++h) {
		const size_t at = (size_t(group * plan_.n_heads + h) * table_pages_ + tier_first(t)) * 4;
		write_changed(live_, at, cache_.live(l, t, h), live_at() + at);
	}
}

void KvSequence::sync_positions(uint32_t l, Tier t) {
	const uint32_t group = plan_.n_groups == 1 ? 0 : l, page = plan_.page[int(t)];
	std::vector<uint32_t> now;
	for (uint32_t h = 0; h < plan_.n_heads; ++h) {
		const std::vector<uint32_t> at = cache_.positions(l, t, h);
		now.assign(at.size() / page * LIVE_POSITIONS, kNone);
		for (size_t i = 0; i < at.size(); ++i) now[i / page * LIVE_POSITIONS + i % page] = at[i];
		const size_t first = (size_t(group * plan_.n_heads + h) * table_pages_ + tier_first(t)) * LIVE_POSITIONS;
		write_changed(positions_, first, now, positions_at() + first);
	}
}

void KvSequence::sync() {
	fit_tables();
	// Most tokens change live bits only, and no page.
	const bool others = pages_version_ != cache_.pages_version();
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (const Tier t : kAllTiers) {
			const uint64_t version = cache_.version(l, t);
			Layer& L = layers_[l];
			if (L.version[int(t)] == version) continue;
			L.version[int(t)] = version;
			const uint32_t n = cache_.n_pages(l, t);
			if (others) L.n_pages[int(t)] = 0;
			if (others || n != L.n_pages[int(t)]) sync_pages(l, t, std::exchange(L.n_pages[int(t)], n));
			if (l == 0 || plan_.n_groups > 1) {
				sync_live(l, t);
				if (plan_.has_positions()) sync_positions(l, t);
			}
		}
	pages_version_ = cache_.pages_version();
}

KvSequence::F16Slot KvSequence::f16_slot(uint32_t layer, uint32_t head, uint32_t page_id, uint32_t index) const {
	const KvPool::Addr a = pool_.addr(page_id);
	const PageFormat& f = plan_.page_format(layer, Tier::F16);
	const uint32_t page = f.page;
	return {a.chunk, a.at + f.k_codes_at + kv_k_word(head, 0, index, plan_.shape.head_dim, 16, page),
	        a.at + f.v_codes_at + kv_v_word(head, index, 0, plan_.shape.v_dim(), 16, page)};
}

// ---- sums of attention

View KvSequence::all_sums() const {
	if (!sum_slots_) return {};
	return view(pool_.sums().buffer(), size_t(sums_at_) * 4, DType::F32, sums_words());
}

void KvSequence::fit_sums() {
	if (!plan_.ranked() || cache_.n_f16_slots() <= sum_slots_) return;
	const uint32_t old_slots = sum_slots_, old_at = sums_at_, old_words = sums_words(),
	               rows = uint32_t(layers_.size()) * plan_.shape.n_kv_heads;
	const uint32_t slots = std::max(cache_.n_f16_slots(), old_slots * 2);
	sums_at_ = pool_.sums().take(rows * slots);
	sum_slots_ = slots;
	clear_sums();
	if (!old_slots) return;
	for (uint32_t r = 0; r < rows; ++r)
		be_.copy(pool_.sums().view(sums_at_ + r * slots, old_slots),
		         pool_.sums().view(old_at + r * old_slots, old_slots));
	pool_.sums().give(old_at, old_words);
}

void KvSequence::clear_sums() {
	if (!sum_slots_) return;
	const std::vector<float> zero(sums_words());
	be_.write(pool_.sums().buffer(), size_t(sums_at_) * 4, std::as_bytes(std::span(zero)));
}

void KvSequence::read_sums(uint32_t first, uint32_t n, std::vector<float>& raw) {
	fit_sums(); // after a prompt that just filled the window, slots exist but have no sums yet
	raw.resize(size_t(n) * plan_.shape.n_kv_heads * sum_slots_);
	if (!raw.empty())
		be_.read(pool_.sums().buffer(), size_t(sums_word(first)) * 4, std::as_writable_bytes(std::span(raw)));
}

std::vector<float> KvSequence::sums_of(std::span<const float> raw) const {
	const uint32_t n_slots = cache_.n_f16_slots();
	if (!sum_slots_) return {};
	std::vector<float> out(raw.size() / sum_slots_ * n_slots);
	for (size_t r = 0; r * sum_slots_ < raw.size(); ++r)
		std::copy_n(raw.begin() + ptrdiff_t(r * sum_slots_), n_slots, out.begin() + ptrdiff_t(r * n_slots));
	return out;
}

// ---- pieces of attention

uint32_t pages_seen(const PageRun& run, const RowMask* mask) {
	if (run.tier != Tier::F16 || !mask) return run.n;
	return std::min(run.n, mask->n_pages - std::min(mask->n_pages, run.first)); // f16 pages come first in a table
}

namespace {
struct SeenPages {
	uint32_t n = 0, smallest = UINT32_MAX; // tokens of the smallest page
};
SeenPages all_seen(const KvSequence& s, uint32_t l, const RowMask* mask) {
	SeenPages seen;
	for (const PageRun& run : s.runs(l)) {
		const uint32_t n = pages_seen(run, mask);
		if (!n) continue;
		seen.n += n;
		seen.smallest = std::min(seen.smallest, s.plan().page[int(run.tier)]);
	}
	return seen;
}
// Pages of a piece, so that a piece has at least `least` tokens and a row about `most` pieces at most.
uint32_t piece_pages(uint32_t n_pages, uint32_t page, uint32_t least, uint32_t most) {
	return std::max({1u, least / page, ceil_div(n_pages, most)});
}
} // namespace

uint32_t decode_piece(const DeviceInfo& dev, uint32_t n_kv_heads, uint32_t n_pages, uint32_t page) {
	const uint32_t fill = ceil_div(dev.fill_workgroups, n_kv_heads);
	return piece_pages(n_pages, page, dev.piece_tokens, fill ? fill : dev.most_pieces);
}
uint32_t decode_piece(const DeviceInfo& dev, const KvSequence& s, uint32_t l, const RowMask* mask) {
	const SeenPages seen = all_seen(s, l, mask);
	return decode_piece(dev, s.plan().shape.n_kv_heads, seen.n, seen.smallest);
}
uint32_t prompt_piece(const DeviceInfo& dev, const KvSequence& s, uint32_t l) {
	const SeenPages seen = all_seen(s, l, nullptr);
	return piece_pages(seen.n, seen.smallest, dev.prompt_piece_tokens, dev.prompt_most_pieces);
}

} // namespace kvrun
