// Settings in groups, in a user's words; settings that need knowledge of the engine are behind a switch.
#pragma once
#include "tools/desktop/gui/memory_panel.h"
#include "tools/desktop/state.h"

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
	void open();
	void close(bool apply);
	void poll(); // shows new results of the planner
	bool waiting() const;

 private:
	QWidget* new_groups();
	QWidget* new_expert();
	PlanRequest request() const;
	Settings draft() const;
	void fill_devices();
	State& state_;
	Planner& planner_;
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
