// What one sequence fetches: rows transferred from the host, and the pages that receive them.
#include "engine/kv_device/fetch.h"
#include "engine/core/log.h"
#include <algorithm>
#include <bit>

namespace kvrun {

KvFetch::KvFetch(Backend& be, const KvPlan& plan, KvPool& pool)
    : be_(be), plan_(plan), pool_(pool), page_(plan.page[int(Tier::F16)]), host_(be, plan.shape, pool.host()),
      set_(plan.shape.n_layers, plan.shape.n_kv_heads), layers_(plan.shape.n_layers),
      masked_(plan.shape.n_layers, plan.shape.n_kv_heads) {}

KvFetch::~KvFetch() {
	give_tables();
	give_masks();
	if (speculative_at_ != kNone) pool_.tables().give(speculative_at_, speculative_words());
	for (const auto& [part, id] : own_pages_) pool_.free(id);
	for (const Layer& L : layers_)
		for (const uint32_t id : L.ids) pool_.free(id);
}

void KvFetch::give_tables() {
	if (n_pages_) pool_.tables().give(table_at_, table_words());
	n_pages_ = 0;
}
void KvFetch::give_masks() {
	if (mask_pages()) pool_.tables().give(mask_at_, mask_words());
	std::fill(std::begin(mask_pages_), std::end(mask_pages_), 0u);
	masks_valid_ = false;
}

void KvFetch::fork_from(const KvFetch& o) {
	host_.share(o.host_);
	token_ = o.token_, decoded_ = o.decoded_;
	prompt_first_ = o.prompt_first_, prompt_end_ = o.prompt_end_;
	set_ = o.set_;
	base_ = o.base_;
	chosen_ = set_.n(0);
	stale_ = !set_.empty();
}

void KvFetch::forget() {
	token_ = kNone;
	set_.clear();
	chosen_ = 0;
	base_.known = false;
	for (Layer& L : layers_) L.fetched = false, L.n_sent = 0;
	stale_ = false;
}

void KvFetch::truncate(uint32_t n) {
	forget();
	prompt_end_ = std::min(prompt_end_, n);
}

void KvFetch::reset() {
	forget();
	masks_valid_ = false; // they hide slots of pages that are gone
	host_.clear();
	prompt_first_ = prompt_end_ = 0;
	decoded_ = false;
}

void KvFetch::prompt_read(uint32_t first, uint32_t n) {
	forget();
	if (decoded_ || first != prompt_end_) prompt_first_ = first;
	prompt_end_ = first + n;
	decoded_ = false;
}

uint32_t KvFetch::exact_position(const KvCache& c, uint32_t n) const {
	if (n >= c.n_tokens() || plan_.policy.fetch_sync) return c.exact_position(n);
	const uint32_t p = c.exact_position(std::min(n, prompt_end_));
	return p > prompt_first_ ? p : 0;
}

void KvFetch::step_failed(bool running) {
	masks_valid_ = false;
	n_live_ = kNone;
	if (base_before_) base_ = std::move(*base_before_);
	base_before_.reset();
	set_.first(chosen_);
	if (running) forget();
}

// ---- room

void KvFetch::prepare(const KvSequence& s, bool clear, std::vector<uint32_t>& edits) {
	const KvCache& c = s.cache();
	packed_ = PackedSlots(c);
	uint32_t live = 0;
	for (const Tier t : {Tier::Salient, Tier::Regular})
		for (const uint32_t word : c.live(0, t, 0)) live += uint32_t(std::popcount(word));
	n_picks_ = std::min(plan_.policy.fetch, live);
	if (clear) set_.clear();
	chosen_ = set_.n(0);
	base_before_.reset();
	if (!clear && !set_.empty()) add_packed(c);
	n_fetched_ = clear ? n_picks_ : set_.n(0);
	fit_pages();
	if (plan_.speculates()) place_speculative(c);
	fit_rows();
	if (words_.bytes() == 0) place_rows(s);
	fit_masks(c);
	if (n_live_ != n_fetched_) write_live();
	if (stale_)
		for (uint32_t l = 0; l < layers_.size(); ++l) gather(s, l, chosen_), send(l);
	stale_ = false;
	edit_masks(c, edits);
}

// Tokens that this step packs were in f16 until now. While the set has room, this step still reads them in f16.
void KvFetch::add_packed(const KvCache& c) {
	const auto base_of = [&](int t, uint32_t set, uint32_t w) {
		return w < base_.pages[t] * 4 ? base_.live[t][set * base_.pages[t] * 4 + w] : 0u;
	};
	const uint32_t room = plan_.policy.fetch - std::min(plan_.policy.fetch, set_.n(0));
	for (uint32_t l = 0; l < layers_.size() && room && c.flushed() && base_.known; ++l)
		for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h) {
			const uint32_t of = (plan_.n_groups == 1 ? 0 : l) * plan_.n_heads + (plan_.n_heads == 1 ? 0 : h);
			uint32_t left = room;
			for (const Tier t : {Tier::Salient, Tier::Regular}) {
				const std::span<const uint32_t> live = c.live(l, t, h);
				for (uint32_t w = 0; w < live.size(); ++w)
					for (uint32_t fresh = live[w] & ~base_of(int(t), of, w); fresh && left; fresh &= fresh - 1, --left)
						set_.add(l, h,
						         {t, w / 4 * plan_.page[int(t)] + w % 4 * 32 + uint32_t(std::countr_zero(fresh))});
			}
		}
}

void KvFetch::place_packed(const KvSequence& s, uint32_t l, std::span<const LeavingRow> leaving, StepTable& table) {
	Layer& L = layers_[l];
	L.packed.clear();
	if (set_.n(l) <= L.n_sent || leaving.empty()) return;
	std::vector<SlotCell> cells;
	for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h)
		for (uint32_t i = L.n_sent; i < set_.n(l); ++i) {
			const PackedSlot& p = set_.slots(l, h)[i];
			const uint32_t pos = s.cache().position(l, p.tier, h, p.slot);
			const auto from =
			    std::ranges::find_if(leaving, [&](const LeavingRow& r) { return r.head == h && r.position == pos; });
			KV_ASSERT(from != leaving.end());
			cells.push_back({from->row, h, page_, s.f16_slot(l, h, L.ids[i / page_], i % page_)});
		}
	L.packed = lay_rows(pool_, cells, plan_.shape.n_kv_heads, table);
}

void KvFetch::store_packed(uint32_t l, const KvRows& gathered, const Buffer& words) {
	for (const ChunkRows& r : layers_[l].packed)
		be_.kv_store({gathered.k, gathered.v, r.first}, r.n, r.dst(words, plan_.shape.n_kv_heads));
}

uint32_t KvFetch::take_page(uint32_t l) {
	const PageFormat& f = plan_.page_format(0, Tier::F16);
	const uint32_t id = pool_.alloc(plan_.first_layer + l, f.words, uint32_t(plan_.table_bytes(l)));
	if (id == kNone)
		fail(Code::OutOfMemory,
		     "{} tokens to fetch need {:.1f} MiB of the cache's budget; raise --kv-budget or give a smaller fetch=",
		     plan_.policy.fetch, double(f.bytes() * ceil_div(plan_.policy.fetch, page_) * layers_.size()) / (1 << 20));
	return id;
}

uint32_t KvFetch::find_free(const KvCache& c, uint32_t first, uint32_t n_layers, std::span<uint32_t> slots) const {
	for (uint32_t p = c.n_pages(first, Tier::F16); p-- > 0;) {
		bool free = true;
		for (uint32_t l = first; l < first + n_layers && free; ++l) free = !pool_.shared(c.pages(l, Tier::F16)[p]);
		for (uint32_t h = 0; h < slots.size() && free; ++h) {
			const std::span<const uint32_t> live = c.live(first, Tier::F16, h).subspan(size_t(p) * 4, 4);
			uint32_t end = page_; // the highest one: tokens come into the lowest
			while (end > 0 && live[(end - 1) / 32] >> (end - 1) % 32 & 1) --end;
			free = end > 0;
			slots[h] = end - 1;
		}
		if (free) return p;
	}
	return kNone;
}

uint32_t KvFetch::own_page(uint32_t l) {
	const uint32_t part = pool_.part(plan_.first_layer + l);
	if (const auto it = own_pages_.find(part); it != own_pages_.end()) return it->second;
	return own_pages_[part] = take_page(l);
}

void KvFetch::place_speculative(const KvCache& c) {
	const uint32_t L = uint32_t(layers_.size()), heads = plan_.n_heads, n = L / plan_.n_groups; // layers of a group
	speculative_pages_.assign(L, kNone);
	speculative_slots_.assign(size_t(plan_.n_groups) * heads, 0);
	for (uint32_t g = 0; g < plan_.n_groups; ++g) {
		const std::span<uint32_t> slots = std::span(speculative_slots_).subspan(size_t(g) * heads, heads);
		const uint32_t page = find_free(c, g * n, n, slots);
		if (page == kNone) std::ranges::fill(slots, 0u);
		for (uint32_t l = g * n; l < g * n + n; ++l)
			speculative_pages_[l] = page == kNone ? own_page(l) : c.pages(l, Tier::F16)[page];
	}
	const PageFormat& f = plan_.page_format(0, Tier::F16);
	std::vector<uint32_t> words;
	for (const uint32_t id : speculative_pages_) {
		const uint32_t at = pool_.addr(id).at;
		words.insert(words.end(), {at + f.k_codes_at, at + f.v_codes_at, at, at});
	}
	for (const uint32_t slot : speculative_slots_)
		for (uint32_t w = 0; w < 4; ++w) words.push_back(slot / 32 == w ? 1u << slot % 32 : 0);
	if (words == speculative_table_) return;
	if (speculative_at_ == kNone) speculative_at_ = pool_.tables().take(speculative_words());
	be_.write(pool_.tables().buffer(), size_t(speculative_at_) * 4, std::as_bytes(std::span(words)));
	speculative_table_ = std::move(words);
}

void KvFetch::fit_pages() {
	const uint32_t want = ceil_div(std::max(n_picks_, n_fetched_), page_);
	if (want <= n_pages_) return;
	for (uint32_t l = 0; l < layers_.size(); ++l)
		while (layers_[l].ids.size() < want) layers_[l].ids.push_back(take_page(l));
	give_tables();
	n_pages_ = want;
	try {
		table_at_ = pool_.tables().take(table_words());
	} catch (...) {
		n_pages_ = 0;
		throw;
	}
	const PageFormat& f = plan_.page_format(0, Tier::F16);
	std::vector<uint32_t> entries;
	for (Layer& L : layers_) {
		L.runs.clear();
		for (uint32_t p = 0; p < n_pages_; ++p) {
			const KvPool::Addr a = pool_.addr(L.ids[p]);
			entries.insert(entries.end(), {a.at + f.k_codes_at, a.at + f.v_codes_at, a.at, a.at});
			if (!L.runs.empty() && L.runs.back().chunk == a.chunk)
				++L.runs.back().n;
			else
				L.runs.push_back({a.chunk, p, 1});
		}
	}
	be_.write(pool_.tables().buffer(), size_t(table_at_) * 4, std::as_bytes(std::span(entries)));
	n_live_ = kNone;
	words_ = {}; // places are computed again
}

void KvFetch::fit_rows() {
	const uint32_t want = std::max(n_picks_, n_fetched_);
	if (want <= rows_) return;
	const bool refetch = !set_.empty(); // transferred rows would be lost
	rows_ = std::min(std::max(want, rows_ * 2), std::max(plan_.policy.fetch, want));
	const size_t bytes = layer_bytes() * layers_.size();
	for (Layer& L : layers_) L.fetched = false, L.transfer = 0;
	sent_ = {}, arrived_ = {}, plain_ = {};
	try {
		arrived_ = be_.alloc(bytes, Mem::Arrival, "fetched tokens");
	} catch (...) {
		rows_ = 0;
		stale_ |= refetch;
		throw;
	}
	if (be_.pins()) try {
			sent_ = be_.alloc(bytes, Mem::Host, "tokens to fetch");
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			warn_once(fmt::format("host memory cannot be pinned, fetches go through another copy: {}", e.what()));
		}
	if (!sent_) plain_.resize(bytes);
	stale_ |= refetch;
	words_ = {};
}

KvRows KvFetch::rows_of(const Buffer& b, uint32_t l) const {
	const KvShape& s = plan_.shape;
	const size_t at = layer_bytes() * l;
	return {view(b, at, DType::F16, s.n_kv_heads, rows_, s.head_dim),
	        view(b, at + key_bytes(), DType::F16, s.n_kv_heads, rows_, s.v_dim()), 0};
}

void KvFetch::place_rows(const KvSequence& s) {
	if (!rows_) return;
	StepTable table;
	for (uint32_t l = 0; l < layers_.size(); ++l) {
		std::vector<SlotCell> cells;
		const uint32_t n = std::min(rows_, n_pages_ * page_);
		for (uint32_t i = 0; i < n; ++i)
			for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h)
				cells.push_back({i, h, page_, s.f16_slot(l, h, layers_[l].ids[i / page_], i % page_)});
		layers_[l].places = lay_rows(pool_, cells, plan_.shape.n_kv_heads, table);
	}
	table.upload(be_, words_);
}

void KvFetch::reserve_host(const KvCache& c, uint32_t n_tokens) {
	uint32_t first = c.n_tokens(); // tokens older than the oldest in f16 are not written again
	for (uint32_t g = 0; g < plan_.n_groups; ++g)
		for (uint32_t h = 0; h < plan_.n_heads; ++h)
			for (const uint32_t pos : c.positions(g, Tier::F16, h)) first = std::min(first, pos);
	host_.reserve(first, n_tokens);
}

void KvFetch::keep(uint32_t l, const KvRows& rows, std::span<const LeavingRow> leaving) {
	for (size_t i = 0; i < leaving.size();) {
		const LeavingRow& a = leaving[i];
		uint32_t n = 1;
		while (i + n < leaving.size() && leaving[i + n] == LeavingRow{a.head, a.row + n, a.position + n}) ++n;
		host_.keep(l, a.head, rows, a.row, a.position, n);
		i += n;
	}
}

// ---- fetching

void KvFetch::choose(const KvSequence& s, uint32_t l, std::span<const uint32_t> picks) {
	set_.choose(l, packed_, picks, n_picks_);
	gather(s, l, set_.n(l));
	send(l);
}

// The first n tokens of the set.
void KvFetch::gather(const KvSequence& s, uint32_t l, uint32_t n) {
	const uint32_t H = plan_.shape.n_kv_heads;
	const size_t k_row = size_t(plan_.shape.head_dim) * 2, v_row = size_t(plan_.shape.v_dim()) * 2;
	std::byte* to = (sent_ ? be_.host_bytes(sent_).data() : plain_.data()) + layer_bytes() * l;
	for (uint32_t h = 0; h < H; ++h) {
		std::byte *k = to + size_t(h) * rows_ * k_row, *v = to + key_bytes() + size_t(h) * rows_ * v_row;
		for (const PackedSlot& p : set_.slots(l, h).first(n)) {
			const uint32_t pos = s.cache().position(l, p.tier, h, p.slot);
			host_.key(l, h, pos, k);
			host_.value(l, h, pos, v);
			k += k_row, v += v_row;
		}
	}
	layers_[l].n_sent = n;
	stats_.bytes += (k_row + v_row) * H * n;
}

void KvFetch::send(uint32_t l) {
	Layer& L = layers_[l];
	L.fetched = L.n_sent > 0;
	if (!L.fetched) return;
	const size_t at = layer_bytes() * l;
	const auto all = [&](const Buffer& b) { return view(b, at, DType::U32, uint32_t(layer_bytes() / 4)); };
	if (sent_)
		L.transfer = be_.transfer(all(arrived_), all(sent_));
	else
		be_.write(arrived_, at, std::span(plain_).subspan(at, layer_bytes()));
}

void KvFetch::enqueue(uint32_t l) {
	Layer& L = layers_[l];
	if (!L.fetched) return;
	if (sent_ && !be_.arrive(L.transfer)) { // the transfer failed: the rows are still in their source
		const size_t at = layer_bytes() * l;
		be_.write(arrived_, at, be_.host_bytes(sent_).subspan(at, layer_bytes()));
	}
	L.fetched = false;
	const KvRows rows = rows_of(arrived_, l);
	for (ChunkRows r : L.places) {
		if (r.first >= L.n_sent) continue;
		r.n = std::min(r.n, L.n_sent - r.first);
		be_.kv_store({rows.k, rows.v, r.first}, r.n, r.dst(words_, plan_.shape.n_kv_heads));
	}
}

// ---- live bits and masks

void KvFetch::write_live() {
	std::vector<uint32_t> words(size_t(n_pages_) * 4);
	for (uint32_t i = 0; i < n_fetched_; ++i) {
		const uint32_t in_page = i % page_;
		words[i / page_ * 4 + in_page / 32] |= 1u << in_page % 32;
	}
	if (n_pages_) be_.write(pool_.tables().buffer(), size_t(live_word(0)) * 4, std::as_bytes(std::span(words)));
	n_live_ = n_fetched_;
}

void KvFetch::fit_masks(const KvCache& c) {
	bool fits = mask_pages() > 0 || c.n_pages(0, Tier::Salient) + c.n_pages(0, Tier::Regular) == 0;
	for (const int t : {1, 2}) fits = fits && c.n_pages(0, Tier(t)) <= mask_pages_[t];
	if (fits) return;
	uint32_t pages[kTiers] = {};
	for (const int t : {1, 2}) {
		const uint32_t n = c.n_pages(0, Tier(t));
		pages[t] = n <= mask_pages_[t] ? mask_pages_[t] : n + n / 16 + 2;
	}
	give_masks();
	std::copy_n(pages, kTiers, mask_pages_);
	try {
		mask_at_ = pool_.tables().take(mask_words());
	} catch (...) {
		std::fill(std::begin(mask_pages_), std::end(mask_pages_), 0u);
		throw;
	}
}

// Writes all masks, with nothing masked.
void KvFetch::write_masks(const KvCache& c) {
	std::vector<uint32_t> words(mask_words());
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h)
			for (const Tier t : {Tier::Salient, Tier::Regular})
				std::ranges::copy(c.live(l, t, h), words.begin() + (mask_at(l, h, t, 0) - mask_at_));
	be_.write(pool_.tables().buffer(), size_t(mask_at_) * 4, std::as_bytes(std::span(words)));
	masked_.clear();
	masks_valid_ = true;
}

void KvFetch::edit_masks(const KvCache& c, std::vector<uint32_t>& edits) {
	if (!mask_pages()) {
		base_.known = true;
		return;
	}
	const bool fresh = !masks_valid_;
	if (fresh) write_masks(c);
	const uint32_t groups = plan_.n_groups, heads = plan_.n_heads;
	std::vector<std::vector<std::pair<Tier, uint32_t>>> changed(size_t(groups) * heads); // words of live bits
	for (const Tier t : {Tier::Salient, Tier::Regular}) {
		const int i = int(t);
		const uint32_t pages = c.n_pages(0, t);
		if (!fresh && base_.version[i] == c.version(0, t) && base_.pages[i] == pages) continue;
		if (!base_before_) base_before_ = base_;
		std::vector<uint32_t> now;
		for (uint32_t g = 0; g < groups; ++g)
			for (uint32_t h = 0; h < heads; ++h) {
				const std::span<const uint32_t> live = c.live(g, t, h);
				const size_t set = size_t(g) * heads + h;
				for (uint32_t w = 0; w < live.size() && !fresh; ++w)
					if (w >= base_.pages[i] * 4 || base_.live[i][set * base_.pages[i] * 4 + w] != live[w])
						changed[set].push_back({t, w});
				now.insert(now.end(), live.begin(), live.end());
			}
		base_.live[i] = std::move(now), base_.pages[i] = pages, base_.version[i] = c.version(0, t);
	}
	base_.known = true;
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h)
			edit_head(c, l, h, masked_.slots(l, h), changed[size_t(groups == 1 ? 0 : l) * heads + (heads == 1 ? 0 : h)],
			          edits);
	masked_ = set_;
}

void KvFetch::mask_layer(const KvSequence& s, uint32_t l, std::vector<uint32_t>& edits) {
	for (uint32_t h = 0; h < plan_.shape.n_kv_heads; ++h) edit_head(s.cache(), l, h, {}, {}, edits);
	masked_ = set_;
}

void KvFetch::edit_head(const KvCache& c, uint32_t l, uint32_t h, std::span<const PackedSlot> before,
                        std::span<const std::pair<Tier, uint32_t>> changed, std::vector<uint32_t>& edits) const {
	const auto word_of = [&](const PackedSlot& p) {
		const uint32_t page = plan_.page[int(p.tier)];
		return std::pair{p.tier, p.slot / page * 4 + p.slot % page / 32};
	};
	std::vector<std::pair<Tier, uint32_t>> words(changed.begin(), changed.end());
	for (const PackedSlot& p : before) words.push_back(word_of(p));
	std::vector<PackedSlot> hidden(set_.slots(l, h).begin(), set_.slots(l, h).end());
	std::ranges::sort(hidden);
	for (const PackedSlot& p : hidden) words.push_back(word_of(p));
	std::ranges::sort(words);
	words.erase(std::unique(words.begin(), words.end()), words.end());
	auto next = hidden.begin(); // ascending, as words are
	for (const auto& [tier, w] : words) {
		uint32_t bits = c.live(l, tier, h)[w];
		for (; next != hidden.end() && word_of(*next) == std::pair{tier, w}; ++next)
			bits &= ~(1u << next->slot % plan_.page[int(tier)] % 32);
		edits.insert(edits.end(), {mask_at(l, h, tier, w / 4) + w % 4, bits});
	}
}

} // namespace kvrun
