// doctest main of the tests that open no device. Exit code 77: nothing failed, and some parts could not run here.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/skip.h"
#include <doctest/doctest.h>

int main(int argc, char** argv) { return kvrun::exit_code(doctest::Context(argc, argv).run()); }
