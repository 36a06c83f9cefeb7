// HTTP for the model hub, by libcurl: a text, or a part of a file. Proxies are those of the environment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace kvrun {

struct HttpReply {
	long status = 0;          // 0: there was none
	std::string error;        // why the transfer did not end well; empty: it did
	bool unreachable = false; // nobody answered: no network, or no server
	std::string body;         // of get_text(); of an error's answer, its beginning
	std::string next;         // address of the next page (Link: rel="next"); empty: the last
	uint64_t first = 0;       // byte of the file with which the data began (206), else 0
};

// Why this build cannot fetch; empty: it can.
const char* why_no_http();

// token: sent to the address' own host alone, whatever is redirected; empty: none.
HttpReply get_text(const std::string& url, const std::string& token);

struct RangeRequest {
	std::string url, token;
	uint64_t from = 0, to = 0; // bytes [from, to) of the file
	// Called once before the data with the byte it begins with: `from`, or 0 where the server cannot continue.
	std::function<void(uint64_t first)> begin;
	std::function<bool(std::span<const std::byte>)> data; // false: stop
	std::function<bool()> go_on;                          // asked several times a second; false: stop
	long patience_s = 30;                                 // without a byte; longer is a cut
};
HttpReply get_range(const RangeRequest&);

} // namespace kvrun
