// An answer as a stream of server-sent events.
#include "tools/serve/events.h"
#include <algorithm>
#include <cmath>

namespace kvrun::serve {

int64_t unix_time() {
	return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
	    .count();
}

void EventStream::begin() {
	if (std::exchange(begun_, true)) return;
	last_ = std::chrono::steady_clock::now();
	out_->begin({200, "", "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}}});
}

void EventStream::send(std::string text) {
	last_ = std::chrono::steady_clock::now();
	out_->send(std::move(text));
}

void EventStream::data(const Json& j) { send("data: " + dump(j) + "\n\n"); }
void EventStream::event(const char* name, const Json& j) {
	send(std::string("event: ") + name + "\ndata: " + dump(j) + "\n\n");
}
void EventStream::done() { send("data: [DONE]\n\n"); }

void EventStream::reading(double share, double seconds_left) {
	if (!begun_) return;
	const std::chrono::duration<double> quiet = std::chrono::steady_clock::now() - last_;
	if (quiet.count() < ping_s_) return;
	std::string text = ": prompt " + std::to_string(int(share * 100)) + " % read";
	if (seconds_left >= 1) text += ", " + std::to_string(int64_t(std::min(std::ceil(seconds_left), 1e9))) + " s left";
	send(text + "\n\n");
}

void EventStream::end() { out_->end(); }

void EventStream::fail(const ApiError& e) {
	if (!begun_) return out_->respond(error_response(e));
	data(error_json(e));
	end();
}

} // namespace kvrun::serve
