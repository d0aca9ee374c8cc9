package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDatabases_OneOfAHundredThatDoesNotAnswerHidesNoOther(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for i := range 99 {
		d := assert.Must(repo.Open(t.Context(), fmt.Sprintf("shard_%02d", i), e.URLs["main"]))(t)
		t.Cleanup(d.Close)
		e.Open = append(e.Open, d)
	}
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.Exec("main", `INSERT INTO maintenance.dead_records (id, fully_qualified_table_name, primary_key_value, definition, sqlstate, message,
		failures, recorded_at, dead_at) VALUES (1, 'public.p', 77, 'c.p_id', '23503', '', 10, now(), now())`)
	e.Open[50].Close()
	// All connect at the same time, so a slow machine needs several calls.
	devdb.Eventually(t, "all databases but one to be read", func() bool {
		list := assert.Must(s.Waiting(t.Context(), servicetest.LooseForeignKeys, true))(t)
		figures := s.DatabaseStatus(t.Context(), assert.Must(s.Status(t.Context(), ""))(t))
		states := s.DatabaseStates(t.Context(), figures)
		assert.Require(t, len(figures) == 100 && len(states) == 100, "%d figures, %d states", len(figures), len(states))
		read := 0
		for i, state := range states {
			assert.Equal(t, state.Name, figures[i].Name, "order")
			if state.Problem == "" && state.Known && state.LoadKnown {
				read++
			}
		}
		return len(list.NotRead) == 1 && strings.Contains(list.NotRead[0], "shard_49") && len(list.Items) == 99 &&
			read == 99 && figures[0].Name == "shard_49" && figures[0].Err != nil && !figures[0].Known && states[0].Problem != ""
	})
	for _, d := range e.Open {
		d.Close()
	}
	_, err := s.Waiting(t.Context(), servicetest.LooseForeignKeys, true)
	assert.That(t, err != nil, "no database answers, and the list is empty")
}
