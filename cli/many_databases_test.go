package cli

import (
	"fmt"
	"io"
	"strings"
	"testing"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// manyDatabases is a worker with thirty databases: one is in trouble, twelve have something due.
func manyDatabases() *pb.WorkerStatus {
	w := &pb.WorkerStatus{Worker: "loose_foreign_keys_cleanup", Backlog: &pb.Backlog{}}
	for i := range 30 {
		d := &pb.DatabaseStatus{Database: fmt.Sprintf("shard_%02d", i), Backlog: &pb.Backlog{}}
		switch {
		case i == 0:
			d.Problem, d.Backlog = "database shard_00: unreachable", nil
		case i <= 12:
			d.Backlog.Due = int64(100 * i)
		}
		w.Databases = append(w.Databases, d)
	}
	return w
}

func TestStatus_ManyDatabasesAreOneLineAndEachHasOneIfTheWorkerIsAskedFor(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	a := &app{Streams: Streams{Out: &out, Err: io.Discard}}
	assert.NoError(t, a.describeWorkers(manyDatabases(), &pb.WorkerStatus{Worker: "other"}))
	want := "loose_foreign_keys_cleanup has 30 databases; in trouble: shard_00; due: shard_01 100, shard_02 200, " +
		"shard_03 300, shard_04 400, shard_05 500, shard_06 600, shard_07 700, shard_08 800, shard_09 900, shard_10 1000 and 2 more; " +
		"each: caretaker status loose_foreign_keys_cleanup"
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) || strings.Contains(got, "other has") {
		t.Errorf("got %s", got)
	}
	out.Reset()
	assert.NoError(t, a.describeWorkers(manyDatabases()))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	_, table, _ := strings.Cut(out.String(), "\n\n")
	if !strings.HasPrefix(table, "DATABASE") || len(lines) != 2+1+1+30 || !strings.Contains(table, "database shard_00: unreachable") {
		t.Errorf("got %d lines: %s", len(lines), out.String())
	}
	out.Reset()
	few := manyDatabases()
	few.Databases = few.GetDatabases()[:3]
	if err := a.describeWorkers(few); err != nil || strings.Contains(out.String(), "shard_") {
		t.Errorf("%v: %s", err, out.String())
	}
}
