// Look-up tasks: questions made from a seed, asked under each cache policy, and the share of right answers.
#include "engine/run/evaluate.h"
#include "engine/run/evaluate_cost.h"
#include "engine/run/words.h"
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

namespace kvrun {
namespace {

// The same numbers on every platform, which the distributions of <random> do not promise.
class Draw {
 public:
	explicit Draw(uint64_t seed) : state_(seed) {}
	uint64_t next() { // splitmix64
		uint64_t z = state_ += 0x9e3779b97f4a7c15u;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		return z ^ z >> 31;
	}
	uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }
	template <class T> const T& pick(const std::vector<T>& x) { return x[below(uint32_t(x.size()))]; }
	template <class T> void shuffle(std::vector<T>& x) {
		for (size_t i = x.size(); i > 1; --i) std::swap(x[i - 1], x[below(uint32_t(i))]);
	}

 private:
	uint64_t state_;
};
Draw draw_of(uint64_t seed, uint32_t index) { return Draw(Draw(seed * 0x100000001b3u + index).next()); }

std::vector<std::string> words_of(std::string_view list) {
	std::vector<std::string> out;
	for (size_t at = 0; at < list.size();) {
		const size_t end = list.find(' ', at);
		out.emplace_back(list.substr(at, end - at));
		at = end + 1;
	}
	return out;
}

// Names for n lines: no two share a word while there are words enough, as in the bundled model's training; more lines
// take other pairs of the words, no two the same.
std::vector<std::string> line_names(uint32_t n, Draw& draw) {
	std::vector<std::string> adjectives = words_of(kAdjectives), nouns = words_of(kNouns), out;
	KV_ASSERT(n <= adjectives.size() * nouns.size() / 2);
	std::set<std::string> taken;
	while (out.size() < n) {
		draw.shuffle(adjectives);
		draw.shuffle(nouns);
		for (size_t i = 0; i < std::min(adjectives.size(), nouns.size()) && out.size() < n; ++i)
			if (std::string name = adjectives[i] + "-" + nouns[i]; taken.insert(name).second) out.push_back(std::move(name));
	}
	return out;
}

std::string content(Draw& draw) { return std::to_string(10000 + draw.below(90000)); }
std::string line_text(const std::string& name, const std::string& value) {
	return fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name, value);
}
std::string query_text(const std::string& name) { return fmt::format("Query: {}\nAnswer: <", name); }

} // namespace

Question recall_question(uint32_t lines, uint64_t seed, uint32_t index) {
	if (lines < 1 || lines > kMostRecallLines) fail(Code::Invalid, "{} lines, expected 1 to {}", lines, kMostRecallLines);
	Draw draw = draw_of(seed, index);
	const std::vector<std::string> names = line_names(lines, draw);
	const uint32_t asked = draw.below(lines);
	Question q;
	q.record = "Record:\n";
	for (uint32_t i = 0; i < lines; ++i) {
		const std::string value = content(draw);
		if (i == asked) q.answer = value;
		q.record += line_text(names[i], value);
	}
	q.query = query_text(names[asked]);
	q.depth = lines > 1 ? double(asked) / (lines - 1) : 0;
	return q;
}

Question needle_question(uint32_t sentences, uint64_t seed, uint32_t index, uint32_t n) {
	KV_ASSERT(n > 0 && index < n);
	Draw draw = draw_of(seed, index);
	const std::vector<std::string> adjectives = words_of(kAdjectives), nouns = words_of(kNouns);
	const std::vector<std::string> actions = {"walked to", "looked at", "found", "liked", "ran past", "played with"};
	const std::string name = line_names(1, draw)[0];
	Question q;
	q.answer = content(draw);
	q.depth = n > 1 ? double(index) / (n - 1) : 0.5;
	const uint32_t at = uint32_t(std::lround(q.depth * sentences));
	q.record = "Record:\n";
	for (uint32_t i = 0; i <= sentences; ++i) {
		if (i == at) q.record += line_text(name, q.answer);
		if (i == sentences) break;
		const std::string who = draw.pick(nouns), &what = draw.pick(nouns);
		q.record += fmt::format("The {} {} {} the {} {}.\n", draw.pick(adjectives), who, draw.pick(actions), draw.pick(adjectives), what);
	}
	q.query = query_text(name);
	return q;
}

std::pair<double, double> wilson(uint64_t k, uint64_t n) {
	if (n == 0) return {0, 1};
	constexpr double z = 1.959963984540054; // 97.5 % of a normal distribution lies below
	const double N = double(n), p = double(k) / N, d = 1 + z * z / N;
	const double middle = (p + z * z / (2 * N)) / d, half = z / d * std::sqrt(p * (1 - p) / N + z * z / (4 * N * N));
	return {k == 0 ? 0 : std::max(0.0, middle - half), k == n ? 1 : std::min(1.0, middle + half)};
}

namespace {

// Greedy text of the answer, at least as long as the right one unless the model ends it.
bool answers_right(Engine& e, const Question& q, Ask ask, CostMeter& cost, uint32_t& longest) {
	const Tokenizer& tok = e.tokenizer();
	const std::vector<uint32_t> all = tok.encode(q.record + q.query), record = tok.encode(q.record);
	size_t prompt = all.size() - 1; // the last token is always decoded: its row reads the stored cache
	if (ask == Ask::Later) // where record and query meet, text may be cut into tokens another way
		prompt = std::min<size_t>(prompt, size_t(std::mismatch(record.begin(), record.end(), all.begin(), all.end()).first - record.begin()));
	if (prompt == 0) fail(Code::Invalid, "the question has {} tokens; it needs at least two", all.size());
	if (all.size() + q.answer.size() > e.ctx())
		fail(Code::Context, "a question has {} tokens and its answer up to {}, the context is {}; ask for less or raise -c", all.size(),
			 q.answer.size(), e.ctx());
	Session s(e);
	cost.prefill(s, std::span(all).first(prompt));
	std::span<const float> logits;
	for (size_t i = prompt; i < all.size(); ++i) logits = cost.decode(s, all[i]);
	std::string text;
	uint32_t prev = all.back();
	for (size_t i = 0; i < q.answer.size(); ++i) { // a token has at least one character, or the answer is wrong
		const uint32_t best = uint32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
		text += tok.decode_one(prev, best);
		prev = best;
		if (tok.is_end(best) || text.size() >= q.answer.size() || !q.answer.starts_with(text)) break;
		logits = cost.decode(s, best);
	}
	longest = std::max(longest, s.n_tokens());
	cost.end(s);
	return text.starts_with(q.answer);
}

} // namespace

std::vector<TaskScore> eval_task(Engine& e, std::span<const Question> questions, std::span<const KvPolicy> policies, Ask ask,
								 const EvalHooks& hooks) {
	for (const KvPolicy& p : policies) make_plan(p, e.plan().shape); // a policy that cannot be is said before the work begins
	std::vector<TaskScore> out;
	bool go_on = true;
	for (size_t p = 0; p < policies.size() && go_on; ++p) {
		e.set_kv(policies[p]);
		TaskScore& t = out.emplace_back();
		t.policy = policies[p].text;
		CostMeter cost;
		for (size_t i = 0; i < questions.size() && go_on; ++i) {
			t.right.push_back(answers_right(e, questions[i], ask, cost, t.longest));
			t.n_right += t.right.back();
			const double done = double(p * questions.size() + i + 1) / double(policies.size() * questions.size());
			go_on = !hooks.progress || hooks.progress(done);
		}
		std::tie(t.low, t.high) = wilson(t.n_right, t.right.size());
		t.cost = cost.cost();
	}
	return out;
}

} // namespace kvrun
