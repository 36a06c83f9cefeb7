// The window: the list of conversations, and beside it one of the pages; keys; dropped files.
#pragma once
#include "tools/desktop/gui/app.h"
#include "tools/desktop/gui/download.h"
#include <QMainWindow>

class QLabel;
class QPushButton;
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
	void resizeEvent(QResizeEvent*) override;

 private:
	void build(); // builds all widgets in the current theme
	QWidget* new_problem();
	QWidget* new_offer();
	void add_keys();
	void add_chat_keys();
	bool at_chat() const;
	void fold_side(); // as the width needs it, or as the user wants it
	void toggle_side();
	void show_found(int message, const QString& words);
	void offer(const std::string& model);
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
	Download download_;
	std::optional<bool> wants_side_; // the user's choice, until the window changes between narrow and wide
	bool narrow_ = false;
	Sidebar* side_ = nullptr;
	QStackedWidget* pages_ = nullptr;
	StartPage* start_ = nullptr;
	ChatPage* chat_ = nullptr;
	SettingsPage* settings_ = nullptr;
	QWidget* problem_ = nullptr;
	QLabel* problem_text_ = nullptr;
	QWidget* offer_ = nullptr;
	QLabel* offer_text_ = nullptr;
	QPushButton* offer_use_ = nullptr;
	std::string theme_;
	double scale_ = 0, framed_ = 0; // clock of the last frame
};

} // namespace kvrun::desktop
