// Lists the models of a repository on the hub.
#include "tools/hub/remote.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/utf8.h"
#include "tools/hub/checksum.h"
#include "tools/hub/folders.h"
#include "tools/hub/http.h"
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMostPages = 100; // of the list of files

std::string host() {
	const std::string e = hub_endpoint();
	return e.substr(e.find("://") + 3);
}

std::string path_escaped(std::string_view path) { // for an address; slashes are kept
	std::string out;
	for (const char c : path)
		if (std::isalnum(uint8_t(c)) || std::string_view("-._~/").find(c) != std::string_view::npos)
			out += c;
		else
			out += fmt::format("%{:02X}", uint8_t(c));
	return out;
}

bool is_hex(const std::string& s, size_t digits) {
	return s.size() == digits &&
	       std::ranges::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Json ask(const std::string& url, const std::string& what, std::string* next = nullptr) {
	const HttpReply r = get_text(url, hub_token());
	if (!r.error.empty() || r.status != 200) fail_reply(r, what);
	Json out;
	std::string why;
	if (!read_json(r.body, {.depth = 64, .values = size_t(4) << 20, .keys = size_t(1) << 20, .stop = {}}, out, why))
		fail(Code::Io, "{} answers about {} with something that is not JSON ({}); is HF_ENDPOINT a model hub?",
		     one_line(host()), what, one_line(why));
	if (next) *next = r.next;
	return out;
}

std::string text_of(const Json& j, const char* key) {
	return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

// A file of the tree; its path is empty if it cannot be fetched.
HubFile file_of(const Json& entry) {
	HubFile f;
	if (text_of(entry, "type") != "file" || !entry.contains("size") || !entry["size"].is_number_unsigned()) return {};
	f.bytes = entry["size"].get<uint64_t>();
	f.git_id = text_of(entry, "oid");
	if (entry.contains("lfs")) f.sha256 = text_of(entry["lfs"], "oid");
	if (!is_hex(f.git_id, 40)) f.git_id.clear();
	if (!is_hex(f.sha256, 64)) f.sha256.clear();
	const std::string path = text_of(entry, "path");
	if (f.bytes > 0 && f.bytes < uint64_t(1) << 50 && is_safe_path(path) && !content_name(f).empty()) f.path = path;
	return f;
}

} // namespace

std::string content_name(const HubFile& f) { return f.sha256.empty() ? f.git_id : f.sha256; }

void fail_reply(const HttpReply& r, const std::string& what) {
	const std::string hub = one_line(host());
	if (r.unreachable)
		fail(Code::Io,
		     "{} cannot be reached ({}); without network: copy a .gguf file here and give its path; behind a proxy: "
		     "set https_proxy",
		     hub, one_line(r.error));
	if (!r.error.empty()) fail(Code::Io, "{}: {}: {}", hub, what, one_line(r.error));
	const bool token = !hub_token().empty();
	switch (r.status) {
	case 401:
		if (!token)
			fail(Code::Io, "{}: {} is not there, or is for members: set HF_TOKEN to a token of yours", hub, what);
		fail(Code::Io, "{} refuses the token (HF_TOKEN) for {}, or it is not there", hub, what);
	case 403:
		fail(Code::Io, "{} does not let you read {}: accept its terms on its page{}", hub, what,
		     token ? "" : ", and set HF_TOKEN");
	case 404: fail(Code::NotFound, "{} has no such thing as {}", hub, what);
	case 429: fail(Code::Io, "{} wants fewer requests (429); wait a little{}", hub, token ? "" : ", or set HF_TOKEN");
	default: fail(Code::Io, "{} answers {} with error {}; try again later", hub, what, r.status);
	}
}

std::string file_url(const RemoteRepo& r, const HubFile& f) {
	return fmt::format("{}/{}/resolve/{}/{}", hub_endpoint(), r.repo, r.commit, path_escaped(f.path));
}

RemoteRepo read_repo(const std::string& repo) {
	if (*why_no_http()) fail(Code::Unsupported, "{}; copy a .gguf file here and give its path", why_no_http());
	if (hub_is_offline())
		fail(Code::Io,
		     "no hub is asked (--offline, or HF_HUB_OFFLINE is set), and {} is not here; copy a .gguf file here and "
		     "give its path",
		     one_line(repo));
	const std::string api = hub_endpoint() + "/api/models/" + repo, what = "the repository " + repo;
	RemoteRepo out{repo, text_of(ask(api + "/revision/main", what), "sha"), {}};
	if (!is_hex(out.commit, 40)) fail(Code::Io, "{} names no commit of {}", one_line(host()), what);
	std::vector<HubFile> files;
	size_t left_out = 0, pages = 0;
	const std::string tree = api + "/tree/" + out.commit;
	for (std::string url = tree + "?recursive=true", next; !url.empty(); url = next) {
		// the next page must be on the same hub
		if (++pages > kMostPages || !url.starts_with(tree))
			fail(Code::Io, "{}: the list of files of {} does not end", one_line(host()), what);
		const Json page = ask(url, what, &next);
		if (!page.is_array()) fail(Code::Io, "{}: the list of files of {} is no list", one_line(host()), what);
		for (const Json& entry : page) {
			HubFile f = file_of(entry);
			if (!f.path.empty())
				files.push_back(std::move(f));
			else
				left_out += is_gguf(text_of(entry, "path"));
		}
	}
	out.models = models_of(std::move(files));
	std::erase_if(out.models, [](const HubModel& m) { // a part is missing
		const auto split = split_name(m.files.front().path);
		return split && split->count != m.files.size();
	});
	if (out.models.empty())
		fail(Code::NotFound, "{} has no GGUF file that can be fetched{}; repositories that have often end in -GGUF",
		     what, left_out ? fmt::format(" ({} have a name or a checksum that is not one)", left_out) : "");
	return out;
}

} // namespace kvrun
