package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// between takes that many arguments, and says what they are if there are fewer or more.
func between(least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("something is missing: %s", command.UseLine())
		case len(args) > most:
			return fmt.Errorf("%q is too much: %s", args[most], command.UseLine())
		}
		return nil
	}
}

// workerOnce takes the name of a worker as argument, or as the flag --worker.
func workerOnce(worker *string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := between(0, 1)(command, args); err != nil || len(args) == 0 {
			return err
		}
		if *worker != "" && *worker != args[0] {
			return errors.New("name one worker: as argument, or with --worker")
		}
		*worker = args[0]
		return nil
	}
}
