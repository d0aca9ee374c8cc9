package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// load is a kind of child table for (e).
type load struct {
	name       string
	parents    int
	statements []string
}

func (l *lab) loads() []load {
	few := min(l.parents, 20_000)
	return []load{
		{"as in (a)", l.parents, nil},
		{"rows of 2 kB, five more indexes", few, []string{
			`ALTER TABLE children ALTER COLUMN title SET STORAGE PLAIN`,
			`UPDATE children SET title = rpad(title, 2000, 'x')`,
			`CREATE INDEX ON children (created_at)`, `CREATE INDEX ON children (parent_id, created_at)`,
			`CREATE INDEX ON children (hashtext(title))`, `CREATE INDEX ON children (id, created_at)`, `CREATE INDEX ON children (created_at, id)`,
		}},
		{"a row trigger of 0.2 ms", few / 2, []string{
			`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
			DECLARE until timestamptz := clock_timestamp() + interval '0.2 ms';
			BEGIN
				WHILE clock_timestamp() < until LOOP END LOOP;
				RETURN NULL;
			END $$`,
			`CREATE TRIGGER dawdle AFTER DELETE ON children FOR EACH ROW EXECUTE FUNCTION dawdle()`,
		}},
	}
}

// measureStatements is (e), from the server's log: so it is not part of what (a) measures.
func measureStatements(ctx context.Context, l *lab) (*report, error) {
	r := &report{header: []string{"children", "rows", "statements", "p50", "p99", "longest"}}
	worst, notes := time.Duration(0), []string{}
	for i, load := range l.loads() {
		template := fmt.Sprintf("load_%d", i+1)
		sized := *l
		sized.parents = load.parents
		statements := append(sized.family("", "", layouts()[1].order), trackParents)
		if err := l.build(ctx, template, append(statements, load.statements...)...); err != nil {
			return nil, err
		}
		measured, note, err := rounds(l, 1, func(int) (took []time.Duration, others float64, err error) {
			c, err := l.timed(func() (err error) {
				took, err = sized.logged(ctx, template)
				return err
			})
			return took, c.others, err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", load.name, err)
		}
		took := measured[0]
		p99 := percentile(took, 99)
		l.say("  %s: %s", load.name, milliseconds(p99))
		r.row(load.name, grouped(int64(load.parents*l.children)), grouped(int64(len(took))), milliseconds(percentile(took, 50)),
			milliseconds(p99), milliseconds(slices.Max(took)))
		worst, notes = max(worst, p99), append(notes, load.name+": "+note)
	}
	l.target(r, "p99 of the statements that name the child table", "at most 250 ms", milliseconds(worst), worst <= 250*time.Millisecond)
	r.note("From the server's log (log_min_duration_statement = 0), in runs of their own; parsing, planning and waiting included. " +
		"The statement size begins at 1,000 rows and is not yet adapted to the table.")
	r.notes = append(r.notes, notes...)
	return r, nil
}

// logged returns how long each statement took that names the child table.
func (l *lab) logged(ctx context.Context, template string) (took []time.Duration, err error) {
	d, err := l.fresh(ctx, template)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM parents WHERE id <= %d`, l.parents)); err != nil {
		return nil, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	took, err = d.statementsOf(ctx, "children", func() error {
		c, err := newCaretaker(ctx, d, definition(), 0)
		if err != nil {
			return err
		}
		_, err = c.clean(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return took, d.verify(ctx, side{})
}

// statementsOf does some work on connections that it opens. It returns how long each of their
// statements took whose text matches an expression, by the server's log.
func (d *database) statementsOf(ctx context.Context, expression string, do func() error) (took []time.Duration, err error) {
	if err := d.logStatements(ctx); err != nil {
		return nil, err
	}
	log, err := d.lab.serverLog()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := do(); err != nil {
		return nil, err
	}
	took, err = statementTimes(log, regexp.MustCompile(expression))
	if err == nil && len(took) == 0 {
		err = fmt.Errorf("the server's log tells of no statement with %q", expression)
	}
	return took, err
}

// logStatements has the server log the statements of connections to come: our own is not logged.
func (d *database) logStatements(ctx context.Context) error {
	return d.exec(ctx, `ALTER DATABASE `+d.name+` SET log_min_duration_statement = 0`, `ALTER DATABASE `+d.name+` SET log_parameter_max_length = 0`)
}

// serverLog is the server's log from here on.
func (l *lab) serverLog() (*os.File, error) {
	dir, err := os.OpenRoot(l.cluster.Dir())
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	log, err := dir.Open("postgres.log")
	if err != nil {
		return nil, err
	}
	_, err = log.Seek(0, io.SeekEnd)
	return log, err
}

// statementTimes reads from a log how long the statements took whose text matches. A statement of
// the extended protocol is logged in up to three parts, each with its text. The last is "execute".
func statementTimes(log io.Reader, matching *regexp.Regexp) ([]time.Duration, error) {
	text, err := io.ReadAll(log)
	if err != nil {
		return nil, err
	}
	entry := regexp.MustCompile(`\[(\d+)\] LOG:  duration: ([0-9.]+) ms  (parse|bind|execute|statement)\b`)
	var took []time.Duration
	spent := map[string]time.Duration{}
	found := entry.FindAllStringSubmatchIndex(string(text), -1)
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		if !matching.Match(text[at[1]:end]) {
			continue
		}
		process, kind := string(text[at[2]:at[3]]), string(text[at[6]:at[7]])
		ms, err := strconv.ParseFloat(string(text[at[4]:at[5]]), 64)
		if err != nil {
			return nil, err
		}
		spent[process] += time.Duration(ms * float64(time.Millisecond))
		if kind == "execute" || kind == "statement" {
			took = append(took, spent[process])
			spent[process] = 0
		}
	}
	return took, nil
}
