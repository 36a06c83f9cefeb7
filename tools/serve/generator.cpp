// Generates answers: one thread steps a batch, fed by a queue; ended sessions are kept for reuse by later prompts.
#include "tools/serve/generator.h"
#include "tools/answer/callbacks.h"
#include <algorithm>
#include <numeric>

namespace kvrun::serve {

constexpr double kIdleShare = 0.5; // share of the cache budget in use above which idle sessions are dropped

struct Generator::Active final : AnswerCallbacks {
	Job job;
	uint32_t id = 0;    // ID in the batch
	bool added = false; // to the batch
	SessionHandle session;
	uint32_t reused = 0;              // prompt tokens reused from another session
	bool fresh = true;                // the prompt was read from its beginning, by this answer or the one it forks
	std::optional<uint32_t> last;     // token of the answer
	size_t generated = 0, tokens = 0; // bytes and tokens of the answer; counted from 0 again after a restart
	std::string text;                 // of the answer, if its conversation is named
	std::optional<Logprobs> probs;    // if requested
	const Model* model = nullptr;
	kvrun_status status = KVRUN_OK;              // result of the answer
	std::string message;                         // message of the status
	bool cancelled = false;                      // its client had disconnected
	bool over = false;                           // it was ended here, by its limit of time or of indentation
	bool has_line = false;                       // the answer has a line break
	std::optional<uint32_t> indent;              // of the line that begins, while there is only white space in it
	std::chrono::steady_clock::time_point began; // when its first token was there
	Ended ended;

	bool has_session() const { return status == KVRUN_OK || cancelled; } // the session can be continued
	// Writes a named conversation to its file, before the client learns of the answer's end, so that every answer seen
	// to its end survives the server.
	void keep() {
		try {
			job.named->save(session.get(), job.note(text));
		} catch (const std::exception& e) { ended.not_kept = e.what(); }
	}

	// As in llama.cpp's server, which editors ask for completions: only an answer that has a whole line is ended.
	bool is_late(std::string_view piece) {
		const auto now = std::chrono::steady_clock::now();
		if (tokens <= 1) began = now;
		has_line |= piece.find('\n') != piece.npos;
		const double most = job.sampling.most_ms;
		return most > 0 && has_line && std::chrono::duration<double, std::milli>(now - began).count() > most;
	}

	// The bytes of a piece before a line that begins too far to the left, or all.
	size_t indented(std::string_view piece) {
		for (size_t i = 0; job.sampling.indent && i < piece.size(); ++i) {
			if (piece[i] == '\n') {
				indent = 0;
			} else if (indent && (piece[i] == ' ' || piece[i] == '\t')) {
				++*indent;
			} else if (indent) {
				if (*indent < job.sampling.indent) return i;
				indent.reset();
			}
		}
		return piece.size();
	}

	std::vector<uint32_t> before() const { // the token that decides whether the next one begins with a space
		const uint32_t t = last ? *last : job.prompt.empty() ? KVRUN_NO_TOKEN : job.prompt.back();
		return t < model->info().vocab ? std::vector{t} : std::vector<uint32_t>(); // none behind an image
	}
	void hold(uint32_t token) {
		job.held.push_back({probs->chosen(*model, token), job.token_bytes});
		job.token_bytes += model->token_text(before(), token, job.sampling.special).size();
	}
	// Passes on tokens that begin before so many bytes of the answer. Those of a stop string are left out, as its text.
	void show_tokens(size_t bytes) {
		for (; !job.held.empty() && job.held.front().at < bytes; job.held.pop_front())
			job.listener->token(std::move(job.held.front().entry));
	}

	bool token(uint32_t token, std::string_view piece) override {
		const size_t kept = indented(piece);
		over |= kept < piece.size();
		piece = piece.substr(0, kept);
		tokens += token != KVRUN_NO_TOKEN;
		if (token != KVRUN_NO_TOKEN && tokens > job.tokens_passed_on) {
			job.listener->chosen(token);
			if (probs) hold(token);
		}
		job.tokens_passed_on = std::max(job.tokens_passed_on, tokens);
		if (token != KVRUN_NO_TOKEN) last = token;
		if (job.named) text += piece;
		generated += piece.size();
		const size_t fresh = generated - std::min(generated, job.passed_on);
		show_tokens(std::max(job.passed_on, generated));
		if (fresh) job.listener->piece(piece.substr(piece.size() - std::min(piece.size(), fresh)));
		job.passed_on = std::max(job.passed_on, generated);
		over |= is_late(piece);
		return !over && !job.listener->gone();
	}
	bool logits(std::span<float> all) override {
		if (probs) probs->look(all);
		return true;
	}
	bool reading(double done, double seconds_left) override {
		job.listener->reading(done, seconds_left);
		return !job.listener->gone();
	}
};

Generator::Generator(const Model& model, const GeneratorOptions& o)
    : model_(model), options_(o), longest_context_(o.ctx ? o.ctx : uint32_t(model.info().ctx_train)),
      pool_(model, o.ctx, o.idle_sessions) {
	// reserved, so that nothing can fail after the batch has accepted an answer, nor when an answer ends
	for (auto* list : {&active_, &saving_}) list->reserve(o.parallel);
	saved_.reserve(o.parallel);
	model_.adapters().on_free([this] {
		{
			std::lock_guard lock(mutex_);
			wait_for_scales_ = false;
		}
		wake_.notify_all();
	});
	thread_ = std::thread([this] { run(); });
}

Generator::~Generator() {
	{
		std::lock_guard lock(mutex_);
		ending_ = true;
	}
	wake_.notify_all();
	thread_.join();
}

void Generator::add(std::vector<Job> jobs) {
	{
		std::lock_guard lock(mutex_);
		room_for(jobs.size(), jobs.front().answers());
		for (Job& job : jobs) queue_.push_back(std::move(job));
		stats_.queued = uint32_t(n_waiting());
	}
	wake_.notify_all();
}

void Generator::check_room(size_t jobs, size_t answers) const {
	std::lock_guard lock(mutex_);
	room_for(jobs, answers);
}

void Generator::check_queue() const {
	std::lock_guard lock(mutex_);
	queue_for(1);
}

void Generator::room_for(size_t jobs, size_t answers) const {
	if (answers > options_.parallel)
		throw ApiError(400,
		               "n is " + std::to_string(answers) + ", this server gives at most " +
		                   std::to_string(options_.parallel) + " answers at once (--parallel)",
		               "n");
	const size_t most = options_.queue + options_.parallel;
	if (jobs * answers > most)
		throw ApiError(400,
		               "the request asks for " + std::to_string(jobs * answers) +
		                   " answers, this server takes at most " + std::to_string(most) + " (--parallel and --queue)",
		               "prompt");
	queue_for(jobs * answers);
}

void Generator::queue_for(size_t answers) const {
	const size_t free_slots = options_.parallel - std::min(options_.parallel, stats_.active);
	if (n_waiting() + answers > options_.queue + free_slots)
		throw ApiError(429,
		               "the queue is full: " + std::to_string(stats_.active) + " answers are under way and " +
		                   std::to_string(n_waiting()) + " wait; try again later",
		               "", "queue_full");
}

size_t Generator::n_waiting() const {
	return std::accumulate(queue_.begin(), queue_.end(), size_t(0),
	                       [](size_t n, const Job& j) { return n + j.answers(); });
}

GeneratorStats Generator::stats() const {
	std::lock_guard lock(mutex_);
	return stats_;
}

void Generator::run() {
	while (wait_for_work()) {
		try {
			settle_saved();
			drop_gone();
			admit();
			if (!active_.empty()) step();
			publish();
		} catch (const std::exception& e) { fail_all(ApiError(500, e.what())); }
	}
	fail_all(ApiError(503, "the server is shutting down"));
	while (!saving_.empty()) {
		{
			std::unique_lock lock(mutex_);
			wake_.wait(lock, [this] { return !saved_.empty(); });
		}
		settle_saved();
	}
}

bool Generator::wait_for_work() {
	if (active_.empty()) scales_use_.reset();
	const auto work = [this] { return ending_ || drop_idle_ || !saved_.empty() || !active_.empty() || can_admit(); };
	const auto idle = std::chrono::duration_cast<Residency::Clock::duration>(options_.idle_unload);
	std::unique_lock lock(mutex_);
	if (idle.count() <= 0) wake_.wait(lock, work);
	while (idle.count() > 0 && !wake_.wait_for(lock, model_.residency().idle_left(idle), work)) {
		lock.unlock();
		model_.residency().unload(idle, [this] {
			while (pool_.drop_oldest()) {}
			batch_.reset();
			publish();
		});
		lock.lock();
	}
	if (drop_idle_) {
		lock.unlock();
		while (pool_.drop_oldest()) {}
		publish();
		lock.lock();
		drop_idle_ = false;
		wake_.notify_all();
	}
	return !ending_;
}

void Generator::drop_idle() {
	std::unique_lock lock(mutex_);
	drop_idle_ = true;
	wake_.notify_all();
	wake_.wait(lock, [this] { return ending_ || !drop_idle_; });
}

bool Generator::can_admit() const {
	if (wait_for_scales_) return false;
	if (queue_.empty() || saving_.empty()) return !queue_.empty();
	return !wait_for_memory_ && n_under_way() + queue_.front().answers() <= options_.parallel;
}

void Generator::drop_gone() {
	std::deque<Job> dropped; // destroyed after the lock is released
	{
		std::lock_guard lock(mutex_);
		take_gone(dropped);
		if (dropped.empty()) return;
		wait_for_scales_ = false; // the next in the queue may be another
		if (queue_.empty()) model_.adapters().forget();
	}
	wake_.notify_all();
}

void Generator::take_gone(std::deque<Job>& dropped) {
	for (size_t i = 0; i < queue_.size();) {
		if (!queue_[i].listener->gone()) {
			++i;
			continue;
		}
		stats_.cancelled += queue_[i].answers();
		dropped.push_back(std::move(queue_[i]));
		queue_.erase(queue_.begin() + ptrdiff_t(i));
	}
	stats_.queued = uint32_t(n_waiting());
}

bool Generator::may_run(const Scales& wanted) {
	Adapters& adapters = model_.adapters();
	if (active_.empty()) scales_use_.reset();
	if (scales_use_) return scales_ == wanted && !adapters.others_wait(wanted);
	const auto wait = [this](bool w) {
		std::lock_guard lock(mutex_);
		wait_for_scales_ = w;
	};
	wait(true); // first: others may end their use now
	try {
		scales_use_ = adapters.try_use(wanted);
	} catch (...) {
		wait(false);
		throw;
	}
	if (!scales_use_) return false;
	scales_ = wanted;
	wait(false);
	return true;
}

void Generator::admit() {
	while (n_under_way() < options_.parallel && !(wait_for_memory_ && n_under_way() > 0)) {
		Job job;
		{
			std::lock_guard lock(mutex_);
			if (queue_.empty() || n_under_way() + queue_.front().answers() > options_.parallel) return;
			job = std::move(queue_.front());
			queue_.pop_front();
			stats_.active += uint32_t(job.answers()); // until publish() recounts
		}
		const auto refuse = [&](const ApiError& e) {
			job.listener->fail(e);
			std::lock_guard lock(mutex_);
			stats_.failed += job.answers();
		};
		try {
			if (!may_run(job.scales)) {
				std::lock_guard lock(mutex_);
				queue_.push_front(std::move(job));
				return;
			}
			if (start(job)) continue;
		} catch (const ApiError& e) {
			refuse(e);
			continue;
		} catch (const std::bad_alloc&) { // other answers continue
			refuse(ApiError(503, "there is no memory for this request", "", "out_of_memory"));
			continue;
		}
		std::lock_guard lock(mutex_);
		queue_.push_front(std::move(job));
		wait_for_memory_ = true;
	}
}

// `reader` reads the prompt of the first answer; its session already holds `kept` tokens of that prompt.
kvrun_status Generator::add_one(const Job& job, const Job& first, uint32_t kept, Active& active, const Active& reader) {
	const Sampling& s = job.sampling;
	std::vector<const char*> stops, breakers;
	kvrun_generate_options o = s.options(s.seed, breakers);
	for (const std::string& text : s.stops) stops.push_back(text.c_str());
	o.max_tokens = s.max_tokens, o.special = s.special, o.ignore_eos = s.ignore_eos;
	o.bias = s.bias.data(), o.n_bias = s.bias.size();
	o.stops = stops.data(), o.n_stops = stops.size();
	active.set_on(o);
	// No drafts with logprobs: a token's logits must be read before the next token is chosen.
	if (!s.logprobs && session_info(active.session.get()).takes_drafts)
		o.draft_max = std::min(s.draft_max, options_.draft_max);
	active.ended.drafts = o.draft_max > 0;
	const std::vector<uint32_t>& prompt = first.prompt;
	// also if there is no grammar: the session may still have that of another request
	if (const kvrun_status s = kvrun_session_set_grammar(active.session.get(), job.grammar.get()); s != KVRUN_OK)
		return s;
	const kvrun_status status =
	    &active == &reader ? kvrun_batch_add(batch_.get(), active.session.get(), prompt.data() + kept,
	                                         prompt.size() - kept, &o, &active.id)
	                       : kvrun_batch_add_fork(batch_.get(), active.session.get(), reader.id, &o, &active.id);
	if (status != KVRUN_OK) return status;
	active.added = true;
	if (!s.logprobs) return status;
	active.probs.emplace(*s.logprobs);
	return kvrun_batch_on_logits(batch_.get(), active.id, Active::on_logits, &active);
}

kvrun_status Generator::add_to_batch(const Job& job, SessionPool::Lease& lease, Group& group) {
	for (size_t i = 0; i < job.answers(); ++i) {
		group.push_back(std::make_unique<Active>());
		Active& a = *group.back();
		a.model = &model_, a.reused = i ? uint32_t(job.prompt.size()) : lease.kept, a.fresh = lease.kept == 0;
		if (i == 0) continue;
		if (const kvrun_status s = create(a.session, kvrun_session_fork, lease.session.get()); s != KVRUN_OK) return s;
	}
	group[0]->session = std::move(lease.session);
	for (size_t i = 0; i < group.size(); ++i) {
		const Job& one = i ? job.forks[i - 1] : job;
		if (const kvrun_status s = add_one(one, job, lease.kept, *group[i], *group[0]); s != KVRUN_OK) return s;
	}
	return KVRUN_OK;
}

bool Generator::start(Job& job) {
	if (!batch_) check(create(batch_, kvrun_batch_new, model_.engine()));
	for (;;) {
		SessionPool::Lease lease =
		    pool_.take({job.kv, job.scales}, job.prompt, job.reuse && job.passed_on == 0, job.named.get());
		kvrun_status status = lease.status;
		std::string message = lease.error;
		const char* param = "kv";
		Group group;
		const auto take_back = [&] {
			for (const auto& a : group)
				if (a->added) kvrun_batch_take(batch_.get(), a->id, nullptr);
		};
		if (status == KVRUN_OK) try {
				param = "prompt";
				active_.reserve(active_.size() + job.answers());
				status = add_to_batch(job, lease, group);
				message = kvrun_last_error();
			} catch (...) {
				take_back(); // the batch points to them
				throw;
			}
		if (status == KVRUN_OK) {
			// nothing here may fail: the batch knows these answers
			std::vector<Job> forks = std::exchange(job.forks, {});
			for (size_t i = 0; i < group.size(); ++i) {
				group[i]->job = std::move(i ? forks[i - 1] : job);
				active_.push_back(std::move(group[i]));
			}
			for (size_t i = active_.size() - group.size(); i < active_.size(); ++i) {
				Listener& to = *active_[i]->job.listener;
				to.start(uint32_t(active_[i]->job.prompt.size()), active_[i]->reused);
				to.begin();
			}
			return true;
		}
		take_back();
		const ApiError error = engine_error(status, message, param);
		if (status != KVRUN_ENOMEM) throw error;
		if (pool_.drop_oldest()) continue;
		if (n_under_way() == 0) throw ApiError(400, message, param, "context_length_exceeded"); // nothing will free any
		return false;
	}
}

void Generator::step() {
	if (pool_.size()) {
		const kvrun_engine_info i = model_.info();
		if (double(i.kv_used_bytes) > kIdleShare * double(i.kv_budget_bytes)) pool_.drop_oldest();
	}
	if (const kvrun_status s = kvrun_batch_step(batch_.get(), nullptr); s != KVRUN_OK)
		return fail_all(engine_error(s, kvrun_last_error()));
	const bool shared = n_under_way() > 1 || pool_.size() > 0;
	// not std::ranges: clang 14 cannot compile libstdc++ 12's version
	const auto ended = std::stable_partition(
	    active_.begin(), active_.end(), [this](const auto& a) { return !kvrun_batch_is_done(batch_.get(), a->id); });
	std::vector<std::unique_ptr<Active>> done(std::make_move_iterator(ended), std::make_move_iterator(active_.end()));
	active_.erase(ended, active_.end());
	for (auto& a : done) finish(std::move(a), shared);
}

void Generator::finish(std::unique_ptr<Active> a, bool shared) {
	Ended& ended = a->ended;
	Job& job = a->job;
	a->status = kvrun_batch_take(batch_.get(), a->id, &ended.result);
	a->message = kvrun_last_error();
	a->cancelled = job.listener->gone() && (a->status == KVRUN_EUSER || a->status == KVRUN_ECANCELLED);
	// a restart must repeat what was passed on: impossible if a reused session held tokens compressed earlier
	const bool repeatable = job.passed_on == 0 || a->fresh;
	if (a->status == KVRUN_ENOMEM && shared && repeatable) return begin_again(*a);
	wait_for_memory_ = false;
	if (a->over && a->status == KVRUN_EUSER && !a->cancelled)
		a->status = KVRUN_OK, ended.result.reason = KVRUN_STOP_LENGTH;
	// nothing can free memory: the text so far is the answer
	const bool full = a->status == KVRUN_ENOMEM && job.passed_on;
	if (full) a->status = KVRUN_OK, ended.result.reason = KVRUN_STOP_CONTEXT;
	ended.reused = a->reused;
	ended.policy = job.kv;
	ended.kv = session_bytes(a->session.get());
	if (job.named && a->has_session()) return save(std::move(a));
	settle(*a);
}

void Generator::save(std::unique_ptr<Active> a) {
	a->ended.session = a->job.named->name();
	saving_.push_back(std::move(a));
	saver_.post([this, a = saving_.back().get()] {
		a->keep();
		{
			std::lock_guard lock(mutex_);
			saved_.push_back(a);
		}
		wake_.notify_all();
	});
}

void Generator::settle_saved() {
	std::vector<Active*> saved;
	{
		std::lock_guard lock(mutex_);
		saved = saved_;
		saved_.clear();
	}
	for (Active* s : saved) {
		const auto at = std::ranges::find(saving_, s, &std::unique_ptr<Active>::get);
		const std::unique_ptr<Active> a = std::move(*at);
		saving_.erase(at);
		wait_for_memory_ = false;
		settle(*a);
	}
}

void Generator::settle(Active& a) {
	Job& job = a.job;
	pool_.prompt_was_read(a.ended.result.prompt_cached, a.ended.result.prefill_seconds);
	if (a.has_session()) pool_.put({job.kv, job.scales}, std::move(a.session), job.named.get());
	{
		std::lock_guard lock(mutex_);
		stats_.prompt_tokens += a.ended.result.prompt_cached;
		stats_.reused_tokens += a.ended.reused;
		stats_.answer_tokens += a.ended.result.answer_tokens;
		stats_.prompt_seconds += a.ended.result.prefill_seconds;
		stats_.answer_seconds += a.ended.result.decode_seconds;
		++(a.cancelled ? stats_.cancelled : a.status == KVRUN_OK ? stats_.answers : stats_.failed);
	}
	job.named.reset(); // the conversation's next request may start at once
	publish();         // before the client can query it
	if (a.cancelled) return;
	try {
		if (a.status != KVRUN_OK) {
			a.rethrow();
			throw engine_error(a.status == KVRUN_ENOMEM ? KVRUN_ECONTEXT : a.status, a.message);
		}
		if (!a.over && a.ended.result.reason != KVRUN_STOP_STRING) a.show_tokens(SIZE_MAX);
		job.listener->end(a.ended);
	} catch (const ApiError& e) { job.listener->fail(e); } catch (const StatusError& e) {
		job.listener->fail(engine_error(e.status, e.what()));
	} catch (const std::exception& e) { job.listener->fail(ApiError(500, e.what())); }
}

// An answer that runs out of memory frees its session and restarts when another answer has ended. The same seed
// gives the same tokens, so its listener receives only the text that it does not have yet.
void Generator::begin_again(Active& a) {
	a.session = SessionHandle();
	wait_for_memory_ = !pool_.drop_oldest();
	std::lock_guard lock(mutex_);
	queue_.push_front(std::move(a.job));
}

void Generator::fail_all(const ApiError& e) {
	while (!active_.empty()) {
		const std::unique_ptr<Active> a = std::move(active_.back());
		active_.pop_back();
		kvrun_batch_take(batch_.get(), a->id, nullptr);
		a->job.listener->fail(e);
	}
	wait_for_memory_ = false;
	std::deque<Job> queue;
	{
		std::lock_guard lock(mutex_);
		queue.swap(queue_);
		wait_for_scales_ = false;
	}
	for (const Job& j : queue) j.listener->fail(e);
	model_.adapters().forget();
	publish();
}

void Generator::publish() {
	const SessionBytes idle = pool_.bytes();
	std::vector<SlotInfo> slots;
	SessionBytes active;
	const auto add = [&](const Active& a, bool saving) {
		// not read from the session, which the saver may hold for long
		slots.push_back({saving, a.job.kv, a.job.named ? a.job.named->name() : "", uint32_t(a.job.prompt.size()),
		                 a.reused, uint32_t(a.tokens), saving ? a.ended.kv : session_bytes(a.session.get()),
		                 saving ? kvrun_fetch_info KVRUN_FETCH_INFO_INIT : fetch_info(a.session.get())});
		active += slots.back().kv;
	};
	for (const auto& a : active_) add(*a, false);
	for (const auto& a : saving_) add(*a, true);
	std::lock_guard lock(mutex_);
	stats_.active = uint32_t(n_under_way()), stats_.queued = uint32_t(n_waiting());
	stats_.idle = uint32_t(pool_.size()), stats_.idle_bytes = idle;
	stats_.active_bytes = active, stats_.slots = std::move(slots);
}

} // namespace kvrun::serve
