# `cmake --install` first builds what it installs, if needed. It must be the first rule of installation.
set(install_targets kvrun_shared kvrun_static)
if(KVRUN_BUILD_TOOLS)
	list(APPEND install_targets kvrun kvrun-probe)
	if(NOT CMAKE_CROSSCOMPILING)
		set(install_share kvrun_share) # man pages and completions, which are files without a target's name
	endif()
endif()
list(TRANSFORM install_targets REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE install_files)
if(install_share)
	list(APPEND install_files ${PROJECT_BINARY_DIR}/tools/share/completion.fish)
endif()
list(TRANSFORM install_files REPLACE "(.+)" "\"\\1\"") # there may be spaces in paths
list(JOIN install_files " " install_files)
install(CODE "
	foreach(file IN ITEMS ${install_files})
		if(NOT EXISTS \"\${file}\")
			message(STATUS \"building what is installed: \${file} is missing\")
			execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${PROJECT_BINARY_DIR}\"
				--config \"\${CMAKE_INSTALL_CONFIG_NAME}\" --target ${install_targets} ${install_share}
				COMMAND_ERROR_IS_FATAL ANY)
			break()
		endif()
	endforeach()" ALL_COMPONENTS)
