package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is processor time, all cores together, in seconds. Linux alone shows it. elsewhere it stays
// zero.
type usage struct {
	// server is what the server's processes used, all what every process of the machine did, and ours what we did.
	server, all, ours float64
}

// clockTick is the unit of times in /proc, in seconds: the same on every Linux.
const clockTick = 0.01

// used reads the processor time used so far.
func (l *lab) used() usage {
	proc := os.DirFS("/proc")
	total, err := fs.ReadFile(proc, "stat")
	if err != nil {
		return usage{}
	}
	var u usage
	line, _, _ := strings.Cut(string(total), "\n")
	for i, ticks := range numbers(strings.TrimPrefix(line, "cpu")) {
		if i < 8 && i != 3 && i != 4 { // not idle, not waiting, and guests are counted already
			u.all += ticks * clockTick
		}
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err == nil {
		u.ours = time.Duration(self.Utime.Nano() + self.Stime.Nano()).Seconds()
	}
	u.server = serverTime(proc, l.postmaster())
	return u
}

func (l *lab) postmaster() string {
	text, err := fs.ReadFile(os.DirFS(l.cluster.Dir()), "data/postmaster.pid")
	if err != nil {
		return ""
	}
	pid, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(pid)
}

// serverTime sums the server's processes: those alive, and those that its first process has waited for.
func serverTime(proc fs.FS, postmaster string) (sum float64) {
	files, err := fs.Glob(proc, "[0-9]*/stat")
	if err != nil {
		return 0
	}
	for _, file := range files {
		text, err := fs.ReadFile(proc, file)
		if err != nil {
			continue // the process has ended meanwhile
		}
		// After the name in parentheses: state, parent, ten others, user and system time, the same of ended children.
		_, rest, _ := strings.Cut(string(text), ") ")
		state, rest, _ := strings.Cut(rest, " ")
		fields := numbers(rest)
		switch {
		case state == "" || len(fields) < 14:
		case path.Dir(file) == postmaster:
			sum += (fields[10] + fields[11] + fields[12] + fields[13]) * clockTick
		case strconv.Itoa(int(fields[0])) == postmaster:
			sum += (fields[10] + fields[11]) * clockTick
		}
	}
	return sum
}

func numbers(text string) []float64 {
	var out []float64
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.ParseFloat(field, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			break
		}
		out = append(out, n)
	}
	return out
}

// cost is what a measurement took.
type cost struct {
	time time.Duration
	// server is the processor time of the server. Others is the share of the machine that other
	// programs had meanwhile.
	server, others float64
}

// timed measures a piece of work.
func (l *lab) timed(do func() error) (cost, error) {
	before, start := l.used(), time.Now()
	err := do()
	took, after := time.Since(start), l.used()
	others := (after.all - before.all) - (after.server - before.server) - (after.ours - before.ours)
	share := others / took.Seconds() / float64(runtime.NumCPU())
	return cost{took, after.server - before.server, min(max(share, 0), 1)}, err
}
