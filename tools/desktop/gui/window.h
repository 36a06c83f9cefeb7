// The window: the list of conversations, and beside it one of the pages; keys; dropped files.
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
	bool waiting() const; // whether a page waits for a thread
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
	void build(); // builds all widgets in the current theme
	void add_keys();
	void show_page(QWidget*);
	void open_start();
	void open_settings();
	void open_chat(); // with the focus in its field
	void load(const std::string& model);
	void act(const std::function<void()>&); // changes the state, then draws it
	void create();
	void fork();
	void remove();
	void rename();
	void retry();
	void edit();
	void step_sibling(int by);
	void escape();
	void rescale(double factor); // 0: the desktop's scale
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
