// The page shown without a model: recent models, models of other programs on this computer, and a button for files.
#pragma once
#include "tools/desktop/gui/download.h"
#include "tools/desktop/models_found.h"
#include "tools/desktop/state.h"
#include <QWidget>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

class QFrame;
class QPushButton;
class QVBoxLayout;
class QLabel;
class QLineEdit;
class QProgressBar;

namespace kvrun::desktop {

class StartPage : public QWidget {
 public:
	StartPage(State&, Download&);
	~StartPage() override;
	std::function<void(const std::string&)> chosen = [](const std::string&) {}; // a model by path
	std::function<void()> back = [] {};
	void open();    // searches for models again
	void refresh(); // shows new results of the search
	void show_download();
	bool searching() const { return searching_; }
	void take_focus(); // to the first model, or to the button for files
	void choose_file();
	void show_drop(bool over); // files are being dragged over the window

 private:
	void fill();
	QWidget* new_download();
	void download();
	State& state_;
	Download& download_;
	QVBoxLayout *recent_, *found_;
	QFrame* drop_;
	QPushButton *open_, *first_ = nullptr;
	QWidget* recents_;
	QLabel* search_text_;
	QLineEdit* name_ = nullptr; // of the model to fetch
	QPushButton* fetch_ = nullptr;
	QProgressBar* fetched_ = nullptr;
	QLabel* fetch_text_ = nullptr;
	std::thread thread_;
	std::atomic<bool> stop_ = false;
	bool searching_ = false;
	std::mutex mutex_;
	std::optional<std::vector<FoundModel>> result_; // of the thread
	std::vector<FoundModel> models_;
	std::vector<std::string> shown_recent_;
};

} // namespace kvrun::desktop
