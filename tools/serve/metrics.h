// Counters of the server, in the text format of Prometheus.
#pragma once
#include "tools/serve/generator.h"
#include <map>

namespace kvrun::serve {

// Any thread may call.
class RequestCounts {
 public:
	void add(const std::string& route, int status, double seconds);
	std::string text() const;

 private:
	struct Count {
		uint64_t n = 0;
		double seconds = 0;
	};
	mutable std::mutex mutex_;
	std::map<std::pair<std::string, int>, Count> counts_; // by route and status
};

std::string metrics_text(const RequestCounts&, const GeneratorStats&, const kvrun_engine_info&, const HttpServer&);

} // namespace kvrun::serve
