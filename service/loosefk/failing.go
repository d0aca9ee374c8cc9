package loosefk

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/service/run"
)

// failingKey is a definition in a database of its child, for the records of a queue.
type failingKey struct{ queue, definition, database string }

// toldAgain is how often the log says that a definition still fails.
const toldAgain = time.Hour

// failing are the definitions that fail, for the life of the process, so that the log says so when
// it begins, when the condition is another one, every hour and when it is over, and not in every
// run.
type failing struct {
	mu sync.Mutex
	// told is when the log has said so last, by condition.
	told map[failingKey]map[string]time.Time
}

func newFailing() *failing { return &failing{told: map[failingKey]map[string]time.Time{}} }

// tell says whether a failure is to be in the log, and takes it that it then is.
func (f *failing) tell(key failingKey, condition string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.told[key]
	if told == nil {
		told = map[string]time.Time{}
		f.told[key] = told
	}
	at, known := told[condition]
	if known && time.Since(at) < toldAgain {
		return false
	}
	told[condition] = time.Now()
	return true
}

// among are the keys that fail.
func (f *failing) among(keys map[failingKey]bool) (failing []failingKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range keys {
		if f.told[key] != nil {
			failing = append(failing, key)
		}
	}
	return failing
}

func (f *failing) over(key failingKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.told, key)
}

// tellOver says which definitions work again: those of which a statement has succeeded in this run
// and none has failed, and that no record is waiting for that has failed by itself.
func (c *cleanup) tellOver(ctx context.Context) {
	worked := c.failing.among(c.failures.unfailed())
	if len(worked) == 0 {
		return
	}
	var definitions []string
	for _, key := range worked {
		definitions = append(definitions, key.definition)
	}
	// If that is not to be learned, the next run says so.
	left, err := c.x.Database.FailingDefinitions(ctx, c.queue, definitions, run.ReadLimits())
	if err != nil {
		return
	}
	for _, key := range worked {
		if !slices.Contains(left, key.definition) {
			c.failing.over(key)
			c.x.Log.InfoContext(ctx, "definition works again",
				"definition", key.definition, "child_database", key.database)
		}
	}
}
