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
	return out.str();
}

} // namespace kvrun::serve
