# kvrun_install_path(VARIABLE FROM TO): the installed folder TO as seen from the installed folder FROM, both as in
# CMAKE_INSTALL_LIBDIR; "" is the prefix. A relative path, so that the prefix can be moved, unless one of them is
# absolute, which the prefix then does not move.
function(kvrun_install_path variable from to)
	if(IS_ABSOLUTE "${to}")
		set(path "${to}")
	elseif(IS_ABSOLUTE "${from}")
		set(path "${CMAKE_INSTALL_PREFIX}")
		if(NOT to STREQUAL "")
			string(APPEND path "/${to}")
		endif()
	else()
		file(RELATIVE_PATH path "/${from}" "/${to}")
	endif()
	set(${variable} "${path}" PARENT_SCOPE)
endfunction()
