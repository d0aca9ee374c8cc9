package repo_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
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
	purge := func(change func(*repo.Purge)) func(*repo.Child, repo.Purge) (int64, error) {
		return func(c *repo.Child, p repo.Purge) (int64, error) {
			change(&p)
			r, err := c.PurgeAll(t.Context(), p, repo.DeletedRecords{}, nil)
			return r.Changed, err
		}
	}
	for name, send := range map[string]func(*repo.Child, repo.Purge) (int64, error){
		"counted":   purge(func(*repo.Purge) {}),
		"uncounted": purge(func(p *repo.Purge) { p.Uncounted = true }),
		"shares": func(c *repo.Child, p repo.Purge) (int64, error) {
			r, err := c.PurgeShares(t.Context(), p, 100, true)
			return r.Changed, err
		},
		"living parents": func(c *repo.Child, p repo.Purge) (int64, error) {
			tables, err := c.Database.ParentTables(t.Context(), []string{"public.parted"}, repo.RecordedKeys{}, nil, p.Limits)
			if err == nil {
				err = c.Refer(repo.RecordedKey{}, tables["public.parted"])
			}
			if err != nil {
				return 0, err
			}
			if _, err = c.PurgeAll(t.Context(), p, repo.DeletedRecords{}, nil); errors.Is(err, repo.ErrLivingParent) {
				return 10, nil
			}
			return 0, err
		},
		"remaining": func(c *repo.Child, p repo.Purge) (int64, error) {
			keys, err := c.Remaining(t.Context(), p.Keys, p.Limits)
			return 10 * int64(len(keys)), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := installed(servicetest.Parallel(t))
			b.exec(`CREATE TABLE parted (id bigint, p_id bigint) PARTITION BY RANGE (id); CREATE INDEX ON parted (p_id);
				CREATE TABLE parted_default PARTITION OF parted DEFAULT; INSERT INTO parted SELECT i, 7 FROM generate_series(1, 10) i;
				CREATE TABLE plain AS SELECT 7::bigint AS p_id; CREATE INDEX ON plain (p_id)`)
			children := assert.Must(b.Children(t.Context(), []repo.LooseForeignKey{
				{Table: "parted", Columns: []string{"p_id"}, Parent: "p", OnDelete: repo.AsyncDelete},
				{Table: "plain", Columns: []string{"p_id"}, Parent: "parted", OnDelete: repo.AsyncDelete},
			}))(t)
			permit := by(b.acquire("a", time.Hour).Fence)
			permit.Limits = repo.Limits{Statement: devdb.WaitTimeout, Lock: devdb.WaitTimeout}
			commit := b.estate.Other(strings.ReplaceAll(attachSQL, "{new}", "it's new"))
			child := children[0]
			if name == "living parents" {
				child = children[1]
			}
			changed, ended := int64(0), make(chan error, 1)
			go func() {
				var err error
				changed, err = send(child, repo.Purge{Permit: permit, Keys: repo.IntKeys(7), Cap: 100})
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
