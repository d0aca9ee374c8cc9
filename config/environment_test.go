package config

import "testing"

func TestLoad_EmptyVariablesAreUnsetWhereEmptyIsNoValue(t *testing.T) {
	t.Parallel()
	want, err := loadWork(write(t, "log: {level: warn}\nmetrics_listen: \"\""), []string{mainURL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := loadWork(write(t, "log: {level: WARN}"), []string{
		mainURL, "CARETAKER_LOG_LEVEL=", "CARETAKER_LOG_FORMAT=", "CARETAKER_METRICS_LISTEN=", "CARETAKER_LISTEN=", "CARETAKER_INSECURE=",
		"CARETAKER_SCHEDULER_ENABLED=", "CARETAKER_HISTORY_KEEP=", "CARETAKER_LOAD_LAG=", "CARETAKER_LOAD_RATE=",
		"CARETAKER_WORKERS_SWEEP_BATCH_SIZE=", "CARETAKER_WORKERS_SWEEP_SCHEDULE=",
		"CARETAKER_WORKERS_SWEEP_MAX_QUEUED=", "CARETAKER_WORKERS_SWEEP_CATCH_UP=",
	})
	same(t, got, want, err)
}
