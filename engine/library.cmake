# libkvrun.so and libkvrun.a: all layers in one library; its only interface is engine/kvrun.h.
set(KVRUN_LAYERS kvrun_core kvrun_kv_host kvrun_backends kvrun_shaders kvrun_models kvrun_kv_device kvrun_engine
	kvrun_api)
set(layer_objects "")
foreach(layer IN LISTS KVRUN_LAYERS)
	list(APPEND layer_objects $<TARGET_OBJECTS:${layer}>)
endforeach()
if(KVRUN_HAS_CUDA)
	list(APPEND layer_objects $<TARGET_OBJECTS:kvrun_cuda_kernels>)
	set(cuda_runtime CUDA::cudart_static)
endif()
set(KVRUN_ABI 1) # KVRUN_ABI_VERSION of kvrun.h, and the number in the SONAME
set(private_libraries fmt::fmt nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH
	Threads::Threads ${CMAKE_DL_LIBS} ${cuda_runtime})

add_library(kvrun_shared SHARED ${layer_objects})
target_link_libraries(kvrun_shared PRIVATE ${private_libraries})
set(version_script ${CMAKE_CURRENT_SOURCE_DIR}/kvrun.map)
if(WIN32) # kvrun.h names what is exported
	list(APPEND private_libraries ws2_32)
	target_link_libraries(kvrun_shared PRIVATE ws2_32)
	set_target_properties(kvrun_shared PROPERTIES PREFIX "" RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
		ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
else()
	target_link_options(kvrun_shared PRIVATE LINKER:--version-script=${version_script})
endif()
# Clang's sanitizer runtimes are linked into the program alone, so a library that needs them has undefined symbols.
if(NOT (CMAKE_CXX_COMPILER_ID MATCHES Clang AND (KVRUN_SANITIZE OR KVRUN_THREAD_SANITIZE OR KVRUN_FUZZ)))
	target_link_options(kvrun_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(kvrun_shared PROPERTIES OUTPUT_NAME kvrun EXPORT_NAME kvrun LINKER_LANGUAGE CXX
	VERSION ${PROJECT_VERSION} SOVERSION ${KVRUN_ABI} LINK_DEPENDS ${version_script}
	LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

add_library(kvrun_static STATIC ${layer_objects})
target_link_libraries(kvrun_static PRIVATE ${private_libraries})
set_target_properties(kvrun_static PROPERTIES OUTPUT_NAME kvrun EXPORT_NAME kvrun_static LINKER_LANGUAGE CXX
	ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

foreach(library kvrun_shared kvrun_static)
	target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
		$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
	if(KVRUN_SANITIZE OR KVRUN_THREAD_SANITIZE)
		target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:kvrun_options>)
	endif()
endforeach()
add_library(kvrun::kvrun ALIAS kvrun_shared)
add_library(kvrun::kvrun_static ALIAS kvrun_static)
