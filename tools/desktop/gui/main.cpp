// kvrun-desktop: chat with a model in a window.
#include "tools/desktop/gui/script.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/gui/window.h"
#include "tools/desktop/words.h"
#include "tools/help.h"
#include "tools/text.h"
#include <QApplication>
#include <QMessageBox>
#include <csignal>
#include <cstdio>
#include <unistd.h>

namespace kvrun::desktop {
namespace {

void describe(kvrun::Command& c) {
	c.examples = {{"kvrun-desktop", "open the window and choose a model there; conversations are where they were"},
	              {"kvrun-desktop model.gguf", "the same with a model"},
	              {"kvrun-desktop model.gguf --kv kivi2 -c 32k", "new conversations with a cache of 2 bits per value"}};
	c.sections.push_back({"Keys",
	                      "F1 in the window lists them all.",
	                      {{"Enter", "send"}, {"Esc", "stop the answer"}, {"Ctrl+,", "settings"}}});
	c.sections.push_back(
	    {"Files",
	     "",
	     {{"$XDG_STATE_HOME/kvrun/desktop", "conversations and settings, in ~/.local/state where the "
	                                        "variable is not set; each file is replaced in one step, and "
	                                        "an answer under way is saved every second"}}});
	c.sections.push_back({"Exit codes",
	                      "",
	                      {{"0", "ok"},
	                       {"1", "a fault in kvrun"},
	                       {"2", "usage"},
	                       {"3", "a file"},
	                       {"4", "no window, or a device failed"},
	                       {"5", "input or output"}}});
}

struct Given { // options, as typed
	AppOptions app;
	std::string device, kv, chat_template;
	int64_t ctx = 0, max_tokens = 0, seed = 0;
	double temperature = 0, scale = 0;
	std::string theme;
	bool man = false;
};

// Qt ends the program if it cannot open a window; this prints the error in kvrun's form.
void hear_qt(QtMsgType type, const QMessageLogContext&, const QString& text) {
	if (type == QtFatalMsg) {
		const QString first = text.section('\n', 0, 0).simplified();
		say_error(fmt::format("no window can be opened here: {}; is there a display (DISPLAY, WAYLAND_DISPLAY)?",
		                      first.toStdString()));
		_exit(exit_code_of(KVRUN_EDEVICE));
	}
	if (type == QtCriticalMsg) std::fprintf(stderr, "%s\n", text.toUtf8().constData());
}

void look_for_display() {
	for (const char* name : {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"})
		if (const char* v = std::getenv(name); v && *v) return;
	fail_status(KVRUN_EDEVICE, "no window can be opened here: neither DISPLAY nor WAYLAND_DISPLAY is set");
}

// Someone who started the program from a menu sees no standard error.
void tell(const StatusError& e) {
	say_error(e.what());
	const bool open = e.status == KVRUN_EBUSY;
	QMessageBox box(open ? QMessageBox::Information : QMessageBox::Critical, "kvrun", "");
	box.setTextFormat(Qt::PlainText);
	box.setText((open ? QString("kvrun-desktop is open already. Its window has your conversations.\n\n")
	                  : QString("kvrun-desktop cannot start.\n\n")) +
	            QString::fromStdString(window_words(e.what())));
	box.exec();
}

// In front of other windows, as far as the desktop permits that; else its entry in the task bar asks for attention.
void show_again(QWidget& window) {
	window.setWindowState((window.windowState() & ~Qt::WindowMinimized) | Qt::WindowActive);
	window.show();
	window.raise();
	window.activateWindow();
	QApplication::alert(&window);
}

int show(int argc, char** argv, const AppOptions& o) {
	look_for_display();
	qInstallMessageHandler(hear_qt);
	QApplication::setApplicationName("kvrun-desktop");
	QApplication::setApplicationDisplayName("kvrun");
	QApplication::setDesktopFileName("org.kvrun.desktop");
	QApplication qt(argc, argv);
	remember_desktop_font();
	std::optional<App> opened;
	try {
		opened.emplace(o);
	} catch (const StatusError& e) {
		if (!o.script.empty()) throw;
		if (e.status == KVRUN_EBUSY && call_window(o.folder.empty() ? default_folder() : o.folder)) {
			say("kvrun-desktop is open already: its window is shown");
			return 0;
		}
		tell(e);
		return exit_code_of(e.status);
	}
	App& app = *opened;
	Window window(app);
	window.resize(int(o.width), int(o.height));
	app.changed = [&] { window.refresh(); };
	app.waits = [&] { return window.waiting(); };
	app.called = [&] { show_again(window); };
	std::optional<Script> script;
	if (!o.script.empty()) script.emplace(o.script, app, window);
	window.show();
	app.begin();
	const int code = QApplication::exec();
	if (script && script->failure()) std::rethrow_exception(script->failure());
	return code;
}

int run(int argc, char** argv) {
	kvrun::Command c("kvrun-desktop", "Chats with a large language model in a window, with the KV cache in view.");
	c.add_version(std::string("kvrun-desktop ") + KVRUN_VERSION);
	describe(c);
	Given g;
	add_text(c, "model", g.app.model, kModelFile,
	         "a GGUF model; without one the window begins with a choice of those on this computer");
	auto* device = add_text(c, "--device,--dev", g.device, "NAME",
	                        "device to run the model on: index or part of its name [the best]");
	auto* kv = add_text(c, "--kv", g.kv, kPolicy, "cache policy of new conversations [fp16]");
	auto* ctx = add_tokens(c, "-c,--ctx-size", g.ctx, 0, int64_t(1) << 30,
	                       "context of new conversations in tokens [0: what fits]");
	auto* chat = add_text(c, "--chat-template", g.chat_template, "NAME|FILE",
	                      "chat template: a name, like chatml, or a file in Jinja [the model's own]");
	auto* temperature = add_real(c, "--temp", g.temperature, 0, 1e6, "sampling temperature; 0 is greedy [0.8]");
	auto* predict = add_integer(c, "-n,--predict", g.max_tokens, 0, 1 << 30, "most tokens of an answer [0: no limit]");
	auto* seed = add_integer(c, "-s,--seed", g.seed, -1, int64_t(1) << 62,
	                         "random seed of the first answer; -1: a random one [-1]");
	auto* scale = add_real(c, "--scale", g.scale, 0.5, 4, "size of text and widgets [the desktop's]");
	auto* theme = add_choice(c, "--theme", g.theme, {"system", "light", "dark"}, "colours of the window [system]");
	add_text(c, "--state", g.app.folder, kFolder, "folder of conversations and settings");
	add_integer(c, "--width", g.app.width, 320, 16384, "of the window, in pixels [1200]");
	add_integer(c, "--height", g.app.height, 240, 16384, "of the window, in pixels [800]");
	add_text(c, "--script", g.app.script, kFile,
	         "file of commands that drive the window, for tests; tools/desktop/README.md lists them");
	add_flag(c, "--man", g.man, "print the man page");
	try {
		const Parsed asked = parse(c, argc, argv);
		if (asked.help) return std::fputs(help_text(c, help_columns()).c_str(), stdout), 0;
		if (asked.version) return std::printf("%s\n", c.version.c_str()), 0;
	} catch (const std::exception& e) { fail_status(KVRUN_EINVALID, "{}", e.what()); }
	if (g.man) return std::fputs(man_page(c).c_str(), stdout), 0;
	if (device->count) g.app.device = g.device;
	if (kv->count) g.app.kv = g.kv;
	if (ctx->count) g.app.ctx = g.ctx;
	if (chat->count) g.app.chat_template = g.chat_template;
	if (temperature->count) g.app.temperature = g.temperature;
	if (predict->count) g.app.max_tokens = g.max_tokens;
	if (seed->count) g.app.seed = g.seed;
	if (scale->count) g.app.scale = g.scale;
	if (theme->count) g.app.theme = g.theme;
	return show(argc, argv, g.app);
}

int guarded(int argc, char** argv) {
	try {
		return run(argc, argv);
	} catch (const StatusError& e) {
		say_error(e.what());
		return exit_code_of(e.status);
	} catch (const std::exception& e) {
		say_error(e.what());
		return 1;
	}
}

} // namespace
} // namespace kvrun::desktop

int main(int argc, char** argv) {
	std::signal(SIGPIPE, SIG_IGN);
	std::signal(SIGXFSZ, SIG_IGN); // exceeding the file-size limit then fails the write
	return kvrun::desktop::guarded(argc, argv);
}
