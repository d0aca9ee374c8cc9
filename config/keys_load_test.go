package config

import (
	"reflect"
	"testing"
	"time"
)

func TestLoad_ReadsTheLimitsOfTheLoad(t *testing.T) {
	got, err := load(write(t, `
load:
  max_replica_lag: 1m
  ignored_replicas: "delayed, far away,"
  max_wal_rate: 64MB
  max_wal_archive_backlog: 0
  max_lock_wait: 0s
  max_autovacuum: 2h
  patience: 17s
`), []string{mainURL})
	want := LoadLimits{
		MaxReplicaLag: time.Minute, IgnoredReplicas: []string{"delayed", "far away"}, MaxWALRate: 64 << 20, MaxAutovacuum: 2 * time.Hour,
		Patience: 17 * time.Second,
	}
	if err != nil || !reflect.DeepEqual(got.Load, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestLoad_SizesAreInBytesOrInPostgreSQLsUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "0MB": 0, "1000": 1000, "1000B": 1000, "8 kB": 8 << 10, "8KB": 8 << 10, "64MB": 64 << 20, "4gb": 4 << 30, "1TB": 1 << 40,
	} {
		got, err := load("", []string{mainURL, "CARETAKER_LOAD_MAX_WAL_RATE=" + text})
		if err != nil || got.Load.MaxWALRate != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}

func TestLoad_LimitsOfTheLoadCanBeSwitchedOff(t *testing.T) {
	got, err := load("", []string{
		mainURL, "CARETAKER_LOAD_MAX_REPLICA_LAG=0", "CARETAKER_LOAD_MAX_LOCK_WAIT=0s", "CARETAKER_LOAD_MAX_WAL_ARCHIVE_BACKLOG=0",
		"CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_MAX_QUEUED=0",
	})
	if err != nil || !reflect.DeepEqual(got.Load, LoadLimits{Patience: 20 * time.Second}) || got.InactiveTokenDeletion.MaxQueued != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}
