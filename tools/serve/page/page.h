// The page that people chat on: one file without links to others.
#pragma once
#include "tools/serve/http.h"

namespace kvrun::serve {

// The page as a response. Its scripts and styles are the only ones that a browser runs: each response has a nonce.
Response page_response();

} // namespace kvrun::serve
