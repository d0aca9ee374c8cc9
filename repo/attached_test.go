package repo_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// pg_partman moves rows so: while a statement waits for the default partition, they go into one that is new.
const attachSQL = `
CREATE TABLE public."{new}" (LIKE parted);
CREATE TABLE moved AS SELECT * FROM parted_default;
DELETE FROM parted_default;
ALTER TABLE parted ATTACH PARTITION public."{new}" FOR VALUES FROM (1) TO (100);
INSERT INTO parted SELECT * FROM moved`

func TestPurge_RowsThatMoveToAPartitionAttachedMeanwhileAreFound(t *testing.T) {
	purge := func(change func(*lfk.Purge)) func(*lfk.Child, lfk.Purge) (int64, error) {
		return func(c *lfk.Child, p lfk.Purge) (int64, error) {
			change(&p)
			r, err := c.PurgeAll(t.Context(), p, lfk.DeletedRecords{}, nil)
			return r.Changed, err
		}
	}
	b := installed(servicetest.Parallel(t))
	permit := by(b.acquire("a", time.Hour).Fence)
	permit.Limits = fencing.Limits{Statement: devdb.WaitTimeout, Lock: devdb.WaitTimeout}
	for name, send := range map[string]func(*lfk.Child, lfk.Purge) (int64, error){
		"counted":   purge(func(*lfk.Purge) {}),
		"uncounted": purge(func(p *lfk.Purge) { p.Uncounted = true }),
		"shares": func(c *lfk.Child, p lfk.Purge) (int64, error) {
			r, err := c.PurgeShares(t.Context(), p, 100, true)
			return r.Changed, err
		},
		"living parents": func(c *lfk.Child, p lfk.Purge) (int64, error) {
			tables, err := lfk.NewQueue(c.Database).ParentTables(t.Context(), []string{"public.parted"}, lfk.RecordedKeys{}, nil, p.Limits)
			if err == nil {
				err = c.MatchKey(lfk.RecordedKey{}, tables["public.parted"])
			}
			if err != nil {
				return 0, err
			}
			if _, err = c.PurgeAll(t.Context(), p, lfk.DeletedRecords{}, nil); errors.Is(err, dberr.ErrLivingParent) {
				return 10, nil
			}
			return 0, err
		},
		"remaining": func(c *lfk.Child, p lfk.Purge) (int64, error) {
			keys, err := c.Remaining(t.Context(), p.Keys, p.Limits)
			return 10 * int64(len(keys)), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b.exec(`DROP TABLE IF EXISTS parted, plain, moved; CREATE TABLE parted (id bigint, p_id bigint) PARTITION BY RANGE (id); CREATE INDEX ON parted (p_id);
				CREATE TABLE parted_default PARTITION OF parted DEFAULT; INSERT INTO parted SELECT i, 7 FROM generate_series(1, 10) i;
				CREATE TABLE plain AS SELECT 7::bigint AS p_id; CREATE INDEX ON plain (p_id)`)
			children := assert.Must(servicetest.Open(t, b.url).Children.Children(t.Context(), []lfk.Definition{
				{Table: "parted", Columns: []string{"p_id"}, Parent: "p", OnDelete: lfk.AsyncDelete},
				{Table: "plain", Columns: []string{"p_id"}, Parent: "parted", OnDelete: lfk.AsyncDelete},
			}))(t)
			commit := b.estate.Other(strings.ReplaceAll(attachSQL, "{new}", "it's new"))
			child := children[0]
			if name == "living parents" {
				child = children[1]
			}
			changed, ended := int64(0), make(chan error, 1)
			go func() {
				var err error
				changed, err = send(child, lfk.Purge{Permit: permit, Keys: lfk.IntKeys(7), Cap: 100})
				ended <- err
			}()
			b.estate.Eventually("main", `SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND database = (
				SELECT oid FROM pg_database WHERE datname = current_database())`, "true")
			commit()
			assert.NoError(t, <-ended)
			assert.Equal(t, changed, 10)
		})
	}
}

// The catalogue keeps statements from changing tables that were created after the run's check.
func TestPurge_WhatComesWhileARunWorksIsSeen(t *testing.T) {
	const refer = `ALTER TABLE users ADD c_id bigint REFERENCES c ON DELETE CASCADE; UPDATE users SET c_id = id`
	trigger := func(when, body string) string {
		return `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + ` RETURN NULL; END $$;
			CREATE ` + when + ` FOR EACH ROW EXECUTE FUNCTION f()`
	}
	const after = `TRIGGER f AFTER DELETE ON c`
	const pending = `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = `
	protected := func(err error) bool { _, ok := errors.AsType[*repo.ProtectedError](err); return ok }
	changed := func(err error) bool { return errors.Is(err, dberr.ErrChildChanged) }
	b := installed(servicetest.Parallel(t))
	permit := by(b.acquire("a", time.Hour).Fence)
	permit.Limits = fencing.Limits{Statement: devdb.WaitTimeout, Lock: devdb.WaitTimeout}
	for name, c := range map[string]struct {
		sql     string
		refused func(error) bool // nil: the rows are deleted
		parted  bool
	}{
		"a foreign key of users":        {refer, protected, false},
		"one while nothing is counted":  {refer, protected, false},
		"one of a table of users":       {`CREATE TABLE u (c_id bigint REFERENCES c ON DELETE CASCADE) INHERITS (users); DELETE FROM users; INSERT INTO u VALUES (1, 1), (2, 2)`, protected, false},
		"one of a partition of users":   {`DROP TABLE users; CREATE TABLE users (id bigint, c_id bigint) PARTITION BY LIST (id); CREATE TABLE u PARTITION OF users DEFAULT; ALTER TABLE u ADD FOREIGN KEY (c_id) REFERENCES c ON DELETE CASCADE; INSERT INTO u VALUES (1, 1), (2, 2)`, protected, false},
		"a trigger that deletes users":  {trigger(after, "DELETE FROM users;"), protected, false},
		"one that is deferred":          {trigger("CONSTRAINT "+after+" DEFERRABLE INITIALLY DEFERRED", "DELETE FROM users;"), protected, false},
		"one that truncates the table":  {trigger(after, "TRUNCATE users;"), protected, false},
		"one that changes users":        {trigger(after, "UPDATE users SET id = id;"), nil, false},
		"a trigger that keeps rows":     {trigger("TRIGGER f BEFORE DELETE ON c", ""), changed, false},
		"a table that inherits":         {`CREATE TABLE d () INHERITS (c)`, changed, false},
		"a detachment that is pending":  {pending + `'c_1'::regclass`, changed, true},
		"a detachment of another table": {`CREATE TABLE o (LIKE c) PARTITION BY LIST (id); CREATE TABLE o_1 PARTITION OF o DEFAULT; ` + pending + `'o_1'::regclass`, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			b.exec(`DROP TABLE IF EXISTS u, users, namespaces, d, c, o CASCADE; DROP FUNCTION IF EXISTS f; TRUNCATE maintenance.protected_targets;
				CREATE TABLE users (id bigint PRIMARY KEY); CREATE TABLE namespaces (id bigint PRIMARY KEY); INSERT INTO users VALUES (1), (2);
				INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 2, 'r', 'ann'), ('user', 3, 'gone before', 'ann')`)
			create, settings := `CREATE TABLE c (id bigint PRIMARY KEY, p_id bigint)`, ""
			if c.parted {
				create += ` PARTITION BY RANGE (id); CREATE TABLE c_1 PARTITION OF c DEFAULT`
			}
			if name == "one while nothing is counted" {
				settings = "options=-c%20track_counts%3Doff"
			}
			b.exec(create + `; CREATE INDEX ON c (p_id); INSERT INTO c SELECT i, 7 FROM generate_series(1, 2) i`)
			child := assert.Must(servicetest.Open(t, b.with(settings)).Children.Children(t.Context(), []lfk.Definition{
				{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: lfk.AsyncDelete},
			}))(t)[0]
			b.exec(c.sql)
			p := lfk.Purge{Permit: permit, Keys: lfk.IntKeys(7), Cap: 100, Uncounted: !c.parted}
			_, err := child.PurgeAll(t.Context(), p, lfk.DeletedRecords{}, nil)
			b.want(`SELECT count(*) FROM users`, "2")
			if c.refused == nil {
				assert.NoError(t, err)
				return
			}
			assert.That(t, c.refused(err), "%v", err)
			rows := `SELECT count(*) FROM c`
			if c.parted {
				rows += "_1"
				_, err = child.Remaining(t.Context(), p.Keys, p.Limits)
				assert.That(t, c.refused(err), "remaining: %v", err)
			}
			b.want(rows, "2")
		})
	}
}
