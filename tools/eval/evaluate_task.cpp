// Look-up tasks: asks questions made from a seed under each cache policy, and counts right answers.
#include "engine/core/splitmix64.h"
#include "engine/kv_host/choose.h"
#include "engine/run/store_as.h"
#include "tools/eval/evaluate.h"
#include "tools/eval/evaluate_cost.h"
#include "tools/eval/words.h"
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <tuple>

namespace kvrun {
namespace {

class Draw {
 public:
	explicit Draw(uint64_t seed) : state_(seed) {}
	uint64_t next() { return splitmix64(state_ += kSplitmixStep); }
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

// Distinct names for n lines. As in the training of the bundled model no two names share a word, as long as there are
// enough words; further names are other pairs of the words.
std::vector<std::string> line_names(uint32_t n, Draw& draw) {
	std::vector<std::string> adjectives = words_of(kAdjectives), nouns = words_of(kNouns), out;
	KV_ASSERT(n <= adjectives.size() * nouns.size() * 2 / 3); // with more, drawing distinct pairs would not end
	std::set<std::string> taken;
	while (out.size() < n) {
		draw.shuffle(adjectives);
		draw.shuffle(nouns);
		for (size_t i = 0; i < std::min(adjectives.size(), nouns.size()) && out.size() < n; ++i)
			if (std::string name = adjectives[i] + "-" + nouns[i]; taken.insert(name).second)
				out.push_back(std::move(name));
	}
	return out;
}

std::string content(Draw& draw) { return std::to_string(10000 + draw.below(90000)); }
std::string line_text(const std::string& name, const std::string& value) {
	return fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name, value);
}
std::string query_text(const std::string& name) { return fmt::format("Query: {}\nAnswer: <", name); }

} // namespace

Question recall_question(uint32_t lines, uint64_t seed, uint32_t index, std::optional<uint32_t> line, uint32_t turns) {
	if (lines < 1 || lines > kMostRecallLines)
		fail(Code::Invalid, "{} lines, expected 1 to {}", lines, kMostRecallLines);
	if (turns && lines < 2) fail(Code::Invalid, "earlier questions are about other lines, and the record has one line");
	Draw draw = draw_of(seed, index);
	const std::vector<std::string> names = line_names(lines, draw);
	const uint32_t random = draw.below(lines), asked = line.value_or(random);
	Question q;
	q.record = "Record:\n";
	std::vector<std::string> values, others; // others: questions with answers
	for (uint32_t i = 0; i < lines; ++i) {
		values.push_back(content(draw));
		q.record += line_text(names[i], values[i]);
		if (i != asked) others.push_back(query_text(names[i]) + values[i] + ">\n");
	}
	q.answer = values[asked];
	draw.shuffle(others);
	for (uint32_t i = 0; i < turns; ++i) q.query += others.at(i % others.size());
	q.query += query_text(names[asked]);
	q.depth = lines > 1 ? double(asked) / (lines - 1) : 0;
	return q;
}

std::string tuning_records(uint32_t n) {
	constexpr uint32_t kLines = 12;
	constexpr uint64_t kSeed = uint64_t(1) << 63 | 7; // the largest --seed is 2^63 - 1
	std::string text;
	for (uint32_t i = 0; i < n; ++i) {
		text += recall_question(kLines, kSeed, i).record;
		for (uint32_t ask = 0; ask < kLines; ++ask) {
			const Question q = recall_question(kLines, kSeed, i, ask);
			text += q.query + q.answer + ">\n";
		}
	}
	return text;
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
		q.record += fmt::format("The {} {} {} the {} {}.\n", draw.pick(adjectives), who, draw.pick(actions),
		                        draw.pick(adjectives), what);
	}
	q.query = query_text(name);
	return q;
}

namespace {

size_t longest_answer(const Question& q) { // in bytes: at least its number of tokens
	size_t n = q.answer.size();
	for (const std::string& other : q.other_answers) n = std::max(n, other.size());
	return n;
}

struct Asked {                    // one question as tokens
	std::vector<uint32_t> all;    // record and query
	std::vector<uint32_t> answer; // the answer's tokens after `all`
	size_t prompt = 0;            // the first tokens of `all` that are the prompt
};
Asked tokens_of(const Session& s, const Question& q, Ask ask) {
	const Tokenizer& tok = s.engine().tokenizer();
	Asked a{tok.encode(q.record + q.query), tok.encode(q.record + q.query + q.answer)};
	const auto common = [&](const std::vector<uint32_t>& x) {
		return size_t(std::mismatch(x.begin(), x.end(), a.all.begin(), a.all.end()).first - x.begin());
	};
	a.prompt = a.all.size() - 1; // the last token is always decoded: its row reads the stored cache
	// At the border two texts together may be cut into other tokens than separately.
	if (ask == Ask::Later) a.prompt = std::min(a.prompt, common(tok.encode(q.record)));
	if (common(a.answer) == a.all.size())
		a.answer.erase(a.answer.begin(), a.answer.begin() + ptrdiff_t(a.all.size()));
	else
		a.answer = tok.encode(q.answer, {.bos = false});
	if (a.prompt == 0 || a.answer.empty())
		fail(Code::Invalid, "the question has {} tokens and its answer {}; it needs at least two, the answer one",
		     a.all.size(), a.answer.size());
	if (a.all.size() + longest_answer(q) > s.ctx())
		fail(Code::Context,
		     "a question has {} tokens and its answer up to {}, the context is {}; ask for less or raise -c",
		     a.all.size(), longest_answer(q), s.ctx());
	return a;
}

uint32_t best_of(std::span<const float> logits) {
	return uint32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}
double loss_of(std::span<const float> logits, uint32_t token) { // -ln p(token)
	const double top = logits[best_of(logits)];
	double sum = 0;
	for (const float x : logits) sum += std::exp(double(x) - top);
	return top + std::log(sum) - double(logits[token]);
}

// Sessions of one policy that hold a question's prompt. The model reads a prompt once for all questions in a row that
// share it: those about one record with Ask::Later. f16: prompts of the same questions under an f16 cache, from which
// policies that do not rank take them; null: the model reads each policy's prompt.
class Prompts {
 public:
	Prompts(Engine& e, const SessionOptions& options, Prompts* f16 = nullptr)
	    : kept_(std::make_unique<Session>(e, options)), f16_(f16) {}
	const Session& kept() const { return *kept_; } // holds the latest prompt, at first none
	std::unique_ptr<Session> session_of(const Asked& a, CostMeter& cost) {
		hold(std::span(a.all).first(a.prompt), cost);
		return kept_->fork();
	}

 private:
	void hold(std::span<const uint32_t> prompt, CostMeter& cost) {
		if (std::ranges::equal(kept_->history(), prompt)) return;
		kept_->reset();
		if (!f16_ || !can_store_as(*kept_)) {
			cost.prefill(*kept_, prompt);
			return;
		}
		CostMeter of_all = cost.apart(); // of no single policy
		f16_->hold(prompt, of_all);
		store_as(*kept_, *f16_->kept_);
	}
	std::unique_ptr<Session> kept_;
	Prompts* f16_;
};
std::span<const float> put_question(Session& s, const Asked& a, CostMeter& cost) {
	std::span<const float> logits;
	for (size_t i = a.prompt; i < a.all.size(); ++i) logits = cost.decode(s, a.all[i]);
	return logits;
}

// Text without leading white space, which tokenizers may add or drop.
std::string_view trimmed(std::string_view text) {
	return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}
// Whether text begins with a right answer; may_become_right(): whether more text may complete one.
bool is_right(const Question& q, std::string_view text) {
	const auto begins = [&](const std::string& answer) { return trimmed(text).starts_with(trimmed(answer)); };
	return begins(q.answer) || std::ranges::any_of(q.other_answers, begins);
}
bool may_become_right(const Question& q, std::string_view text) {
	const auto begun = [&](const std::string& answer) { return trimmed(answer).starts_with(trimmed(text)); };
	return begun(q.answer) || std::ranges::any_of(q.other_answers, begun);
}

// Whether the greedy text begins with an answer.
bool answers_in_other_tokens(Prompts& prompts, const Question& q, const Asked& a, CostMeter& cost) {
	const auto s = prompts.session_of(a, cost);
	const Tokenizer& tok = s->engine().tokenizer();
	std::span<const float> logits = put_question(*s, a, cost);
	std::string text;
	uint32_t prev = a.all.back();
	for (size_t i = 0; i < longest_answer(q); ++i) { // a token has at least one character, or the answer is wrong
		const uint32_t best = best_of(logits);
		if (tok.is_end(best)) break;
		text += tok.decode_one(prev, best);
		prev = best;
		if (is_right(q, text)) return true;
		if (!may_become_right(q, text)) break;
		logits = cost.decode(*s, best);
	}
	return false;
}

struct Outcome {
	bool right = true; // greedy text begins with the answer
	double loss = 0;   // mean of -ln p over the answer's tokens, each after the right preceding tokens
};
struct Asking { // a question under way
	const Question* question;
	const Asked* asked;
	std::unique_ptr<Session> session;
	size_t at = asked->prompt; // of the tokens of query and answer, the next to decode; the answer's last one never is
	Outcome out = {};
	std::string text = {}; // greedy text, as long as it consists of the answer's tokens
	bool done() const { return at + 1 >= asked->all.size() + asked->answer.size(); }
	uint32_t token(size_t i) const {
		return i < asked->all.size() ? asked->all[i] : asked->answer[i - asked->all.size()];
	}
	void decoded(std::span<const float> logits) { // of token(at)
		if (++at < asked->all.size()) return;
		const uint32_t right = token(at), best = best_of(logits);
		out.loss += loss_of(logits, right) / double(asked->answer.size());
		if (out.right) text += session->engine().tokenizer().decode_one(token(at - 1), best);
		out.right &= best == right;
	}
};

// Asks questions that share a prompt, side by side.
std::vector<Outcome> ask_all(Prompts& prompts, std::span<const Question> questions, std::span<const Asked> asked,
                             CostMeter& cost, uint32_t& longest) {
	std::vector<Asking> all;
	for (size_t i = 0; i < questions.size(); ++i)
		all.push_back({&questions[i], &asked[i], prompts.session_of(asked[i], cost)});
	std::vector<Asking*> open;
	std::vector<SessionRow> rows;
	for (;;) {
		open.clear(), rows.clear();
		for (Asking& a : all)
			if (!a.done()) open.push_back(&a), rows.push_back({a.session.get(), a.token(a.at)});
		if (open.empty()) break;
		cost.ask();
		const std::span<const float> logits =
		    all.size() == 1 ? cost.decode(*rows[0].session, rows[0].token) : decode(rows);
		const size_t vocab = logits.size() / rows.size();
		for (size_t r = 0; r < rows.size(); ++r) open[r]->decoded(logits.subspan(r * vocab, vocab));
	}
	std::vector<Outcome> out;
	for (Asking& a : all) {
		longest = std::max(longest, a.session->n_tokens());
		cost.end(*a.session);
		a.session.reset();
		// Other tokens may spell the same answer: "24" if the answer's own tokens are digits.
		const bool still = !a.text.empty() && (may_become_right(*a.question, a.text) || is_right(*a.question, a.text));
		if (!a.out.right && still) a.out.right = answers_in_other_tokens(prompts, *a.question, *a.asked, cost);
		out.push_back(a.out);
	}
	return out;
}

} // namespace

std::vector<TaskScore> eval_task(Engine& e, const SessionOptions& session, std::span<const Question> questions,
                                 std::span<const KvPolicy> policies, Ask ask, uint32_t together,
                                 const EvalHooks& hooks) {
	for (const KvPolicy& p : policies) // refuses policies that the model cannot use before any work
		if (!is_choice(p)) make_device_plan(p, e.kv_shape());
	together = std::clamp(together, 1u, e.max_rows());
	SessionOptions options = session;
	options.kv = parse_policy("fp16");
	Prompts f16(e, options);
	std::vector<std::unique_ptr<Prompts>> prompts(policies.size()); // of policies whose turn has come
	std::vector<CostMeter> costs(policies.size(), CostMeter(hooks.goes_on));
	std::vector<TaskScore> out(policies.size());
	for (size_t p = 0; p < policies.size(); ++p) out[p].policy = policies[p].text;
	std::vector<Asked> asked;
	for (const Question& q : questions) asked.push_back(tokens_of(f16.kept(), q, ask));
	std::vector<std::pair<size_t, size_t>> groups; // first question and number of those asked side by side
	for (size_t i = 0; i < questions.size(); ++i) {
		const auto prompt = [&](size_t at) { return std::span(asked[at].all).first(asked[at].prompt); };
		if (!groups.empty() && groups.back().second < together && std::ranges::equal(prompt(i - 1), prompt(i)))
			++groups.back().second;
		else
			groups.emplace_back(i, 1);
	}
	// Side by side, all policies take a prompt before the next one is read; else a policy is finished before the next.
	const size_t n = policies.size() * groups.size();
	bool go_on = true;
	for (size_t i = 0; i < n && go_on; ++i) {
		const size_t p = together > 1 ? i % policies.size() : i / groups.size();
		const auto [first, count] = groups[together > 1 ? i / policies.size() : i % groups.size()];
		TaskScore& t = out[p];
		if (!prompts[p]) {
			if (together == 1 && p > 0) prompts[p - 1].reset();
			options.kv = policies[p];
			prompts[p] = std::make_unique<Prompts>(e, options, together > 1 ? &f16 : nullptr);
		}
		try {
			for (const Outcome& o : ask_all(*prompts[p], questions.subspan(first, count),
			                                std::span(asked).subspan(first, count), costs[p], t.longest)) {
				t.right.push_back(o.right);
				t.loss.push_back(float(o.loss));
				t.n_right += o.right;
			}
		} catch (const CostMeter::Stopped&) { break; }
		go_on = !hooks.progress || hooks.progress(double(i + 1) / double(n));
	}
	std::erase_if(out, [](const TaskScore& t) { return t.right.empty(); }); // stopped before any question
	for (size_t p = 0; p < out.size(); ++p) {
		TaskScore& t = out[p];
		std::tie(t.low, t.high) = wilson(t.n_right, t.right.size());
		std::tie(t.loss_mean, t.loss_error) = mean_and_error(t.loss);
		t.cost = costs[p].cost();
	}
	return out;
}

} // namespace kvrun
