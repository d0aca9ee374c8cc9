package repo_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestFailedJobs_OfEachStateUpTo1000AreExact(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	discard := `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, finalized_at)
		SELECT 'k', '{}', 1, 'discarded', now() FROM generate_series(1, `
	b.exec(discard + `1000)`)
	failed := assert.Must(b.Jobs.FailedJobs(t.Context()))(t)
	assert.That(t, len(failed) == 1 && failed[0].Discarded == 1000 && !failed[0].AtLeast, "%+v", failed)
	b.exec(discard + `1)`)
	failed = assert.Must(b.Jobs.FailedJobs(t.Context()))(t)
	assert.That(t, len(failed) == 1 && failed[0].AtLeast, "%+v", failed)
}
