package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/service/loosefk"
)

// seconds is how times are shown in tables.
const seconds = "2006-01-02 15:04:05"

func (l *lfk) dead() *cobra.Command {
	var table string
	var failing bool
	command := &cobra.Command{
		Use:   "dead",
		Short: "List the deleted rows whose children could not be cleaned",
		Long: "Lists the records that were given up after ten failures, with the last message of the child's database, which may quote rows.\n" +
			"With --failing those that have failed, or are held for a missing child table, and are tried again. CAUSE is the SQLSTATE,\n" +
			"\"absent\" for a missing child table, KEPT_BY_TRIGGER for a trigger or rule that keeps the rows, - if a database did not answer.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				if failing {
					return l.listFailing(ctx, keys, table)
				}
				return l.listDead(ctx, keys, table)
			})
		},
	}
	command.Flags().StringVar(&table, "table", "", "`name` of a parent table; else all")
	command.Flags().BoolVar(&failing, "failing", false, "those that are not given up yet, with their next try")
	return command
}

func (l *lfk) listDead(ctx context.Context, keys loosefk.Admin, table string) error {
	records := []loosefk.DeadRecord{}
	err := keys.Dead(ctx, table, func(r loosefk.DeadRecord) error {
		records = append(records, r)
		return nil
	})
	switch {
	case err != nil && len(records) == 0:
		return err
	case l.format == formatJSON:
		return l.report(err, map[string]any{"dead_records": records}, nil)
	case len(records) == 0:
		l.say("no dead records")
		return nil
	}
	var rows [][]string
	for _, r := range records {
		rows = append(rows, []string{
			r.Database, strconv.FormatInt(r.ID, 10), r.Table, strconv.FormatInt(r.Key, 10), r.Definition, r.SQLState,
			strconv.Itoa(r.Failures), r.RecordedAt.UTC().Format(seconds), r.DeadAt.UTC().Format(seconds), oneLine(r.Message),
		})
	}
	return errors.Join(err, l.table([]string{
		"DATABASE", "ID", "TABLE", "KEY", "DEFINITION", "SQLSTATE", "FAILURES", "RECORDED", "DEAD SINCE", "MESSAGE",
	}, rows))
}

func (l *lfk) listFailing(ctx context.Context, keys loosefk.Admin, table string) error {
	records, err := keys.Failing(ctx, table)
	switch {
	case err != nil && len(records) == 0:
		return err
	case l.format == formatJSON:
		return l.report(err, map[string]any{"failing_records": records}, nil)
	case len(records) == 0:
		l.say("no failing records")
		return nil
	}
	var rows [][]string
	for _, r := range records {
		next := "now"
		if r.NextTry != nil && r.NextTry.After(time.Now()) {
			next = r.NextTry.UTC().Format(seconds)
		}
		rows = append(rows, []string{
			r.Database, strconv.FormatInt(r.ID, 10), r.Table, strconv.FormatInt(r.Key, 10), r.Definition, dashed(r.SQLState),
			strconv.Itoa(r.Failures), r.FailedAt.UTC().Format(seconds), next,
		})
	}
	return errors.Join(err, l.table([]string{
		"DATABASE", "ID", "TABLE", "KEY", "DEFINITION", "CAUSE", "FAILURES", "FAILED", "NEXT TRY",
	}, rows))
}

// oneLine is a message with its line breaks as spaces.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
