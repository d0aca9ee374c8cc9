package main

import (
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
)

// peakMemory is the most memory that this process had while it did some work, in MB, with what it
// had before. Linux alone shows it. elsewhere it is zero.
func peakMemory(do func() error) (float64, error) {
	debug.FreeOSMemory()
	const setBack = "5" // the highest amount so far is forgotten: proc(5)
	if err := os.WriteFile("/proc/self/clear_refs", []byte(setBack), 0); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, do()
		}
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	return peakOf(string(status))
}

func peakOf(status string) (float64, error) {
	for row := range strings.Lines(status) {
		if value, found := strings.CutPrefix(row, "VmHWM:"); found {
			if kilobytes := numbers(value); len(kilobytes) > 0 {
				return kilobytes[0] / 1024, nil
			}
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
