// Windows: kvrun fetches no models there yet.
#include "engine/core/error.h"
#include "tools/hub/pull.h"

namespace kvrun {

std::string pull_model(const std::string& name, bool) {
	fail(Code::Unsupported, "{}: kvrun fetches no models on Windows yet; download the .gguf file and give its path",
	     name);
}
std::string model_of_hub(const std::string& name) { return pull_model(name, /*must_run=*/true); }

} // namespace kvrun
