// A job in a process of its own: a copy of this one where the system has fork(), else this program with the same
// arguments, which runs that job alone.
#pragma once
#include "tools/compare/compare.h"

namespace kvrun::comparison {

void write_part(const std::string& part, const Job&); // runs the job here, and writes its result
// Runs the job in another process, with `log` as its stderr; calls `tick` until it ends. Returns how it ended; empty:
// with exit code 0.
std::string run_apart(const Job&, const std::string& part, const std::string& log, const std::function<void()>& tick);
std::string only_job(); // the name of the job that this process was started for; empty: this is the comparison

} // namespace kvrun::comparison
