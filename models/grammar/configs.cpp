// Sets of places in a grammar, and transitions between them by bytes.
#include "models/grammar/configs.h"
#include "engine/core/error.h"
#include <algorithm>
#include <unordered_set>
#include <utility>

namespace kvrun::grammar {

[[noreturn]] static void fail_ambiguous() {
	fail(Code::Unsupported, "the grammar has too many meanings for this answer; make it less ambiguous");
}

Configs::Configs(const Automaton& a) : automaton_(a) {
	// kUnknown counts as half of the largest depth: masks computed by it hold for stacks up to that depth
	stacks_ = {{0, 0, 0}, {0, 0, Automaton::kDeepest / 2}};
}

ConfigId Configs::start() { return config({{automaton_.start(), kEnd}}); }

StackId Configs::push(StateId state, StackId below) {
	const auto [at, fresh] = stack_of_.try_emplace(uint64_t(state) << 32 | below, StackId(stacks_.size()));
	if (fresh) {
		if (stacks_.size() > 4 * kMostStacks) fail_ambiguous();
		stacks_.push_back({state, below, stacks_[below].depth + 1});
	}
	return at->second;
}

ConfigId Configs::config(std::vector<Place> pending) {
	std::vector<Place> places;
	std::unordered_set<uint64_t, Hash> seen;
	bool may_end = false;
	const auto reach = [&](StateId s, StackId k) {
		if (!seen.insert(uint64_t(s) << 32 | k).second) return;
		if (seen.size() > kMostPlaces || ++work_ > kMostWork) fail_ambiguous();
		pending.push_back({s, k});
	};
	for (const Place& p : std::exchange(pending, {})) reach(p.state, p.stack);
	while (!pending.empty()) {
		const Place p = pending.back();
		pending.pop_back();
		if (automaton_.reads(p.state)) places.push_back(p);
		if (automaton_.is_final(p.state)) {
			if (p.stack <= kUnknown)
				may_end = true;
			else
				reach(stacks_[p.stack].state, stacks_[p.stack].below);
		}
		for (const Edge& e : automaton_.edges(p.state)) {
			if (e.kind == Edge::Kind::Empty) {
				if (fits(e.to, p.stack)) reach(e.to, p.stack);
			} else if (e.kind == Edge::Kind::Call) {
				const bool tail = automaton_.only_ends(e.to);
				if (!tail && !fits(e.to, p.stack)) continue;
				const uint64_t below = stacks_[p.stack].depth + uint64_t(!tail);
				if (below + automaton_.height(automaton_.start(e.rule)) > Automaton::kDeepest) continue;
				reach(automaton_.start(e.rule), tail ? p.stack : push(e.to, p.stack));
			}
		}
	}
	std::ranges::sort(places);
	if (places.empty() && !may_end) return kDead;
	return intern(std::move(places), may_end);
}

ConfigId Configs::intern(std::vector<Place> places, bool may_end) {
	uint64_t hash = may_end;
	for (const Place& p : places) hash = Hash()(hash + (uint64_t(p.state) << 32 | p.stack)) ^ hash >> 17;
	std::vector<ConfigId>& same = config_of_[hash];
	for (const ConfigId c : same)
		if (configs_[c]->may_end == may_end && configs_[c]->places == places) return c;
	if (configs_.size() > 4 * kMostConfigs || (kept_ += places.size()) > 4 * kMostKept) fail_ambiguous();
	auto fresh = std::make_unique<Config>();
	fresh->places = std::move(places);
	fresh->may_end = may_end;
	std::ranges::fill(fresh->next, kUnseen);
	configs_.push_back(std::move(fresh));
	same.push_back(ConfigId(configs_.size() - 1));
	return same.back();
}

ConfigId Configs::find_next(ConfigId c, uint8_t byte) {
	std::vector<Place> reached;
	for (const Place& p : configs_[c]->places)
		for (const Edge& e : automaton_.edges(p.state))
			if (e.kind == Edge::Kind::Byte && e.low <= byte && byte <= e.high && fits(e.to, p.stack))
				reached.push_back({e.to, p.stack});
	const ConfigId to = reached.empty() ? kDead : config(std::move(reached));
	return configs_[c]->next[byte] = to;
}

ConfigId Configs::returned(StackId k) {
	if (k <= kUnknown) return kDead;
	const auto [at, fresh] = returned_.try_emplace(k, kDead);
	if (!fresh) return at->second;
	const ConfigId c = config({{stacks_[k].state, stacks_[k].below}});
	return returned_[k] = c;
}

void Configs::forget(std::span<ConfigId* const> used) {
	std::vector<StackId> to(stacks_.size(), 0);
	std::vector<bool> keep(stacks_.size(), false);
	for (const ConfigId* c : used)
		for (const Place& p : configs_[*c]->places)
			for (StackId k = p.stack; k > kUnknown && !keep[k]; k = stacks_[k].below) keep[k] = true;
	to[kUnknown] = kUnknown;
	std::vector<Stack> stacks(stacks_.begin(), stacks_.begin() + 2);
	stack_of_.clear();
	for (StackId k = 2; k < stacks_.size(); ++k) { // a stack below has a smaller number
		if (!keep[k]) continue;
		Stack s = stacks_[k];
		s.below = to[s.below];
		to[k] = StackId(stacks.size());
		stack_of_[uint64_t(s.state) << 32 | s.below] = to[k];
		stacks.push_back(s);
	}
	stacks_ = std::move(stacks);
	const std::vector<std::unique_ptr<Config>> old = std::exchange(configs_, {});
	config_of_.clear();
	returned_.clear();
	kept_ = 0;
	for (ConfigId* c : used) {
		std::vector<Place> places = old[*c]->places;
		for (Place& p : places) p.stack = to[p.stack];
		std::ranges::sort(places);
		*c = intern(std::move(places), old[*c]->may_end);
	}
}

} // namespace kvrun::grammar
