// Tests of the C API.
#define DOCTEST_CONFIG_IMPLEMENT
#include "../support/sanitizer.h"
#include <doctest/doctest.h>

int main(int argc, char** argv) {
	keep_driver_loaded();
	return doctest::Context(argc, argv).run();
}
