// Windows: commands that are not there yet.
#include "engine/core/error.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/commands_setup.h"

namespace kvrun {
namespace {

void add_absent(Command& root, const char* name) {
	Command& c = add_command(root, name, "Not there on Windows yet.");
	c.run = [name] { fail(Code::Unsupported, "kvrun {} is not there on Windows yet", name); };
}

} // namespace

void add_compare(Command& root) { add_absent(root, "compare"); }
void add_doctor(Command& root) { add_absent(root, "doctor"); }

} // namespace kvrun
