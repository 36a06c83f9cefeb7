// The window: conversations at the side, and beside them one of its pages; keys; files that are dropped on it.
#pragma once
#include "tools/desktop/gui/app.h"
#include <QMainWindow>

class QLabel;
class QStackedWidget;

namespace kvrun::desktop {

class ChatPage;
class SettingsPage;
class Sidebar;
class StartPage;

class Window : public QMainWindow {
 public:
	explicit Window(App&);
	void refresh();
	bool waiting() const; // for a thread of a page
	StartPage& start() { return *start_; }
	SettingsPage& settings() { return *settings_; }
	const char* page_name() const;

 protected:
	bool event(QEvent*) override;
	void keyPressEvent(QKeyEvent*) override;
	void dragEnterEvent(QDragEnterEvent*) override;
	void dragLeaveEvent(QDragLeaveEvent*) override;
	void dropEvent(QDropEvent*) override;

 private:
	void build(); // all of it, in the theme of now
	void add_keys();
	void show_page(QWidget*);
	void open_start();
	void open_settings();
	void open_chat(); // the keyboard is in its field
	void load(const std::string& model);
	void act(const std::function<void()>&); // on the state; then draws it
	void create();
	void fork();
	void remove();
	void rename();
	void retry();
	void edit();
	void step_sibling(int by);
	void escape();
	void rescale(double factor); // 0: as the desktop
	void show_keys();
	App& app_;
	Sidebar* side_ = nullptr;
	QStackedWidget* pages_ = nullptr;
	StartPage* start_ = nullptr;
	ChatPage* chat_ = nullptr;
	SettingsPage* settings_ = nullptr;
	QWidget* problem_ = nullptr;
	QLabel* problem_text_ = nullptr;
	std::string theme_;
	double scale_ = 0, framed_ = 0; // clock of the last frame
};

} // namespace kvrun::desktop
