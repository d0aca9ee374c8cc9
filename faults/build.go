package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clockVariable has by how many seconds the clock of a replica is wrong.
const clockVariable = "FAULTS_CLOCK"

// skewFile is added to Go's package time: what a program takes for now is wrong by a number of seconds.
// A Go program does not read the clock through a library that could be replaced.
const skewFile = `package time

import "syscall"

var faultsSkew = readSkew()

func readSkew() (seconds int64) {
	text, _ := syscall.Getenv("` + clockVariable + `")
	sign := int64(1)
	for _, c := range []byte(text) {
		if c == '-' {
			sign = -1
		} else {
			seconds = seconds*10 + int64(c-'0')
		}
	}
	return sign * seconds
}
`

// overlay maps files of the source to those that are compiled instead: the source stays as it is.
type overlay struct {
	dir     string
	Replace map[string]string
}

func (o *overlay) put(path, content string) error {
	replacement := filepath.Join(o.dir, fmt.Sprintf("%d_%s", len(o.Replace), filepath.Base(path)))
	o.Replace[path] = replacement
	return os.WriteFile(replacement, []byte(content), 0o600)
}

// change replaces a text that occurs once in a file.
func (o *overlay) change(path, before, after string) error {
	from := path
	if changed, ok := o.Replace[path]; ok {
		from = changed
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if n := strings.Count(string(content), before); n != 1 {
		return fmt.Errorf("%s: the text to be changed occurs %d times, want once: adapt the mutation to the code: %.60q", path, n, before)
	}
	return o.put(path, strings.Replace(string(content), before, after, 1))
}

// build compiles caretaker into dir, with the clock that can be wrong, and the changes of a mutation.
func build(ctx context.Context, dir string, changes ...change) (program string, err error) {
	root, err := output(ctx, "go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	module, err := output(ctx, "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	source := filepath.Dir(module)
	o := &overlay{dir: dir, Replace: map[string]string{}}
	clock := filepath.Join(root, "src", "time")
	err = errors.Join(
		o.put(filepath.Join(clock, "faults_skew.go"), skewFile),
		o.change(filepath.Join(clock, "time.go"), "	sec, nsec, mono := runtimeNow()\n	if mono == 0 {",
			"	sec, nsec, mono := runtimeNow()\n	sec += faultsSkew\n	if mono == 0 {"))
	for _, c := range changes {
		err = errors.Join(err, o.change(filepath.Join(source, c.file), c.before, c.after))
	}
	if err != nil {
		return "", err
	}
	list, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, list, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "caretaker")
	command := exec.CommandContext(ctx, "go", "build", "-overlay", name, "-o", program, ".")
	command.Dir = source
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out)), err
}
