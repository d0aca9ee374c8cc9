package main

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// change replaces a text that occurs once in a file of the source.
type change struct{ file, before, after string }

// mutation is a defect that is put in on purpose, to see whether it is found.
type mutation struct {
	name    string
	changes []change
}

// mutations are of each kind against which caretaker promises something. They are compiled in
// place of the source, which has no trace of them.
func mutations() []mutation { return append(mutationsOfLeases(), mutationsOfWork()...) }

// mutationsOfLeases are those of who may write, and when.
func mutationsOfLeases() []mutation {
	return []mutation{
		{"the epoch is not checked before a write", []change{{
			"repo/fencing/permit.go", "WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"WHERE name = {name} AND {holder}::text IS NOT NULL AND {epoch}::bigint IS NOT NULL\n  FOR SHARE",
		}}},
		{"a guard does not lock the lease", []change{{
			"repo/fencing/permit.go", "AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"AND epoch = {epoch} AND expires_at > clock_timestamp()",
		}}},
		{"an expired lease lets its holder write", []change{{
			"repo/fencing/permit.go", "WHERE name = {name} AND holder = {holder} AND epoch = {epoch} AND expires_at > clock_timestamp()\n  FOR SHARE",
			"WHERE name = {name} AND holder = {holder} AND epoch = {epoch}\n  FOR SHARE",
		}}},
		{"an attempt that is over may write", []change{{
			"repo/fencing/permit.go", "WHERE id = {job} AND state = 'running' AND attempted_at = {attempted}\n    AND",
			"WHERE id = {job} AND {attempted}::timestamptz IS NOT NULL\n    AND",
		}}},
		{"a lease is taken before it has expired", []change{{
			// Of a lease of 12 s less than 11 s are always left for a part of the time.
			"repo/control/lease.go", "const freeSQL = `(l.expires_at > clock_timestamp()) IS NOT TRUE`",
			"const freeSQL = `(l.expires_at > clock_timestamp() + interval '11 s') IS NOT TRUE`",
		}, {
			"repo/control/lease.go", "SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp())`",
			"SELECT FROM maintenance.leases l WHERE l.name = $1 AND l.expires_at > clock_timestamp() + interval '11 s')`",
		}}},
		{"an expired lease is renewed", []change{{
			"repo/control/lease.go", "AND epoch = $3 AND expires_at > clock_timestamp()\nRETURNING", "AND epoch = $3\nRETURNING",
		}}},
		{"a renewal goes by the clock of the replica", []change{{
			"repo/control/lease.go", "SET renewed_at = now(), expires_at = now() + $4::interval\n", "SET renewed_at = now(), expires_at = $4::timestamptz\n",
		}, {
			"repo/control/lease.go", "f.Name, f.Holder, f.Epoch, ttl)", "f.Name, f.Holder, f.Epoch, time.Now().Add(ttl))",
		}}},
		{"a pause is ignored", []change{{
			"repo/control/runs_start.go", "WHERE worker IN ($1, '*') AND", "WHERE worker IN ($1, '*') AND worker = '' AND",
		}}},
		{"a fire is claimed twice", []change{{
			"repo/control/runs_start.go", "AND (accounted_until = $8 OR ` + noLedgerTimeSQL + `)\n  RETURNING worker",
			"AND ($8::timestamptz IS NOT NULL OR ` + noLedgerTimeSQL + `)\n  RETURNING worker",
		}, {
			"repo/control/runs_start.go", "WHERE c.outcome = 'missed'", "WHERE c.outcome <> ''",
		}}},
		{"a release frees the successor", []change{{
			"repo/control/lease.go", "WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now()`",
			"WHERE name = $1 AND $2::text <> '' AND $3::bigint > 0 AND expires_at > now()`",
		}}},
		{"a release does not check the epoch", []change{{
			"repo/control/lease.go", "WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now()`",
			"WHERE name = $1 AND holder = $2 AND $3::bigint > 0 AND expires_at > now()`",
		}}},
		{"a fire is given up at once", []change{{
			"service/schedule/due.go", "t.now.Sub(d.missed[n-1]) < fireGrace {", "t.now.Sub(d.missed[n-1]) < 0 {",
		}}},
	}
}

// mutationsOfWork are those of the work, and of its records.
func mutationsOfWork() []mutation {
	return []mutation{
		{"a protection is ignored", []change{{
			"repo/internal/pg/protected.go", "const ActiveSQL = `(p.until IS NULL OR p.until > clock_timestamp())`",
			"const ActiveSQL = `(p.until < clock_timestamp())`",
		}}},
		{"a group goes before its time", []change{{
			"repo/gitlab/groups_begin.go", "	case !ripe:\n", "	case !ripe && !known:\n",
		}}},
		{"contributions go with their author", []change{{
			"service/gitlab/ghost/lists.go", `{table: "merge_requests", columns: "author_id", normal: give, hard: remove},`,
			`{table: "merge_requests", columns: "author_id", normal: remove, hard: remove},`,
		}}},
		{"a column is skipped", []change{{
			"service/gitlab/ghost/lists.go", `{table: "award_emoji", columns: "user_id", normal: give, hard: remove},`,
			`{table: "award_emojis", columns: "user_id", normal: give, hard: remove},`,
		}}},
		{"a bot goes a day too early", []change{{
			"repo/gitlab/tokens.go", "CutOff: at.Add(-time.Duration(days) * 24 * time.Hour)",
			"CutOff: at.Add(-time.Duration(days-1) * 24 * time.Hour)",
		}}},
		{"a job is counted that was not queued", []change{{
			"service/gitlab/placeholder/worker.go", `x.Count(ctx, "scheduled_jobs", int64(claim.Scheduled))`,
			`x.Count(ctx, "scheduled_jobs", int64(claim.Scheduled)+1)`,
		}}},
		{"a placeholder's job is queued outside its transaction", []change{{
			"repo/gitlab/placeholders_references.go", "		if _, err := a.Queue.InsertJobs(ctx, tx, []jobqueue.Job{job}); err != nil {\n",
			"		if err := pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) error {\n" +
				"			_, err := a.Queue.InsertJobs(ctx, tx, []jobqueue.Job{job})\n			return err\n		}); err != nil {\n",
		}}},
		{"a job is queued outside its transaction", []change{{
			"repo/gitlab/placeholders.go", "		claim.Scheduled, err = to.Queue.InsertJobs(ctx, tx, to.jobs(page.rules, rows))\n		tx.Count",
			"		err = pgx.BeginFunc(ctx, pg.PoolOf(d.db), func(tx pgx.Tx) (err error) {\n" +
				"			claim.Scheduled, err = to.Queue.InsertJobs(ctx, tx, to.jobs(page.rules, rows))\n			return err\n		})\n		tx.Count",
		}}},
		{"a job is queued that waits already", []change{{
			"scheduler/queue_insert.go", "	if _, special := j.Args.(jobqueue.UniqueWhileWaiting); !special {\n		opts.",
			"	if _, special := j.Args.(jobqueue.UniqueWhileWaiting); !special && opts == nil {\n		opts.",
		}}},
		{"a cursor is saved too early", []change{{
			"repo/gitlab/tokens_pass.go", "	err = pg.Transaction(ctx, d.db, operation, p, func(ctx context.Context, tx *pg.Changing) (err error) {\n",
			"	err = pg.Write(ctx, d.db, p, pg.NewQuery(operation, stmt.Fill(advanceTokenPassSQL, \"{journal}\", \"\"), pass, step.Last, 0, 0, false), &advanced)\n" +
				"	if err != nil {\n		return 0, err\n	}\n" +
				"	err = pg.Transaction(ctx, d.db, operation, p, func(ctx context.Context, tx *pg.Changing) (err error) {\n",
		}}},
		{"a record is removed before its last child", []change{{
			"service/lfk/statement.go", "	if !last || t.task.child.Database", "	_ = last\n	if t.task.child.Database",
		}}},
		{"a record is removed although children are locked", []change{{
			"service/lfk/statement.go", "		return t.awaitLocks(ctx, keys, r, err)\n", "		t.advanceDone(keys, r)\n		return nil, nil\n",
		}}},
		{"a database that does not answer counts as childless", []change{{
			"service/lfk/start.go", "		p.tasks = append(p.tasks, places.unknown(key, i)...)\n", "		_ = places.unknown\n",
		}}},
		{"a record counts as a deletion", []change{{
			"repo/lfk/living.go", "return p != nil && (p.Unknown || len(p.tables) > 0)", "return p != nil && p.Unknown",
		}}},
		{"cascades to protected users are not checked", []change{{
			"repo/internal/pg/protected.go", "  WHERE {missing} AND p.kind ||", "  WHERE false AND {missing} AND p.kind ||",
		}}},
		{"the counts of a killed run are not completed", []change{{
			"service/run/keepalive.go", "		found, err = append(found, some...), errors.Join(err, failed)\n",
			"		_, err = some, errors.Join(err, failed)\n",
		}}},
		{"a receipt is left out", []change{{
			"repo/internal/pg/receipts.go", "	for _, n := range tx.changes {\n		s :=", "	for _, n := range tx.changes[:len(tx.changes)-1] {\n		s :=",
		}}},
	}
}

// prove builds in one mutation after the other, and plays rounds until it is found.
func (o options) prove(ctx context.Context, report io.Writer) error {
	fmt.Fprintln(report, "| mutation | found in round | by |\n|---|---|---|")
	o.proving = true
	missed := 0
	for _, m := range mutations() {
		if o.mutation != "" && o.mutation != m.name {
			continue
		}
		round, by, err := o.find(ctx, m)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted while %q was looked for: see %s for what is left of the round", m.name, o.dir)
		case err != nil:
			return fmt.Errorf("%s: %w", m.name, err)
		case round == 0:
			missed++
			fmt.Fprintf(report, "| %s | **not in %d** | |\n", m.name, o.bound)
		default:
			rule, _, _ := strings.Cut(by, ": ")
			fmt.Fprintf(report, "| %s | %d | %s |\n", m.name, round, rule)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d mutations were not found", missed)
	}
	return o.removeDir()
}

// find returns the round in which a mutation is found, and a violation, 0 if it is not.
func (o options) find(ctx context.Context, m mutation) (round int, by string, err error) {
	program, remove, err := o.build(ctx, m.changes...)
	if err != nil {
		return 0, "", err
	}
	defer remove()
	for n := range o.bound {
		seed := o.seed + uint64(n)
		violations, err := o.play(ctx, program, seed, newTally())
		if err != nil {
			return 0, "", err
		}
		if len(violations) == 0 {
			o.say("%s: not found in round %d", m.name, n+1)
			continue
		}
		o.say("%s: found in round %d, %d violations, as\n  %s\nTo repeat it, and keep the logs: make faults FAULTS_ARGS=%q",
			m.name, n+1, len(violations), violations[0], fmt.Sprintf("-mutation '%s' -bound 1 -dir faults-found %s", m.name, o.repeat(seed)))
		return n + 1, violations[0], nil
	}
	return 0, "", nil
}
