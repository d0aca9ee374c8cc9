package config

import (
	"reflect"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLoad_SizesAreInBytesOrInPostgreSQLsUnits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "0MB": 0, "1000": 1000, "1000B": 1000, "8 kB": 8 << 10, "8KB": 8 << 10, "64MB": 64 << 20, "4gb": 4 << 30, "1TB": 1 << 40,
	} {
		got, err := loadWork("", []string{mainURL, "CARETAKER_LOAD_RATE=" + text})
		assert.That(t, err == nil && got.Load.Rate == want, "%s: got %+v, %v", text, got, err)
	}
}

func TestLoad_WhatCanBeSwitchedOffIsZero(t *testing.T) {
	t.Parallel()
	got, err := loadWork("", []string{
		mainURL, "CARETAKER_LOAD_LAG=0", "CARETAKER_LOAD_RATE=0", "CARETAKER_WORKERS_SWEEP_MAX_QUEUED=0",
	})
	assert.That(t, err == nil && reflect.DeepEqual(got.Load, limits{}) && got.Sweep.MaxQueued == 0, "got %+v, %v", got, err)
}
