package loosefk_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

const twoTables = `
c:
  - {table: users, column: user_id, on_delete: async_delete}
n:
  - {table: users, column: user_id, on_delete: async_nullify}
`

func TestLooseForeignKeysCleanup_DeletesAndNullifiesChildrenOfDeletedParents(t *testing.T) {
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, user_id bigint); CREATE INDEX ON c (user_id)`)
	e.Exec("main", `CREATE TABLE n (id bigserial PRIMARY KEY, user_id integer); CREATE INDEX ON n (user_id)`)
	e.Exec("main", `INSERT INTO c (user_id) SELECT i % 20 FROM generate_series(1, 200) i`)
	e.Exec("main", `INSERT INTO n (user_id) SELECT i % 20 FROM generate_series(1, 100) i`)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (id, fully_qualified_table_name, primary_key_value)
		SELECT nextval('loose_foreign_keys_deleted_records_id_seq'), 'public.users', i FROM generate_series(10, 19) i`)
	r := servicetest.RunBatch(t, e.Service(twoTables), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=10 deleted_rows=100 updated_rows=50")
	e.Want("main", `SELECT count(*) FROM c`, "100")
	e.Want("main", `SELECT count(*) FROM n WHERE user_id IS NULL`, "50")
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "0")
}
