package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
)

// botTables are bots with three tokens each: rotated twice, the newest lives, so nothing is to be queued. Tokens come as
// they did in life, all bots' first ones before their second ones.
func botTables(bots int) []string {
	return []string{
		`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'bench', now(), now())`,
		fmt.Sprintf(`INSERT INTO users (id, username, email, projects_limit, organization_id, user_type, state, created_at, updated_at)
			SELECT i, 'bot_' || i, 'bot_' || i || '@example.com', 0, 1, 6, 'active', now(), now() FROM generate_series(1, %d) i`, bots),
		fmt.Sprintf(`INSERT INTO personal_access_tokens (user_id, name, revoked, expires_at, organization_id, token_digest, created_at, updated_at)
			SELECT i, 'token', n < 3, current_date + 100 * (n - 2), 1, md5(n || '-' || i), now() - interval '400 days', now() - interval '100 days'
			FROM generate_series(1, 3) n, generate_series(1, %d) i`, bots),
	}
}

// aggregateSQL is the other side: the same question in one query, without parallel workers, its dates worked out before.
const aggregateSQL = `
SELECT count(*) FROM (
  SELECT u.id FROM users u LEFT JOIN personal_access_tokens t ON t.user_id = u.id
  WHERE u.user_type = 6
  GROUP BY u.id
  HAVING bool_or(t.revoked IS NOT TRUE AND (t.expires_at IS NULL OR t.expires_at > date '%[1]s')
    OR t.expires_at <= date '%[1]s' AND t.expires_at >= date '%[2]s'
    OR t.revoked IS TRUE AND t.updated_at >= timestamp '%[2]s') IS NOT TRUE) inactive`

// pass is what one round measured.
type pass struct{ ours, aggregate cost }

// comparePasses is (f): a whole pass over bots that all keep, beside one sequential query that aggregates.
func comparePasses(ctx context.Context, l *lab) (*report, error) {
	n := l.bots
	d, err := l.buildBots(ctx, n)
	if err != nil {
		return nil, err
	}
	r := &report{header: []string{"way", "median", "range", "server CPU", "bots/s"}}
	if err = l.passes(ctx, d, r, n); err == nil {
		err = l.longestStatement(ctx, d, r)
	}
	return r, errors.Join(err, d.drop(ctx))
}

func (l *lab) buildBots(ctx context.Context, n int) (*database, error) {
	const name = "bots"
	if err := l.buildMain(ctx, name, botTables(n)...); err != nil {
		return nil, err
	}
	d, err := l.connect(ctx, name)
	if err != nil {
		return nil, err
	}
	err = d.exec(ctx, `SET max_parallel_workers_per_gather = 0`)
	return d, err
}

func (l *lab) passes(ctx context.Context, d *database, r *report, n int) error {
	var c service.Config
	service.Settings[token.Config](&c).MaxRuntime = 10 * time.Minute
	s, err := openService(ctx, d, c)
	if err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	measured, note, err := rounds(l, l.repeat, func(int) (p pass, others float64, err error) {
		if p.aggregate, err = l.timed(func() error { return d.nobody(ctx) }); err != nil {
			return p, 0, err
		}
		p.ours, err = l.timed(func() error {
			return runWorker(ctx, s, "inactive_token_deletion", map[string]int64{"examined_users": int64(n), "scheduled_jobs": 0})
		})
		l.say("  pass %s, aggregate %s", seconds(p.ours.time), seconds(p.aggregate.time))
		return p, max(p.ours.others, p.aggregate.others), err
	})
	if err != nil {
		return err
	}
	var took [2][]time.Duration
	var server [2][]float64
	for _, p := range measured {
		for i, c := range []cost{p.ours, p.aggregate} {
			took[i], server[i] = append(took[i], c.time), append(server[i], c.server)
		}
	}
	for i, way := range []string{"caretaker, a whole pass", "one sequential query that aggregates"} {
		r.row(way, seconds(median(took[i])), spread(took[i]), fmt.Sprintf("%.2f s", median(server[i])), perSecond(int64(n), median(took[i])))
	}
	ratio := median(ratios(took[0], took[1]))
	l.target(r, "the pass's time", "at most 1.50 × that of the query", times(ratio), ratio <= 1.5)
	r.note("%s bots with 3 tokens each, none inactive.", grouped(int64(n)))
	r.note("%s", note)
	return nil
}

// The query finds no inactive user.
func (d *database) nobody(ctx context.Context) error {
	var inactive int
	today := time.Now().UTC()
	sql := fmt.Sprintf(aggregateSQL, today.Format(time.DateOnly), today.AddDate(0, 0, -30).Format(time.DateOnly))
	if err := d.one(ctx, &inactive, sql); err != nil {
		return err
	}
	if inactive > 0 {
		return fmt.Errorf("%d bots are inactive, of which there should be none", inactive)
	}
	return nil
}

// longestStatement notes how long statements took that name the tokens, where the server shows.
func (l *lab) longestStatement(ctx context.Context, d *database, r *report) error {
	counts, err := l.countsStatements(ctx)
	if err != nil || !counts {
		return err
	}
	var calls int64
	var mean, longest float64
	err = d.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	if err == nil {
		err = d.conn.QueryRow(ctx, `SELECT sum(calls)::bigint, sum(total_exec_time) / sum(calls), max(max_exec_time)
			FROM pg_stat_statements s JOIN pg_database b ON b.oid = s.dbid AND b.datname = current_database()
			WHERE query LIKE '%judged%'`).Scan(&calls, &mean, &longest)
	}
	if err != nil {
		return fmt.Errorf("read pg_stat_statements: %w", err)
	}
	const limit = 250
	l.target(r, "the longest of caretaker's statements", fmt.Sprintf("at most %d ms at p99", limit), fmt.Sprintf("%.1f ms", longest), longest <= limit)
	r.note("%s statements, %.2f ms on average.", grouped(calls), mean)
	return nil
}
