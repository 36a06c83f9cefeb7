// doctest keeps objects per thread. mingw-w64 frees the memory of thread_local objects before their destructors run
// (GCC bug 80816), so that a thread that used doctest frees whatever lies there by then. Here the destructors run
// first: winpthreads ends the keys of a thread in the order of their creation, and this one is made before that of the
// memory.
#include <pthread.h>

namespace {

struct Entry {
	void (*destroy)(void*);
	void* object;
	Entry* before;
};
pthread_key_t entries;

void end_thread(void* last) {
	for (auto* e = static_cast<Entry*>(last); e;) {
		Entry* before = e->before;
		e->destroy(e->object);
		delete e;
		e = before;
	}
}
__attribute__((constructor(101))) void make_key() { pthread_key_create(&entries, end_thread); }

} // namespace

// In the place of the C++ library's, which is in an archive.
extern "C" int __cxa_thread_atexit(void (*destroy)(void*), void* object, void*) {
	auto* e = new Entry{destroy, object, static_cast<Entry*>(pthread_getspecific(entries))};
	return pthread_setspecific(entries, e);
}
