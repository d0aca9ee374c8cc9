package repo_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// prepared are the types of all statements' parameters in a database, by the statements' names.
func prepared(t *testing.T, conn *pgx.Conn) map[string][]uint32 {
	t.Helper()
	types := map[string][]uint32{}
	for name, sql := range statements(t) {
		for i, single := range split(name, sql) {
			s, err := conn.PgConn().Prepare(context.Background(), "", single, nil)
			if err != nil {
				t.Errorf("%s, statement %d: %v", name, i, err)
				continue
			}
			types[name] = append(types[name], s.ParamOIDs...)
		}
	}
	return types
}

// A parameter takes the type of the column that it is compared with: an id of 64 bits would not go into one of 32.
func TestSQL_ParametersTakeEveryIDWhateverTheWidthOfColumns(t *testing.T) {
	t.Parallel()
	want := prepared(t, connect(t, databases.Clone(t, servicetest.Migrated("main"))))
	for _, narrow := range []string{
		"%", "id", "user_id", "group_id", "namespace_id", "parent_id", "owner_id", "source_id", "organization_id", "member_namespace_id",
		"project_namespace_id", "shared_group_id", "shared_with_group_id", "placeholder_user_id", "initiator_user_id",
	} {
		t.Run(narrow, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, databases.Clone(t, servicetest.Migrated("main")))
			servicetest.Must(conn.Exec(context.Background(), devdb.NarrowKeys(narrow)))(t)
			got := prepared(t, conn)
			for name, types := range want {
				if !slices.Equal(got[name], types) {
					t.Errorf("the parameters of %s are of the types %v, want %v as with bigint: cast them", name, got[name], types)
				}
			}
		})
	}
}

func TestSweep_KeysTooWideForTheColumnMatchNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"smallint", "integer", "bigint"} {
		b := newBench(t, "")
		b.exec(`CREATE TABLE t (id bigserial PRIMARY KEY, owner ` + kind + `); INSERT INTO t (owner) VALUES (1), (2), (3)`)
		r, _ := b.catalog(map[string][]string{"t": {"owner"}}).Rows("t", "owner", "1", "2", "3000000000")
		owner, _ := b.catalog(map[string][]string{"t": {"owner"}}).Table("t").Column("owner")
		ctx := context.Background()
		if has, err := b.Any(ctx, []repo.Rows{r}, generous); err != nil || !has[0] {
			t.Errorf("%s: any %v, %v", kind, has, err)
		}
		if places, err := r.Refer(ctx, generous); err != nil || !slices.Equal(places, []int{0, 1}) {
			t.Errorf("%s: refer %v, %v", kind, places, err)
		}
		taken, err := r.Take(ctx, []repo.Column{owner}, [][]string{{"2", "3000000000"}}, repo.Batch{Rows: 9, Permit: locking(1)})
		if err != nil || !slices.Equal(taken[0], []string{"1"}) {
			t.Errorf("%s: take %v, %v", kind, taken, err)
		}
		if got := b.swept(r, repo.Change{Delete: true}, repo.Batch{Rows: 9}); got.Changed != 2 {
			t.Errorf("%s: swept %+v", kind, got)
		}
	}
}
