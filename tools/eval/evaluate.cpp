// Perplexity and KL divergence of cache policies on text, through decode steps that read the stored cache.
#include "tools/eval/evaluate.h"
#include "engine/core/system/machine.h"
#include "engine/run/store_as.h"
#include "tools/eval/evaluate_cost.h"
#include "tools/eval/log_softmax.h"
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>

namespace kvrun {
namespace {

constexpr double kGiB = 1 << 30;

struct Tally { // of one policy
	SessionOptions session;
	TextScore score; // lists only, until summarize()
	CostMeter cost;
};

// Computes the summary of a score from its lists.
void summarize(TextScore& s, uint32_t scored) {
	const auto [nll, nll_error] = mean_and_error(s.nll);
	s.ppl = std::exp(nll);
	s.ppl_error = s.ppl * nll_error;
	std::tie(s.kld_mean, s.kld_error) = mean_and_error(s.kld);
	std::tie(s.kld_low, s.kld_high) = block_bootstrap(s.kld, scored);
	std::vector<float> sorted = s.kld;
	std::ranges::sort(sorted);
	s.kld_median = quantile(sorted, 0.5);
	s.kld_p99 = quantile(sorted, 0.99);
	s.kld_p999 = quantile(sorted, 0.999);
	s.kld_worst = quantile(sorted, 1);
	s.top1 = s.kld.empty() ? 0 : double(std::ranges::count(s.agreed, 1)) / double(s.kld.size());
}

struct Reference {                   // results of one chunk under f16
	std::vector<float> log_prob;     // (scored, vocab)
	std::vector<uint32_t> best;      // (scored)
	std::unique_ptr<Session> prompt; // prompt of the chunk, if other policies may take it over; else null
	bool keeps_prompt = false;
};

// Gives the session the prompt of a chunk: from the f16 cache if that gives the same bits, else through the model.
void read_prompt(Tally& t, Session& s, std::span<const uint32_t> tokens, Reference& ref) {
	if (ref.prompt && can_store_as(s)) try {
			return store_as(s, *ref.prompt);
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			ref.prompt.reset();
			s.reset();
		}
	t.cost.prefill(s, tokens);
}

// Runs one chunk under some policies side by side. `first`: the f16 cache alone, which fills the reference. Returns
// false if stopped.
bool run_chunk(Engine& e, std::span<const uint32_t> tokens, uint32_t scored, std::span<Tally> tallies, Reference& ref,
               bool first, const std::function<bool(uint32_t)>& step) {
	const size_t vocab = e.config().vocab, begin = tokens.size() - scored - 1;
	std::vector<Tally> now(tallies.begin(), tallies.end()); // counts only if the chunk is finished
	std::vector<std::unique_ptr<Session>> sessions;
	std::vector<SessionRow> rows;
	for (Tally& t : now) {
		sessions.push_back(std::make_unique<Session>(e, t.session));
		rows.push_back({sessions.back().get(), 0});
		read_prompt(t, *sessions.back(), tokens.first(begin), ref);
	}
	if (first && ref.keeps_prompt) ref.prompt = sessions[0]->fork();
	std::vector<float> log_prob(vocab);
	for (uint32_t i = 0; i < scored; ++i) {
		for (SessionRow& r : rows) r.token = tokens[begin + i];
		const std::span<const float> logits =
		    rows.size() == 1 ? now[0].cost.decode(*sessions[0], rows[0].token) : decode(rows);
		const std::span<float> reference = std::span(ref.log_prob).subspan(i * vocab, vocab);
		for (size_t r = 0; r < now.size(); ++r) {
			Tally& t = now[r];
			const std::span<float> out = first ? reference : std::span(log_prob);
			const uint32_t best = log_softmax(logits.subspan(r * vocab, vocab), out, t.session.kv.text);
			if (first) ref.best[i] = best;
			const double kld = first ? 0 : kl_divergence(reference, out);
			t.score.nll.push_back(-out[tokens[begin + i + 1]]);
			t.score.kld.push_back(float(kld));
			t.score.agreed.push_back(best == ref.best[i]);
		}
		if (!step(i + 1)) return false;
	}
	for (size_t r = 0; r < now.size(); ++r) now[r].cost.end(*sessions[r]);
	std::ranges::move(now, tallies.begin());
	return true;
}

} // namespace

static bool begins_with_bos(const Engine& e) { return e.tokenizer().adds_bos() && e.tokenizer().bos(); }

TextChunks chunks_of_text(const Engine& e, size_t n_tokens, const TextEvalOptions& opt) {
	if (opt.scored < 1 || opt.chunk < opt.scored + 2)
		fail(Code::Invalid, "{} of {} tokens of a chunk are scored; at least two come before them", opt.scored,
		     opt.chunk);
	const uint32_t own = opt.chunk - begins_with_bos(e); // tokens of text in a chunk
	if (n_tokens < own)
		fail(Code::Invalid, "the text has {} tokens, one chunk takes {}; give more text or a smaller -c", n_tokens,
		     own);
	uint32_t n_chunks = uint32_t(std::min<size_t>(n_tokens / own, UINT32_MAX));
	if (opt.chunks) n_chunks = std::min(n_chunks, opt.chunks);
	const uint32_t first = uint32_t(opt.shard.begin(n_chunks));
	const uint32_t n_own = uint32_t(opt.shard.end(n_chunks)) - first;
	if (n_own == 0)
		fail(Code::Invalid, "shard {} of {}: there are only {} chunks; give fewer shards", opt.shard.index,
		     opt.shard.of, n_chunks);
	const double bytes = double(opt.scored) * e.config().vocab * sizeof(float), free = double(sys::memory_free_bytes());
	if (bytes > free)
		fail(Code::OutOfMemory,
		     "what the model predicts for {} scored tokens takes {:.1f} GiB of host memory, {:.1f} GiB are free; score "
		     "fewer with --score",
		     opt.scored, bytes / kGiB, free / kGiB);
	return {first, n_own};
}

TextResult eval_text(Engine& e, const SessionOptions& session, std::span<const uint32_t> tokens,
                     std::span<const KvPolicy> policies, const TextEvalOptions& opt, const EvalHooks& hooks) {
	const auto [first, n_own] = chunks_of_text(e, tokens.size(), opt);
	uint32_t n_chunks = n_own;
	const bool bos = begins_with_bos(e);
	const uint32_t own = opt.chunk - bos;
	std::vector<Tally> tallies(1);
	tallies[0].session = session;
	tallies[0].session.kv = parse_policy("fp16");
	tallies[0].cost = CostMeter(hooks.goes_on);
	for (const KvPolicy& p : policies)
		if (p.text != "fp16" && p.text != "f16") {
			tallies.push_back(tallies[0]);
			tallies.back().session.kv = p;
		}
	for (const Tally& t : tallies) // refuses policies that the model cannot use before any work
		if (const uint32_t ctx = Session(e, t.session).ctx(); opt.chunk > ctx)
			fail(Code::Context, "chunks of {} tokens do not fit the context of {}; make them shorter", opt.chunk, ctx);

	TextResult r;
	Reference ref{std::vector<float>(size_t(opt.scored) * e.config().vocab), std::vector<uint32_t>(opt.scored), {}};
	std::vector<uint32_t> chunk;
	size_t together = std::clamp(opt.together, 1u, e.max_rows());
	ref.keeps_prompt = together > 1;
	for (; r.chunks < n_chunks; ++r.chunks) {
		ref.prompt.reset();
		chunk.clear();
		if (bos) chunk.push_back(*e.tokenizer().bos());
		const auto text = tokens.subspan((first + size_t(r.chunks)) * own, own);
		chunk.insert(chunk.end(), text.begin(), text.end());
		std::vector<Tally> before = tallies; // every policy is measured on the same chunks
		for (size_t p = 0, n; p < tallies.size(); p += n) {
			n = p == 0 ? 1 : std::min<size_t>(together, tallies.size() - p);
			const auto step = [&](uint32_t done) {
				const double part = (double(p) + double(n) * done / opt.scored) / double(tallies.size());
				return !hooks.progress || hooks.progress((r.chunks + part) / n_chunks);
			};
			try {
				if (run_chunk(e, chunk, opt.scored, std::span(tallies).subspan(p, n), ref, p == 0, step)) continue;
			} catch (const Error& error) {
				if (error.code != Code::OutOfMemory || (n == 1 && !ref.keeps_prompt)) throw;
				together = 1, n = 0; // again, one policy at a time
				ref.prompt.reset(), ref.keeps_prompt = false;
				continue;
			} catch (const CostMeter::Stopped&) {}
			tallies = std::move(before);
			n_chunks = r.chunks; // ends the loop without counting this one
			break;
		}
		if (r.chunks == n_chunks) break;
	}
	r.scored = opt.scored;
	for (Tally& t : tallies) {
		TextScore& s = r.scores.emplace_back(std::move(t.score));
		s.policy = t.session.kv.text;
		s.cost = t.cost.cost();
		summarize(s, r.scored);
	}
	return r;
}

TextResult pooled(std::span<const TextResult> texts) {
	KV_ASSERT(!texts.empty());
	TextResult all{.scored = texts[0].scored, .scores = std::vector<TextScore>(texts[0].scores.size())};
	for (const TextResult& text : texts) {
		KV_ASSERT(text.scored == all.scored && text.scores.size() == all.scores.size());
		for (size_t i = 0; i < all.scores.size(); ++i) {
			TextScore& to = all.scores[i];
			const TextScore& from = text.scores[i];
			to.policy = from.policy;
			to.nll.insert(to.nll.end(), from.nll.begin(), from.nll.end());
			to.kld.insert(to.kld.end(), from.kld.begin(), from.kld.end());
			to.agreed.insert(to.agreed.end(), from.agreed.begin(), from.agreed.end());
			to.cost.add(from.cost, all.chunks, text.chunks);
		}
		all.chunks += text.chunks;
	}
	for (TextScore& s : all.scores) summarize(s, all.scored);
	return all;
}

KldDifference kld_difference(const TextScore& s, const TextScore& base, uint32_t scored) {
	KV_ASSERT(s.kld.size() == base.kld.size());
	std::vector<float> d(s.kld.size());
	for (size_t i = 0; i < d.size(); ++i) d[i] = s.kld[i] - base.kld[i];
	const auto [low, high] = block_bootstrap(d, scored);
	return {mean_and_error(d).first, low, high};
}

} // namespace kvrun
