// Preloaded into kvrun serve by a test, to imitate a slow disk: each fsync() waits for a byte from the FIFO in
// KVRUN_TEST_FSYNC.
#include <cstdlib>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int fsync(int fd) {
	if (const char* fifo = std::getenv("KVRUN_TEST_FSYNC")) {
		const int waits = open(fifo, O_RDONLY | O_CLOEXEC);
		char byte;
		if (waits < 0 || read(waits, &byte, 1) < 0) return -1;
		close(waits);
	}
	return int(syscall(SYS_fsync, fd));
}
