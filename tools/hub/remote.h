// What a repository of the hub holds.
#pragma once
#include "tools/hub/names.h"
#include <string>
#include <vector>

namespace kvrun {

struct RemoteRepo {
	std::string repo, commit;     // "USER/REPO"; the revision `main` stands for
	std::vector<HubModel> models; // by size, one at least; files without a checksum or with a hostile name are left out
};

// Asks the hub. Throws Error{NotFound} where there is no such repository or no GGUF file in it, Error{Io} where the hub
// cannot be reached, answers with an error, or wants a token.
RemoteRepo read_repo(const std::string& repo);

std::string file_url(const RemoteRepo&, const HubFile&);
// "error 503 of huggingface.co", or what a user can do about it. what: "the repository USER/REPO".
struct HttpReply;
[[noreturn]] void fail_reply(const HttpReply&, const std::string& what);

} // namespace kvrun
