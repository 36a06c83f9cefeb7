// How much a command prints besides its result.
#include "tools/args_says.h"
#include "engine/core/log.h"

namespace kvrun {

void add_says(Command& c) {
	struct Says {
		bool quiet = false, verbose = false, ignored = false;
	};
	const auto says = std::make_shared<Says>();
	add_flag(c, "-q,--quiet", says->quiet, "print the result and errors alone: no statistics, no progress");
	add_flag(c, "-v,--verbose", says->verbose, "print what the engine does, as KVRUN_LOG=1");
	add_flag(c, "--jinja", says->ignored, "chat templates are always Jinja")->group(kIgnoredGroup);
	add_flag(c, "--no-conversation,-no-cnv", says->ignored, "kvrun chat converses, kvrun run never does")
	    ->group(kIgnoredGroup);
	c.before_run.push_back([says] {
		if (says->quiet) be_quiet();
		if (says->verbose && !logs_at(1)) set_log_sink(stderr_sink, 1);
	});
}

} // namespace kvrun
