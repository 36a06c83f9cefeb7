// How much a command prints besides its result.
#include "tools/args_says.h"
#include "engine/core/log.h"

namespace kvrun {

void add_says(Command& c) {
	struct Says {
		bool quiet = false, verbose = false, ignored = false;
	};
	const auto says = std::make_shared<Says>();
	add_flag(c, "-q,--quiet", says->quiet, "print the result, warnings and errors alone: no statistics, no progress");
	add_flag(c, "-v,--verbose", says->verbose,
	         "print what is loaded and where it lies, the cache, and statistics; KVRUN_LOG=2 and 3: more");
	add_flag(c, "--jinja", says->ignored, "chat templates are always Jinja")->group(kIgnoredGroup);
	add_flag(c, "--no-conversation,-no-cnv", says->ignored, "kvrun chat converses, kvrun run never does")
	    ->group(kIgnoredGroup);
	// before the others, which may print more
	c.before_run.insert(c.before_run.begin(), [says] {
		if (says->quiet) be_quiet();
		if (says->verbose && !logs_at(1)) set_log_sink(stderr_sink, 1);
	});
}

bool is_verbose() { return logs_at(1); }

} // namespace kvrun
