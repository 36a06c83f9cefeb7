// Processes of Windows.
#include "engine/core/system/process.h"
#include "engine/core/system/wide.h"
#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <shellapi.h>
#include <thread>

namespace kvrun::sys {

const char kListSeparator = ';';

int process_id() { return int(GetCurrentProcessId()); }
bool has_ended(int process) {
	const HANDLE h = OpenProcess(SYNCHRONIZE, FALSE, DWORD(process));
	if (!h) return GetLastError() == ERROR_INVALID_PARAMETER;
	const bool ended = WaitForSingleObject(h, 0) == WAIT_OBJECT_0;
	CloseHandle(h);
	return ended;
}
std::string program_path() {
	std::wstring path(32768, 0);
	path.resize(GetModuleFileNameW(nullptr, path.data(), DWORD(path.size())));
	return narrow(path);
}

void prepare_program() {
	SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX); // no window asks what to do
	for (int fd = 0; fd <= 2; ++fd) {
		if (_get_osfhandle(fd) == -1 || _get_osfhandle(fd) == -2) {
			const int got = _open("NUL", fd == 1 ? _O_RDONLY : _O_WRONLY);
			if (got >= 0 && got != fd) _dup2(got, fd), _close(got);
		}
		_setmode(fd, _O_BINARY);
		const HANDLE h = HANDLE(_get_osfhandle(fd));
		DWORD mode;
		if (fd && GetConsoleMode(h, &mode)) SetConsoleMode(h, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
	}
	SetConsoleOutputCP(CP_UTF8);
}
std::vector<std::string> arguments(int argc, char** argv) {
	int n = 0;
	wchar_t** all = CommandLineToArgvW(GetCommandLineW(), &n);
	if (!all) return {argv, argv + argc};
	std::vector<std::string> out;
	for (int i = 0; i < n; ++i) out.push_back(narrow(all[i]));
	LocalFree(all);
	return out;
}

std::vector<std::string> environment() {
	std::vector<std::string> out;
	wchar_t* all = GetEnvironmentStringsW();
	for (const wchar_t* e = all; e && *e; e += std::wstring_view(e).size() + 1)
		if (*e != L'=') out.push_back(narrow(e)); // =C:=C:\folder: the folder of each drive
	if (all) FreeEnvironmentStringsW(all);
	return out;
}
void set_variable(const std::string& name, const std::string& value) {
	_wputenv_s(wide(name).c_str(), wide(value).c_str()); // and the system's own environment
}

int run_shell(const std::string& command, std::string& out) {
	std::FILE* p = _wpopen(wide("\"" + command + " 2>NUL\"").c_str(), L"rb"); // the shell takes the outer quotes away
	if (!p) return -1;
	char buffer[4096];
	while (const size_t n = std::fread(buffer, 1, sizeof buffer, p)) out.append(buffer, n);
	return _pclose(p);
}
std::string shell_word(const std::string& s) { return "\"" + s + "\""; } // no name of a file has a quote

namespace {

constexpr size_t kMostText = 8192; // bytes kept of what a helper says

struct Handle {
	HANDLE h = nullptr;
	Handle() = default;
	Handle(const Handle&) = delete;
	~Handle() { reset(); }
	void reset() {
		if (h) CloseHandle(h);
		h = nullptr;
	}
};

bool open_pipe(Handle& read, Handle& write) {
	SECURITY_ATTRIBUTES inherited{sizeof inherited, nullptr, TRUE};
	return CreatePipe(&read.h, &write.h, &inherited, 65536) && SetHandleInformation(read.h, HANDLE_FLAG_INHERIT, 0);
}

void drain(HANDLE pipe, std::string& to) {
	for (int i = 0; i < 64; ++i) {
		char buffer[2048];
		DWORD there = 0, n = 0;
		if (!PeekNamedPipe(pipe, nullptr, 0, nullptr, &there, nullptr) || there == 0) return;
		if (!ReadFile(pipe, buffer, std::min<DWORD>(there, sizeof buffer), &n, nullptr) || n == 0) return;
		to.append(buffer, n);
		if (to.size() > kMostText) to.erase(0, to.size() - kMostText / 2);
	}
}

} // namespace

struct HelperProcess::Impl {
	Handle process, job, out, err;
	DWORD id = 0, code = 0;
};

HelperProcess::HelperProcess() : impl_(std::make_unique<Impl>()) {}
HelperProcess::~HelperProcess() { stop(); }
bool HelperProcess::running() const { return impl_->process.h != nullptr; }
int HelperProcess::id() const { return int(impl_->id); }

std::string HelperProcess::start(const std::string& program, const std::vector<std::string>& environment) {
	Handle out, err, in;
	SECURITY_ATTRIBUTES inherited{sizeof inherited, nullptr, TRUE};
	if (!open_pipe(impl_->out, out) || !open_pipe(impl_->err, err)) return {};
	in.h = CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, OPEN_EXISTING, 0, nullptr);
	impl_->job.h = CreateJobObjectW(nullptr, nullptr); // what the helper starts belongs to it too
	JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits{};
	limits.BasicLimitInformation.LimitFlags =
	    JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION;
	if (impl_->job.h) SetInformationJobObject(impl_->job.h, JobObjectExtendedLimitInformation, &limits, sizeof limits);

	std::vector<std::wstring> sorted;
	for (const std::string& e : environment) sorted.push_back(wide(e));
	std::sort(sorted.begin(), sorted.end());
	std::wstring block;
	for (const std::wstring& e : sorted) block.append(e).push_back(0);
	block.push_back(0);
	HANDLE passed[] = {in.h, out.h, err.h}; // and no other handle that can be inherited
	STARTUPINFOEXW start{};
	start.StartupInfo.cb = sizeof start;
	start.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
	start.StartupInfo.hStdInput = in.h, start.StartupInfo.hStdOutput = out.h, start.StartupInfo.hStdError = err.h;
	SIZE_T bytes = 0;
	InitializeProcThreadAttributeList(nullptr, 1, 0, &bytes);
	std::vector<char> attributes(bytes);
	start.lpAttributeList = reinterpret_cast<LPPROC_THREAD_ATTRIBUTE_LIST>(attributes.data());
	if (!InitializeProcThreadAttributeList(start.lpAttributeList, 1, 0, &bytes)) return {};
	UpdateProcThreadAttribute(start.lpAttributeList, 0, PROC_THREAD_ATTRIBUTE_HANDLE_LIST, passed, sizeof passed,
	                          nullptr, nullptr);
	std::wstring line = L"\"" + wide_path(program) + L"\"";
	PROCESS_INFORMATION made{};
	const DWORD flags = CREATE_UNICODE_ENVIRONMENT | EXTENDED_STARTUPINFO_PRESENT | CREATE_NO_WINDOW | CREATE_SUSPENDED;
	const bool good = CreateProcessW(wide_path(program).c_str(), line.data(), nullptr, nullptr, TRUE, flags,
	                                 block.data(), nullptr, &start.StartupInfo, &made);
	const DWORD error = GetLastError();
	DeleteProcThreadAttributeList(start.lpAttributeList);
	if (!good) return "error " + std::to_string(error) + " of Windows";
	if (impl_->job.h) AssignProcessToJobObject(impl_->job.h, made.hProcess);
	ResumeThread(made.hThread);
	CloseHandle(made.hThread);
	impl_->process.h = made.hProcess, impl_->id = made.dwProcessId;
	return {};
}

bool HelperProcess::look(std::string& out, std::string& err) {
	const bool ended = WaitForSingleObject(impl_->process.h, 0) == WAIT_OBJECT_0;
	drain(impl_->out.h, out);
	drain(impl_->err.h, err);
	if (ended) GetExitCodeProcess(impl_->process.h, &impl_->code);
	return ended;
}

HelperProcess::End HelperProcess::end() const {
	const DWORD code = impl_->code;
	if (code < 0xC0000000) return {true, "", int(code)};
	char text[32];
	std::snprintf(text, sizeof text, "exception 0x%08lX", code);
	return {true, text, 0};
}

void HelperProcess::stop() {
	if (!running()) return;
	if (impl_->job.h) TerminateJobObject(impl_->job.h, 1);
	TerminateProcess(impl_->process.h, 1);
	WaitForSingleObject(impl_->process.h, 200);
	impl_->process.reset(), impl_->job.reset();
}

int become_helper(unsigned longest_seconds) { // the job ends it with its parent
	prepare_program();
	std::thread([=] {
		Sleep(longest_seconds * 1000);
		_exit(1);
	}).detach();
	const int report = _dup(1);
	if (report >= 0) _dup2(2, 1);
	return report;
}

} // namespace kvrun::sys
