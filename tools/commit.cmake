# Writes OUT, which defines KVRUN_COMMIT: the commit SOURCE is at, "+" if files differ from it, or "unknown".
set(commit "")
if(GIT AND EXISTS ${SOURCE}/.git) # not for a source archive inside another repository
	execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=12 HEAD
		OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
	execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
		OUTPUT_VARIABLE changed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
	if(changed)
		string(APPEND commit "+")
	endif()
endif()
if(NOT commit)
	set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define KVRUN_COMMIT \"${commit}\"\n") # written only when it changes
