// HTTP for the model hub, by WinHTTP: TLS, certificates and proxies are Windows' own.
#include "engine/core/error.h"
#include "engine/core/system/wide.h"
#include "tools/hub/http.h"
#include "tools/hub/http_header.h"
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <winhttp.h>

namespace kvrun {
namespace {

constexpr size_t kLongestText = size_t(32) << 20;
constexpr int kMostRedirects = 10;

struct HttpHandle {
	HINTERNET h = nullptr;
	explicit HttpHandle(HINTERNET handle) : h(handle) {}
	~HttpHandle() { close(); }
	HttpHandle(const HttpHandle&) = delete;
	void close() { // another thread may call it, and ends a call that waits for data
		if (const HINTERNET was = std::exchange(h, nullptr)) WinHttpCloseHandle(was);
	}
};

std::string words_of(DWORD error) {
	switch (error) {
	case ERROR_WINHTTP_NAME_NOT_RESOLVED: return "the host's name is not known";
	case ERROR_WINHTTP_CANNOT_CONNECT: return "no connection can be made";
	case ERROR_WINHTTP_TIMEOUT: return "no byte came for too long";
	case ERROR_WINHTTP_CONNECTION_ERROR: return "the connection was cut";
	case ERROR_WINHTTP_SECURE_FAILURE: return "the server's certificate is not trusted";
	default: return fmt::format("error {} of Windows", error);
	}
}

std::string header_of(HINTERNET request, DWORD which) {
	std::wstring text(8192, 0);
	DWORD bytes = DWORD(text.size() * sizeof(wchar_t));
	if (!WinHttpQueryHeaders(request, which, WINHTTP_HEADER_NAME_BY_INDEX, text.data(), &bytes,
	                         WINHTTP_NO_HEADER_INDEX))
		return {};
	return sys::narrow({text.data(), bytes / sizeof(wchar_t)});
}

struct Address {
	std::wstring host, path;
	INTERNET_PORT port = 0;
	bool secure = false;
	bool read(const std::string& url) {
		URL_COMPONENTS parts{};
		parts.dwStructSize = sizeof parts;
		parts.dwHostNameLength = parts.dwUrlPathLength = parts.dwExtraInfoLength = DWORD(-1);
		const std::wstring text = sys::wide(url);
		if (!WinHttpCrackUrl(text.c_str(), DWORD(text.size()), 0, &parts)) return false;
		host.assign(parts.lpszHostName, parts.dwHostNameLength);
		path.assign(parts.lpszUrlPath, parts.dwUrlPathLength);
		path.append(parts.lpszExtraInfo, parts.dwExtraInfoLength);
		port = parts.nPort, secure = parts.nScheme == INTERNET_SCHEME_HTTPS;
		return true;
	}
};

// Where a redirect from `from` leads; empty: nowhere. No redirect leads from https to http.
std::string redirect_of(const std::string& location, const std::string& from) {
	const bool secure = from.starts_with("https:");
	if (location.starts_with("https://") || (!secure && location.starts_with("http://"))) return location;
	const size_t host_end = from.find('/', from.find("//") + 2);
	return location.starts_with("/") && !location.starts_with("//") ? from.substr(0, host_end) + location : "";
}

// Ends a request as soon as the caller does not want it any more.
class Watch {
 public:
	Watch(HttpHandle& request, const std::function<bool()>& go_on) {
		if (go_on)
			thread_ = std::thread([this, &request, &go_on] {
				for (; !done_; std::this_thread::sleep_for(std::chrono::milliseconds(50)))
					if (!go_on()) return request.close(), stopped_ = true, void();
			});
	}
	~Watch() { end(); }
	bool end() { // true: it was ended
		done_ = true;
		if (thread_.joinable()) thread_.join();
		return stopped_;
	}

 private:
	std::atomic<bool> done_ = false, stopped_ = false;
	std::thread thread_;
};

// One request without redirects. The next address in `url`; unchanged: this was the last answer.
HttpReply ask(std::string& url, const std::string& token, const RangeRequest* range) {
	HttpReply reply;
	const auto failed = [&](DWORD error) {
		reply.error = words_of(error);
		reply.unreachable = error == ERROR_WINHTTP_NAME_NOT_RESOLVED || error == ERROR_WINHTTP_CANNOT_CONNECT;
		return reply;
	};
	static const HttpHandle session(
	    WinHttpOpen(L"kvrun/" KVRUN_VERSION, WINHTTP_ACCESS_TYPE_AUTOMATIC_PROXY, nullptr, nullptr, 0));
	Address to;
	if (!session.h || !to.read(url)) return failed(GetLastError());
	const HttpHandle connection(WinHttpConnect(session.h, to.host.c_str(), to.port, 0));
	HttpHandle request(connection.h ? WinHttpOpenRequest(connection.h, L"GET", to.path.c_str(), nullptr, nullptr,
	                                                     nullptr, to.secure ? WINHTTP_FLAG_SECURE : 0)
	                                : nullptr);
	if (!request.h) return failed(GetLastError());
	DWORD off = WINHTTP_DISABLE_REDIRECTS | WINHTTP_DISABLE_COOKIES;
	WinHttpSetOption(request.h, WINHTTP_OPTION_DISABLE_FEATURE, &off, sizeof off);
	const int patience = int(range ? range->patience_s : 30) * 1000;
	WinHttpSetTimeouts(request.h, 20'000, 20'000, patience, patience);
	std::string headers;
	if (!token.empty()) headers += "Authorization: Bearer " + token + "\r\n";
	if (range) headers += fmt::format("Range: bytes={}-{}\r\n", range->from, range->to - 1);
	if (!headers.empty())
		WinHttpAddRequestHeaders(request.h, sys::wide(headers).c_str(), DWORD(-1), WINHTTP_ADDREQ_FLAG_ADD);
	const HINTERNET h = request.h;
	Watch watch(request, range ? range->go_on : nullptr);
	if (!WinHttpSendRequest(h, nullptr, 0, nullptr, 0, 0, 0) || !WinHttpReceiveResponse(h, nullptr)) {
		const DWORD error = GetLastError();
		return watch.end() ? reply : failed(error);
	}
	DWORD status = 0, size = sizeof status;
	WinHttpQueryHeaders(h, WINHTTP_QUERY_STATUS_CODE | WINHTTP_QUERY_FLAG_NUMBER, nullptr, &status, &size, nullptr);
	reply.status = long(status);
	if (status >= 301 && status <= 308 && status != 304) {
		const std::string next = redirect_of(header_of(h, WINHTTP_QUERY_LOCATION), url);
		if (!next.empty()) return url = next, reply;
	}
	reply.next = next_link(header_of(h, WINHTTP_QUERY_LINK));
	reply.first = status == 206 ? first_of_range(header_of(h, WINHTTP_QUERY_CONTENT_RANGE)) : 0;
	const bool is_error = status >= 300, is_data = range && !is_error;
	if (is_data && status == 206 && reply.first != range->from)
		return reply.error = "the answer is not what was asked for", reply;
	std::array<char, 65536> buffer;
	for (bool begun = false;;) {
		DWORD n = 0;
		if (!WinHttpReadData(h, buffer.data(), DWORD(buffer.size()), &n)) {
			const DWORD error = GetLastError();
			return watch.end() ? reply : failed(error);
		}
		if (n == 0) return reply;
		if (is_error) { // its status counts, however long its text is
			if (!add_error_text(reply.body, {buffer.data(), n})) return reply;
			continue;
		}
		if (!is_data) {
			if (reply.body.size() + n > kLongestText)
				return reply.error = "the answer is not what was asked for", reply;
			reply.body.append(buffer.data(), n);
			continue;
		}
		if (!std::exchange(begun, true)) range->begin(reply.first);
		if (!range->data(std::as_bytes(std::span(buffer.data(), n)))) return reply;
	}
}

HttpReply follow(std::string url, std::string token, const RangeRequest* range) {
	for (int i = 0; i <= kMostRedirects; ++i) {
		const std::string before = url;
		HttpReply reply = ask(url, token, range);
		if (url == before) return reply;
		Address from, to;
		if (!from.read(before) || !to.read(url) || from.host != to.host) token.clear(); // for the hub alone
	}
	HttpReply reply;
	reply.error = "the hub redirects too often";
	return reply;
}

} // namespace

const char* why_no_http() { return ""; }

HttpReply get_text(const std::string& url, const std::string& token) { return follow(url, token, nullptr); }

HttpReply get_range(const RangeRequest& r) { return follow(r.url, r.token, &r); }

} // namespace kvrun
