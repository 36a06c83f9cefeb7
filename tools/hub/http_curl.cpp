// HTTP for the model hub, by libcurl.
#include "engine/core/error.h"
#include "tools/hub/http.h"
#include "tools/hub/http_header.h"
#include <curl/curl.h>
#include <memory>
#include <strings.h>

namespace kvrun {
namespace {

constexpr size_t kLongestBody = size_t(32) << 20;
constexpr long kRedirects = 10;

struct Closer {
	void operator()(CURL* c) const { curl_easy_cleanup(c); }
	void operator()(curl_slist* l) const { curl_slist_free_all(l); }
};
using Handle = std::unique_ptr<CURL, Closer>;
using Headers = std::unique_ptr<curl_slist, Closer>;

struct Transfer {
	const RangeRequest* range = nullptr; // null: a text
	CURL* curl = nullptr;
	HttpReply reply;
	bool begun = false, stopped = false, refused = false;
};

std::string trimmed(std::string_view s) {
	const size_t from = s.find_first_not_of(" \t"), to = s.find_last_not_of(" \t\r\n");
	return from == s.npos ? "" : std::string(s.substr(from, to - from + 1));
}

size_t take_header(char* text, size_t size, size_t n, void* payload) {
	Transfer& t = *static_cast<Transfer*>(payload);
	const std::string_view line(text, size * n);
	if (line.starts_with("HTTP/")) t.reply.first = 0, t.reply.next.clear(); // next answer, after a redirect
	const size_t colon = line.find(':');
	if (colon == line.npos) return line.size();
	const std::string name(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
	if (strcasecmp(name.c_str(), "link") == 0) t.reply.next = next_link(value);
	if (strcasecmp(name.c_str(), "content-range") == 0) t.reply.first = first_of_range(value);
	return line.size();
}

size_t take_data(char* bytes, size_t size, size_t n, void* payload) {
	Transfer& t = *static_cast<Transfer*>(payload);
	const size_t count = size * n;
	long status = 0;
	curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &status);
	if (status >= 300) { // its status counts, however long its text is
		t.stopped = !add_error_text(t.reply.body, {bytes, count});
		return t.stopped ? 0 : count;
	}
	if (!t.range) {
		if (t.reply.body.size() + count > kLongestBody) return t.refused = true, 0;
		t.reply.body.append(bytes, count);
		return count;
	}
	if (!t.begun) {
		t.begun = true;
		if (status == 206 && t.reply.first != t.range->from) return t.refused = true, 0;
		t.range->begin(status == 206 ? t.reply.first : 0);
	}
	const bool more = t.range->data({reinterpret_cast<const std::byte*>(bytes), count});
	t.stopped = !more;
	return more ? count : 0;
}

int is_cancelled(void* payload, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
	Transfer& t = *static_cast<Transfer*>(payload);
	t.stopped |= t.range && t.range->go_on && !t.range->go_on();
	return t.stopped;
}

void check_curl(CURLcode c) {
	if (c != CURLE_OK) fail(Code::Internal, "libcurl refused an option: {}", curl_easy_strerror(c));
}

bool is_unreachable(CURLcode c) {
	return c == CURLE_COULDNT_RESOLVE_HOST || c == CURLE_COULDNT_RESOLVE_PROXY || c == CURLE_COULDNT_CONNECT;
}

HttpReply perform(const std::string& url, const std::string& token, const RangeRequest* range) {
	static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
	check_curl(started);
	const Handle curl(curl_easy_init());
	if (!curl) throw std::bad_alloc();
	Transfer t{.range = range, .curl = curl.get(), .reply = {}};
	char why[CURL_ERROR_SIZE] = {};
	const auto set = [&](CURLoption o, auto value) { check_curl(curl_easy_setopt(curl.get(), o, value)); };
	set(CURLOPT_URL, url.c_str());
	set(CURLOPT_ERRORBUFFER, why);
	set(CURLOPT_NOSIGNAL, 1L);
	set(CURLOPT_FOLLOWLOCATION, 1L);
	set(CURLOPT_MAXREDIRS, kRedirects);
	const char* protocols = url.starts_with("https:") ? "https" : "http,https"; // no redirects from https to http
	set(CURLOPT_PROTOCOLS_STR, protocols);
	set(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
	set(CURLOPT_CONNECTTIMEOUT, 20L);
	set(CURLOPT_LOW_SPEED_LIMIT, 1L);
	set(CURLOPT_LOW_SPEED_TIME, range ? range->patience_s : 30L);
	set(CURLOPT_USERAGENT, "kvrun/" KVRUN_VERSION);
	set(CURLOPT_HEADERFUNCTION, take_header);
	set(CURLOPT_HEADERDATA, &t);
	set(CURLOPT_WRITEFUNCTION, take_data);
	set(CURLOPT_WRITEDATA, &t);
	set(CURLOPT_XFERINFOFUNCTION, is_cancelled);
	set(CURLOPT_XFERINFODATA, &t);
	set(CURLOPT_NOPROGRESS, 0L);
	Headers headers;
	if (!token.empty()) { // libcurl does not send this header to another host
		headers.reset(curl_slist_append(nullptr, ("Authorization: Bearer " + token).c_str()));
		if (!headers) throw std::bad_alloc();
		set(CURLOPT_HTTPHEADER, headers.get());
	}
	std::string bytes;
	if (range) {
		bytes = fmt::format("{}-{}", range->from, range->to - 1);
		set(CURLOPT_RANGE, bytes.c_str());
	}
	const CURLcode done = curl_easy_perform(curl.get());
	curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &t.reply.status);
	if (done != CURLE_OK && !t.stopped) {
		t.reply.error = t.refused ? "the answer is not what was asked for" : *why ? why : curl_easy_strerror(done);
		t.reply.unreachable = is_unreachable(done);
	}
	return t.reply;
}

} // namespace

const char* why_no_http() { return ""; }

HttpReply get_text(const std::string& url, const std::string& token) { return perform(url, token, nullptr); }

HttpReply get_range(const RangeRequest& r) { return perform(r.url, r.token, &r); }

} // namespace kvrun
