package repo_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	aParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	aTrace  = `SELECT set_config('caretaker.traceparent', '` + aParent + `', false)`
	noted   = `SELECT coalesce(string_agg(concat_ws(':', q.primary_key_value, t.traceparent), ' ' ORDER BY q.id), '-')
		FROM maintenance.record_traces t LEFT JOIN loose_foreign_keys_deleted_records q ON q.partition = t.partition AND q.id = t.record_id`
)

func TestRecordTraces_GoWithTheirRecords(t *testing.T) {
	b := installed(t)
	ctx := context.Background()
	if has, err := b.HasRecordTraces(ctx); has || err != nil {
		t.Errorf("%v, %v before any deletion", has, err)
	}
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 4); " + aTrace)
	b.track("p")
	b.exec("DELETE FROM p")
	if has, err := b.HasRecordTraces(ctx); !has || err != nil {
		t.Errorf("%v, %v, want that there are traces", has, err)
	}
	queue := servicetest.Must(b.DeletedRecords(ctx))(t)
	limits := repo.Limits{Statement: 5 * time.Second, Lock: time.Second}
	records, _, err := b.LoadRecords(ctx, queue, repo.RecordPage{Parent: "public.p", Limit: 10}, limits)
	if err != nil || len(records) != 4 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	parents, err := b.RecordTraces(ctx, records, 16, limits)
	if err != nil || len(parents) != 1 || parents[0] != aParent {
		t.Errorf("%v, %v, want the one span", parents, err)
	}
	fence := b.acquire("a", time.Minute).Fence
	servicetest.Must(b.RemoveRecords(ctx, by(fence), queue, records[:2]))(t)
	b.want(noted, "3:"+aParent+" 4:"+aParent)
	dead := repo.RecordFailure{Record: records[2], Isolated: true, Definition: "c.p_id -> p", SQLState: "P0001", Message: "raise_exception"}
	for range repo.DeadAfter {
		if _, _, err := b.FailRecords(ctx, by(fence), queue, []repo.RecordFailure{dead}); err != nil {
			t.Fatal(err)
		}
	}
	b.want(noted, "4:"+aParent)
	b.exec("DELETE FROM loose_foreign_keys_deleted_records; ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 9")
	b.exec("CREATE TABLE gitlab_partitions_dynamic.nine PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (9)")
	if queue, err = b.DeletedRecords(ctx); err != nil {
		t.Fatal(err)
	}
	if dropped, err := b.DropPartitions(ctx, by(fence), queue); err != nil || len(dropped) != 1 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	b.want("SELECT count(*) FROM maintenance.record_traces", "0")
}
