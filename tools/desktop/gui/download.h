// A download of a model by `kvrun pull`, which goes on while pages are built anew.
#pragma once
#include <QProcess>
#include <QString>
#include <functional>

namespace kvrun::desktop {

class Download {
 public:
	Download();
	~Download(); // ends it; a later one continues with what has come
	Download(const Download&) = delete;
	std::function<void()> changed = [] {};
	std::function<void(const std::string& path)> finished = [](const std::string&) {};

	static bool possible(); // the program kvrun is there
	void begin(const QString& name);
	void stop();
	bool active() const { return process_.state() != QProcess::NotRunning; }
	const QString& text() const { return text_; } // what it does, or how it ended; may be empty
	int percent() const { return percent_; }      // -1: not known

	QString typed; // name in the field for it

 private:
	void hear(); // progress, in lines on its stderr
	void end(int code);
	QProcess process_;
	QString said_; // its last line
	QString text_;
	int percent_ = -1;
};

} // namespace kvrun::desktop
