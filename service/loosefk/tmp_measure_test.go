package loosefk_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestTmpMeasure(t *testing.T) {
	e := servicetest.New(t, "", "main")
	for _, n := range []string{"p", "c"} {
		e.Exec("main", `CREATE TABLE `+n+` (id bigint, p_id bigint, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)`)
		e.Exec("main", `CREATE INDEX ON `+n+` (p_id) WHERE p_id IS NOT NULL`)
		for i := 0; i < 2000; i += 100 {
			e.Exec("main", `DO $$ BEGIN FOR i IN `+itoa(i)+`..`+itoa(i+99)+` LOOP EXECUTE format('CREATE TABLE `+n+`_%s PARTITION OF `+n+` FOR VALUES IN (%s)', i, i); END LOOP; END $$`)
		}
	}
	e.Install("p")
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_nullify}]")
	for range 4 {
		at := time.Now()
		r, err := keys.Lint(context.Background())
		t.Logf("%v %d %v", time.Since(at), len(r.Findings), err)
	}
}

func itoa(i int) string { return strconv.Itoa(i) }
