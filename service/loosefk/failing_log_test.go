package loosefk_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// A definition that fails is in the log when it begins to, when its condition changes, and when it works again.
func TestLooseForeignKeysCleanup_AFailingDefinitionIsNotInTheLogOfEveryRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 50)
	e.Mine("c", "OLD.p_id < 3", "P0001")
	var said bytes.Buffer
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0), func(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	want := func(when string, failed, again int) {
		t.Helper()
		makeDue(e)
		said.Reset()
		servicetest.RunBatch(t, s, "main")
		if f, a := strings.Count(said.String(), "definition failed"), strings.Count(said.String(), "definition works again"); f != failed || a != again {
			t.Errorf("%s: %d lines of failure and %d of its end, want %d and %d:\n%s", when, f, a, failed, again, said.String())
		}
	}
	want("it begins", 1, 0)
	want("it goes on", 0, 0)

	// The records that fail are not among those of this run: they wait.
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		SELECT 'public.p', 100, now(); UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 hour' WHERE primary_key_value < 3`)
	said.Reset()
	servicetest.RunBatch(t, s, "main")
	if strings.Contains(said.String(), "definition ") {
		t.Errorf("log %s", said.String())
	}

	e.Exec("main", `DROP TRIGGER mine ON c; DROP FUNCTION explode_c`)
	e.Mine("c", "OLD.p_id < 3", "42501")
	want("it changes", 1, 0)
	e.Exec("main", `DROP TRIGGER mine ON c`)
	want("it is mended", 0, 1)
	e.Deleted("main", "p", 1, 3)
	want("it works", 0, 0)
}
