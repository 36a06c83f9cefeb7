# `cpack -G DEB` in the build folder makes kvrun_VERSION_ARCH.deb: program, library, header.
set(CPACK_PACKAGE_NAME kvrun)
set(CPACK_PACKAGE_VENDOR "the kvrun authors")
set(CPACK_PACKAGE_CONTACT "the kvrun authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Large language models on any GPU, with a packed KV cache")
set(CPACK_PACKAGE_DESCRIPTION
	"Runs GGUF models on Vulkan devices. The key/value cache is stored in 1 to 16 bits per value, so that long
conversations fit the memory of a GPU: 32768 tokens of SmolLM2 take 720 MiB in f16, and 101 MiB with --kv turbo2.
A program with a chat and a server of OpenAI's API, and a library with a C interface.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/package_folders.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_check.cmake)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libvulkan1) # opened at run time
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS mesa-vulkan-drivers)
include(CPack)
