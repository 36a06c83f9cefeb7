// Shared by tests of drafters that belong to an engine: prediction layers and assistants.
#pragma once
#include "engine/run/batch.h"
#include "tests/device/sequences.h"
#include <doctest/doctest.h>
#include <functional>

namespace kvrun {

using GuessNotes = std::vector<std::pair<size_t, uint32_t>>; // length of the text, the token that was guessed first

// Notes what another drafter guesses. It always asks for at least four tokens: what they leave behind must go again.
struct Noted final : Drafter {
	std::unique_ptr<Drafter> inner;
	GuessNotes& notes;
	size_t length = 0;
	Noted(std::unique_ptr<Drafter> d, GuessNotes& n) : inner(std::move(d)), notes(n) {}
	void accept(std::span<const uint32_t> tokens) override { length += tokens.size(), inner->accept(tokens); }
	bool reads_states() const override { return inner->reads_states(); }
	uint32_t prompt_states() const override { return inner->prompt_states(); }
	void states(uint32_t at, std::span<const float> rows) override { inner->states(at, rows); }
	void work() override { inner->work(); }
	std::span<const uint32_t> draft(uint32_t most) override {
		const auto tokens = inner->draft(std::max(most, 4u));
		if (!tokens.empty()) notes.emplace_back(length, tokens[0]);
		return tokens.first(std::min<size_t>(most, tokens.size()));
	}
};

inline GenerateOptions answer_of(uint32_t n, uint32_t drafts = 0, double temperature = 0, uint64_t seed = 11) {
	GenerateOptions o;
	o.n = n, o.ignore_end = true, o.draft_max = drafts;
	o.sampling.temperature = temperature, o.sampling.seed = seed;
	return o;
}

template <class F> std::string message_of(F f) {
	try {
		f();
	} catch (const Error& e) { return e.what(); }
	return {};
}

// Answers with drafts are those without, greedy and sampled, and so is what the session holds.
inline void check_answers_with_drafts(Engine& engine, const TestRow& row, std::initializer_list<const char*> policies,
                                      uint32_t n) {
	const Tokens prompt = random_tokens(30, engine.config().vocab, 5);
	for (const char* const kv : policies)
		for (const double temperature : {0.0, 1.0}) {
			Session plain(engine, with(kv, 200)), s(engine, with(kv, 200));
			const GenerateResult want = generate(plain, prompt, answer_of(n, 0, temperature));
			const GenerateResult r = generate(s, prompt, answer_of(n, 5, temperature));
			CHECK(r.tokens == want.tokens);
			CHECK(r.kv.total() == want.kv.total());
			CHECK(r.draft.drafted > 0);
			CHECK(s.n_tokens() == plain.n_tokens());
			check_same_bits(row, keep(s.decode(3)), keep(plain.decode(3)));
		}
}

// Answers of an engine whose drafter is always right: all its guesses are taken, alone and in a batch with forks.
inline void check_right_guesses(Engine& engine, const std::string& kv) {
	const Tokens prompt = random_tokens(40, engine.config().vocab, 5);
	Session plain(engine, with(kv, 200)), s(engine, with(kv, 200));
	const GenerateResult want = generate(plain, prompt, answer_of(40));
	for (const uint32_t most : {1u, 5u}) {
		s.reset();
		const GenerateResult r = generate(s, prompt, answer_of(40, most));
		CHECK(r.tokens == want.tokens);
		CHECK(r.draft.drafted > 15);
		CHECK(r.draft.accepted == r.draft.drafted);
	}
	// Sampled answers of one prompt, each with its own seed.
	Session first(engine, with(kv, 200));
	std::vector<std::unique_ptr<Session>> forks;
	for (int i = 0; i < 2; ++i) forks.push_back(first.fork());
	Batch batch(engine);
	std::vector<uint32_t> ids;
	std::vector<Tokens> wanted;
	for (const uint64_t seed : {1, 2, 3}) {
		Session alone(engine, with(kv, 200));
		wanted.push_back(generate(alone, prompt, answer_of(30, 0, 0.7, seed)).tokens);
		const GenerateOptions o = answer_of(30, 5, 0.7, seed);
		ids.push_back(seed == 1 ? batch.add(first, prompt, o) : batch.add_fork(*forks[seed - 2], ids[0], o));
	}
	while (batch.step()) {}
	for (size_t i = 0; i < ids.size(); ++i) {
		const GenerateResult r = batch.take(ids[i]);
		CHECK(!r.error);
		CHECK(r.tokens == wanted[i]);
		CHECK(r.draft.drafted > 0);
	}
}

// Guesses of several texts of different lengths, made together, are those of each text alone.
inline void check_guesses_together(Engine& engine) {
	StateDrafts& drafts = *engine.state_drafts();
	const size_t width = drafts.layers().state_width();
	const uint32_t vocab = engine.config().vocab;
	struct Text {
		uint32_t n, known, most; // tokens, of which so many have been read before
	};
	const Text texts[] = {{12, 11, 3}, {25, 10, 3}, {40, 0, 3}, {5, 4, 1}, {9, 0, 3}, {2, 0, 2}, {30, 29, 0}};
	std::vector<Floats> states;
	std::vector<Tokens> tokens;
	for (const Text& t : texts) {
		tokens.push_back(random_tokens(t.n, vocab, t.n + 7));
		Floats rows(t.n * width);
		for (size_t i = 0; i < rows.size(); ++i) rows[i] = float((i * 37 + t.n * 11) % 101) / 101 - 0.5f;
		states.push_back(std::move(rows));
	}
	const auto drafter = [&](size_t i) { // has read the known part
		auto d = drafts.drafter();
		const Text& t = texts[i];
		d->accept(std::span(tokens[i]).first(std::max(t.known, 1u)));
		if (t.known) {
			d->states(0, std::span(states[i]).first(size_t(t.known - 1) * width));
			d->draft(1);
		}
		const uint32_t from = t.known ? t.known - 1 : 0;
		d->accept(std::span(tokens[i]).subspan(std::max(t.known, 1u)));
		d->states(from, std::span(states[i]).subspan(from * width, (t.n - 1 - from) * width));
		return d;
	};
	std::vector<Tokens> alone;
	for (size_t i = 0; i < std::size(texts); ++i) {
		while (drafts.forget()) {} // nothing of an earlier text
		const auto d = drafter(i);
		alone.push_back({});
		const std::span<const uint32_t> guesses = d->draft(texts[i].most);
		alone.back().assign(guesses.begin(), guesses.end());
		CHECK(alone.back().size() == texts[i].most);
	}
	while (drafts.forget()) {}
	std::vector<std::unique_ptr<Drafter>> drafters;
	std::vector<DraftRequest> requests;
	for (size_t i = 0; i < std::size(texts); ++i) {
		drafters.push_back(drafter(i));
		requests.push_back({drafters.back().get(), texts[i].most});
	}
	CHECK(drafters[0]->group() == &drafts);
	drafts.draft(requests);
	for (size_t i = 0; i < std::size(texts); ++i) CHECK_MESSAGE(requests[i].tokens == alone[i], "text " << i);
	drafts.draft(requests); // the same again: guesses have been taken back
	for (size_t i = 0; i < std::size(texts); ++i) CHECK_MESSAGE(requests[i].tokens == alone[i], "text " << i);
}

} // namespace kvrun
