// HTTP for the model hub, by libcurl: fetches a text, or a part of a file. Proxies come from the environment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace kvrun {

struct HttpReply {
	long status = 0;          // 0: no answer
	std::string error;        // why the transfer failed; empty: it succeeded
	bool unreachable = false; // no answer: no network, or no server
	std::string body;         // of get_text(); of an error, the beginning of the answer
	std::string next;         // address of the next page (Link: rel="next"); empty: this is the last
	uint64_t first = 0;       // position in the file of the first byte of data (status 206), else 0
};

// Why this build cannot fetch files; empty: it can.
const char* why_no_http();

// token: sent only to the host of the address, not after redirects to others; empty: none.
HttpReply get_text(const std::string& url, const std::string& token);

struct RangeRequest {
	std::string url, token;
	uint64_t from = 0, to = 0; // bytes [from, to) of the file
	// Called once before the data, with its position: `from`, or 0 if the server cannot continue a transfer.
	std::function<void(uint64_t first)> begin;
	std::function<bool(std::span<const std::byte>)> data; // false: stop
	std::function<bool()> go_on;                          // asked several times a second; false: stop
	long patience_s = 30;                                 // longest time without a byte
};
HttpReply get_range(const RangeRequest&);

} // namespace kvrun
