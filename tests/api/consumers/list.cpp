// A C++ consumer by find_package or add_subdirectory: lists devices.
#include <kvrun.h>

#include <iostream>

int main() {
	kvrun_devices* list = nullptr;
	if (kvrun_devices_list(&list, nullptr) != KVRUN_OK) {
		std::cerr << kvrun_last_error() << "\n";
		return 1;
	}
	for (size_t i = 0; i < kvrun_devices_count(list); ++i) {
		kvrun_device_info d = KVRUN_DEVICE_INFO_INIT;
		if (kvrun_devices_get(list, i, &d) == KVRUN_OK) std::cout << d.backend << ": " << d.name << "\n";
	}
	kvrun_devices_free(list);
	std::cout << "kvrun " << kvrun_version() << "\n";
}
