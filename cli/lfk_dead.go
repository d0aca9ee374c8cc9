package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/service/loosefk"
)

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
	case l.asJSON:
		return l.report(err, map[string]any{"dead_records": records}, nil)
	case len(records) == 0:
		l.say("no dead records")
		return nil
	}
	return errors.Join(err, printTable(l.app, []string{
		"DATABASE", "ID", "TABLE", "KEY", "DEFINITION", "SQLSTATE", "FAILURES", "RECORDED", "DEAD SINCE", "MESSAGE",
	}, records, func(r loosefk.DeadRecord) []string {
		return []string{
			r.Database, number(r.ID), r.Table, number(r.Key), r.Definition, r.SQLState,
			strconv.Itoa(r.Failures), utc(r.RecordedAt), utc(r.DeadAt), strings.Join(strings.Fields(r.Message), " "),
		}
	}))
}

func (l *lfk) listFailing(ctx context.Context, keys loosefk.Admin, table string) error {
	records, err := keys.Failing(ctx, table)
	switch {
	case err != nil && len(records) == 0:
		return err
	case l.asJSON:
		return l.report(err, map[string]any{"failing_records": records}, nil)
	case len(records) == 0:
		l.say("no failing records")
		return nil
	}
	return errors.Join(err, printTable(l.app, []string{
		"DATABASE", "ID", "TABLE", "KEY", "DEFINITION", "CAUSE", "FAILURES", "FAILED", "NEXT TRY",
	}, records, func(r loosefk.FailingRecord) []string {
		next := "now"
		if r.NextTry != nil && r.NextTry.After(time.Now()) {
			next = utc(*r.NextTry)
		}
		return []string{
			r.Database, number(r.ID), r.Table, number(r.Key), r.Definition, cmp.Or(r.SQLState, none),
			strconv.Itoa(r.Failures), utc(r.FailedAt), next,
		}
	}))
}
