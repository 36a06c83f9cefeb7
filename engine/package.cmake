# `cpack -G DEB` in the build folder makes kvrun_VERSION_ARCH.deb: program, library, header.
set(CPACK_PACKAGE_NAME kvrun)
set(CPACK_PACKAGE_VENDOR "the kvrun authors")
set(CPACK_PACKAGE_CONTACT "the kvrun authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Large language models on any GPU, with a packed KV cache")
set(CPACK_PACKAGE_DESCRIPTION
	"Runs GGUF models on Vulkan devices. The key/value cache is stored in 1, 2 or 4 bits per element, so that
long conversations fit the memory of a GPU. A program, and a library with a C interface.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libvulkan1) # opened at run time
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS mesa-vulkan-drivers)
include(CPack)
