// An answer as a stream of server-sent events.
#pragma once
#include "tools/serve/error.h"
#include "tools/serve/id.h"
#include <chrono>

namespace kvrun::serve {

// Used by one thread at a time.
class EventStream {
 public:
	// ping_s: seconds without an event after which reading() sends a comment.
	EventStream(std::shared_ptr<Responder> out, double ping_s) : out_(std::move(out)), ping_s_(ping_s) {}
	void begin(); // sends the response head; later calls do nothing
	bool begun() const { return begun_; }
	void data(const Json&);                    // an event without a name
	void event(const char* name, const Json&); // an event with a name
	void done();                               // [DONE], the last event in OpenAI's older APIs
	// Sends the prompt's progress as a comment if nothing was sent for ping_s: clients and proxies then see that the
	// connection is alive.
	void reading(double share, double seconds_left);
	void end();
	void fail(const ApiError&); // as the response if nothing was sent yet, else as the last event
	Responder& out() const { return *out_; }

 private:
	void send(std::string);
	const std::shared_ptr<Responder> out_;
	const double ping_s_;
	bool begun_ = false;
	std::chrono::steady_clock::time_point last_; // time of the last event
};

int64_t unix_time(); // in seconds

} // namespace kvrun::serve
