// doctest main of the tests that open no device. Exit code 77: nothing failed, and some parts could not run here.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/sanitizer.h"
#include "tests/support/skip.h"
#include <doctest/doctest.h>

int main(int argc, char** argv) {
	keep_driver_loaded();
	return kvrun::exit_code(doctest::Context(argc, argv).run());
}
