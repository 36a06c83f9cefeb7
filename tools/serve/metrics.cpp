// Counters of the server, in the text format of Prometheus.
#include "tools/serve/metrics.h"
#include <algorithm>
#include <sstream>

namespace kvrun::serve {

void RequestCounts::add(const std::string& route, int status, double seconds) {
	std::lock_guard lock(mutex_);
	Count& c = counts_[{route, status}];
	++c.n;
	c.seconds += seconds;
}

std::string RequestCounts::text() const {
	std::lock_guard lock(mutex_);
	std::ostringstream n, seconds;
	n << "# HELP kvrun_requests_total Requests answered; status 499: the client had gone.\n"
	     "# TYPE kvrun_requests_total counter\n";
	seconds << "# HELP kvrun_request_seconds_total Time from header to answer.\n"
	           "# TYPE kvrun_request_seconds_total counter\n";
	for (const auto& [key, c] : counts_) {
		const std::string labels = "{route=\"" + key.first + "\",status=\"" + std::to_string(key.second) + "\"} ";
		n << "kvrun_requests_total" << labels << c.n << "\n";
		seconds << "kvrun_request_seconds_total" << labels << c.seconds << "\n";
	}
	return n.str() + seconds.str();
}

// The same numbers by the names of llama.cpp's server, for dashboards that are made for it.
static void add_by_llama_names(std::ostream& out, const GeneratorStats& s, const kvrun_engine_info& engine) {
	const auto rate = [](uint64_t n, double seconds) { return seconds > 0 ? double(n) / seconds : 0; };
	const auto share = [](uint64_t part, uint64_t of) { return of ? double(part) / double(of) : 0; };
	const struct {
		const char *name, *type, *help;
		double value;
	} rows[] = {
	    {"prompt_tokens_total", "counter", "Prompt tokens read.", double(s.prompt_tokens)},
	    {"prompt_seconds_total", "counter", "Time that they took.", s.prompt_seconds},
	    {"tokens_predicted_total", "counter", "Tokens generated.", double(s.answer_tokens)},
	    {"tokens_predicted_seconds_total", "counter", "Time that they took.", s.answer_seconds},
	    {"prompt_tokens_seconds", "gauge", "Prompt tokens read in a second.", rate(s.prompt_tokens, s.prompt_seconds)},
	    {"predicted_tokens_seconds", "gauge", "Tokens of an answer in a second.",
	     rate(s.answer_tokens, s.answer_seconds)},
	    {"requests_processing", "gauge", "Answers under way.", double(s.active)},
	    {"requests_deferred", "gauge", "Answers that wait for others to end.", double(s.queued)},
	    {"kv_cache_usage_ratio", "gauge", "Share of the memory for KV caches that is allocated.",
	     share(engine.kv_used_bytes, engine.kv_budget_bytes)},
	};
	out.precision(12);
	for (const auto& r : rows)
		out << "# HELP llamacpp:" << r.name << " " << r.help << "\n# TYPE llamacpp:" << r.name << " " << r.type
		    << "\nllamacpp:" << r.name << " " << r.value << "\n";
}

std::string metrics_text(const RequestCounts& counts, const GeneratorStats& s, const kvrun_engine_info& engine,
                         const HttpServer& server) {
	std::ostringstream out;
	const auto add = [&](const char* name, const char* type, const char* help, uint64_t value) {
		out << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n"
		    << name << " " << value << "\n";
	};
	out << counts.text();
	add("kvrun_connections", "gauge", "Open connections.", server.n_connections());
	add("kvrun_body_bytes", "gauge", "Bodies of requests that are received, read or wait.", server.body_bytes());
	add("kvrun_answers_active", "gauge", "Answers under way.", s.active);
	add("kvrun_requests_queued", "gauge", "Answers that wait for others to end; a request with n has n.", s.queued);
	add("kvrun_sessions_idle", "gauge", "Sessions kept for prompts that begin like theirs.", s.idle);
	add("kvrun_answers_total", "counter", "Answers that came to their end.", s.answers);
	add("kvrun_answers_cancelled_total", "counter", "Answers whose client had gone.", s.cancelled);
	add("kvrun_answers_failed_total", "counter", "Answers that failed.", s.failed);
	add("kvrun_prompt_tokens_total", "counter", "Prompt tokens read.", s.prompt_tokens);
	add("kvrun_reused_tokens_total", "counter", "Prompt tokens that another session had.", s.reused_tokens);
	add("kvrun_answer_tokens_total", "counter", "Tokens generated.", s.answer_tokens);
	add("kvrun_kv_budget_bytes", "gauge", "Memory for the KV caches.", engine.kv_budget_bytes);
	add("kvrun_kv_used_bytes", "gauge", "Of it, allocated.", engine.kv_used_bytes);
	SessionBytes b = s.idle_bytes; // pages shared by forks are counted in both
	b += s.active_bytes;
	out << "# HELP kvrun_kv_bytes KV caches by kind, of answers under way and of idle sessions.\n"
	       "# TYPE kvrun_kv_bytes gauge\n";
	for (const auto& [kind, bytes] : {std::pair<const char*, uint64_t>{"f16", b.f16},
	                                  {"codes", b.codes},
	                                  {"params", b.params},
	                                  {"overhead", b.overhead}})
		out << "kvrun_kv_bytes{kind=\"" << kind << "\"} " << bytes << "\n";
	add_by_llama_names(out, s, engine);
	return out.str();
}

} // namespace kvrun::serve
