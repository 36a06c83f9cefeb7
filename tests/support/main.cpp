// doctest main of the tests that open no device. Exit code 77: nothing failed, and some parts could not run here.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/sanitizer.h"
#include "tests/support/skip.h"
#include <doctest/doctest.h>

int main(int argc, char** argv) {
	keep_driver_loaded();
	doctest::Context context(argc, argv);
	context.setOption("duration", true); // in the log of ctest, Testing/Temporary/LastTest.log
	return kvrun::exit_code(context.run());
}
