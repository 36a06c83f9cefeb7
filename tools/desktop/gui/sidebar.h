// The list of conversations with a search over all their text.
#pragma once
#include "tools/desktop/search.h"
#include "tools/desktop/state.h"
#include <QWidget>
#include <functional>

class QLineEdit;
class QListWidget;
class QPushButton;

namespace kvrun::desktop {

class Sidebar : public QWidget {
 public:
	struct Actions {
		std::function<void()> create, settings, start, fork, remove;
		std::function<void(const std::string&)> select;
		std::function<void(int message, const QString& words)> show; // of the search, in the selected conversation
		std::function<void(const std::string&, const std::string&)> rename;
		std::function<void()> done; // the focus should return to the conversation
	};
	Sidebar(State&, Actions);
	void refresh();
	void begin_rename();
	void find();         // moves the focus to the search
	bool leave_search(); // false: no search was active
	bool searching() const;

 protected:
	bool eventFilter(QObject*, QEvent*) override;

 private:
	void choose(const std::string& id);
	State& state_;
	Search found_;
	const Actions actions_;
	QLineEdit* search_;
	QListWidget* list_;
	bool filling_ = false;
};

} // namespace kvrun::desktop
