// Settings in groups, in a user's words; settings that need knowledge of the engine are behind a switch.
#pragma once
#include "tools/desktop/gui/memory_panel.h"
#include "tools/desktop/state.h"
#include <optional>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QPlainTextEdit;
class QSpinBox;
class QLabel;

namespace kvrun::desktop {

class SettingsPage : public QWidget {
 public:
	SettingsPage(State&, Planner&);
	std::function<void(bool applied)> closed = [](bool) {};
	std::function<void()> refused = [] {}; // Apply; the state's problem says why
	void open();                           // what has been typed and was neither applied nor cancelled is kept
	void close(bool apply);
	bool changed() const; // something is typed that was not applied
	struct Typed {
		Settings before, now; // as it was opened, and as it is shown
	};
	std::optional<Typed> typed() const; // nullopt: nothing
	void keep(const Typed&);            // of a page that this one replaces
	void poll();                        // shows new results of the planner
	bool waiting() const;

 private:
	QWidget* new_groups();
	QWidget* new_expert();
	PlanRequest request() const;
	void fill(const Settings&);
	Settings draft() const;
	void fill_devices();
	State& state_;
	Planner& planner_;
	std::optional<Settings> opened_; // what was shown first
	std::vector<DeviceEntry> listed_;
	std::optional<PlanRequest> shown_;
	MemoryPanel* memory_;
	QPlainTextEdit* system_;
	QDoubleSpinBox *temperature_, *top_p_, *min_p_, *repeat_;
	QSpinBox *most_, *top_k_, *seed_;
	QComboBox *theme_, *scale_, *device_, *policy_, *template_;
	QCheckBox *expert_, *cache_;
	QWidget* experts_;
};

} // namespace kvrun::desktop
