// Command testcluster runs a command, such as "go test ./...", with one
// PostgreSQL cluster for all test packages that the command starts:
//
//	go run ./tools/testcluster go test ./...
//
// The cluster stops when the command ends. It is kept with its templates for the
// next call. "testcluster -clean" removes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/caretaker-go/caretaker/devdb"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testcluster COMMAND [ARGUMENT...] | testcluster -clean")
		os.Exit(2)
	}
	if os.Args[1] == "-clean" {
		if err := devdb.RemoveShared(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "testcluster:", err)
			os.Exit(1)
		}
		return
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
	}
	os.Exit(code)
}

// run returns the command's exit code.
func run(command []string) (code int, err error) {
	// The command also gets the terminal's signals. The cluster stops after it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends this process at once
	cluster, err := devdb.StartShared(ctx, os.Stderr)
	if err != nil {
		return 1, err
	}
	defer func() {
		if stopErr := cluster.Stop(context.Background()); stopErr != nil {
			code, err = max(code, 1), errors.Join(err, fmt.Errorf("stop the test cluster: %w", stopErr))
		}
	}()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), devdb.SharedCluster+"="+cluster.Dir())
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
