package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// bury inserts dead records of tables, and held records of one table whose keys are reused.
func (f *fixture) bury() {
	f.t.Helper()
	f.exec(`CREATE TABLE p (id bigint PRIMARY KEY)`)
	f.exec(`INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT 'public.' || t, 7, 'c.p_id -> p', 'P0001', 'quotes a row', 10, now() FROM unnest('{p,q,p}'::text[]) t`)
	f.exec(`WITH r AS (INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
			SELECT 'public.p', i, now() + interval '1 hour' FROM generate_series(1, 3) i RETURNING partition, id, primary_key_value)
		INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, sqlstate, last_definition, failed_at)
		SELECT partition, id, 0, 1, CASE WHEN primary_key_value = 3 THEN 'absent' ELSE 'KEY_REUSED' END, 'c.p_id -> p', now() FROM r`)
}

func TestRecords_AreListedByStateAndDecidedByTable(t *testing.T) {
	f := start(t, withTokens(t, ""))
	f.bury()
	viewer, operator := as(t.Context(), "viewer-token"), as(t.Context(), "operator-token")
	listed := func(r *maintenancev1.ListRecordsRequest) string {
		t.Helper()
		var found []string
		for r.PageSize = 1; ; {
			answer := assert.Must(f.ListRecords(viewer, r))(t)
			for _, record := range answer.GetRecords() {
				assert.That(t, record.GetDatabase() == "main" && record.GetDefinition() == "c.p_id -> p" && record.GetFailedAt() != nil &&
					!strings.Contains(record.String(), "quotes"), "got %v", record)
				found = append(found, record.GetTable()+" "+record.GetKey()+" "+record.GetCause())
			}
			if r.PageToken = answer.GetNextPageToken(); r.GetPageToken() == "" {
				return strings.Join(found, ", ")
			}
		}
	}
	const failing, reused = maintenancev1.RecordState_RECORD_STATE_FAILING, maintenancev1.RecordState_RECORD_STATE_REUSED
	assert.Equal(t, listed(&maintenancev1.ListRecordsRequest{}), "public.p 7 P0001, public.q 7 P0001, public.p 7 P0001")
	assert.Equal(t, listed(&maintenancev1.ListRecordsRequest{Table: "q", Database: "main"}), "public.q 7 P0001")
	assert.Equal(t, listed(&maintenancev1.ListRecordsRequest{State: reused}), "public.p 1 KEY_REUSED, public.p 2 KEY_REUSED")
	assert.Equal(t, listed(&maintenancev1.ListRecordsRequest{State: failing}), "public.p 1 KEY_REUSED, public.p 2 KEY_REUSED, public.p 3 absent")
	f.failure(second(f.ListRecords(viewer, &maintenancev1.ListRecordsRequest{Database: "nowhere"})), codes.NotFound, "UNKNOWN_DATABASE")
	f.violates(second(f.ListRecords(viewer, &maintenancev1.ListRecordsRequest{State: 99})), "state")
	f.violates(second(f.ListRecords(viewer, &maintenancev1.ListRecordsRequest{PageToken: "x"})), "page_token")

	const retry, clean, keep = maintenancev1.RecordDecision_RECORD_DECISION_RETRY, maintenancev1.RecordDecision_RECORD_DECISION_CLEAN,
		maintenancev1.RecordDecision_RECORD_DECISION_KEEP
	f.failure(second(f.DecideRecords(viewer, &maintenancev1.DecideRecordsRequest{Decision: retry, Table: "*"})), codes.PermissionDenied, "ROLE_TOO_LOW")
	for field, wrong := range map[string][]*maintenancev1.DecideRecordsRequest{
		"decision": {{Table: "p"}},
		"table": {
			{Decision: retry},
			{Decision: retry, Table: "p", Id: 1},
			{Decision: clean, Table: "*"},
			{Decision: keep, Id: 1},
			{Decision: retry, Table: "a\nb"},
		},
	} {
		for _, r := range wrong {
			f.violates(second(f.DecideRecords(operator, r)), field)
		}
	}
	decide := func(r *maintenancev1.DecideRecordsRequest) (n int64) {
		t.Helper()
		for _, d := range assert.Must(f.DecideRecords(operator, r))(t).GetDatabases() {
			n += d.GetRecords()
		}
		return n
	}
	f.failure(second(f.DecideRecords(operator, &maintenancev1.DecideRecordsRequest{Decision: retry, Id: 99})), codes.NotFound, "UNKNOWN_RECORD")
	f.failure(second(f.DecideRecords(operator, &maintenancev1.DecideRecordsRequest{Decision: keep, Table: "nowhere"})), codes.NotFound, "UNKNOWN_TABLE")
	f.failure(second(f.DecideRecords(operator, &maintenancev1.DecideRecordsRequest{Decision: keep, Table: "c"})), codes.NotFound, "UNKNOWN_RECORD")
	assert.Equal(t, decide(&maintenancev1.DecideRecordsRequest{Decision: retry, Id: 1, Database: "main"}), 1)
	assert.Equal(t, decide(&maintenancev1.DecideRecordsRequest{Decision: retry, Table: "p"}), 1)
	assert.Equal(t, decide(&maintenancev1.DecideRecordsRequest{Decision: retry, Table: "*"}), 1)
	assert.Equal(t, decide(&maintenancev1.DecideRecordsRequest{Decision: clean, Table: "p"}), 2)
	assert.Equal(t, decide(&maintenancev1.DecideRecordsRequest{Decision: keep, Table: "p"}), 2)
	assert.Equal(t, listed(&maintenancev1.ListRecordsRequest{})+listed(&maintenancev1.ListRecordsRequest{State: reused}), "")
	audit := assert.Must(f.ListAudit(viewer, &maintenancev1.ListAuditRequest{Action: "DecideRecords", By: "operator"}))(t).GetEntries()
	assert.Require(t, len(audit) > 0, "the decisions are not audited")
	assert.That(t, audit[0].GetTarget() == "p" && strings.Contains(audit[0].GetReason(), "decision=RECORD_DECISION_KEEP") && audit[0].GetOutcome() == "OK", "got %v", audit[0])
}
