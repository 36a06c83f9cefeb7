// Jobs of a comparison on Windows: kvrun starts itself again, and KVRUN_COMPARE_JOB names the job.
#include "engine/core/error.h"
#include "engine/core/system/process.h"
#include "engine/core/system/wide.h"
#include "tools/compare/job_process.h"
#include <cstdlib>

namespace kvrun::comparison {

constexpr const char* kOnlyJob = "KVRUN_COMPARE_JOB";

std::string only_job() {
	const char* name = std::getenv(kOnlyJob);
	return name ? name : "";
}

std::string run_apart(const Job& job, const std::string&, const std::string& log, const std::function<void()>& tick) {
	SECURITY_ATTRIBUTES inherited{sizeof inherited, nullptr, TRUE};
	const HANDLE errors = CreateFileW(sys::wide_path(log).c_str(), GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE,
	                                  &inherited, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, nullptr);
	STARTUPINFOW start{};
	start.cb = sizeof start;
	start.dwFlags = STARTF_USESTDHANDLES;
	start.hStdInput = GetStdHandle(STD_INPUT_HANDLE), start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
	start.hStdError = errors;
	std::wstring line = GetCommandLineW();
	const std::wstring program = sys::wide_path(sys::program_path());
	PROCESS_INFORMATION made{};
	sys::set_variable(kOnlyJob, job.name);
	const bool good =
	    CreateProcessW(program.c_str(), line.data(), nullptr, nullptr, TRUE, 0, nullptr, nullptr, &start, &made);
	const DWORD error = GetLastError();
	sys::set_variable(kOnlyJob, "");
	CloseHandle(errors);
	if (!good) fail(Code::Internal, "no process can be made: error {} of Windows", error);
	while (WaitForSingleObject(made.hProcess, 50) == WAIT_TIMEOUT) tick();
	DWORD code = 1;
	GetExitCodeProcess(made.hProcess, &code);
	CloseHandle(made.hThread);
	CloseHandle(made.hProcess);
	if (code == 0) return {};
	return code >= 0xC0000000 ? fmt::format("exception 0x{:08x}", code) : fmt::format("exit code {}", code);
}

} // namespace kvrun::comparison
