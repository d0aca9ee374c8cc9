package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// lfk has the commands for loose foreign keys, which work on the databases themselves.
type lfk struct {
	*app
	only string
}

// lfkCommand has the commands for loose-foreign-key definitions, triggers and dead records.
func (a *app) lfkCommand() *cobra.Command {
	l := &lfk{app: a}
	command := &cobra.Command{
		Use:     "lfk",
		GroupID: groupServe,
		Short:   "Set up and check loose foreign keys: queue, triggers, definitions, dead records",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return &exitError{exitUsage, errors.New("say what to do: lint, install, track, untrack, dead, retry or accept-absent; see caretaker lfk --help")}
		},
	}
	command.PersistentFlags().StringVar(&l.only, "database", "", "`name` of the database to work on: main, ci or sec; else all that are configured")
	command.AddCommand(l.lint(), l.install(), l.track(), l.untrack(), l.dead(), l.retry(), l.acceptAbsent())
	return command
}

// with opens the configured databases for a command.
func (l *lfk) with(c *cobra.Command, do func(context.Context, loosefk.Admin) error) error {
	ctx, stop := untilSignal(c.Context())
	defer stop()
	configuration, err := l.settings(config.Load)
	if err != nil {
		return err
	}
	keys, err := l.keys(service.Settings[loosefk.Config](&configuration.service))
	if err != nil {
		return err
	}
	databases, closeAll, err := databases(ctx, configuration.Config)
	if err != nil {
		return err
	}
	defer closeAll()
	keys.Databases = databases
	err = do(ctx, keys)
	if slices.ContainsFunc([]error{
		service.ErrUnknownDatabase, loosefk.ErrUnknownTable, loosefk.ErrUnknownRecord, loosefk.ErrUnknownChild,
	}, func(unknown error) bool { return errors.Is(err, unknown) }) {
		return &exitError{exitUsage, err}
	}
	return err
}

// keys are what the worker's configuration says of loose foreign keys.
func (l *lfk) keys(worker *loosefk.Config) (keys loosefk.Admin, err error) {
	keys.Only = l.only
	// A fire that works all databases passes none over.
	if *worker.Enabled && worker.Rotation != loosefk.RotationAll {
		keys.Schedule = worker.Schedule
	}
	if worker.DefinitionsFile != "" {
		keys.Definitions, err = loosefk.LoadDefinitions(worker.DefinitionsFile)
	}
	return keys, err
}

func (l *lfk) lint() *cobra.Command {
	return &cobra.Command{
		Use:   "lint",
		Short: "Check the definitions against the databases, without changing anything",
		Long: "Checks the definitions file, tables, columns, indexes, triggers, the queue and what is pending in it.\n" +
			"Exits with 1 if there are errors; warnings alone are no failure.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				result, err := keys.Lint(ctx)
				if result.Findings != nil {
					if printErr := l.findings(result); printErr != nil {
						return printErr
					}
				}
				if err == nil && result.Errors > 0 {
					return &exitError{code: exitFailed}
				}
				return err
			})
		},
	}
}

func (l *lfk) findings(result loosefk.Lint) error {
	if l.asJSON {
		return l.json(result)
	}
	for _, f := range result.Findings {
		l.say("%-7s  %s  %s  %s: %s", f.Severity, f.Code, cmp.Or(f.Database, none), f.Object, f.Advice)
	}
	summary := counted(result.Errors, "error") + ", " + counted(result.Warnings, "warning")
	if len(result.Unchecked) > 0 {
		summary += "; not checked: " + strings.Join(result.Unchecked, ", ")
	}
	l.say("%s", summary)
	return nil
}

// counted is a number of things.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func (l *lfk) install() *cobra.Command {
	return &cobra.Command{
		Use:   "install",
		Short: "Make the queue of deleted records and the functions that feed it, where there is none",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				done, err := keys.Install(ctx)
				return l.report(err, map[string]any{"databases": done}, func() {
					for _, d := range done {
						l.say("%s: %s", d.Database, d.Result)
					}
				})
			})
		},
	}
}

func (l *lfk) track() *cobra.Command {
	var column string
	command := &cobra.Command{
		Use:   "track TABLE",
		Short: "Note the deletions from a table, and from all its partitions",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				done, err := keys.Track(ctx, args[0], column)
				if err != nil {
					return err
				}
				return l.report(nil, done, func() {
					if len(done.Triggers) == 0 {
						l.say("%s: %s: already tracked", done.Database, done.Table)
					}
					for _, t := range done.Triggers {
						l.say("%s: trigger %s", done.Database, t)
					}
				})
			})
		},
	}
	command.Flags().StringVar(&column, "column", "", "`name` of the key that is recorded; else id")
	return command
}

func (l *lfk) untrack() *cobra.Command {
	return &cobra.Command{
		Use:   "untrack TABLE",
		Short: "Note the deletions from a table no more; given a partition, from that one",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				done, err := keys.Untrack(ctx, args[0])
				return l.report(err, map[string]any{"databases": done}, func() {
					for _, d := range done {
						for _, t := range d.Triggers {
							l.say("%s: dropped trigger %s", d.Database, t)
						}
						for _, key := range d.Unfed {
							l.note("warning: %s: %s gets no more records; those that are pending are still cleaned", d.Database, key)
						}
					}
				})
			})
		},
	}
}

func (l *lfk) retry() *cobra.Command {
	var id int64
	var table string
	var all bool
	command := &cobra.Command{
		Use:   "retry (--id N | --table T | --all)",
		Short: "Put dead records back into the queue",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var chosen *int64
			switch {
			case c.Flags().Changed("id"):
				chosen = &id
			case !all && table == "":
				return &exitError{exitUsage, errors.New("say which records: --id N, --table T or --all")}
			}
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				done, err := keys.Retry(ctx, chosen, table)
				return l.report(err, map[string]any{"databases": done}, func() {
					for _, d := range done {
						l.say("%s: %d put back", d.Database, d.Records)
					}
				})
			})
		},
	}
	flags := command.Flags()
	flags.Int64Var(&id, "id", 0, "`number` of the record")
	flags.StringVar(&table, "table", "", "`name` of the parent table of the records")
	flags.BoolVar(&all, "all", false, "all dead records")
	command.MarkFlagsOneRequired("id", "table", "all")
	command.MarkFlagsMutuallyExclusive("id", "table", "all")
	return command
}

// report prints what was done, also when something else failed.
func (l *lfk) report(err error, document any, text func()) error {
	if l.asJSON {
		return errors.Join(err, l.json(document))
	}
	text()
	return err
}
