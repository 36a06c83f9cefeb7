// Lists the models of a repository on the hub.
#pragma once
#include "tools/hub/names.h"
#include <string>
#include <vector>

namespace kvrun {

struct RemoteRepo {
	std::string repo, commit;     // "USER/REPO"; the commit of `main`
	std::vector<HubModel> models; // by size, at least one; without files that lack a checksum or have an unsafe name
};

// Asks the hub. Throws Error{NotFound} if the repository does not exist or has no GGUF file, Error{Io} if the hub
// cannot be reached, answers with an error, or requires a token.
RemoteRepo read_repo(const std::string& repo);

std::string file_url(const RemoteRepo&, const HubFile&);
// "error 503 of huggingface.co", or advice. what: "the repository USER/REPO".
struct HttpReply;
[[noreturn]] void fail_reply(const HttpReply&, const std::string& what);

} // namespace kvrun
