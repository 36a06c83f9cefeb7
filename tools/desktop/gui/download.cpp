// A download of a model by `kvrun pull`, which goes on while pages are built anew.
#include "tools/desktop/gui/download.h"
#include "tools/desktop/words.h"
#include <QCoreApplication>
#include <QFileInfo>
#include <QRegularExpression>
#include <QStandardPaths>
#include <QStringList>

namespace kvrun::desktop {
namespace {

constexpr int kEndMs = 2000; // longest wait for its end

// Path of the program kvrun, which fetches models: beside this program, else in the system.
QString fetcher() {
	const QString beside = QCoreApplication::applicationDirPath() + "/kvrun";
	return QFileInfo(beside).isExecutable() ? beside : QStandardPaths::findExecutable("kvrun");
}

} // namespace

Download::Download() {
	QObject::connect(&process_, &QProcess::readyReadStandardError, [this] { hear(); });
	QObject::connect(&process_, &QProcess::errorOccurred, [this](QProcess::ProcessError e) {
		if (e == QProcess::FailedToStart) end(-1);
	});
	QObject::connect(&process_, &QProcess::finished, [this](int code) { end(code); });
}

Download::~Download() {
	process_.disconnect();
	if (!active()) return;
	process_.terminate();
	process_.waitForFinished(kEndMs);
}

bool Download::possible() { return !fetcher().isEmpty(); }

void Download::begin(const QString& name) {
	said_.clear();
	percent_ = -1;
	text_ = "Asking for " + name;
	process_.start(fetcher(), {"pull", name});
	changed();
}

void Download::stop() { process_.terminate(); }

void Download::hear() {
	const QStringList lines = QString::fromUtf8(process_.readAllStandardError()).split('\n', Qt::SkipEmptyParts);
	for (const QString& line : lines) {
		said_ = line.startsWith("# ") ? line.mid(2) : line;
		static const QRegularExpression share(": (\\d+) % of ");
		const QRegularExpressionMatch m = share.match(line);
		if (m.hasMatch()) percent_ = m.captured(1).toInt();
	}
	text_ = said_;
	changed();
}

void Download::end(int code) {
	hear();
	const QString path = QString::fromUtf8(process_.readAllStandardOutput()).trimmed();
	if (code == 0 && process_.exitStatus() == QProcess::NormalExit && !path.isEmpty()) {
		text_.clear();
		typed.clear();
		changed();
		return finished(path.toStdString());
	}
	if (said_.startsWith("error: ")) said_ = said_.mid(7);
	text_ = process_.exitStatus() == QProcess::CrashExit ? QString("Stopped; Download goes on with what has come.")
	        : said_.isEmpty()                            ? QString("It could not be downloaded.")
	                                                     : QString::fromStdString(window_words(said_.toStdString()));
	changed();
}

} // namespace kvrun::desktop
