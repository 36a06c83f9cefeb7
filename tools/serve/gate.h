// Handles requests while the model is being loaded: every request gets 503 until open() is called.
#pragma once
#include "tools/serve/router.h"

namespace kvrun::serve {

class Gate final : public Handler {
 public:
	void open(Handler& routes) { routes_ = &routes; } // any thread may call

	std::optional<Response> refuse(const HttpRequest& r) override {
		if (Handler* h = routes_) return h->refuse(r);
		return error_for(r, ApiError(503, "the model is being loaded; try again later", "", "loading"));
	}
	void handle(HttpRequest r, std::shared_ptr<Responder> out) override {
		Handler* h = routes_; // refuse() let it through
		h->handle(std::move(r), std::move(out));
	}
	Response failure(const HttpRequest& r, int status, std::string_view why) override {
		return error_for(r, ApiError(status, std::string(why)));
	}
	std::vector<std::pair<std::string, std::string>> headers(const HttpRequest& r) override {
		Handler* h = routes_;
		return h ? h->headers(r) : std::vector<std::pair<std::string, std::string>>();
	}
	void finished(const HttpRequest& r, int status, double seconds, const std::string& note) override {
		if (Handler* h = routes_) h->finished(r, status, seconds, note);
	}

 private:
	std::atomic<Handler*> routes_ = nullptr;
};

} // namespace kvrun::serve
