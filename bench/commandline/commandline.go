// Package commandline reads the options of the programs that measure and test caretaker, and
// reports which of them cannot be used.
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// Parse reads the options. With -help it prints all of them, and returns flag.ErrHelp. Arguments beside options are an error.
func Parse(flags *flag.FlagSet, args []string, help io.Writer) error {
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(help)
		flags.Usage()
		return err
	case err != nil:
		return fmt.Errorf("%w: see -help", err)
	case flags.NArg() > 0:
		return fmt.Errorf("there are no arguments, but got %q: see -help", strings.Join(flags.Args(), " "))
	}
	return nil
}

// Positive is an error if one of these options, durations or numbers, is not above 0.
func Positive(flags *flag.FlagSet, names ...string) error {
	for _, name := range names {
		option := flags.Lookup(name)
		positive := false
		switch value := option.Value.(flag.Getter).Get().(type) {
		case time.Duration:
			positive = value > 0
		case int:
			positive = value > 0
		case float64:
			positive = value > 0
		}
		if !positive {
			return fmt.Errorf("-%s is %s: it must be above 0", name, option.Value)
		}
	}
	return nil
}

// Within is an error if an option, a whole number, is not in these bounds.
func Within(flags *flag.FlagSet, name string, from, to int) error {
	option := flags.Lookup(name)
	if value, ok := option.Value.(flag.Getter).Get().(int); !ok || value < from || value > to {
		return fmt.Errorf("-%s is %s: it must be %d to %d", name, option.Value, from, to)
	}
	return nil
}
