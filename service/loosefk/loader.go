package loosefk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// loader hands out the batches of a run: parents take turns, a batch each.
//
// It walks the records of each parent by key, from the oldest on. A walk misses what is committed
// behind it: records with an earlier time or a lower id, and those of parents that had none when it
// began. Batches in hand may record more, too. So once every parent has come to its end, and no
// batch is in hand, the next walk begins. One that finds nothing is the last.
type loader struct {
	database *repo.Database
	// queue as it was when the walk began, but for its At: that is the start of the run.
	queue     repo.DeletedRecords
	batchSize int
	// byName are the tasks of all parents with definitions, by their names in the records.
	byName map[string]*parentTasks
	// room reports whether the load and the run's limits leave room for so many rows.
	room func(rows int64) bool

	mu       sync.Mutex
	released *sync.Cond
	// inHand are the batches that have been handed out and not released. Of a parent with several queues
	// it has their records: those of the same keys are loaded together, ahead of their turn.
	inHand map[*batch][]repo.RecordID
	// parents are those of the walk that have not come to their end, turn the one that is next.
	// found: the walk has found records.
	parents []*parentTasks
	turn    int
	found   bool
}

func newLoader(c *cleanup, parents []*parentTasks) *loader {
	l := &loader{
		database: c.x.Database, queue: c.queue, batchSize: c.config.BatchSize,
		byName: map[string]*parentTasks{}, inHand: map[*batch][]repo.RecordID{},
		room: func(rows int64) bool { return !c.x.Throttled() && c.budget.room(rows) },
	}
	l.released = sync.NewCond(&l.mu)
	for _, p := range parents {
		p.pages = 1
		l.byName[p.recorded] = p
	}
	return l
}

// maxKeys is how many records a batch of several pages has at most: with more, statements are hardly
// cheaper. Whoever has set a batch_size under minPage wants small statements, and gets them.
const maxKeys, minPage = 2000, 500

// statements is what the statements of a batch were like.
type statements struct {
	// rows is the most that one has changed, filled how much of its cap that was, longest how long
	// one took. split: some keys needed statements of their own.
	rows    int64
	filled  float64
	longest time.Duration
	split   bool
}

// observe notes a statement that has changed rows of the cap that it has by now.
func (s *statements) observe(took time.Duration, rows, limit int64) {
	s.rows, s.longest = max(s.rows, rows), max(s.longest, took)
	s.filled = max(s.filled, float64(rows)/float64(limit))
}

// nextPages is how many pages of a size the next batch of the parent may have: twice as many if its
// statements can be expected to fit under their caps and to stay short.
func (b *batch) nextPages(size int) int {
	switch {
	case size < minPage:
		return 1
	case b.split || b.longest > bulk.StatementGoal:
		return max(1, b.pages/2)
	case b.filled <= 0.5 && b.longest < bulk.StatementGoal/4:
		return min(2*b.pages, max(1, maxKeys/size))
	}
	return b.pages
}

// begin begins a walk with the parents that have due records, in an order drawn at random.
func (l *loader) begin(due []repo.QueuedParent) {
	l.parents, l.turn, l.found = nil, 0, false
	for _, parent := range due {
		if p := l.byName[parent.Name]; p != nil {
			p.position, p.queues = repo.Position{}, parent.Queues
			l.parents = append(l.parents, p)
		}
	}
	rand.Shuffle(len(l.parents), func(i, j int) {
		l.parents[i], l.parents[j] = l.parents[j], l.parents[i]
	})
}

// next hands out a batch, which must be released: nil when nothing is left, or no more is wanted.
// While batches are in hand that may record more it waits for them.
func (l *loader) next(ctx context.Context, stop func() bool) (*batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		b, err := l.load(ctx)
		switch {
		case b != nil:
			l.inHand[b] = nil
			if len(b.queues) > 1 {
				l.inHand[b] = b.ids()
			}
			l.found = true
			return b, nil
		case err != nil:
			return nil, err
		case len(l.inHand) > 0:
			l.released.Wait()
			if stop() {
				return nil, nil
			}
		case !l.found:
			return nil, nil
		default:
			if err := l.restart(ctx); err != nil {
				return nil, err
			}
		}
	}
}

// release gives back a batch that has been worked, and learns from it how large the next one of its
// parent may be.
func (l *loader) release(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := b.parentTasks
	p.pages, p.pageRows = b.nextPages(l.batchSize), b.rows/int64(b.pages)
	delete(l.inHand, b)
	l.released.Broadcast()
}

// load takes a batch of the parent whose turn it is; nil: all have come to their end.
func (l *loader) load(ctx context.Context) (*batch, error) {
	for len(l.parents) > 0 {
		l.turn %= len(l.parents)
		p := l.parents[l.turn]
		records, pages, err := l.loadPages(ctx, p)
		if err != nil {
			return nil, err
		}
		if len(records) > 0 {
			l.turn++
			return newBatch(p, records, pages), nil
		}
		l.parents = append(l.parents[:l.turn:l.turn], l.parents[l.turn+1:]...)
	}
	return nil, nil
}

// limitShare is which part of what is left of the run's limits a batch of several pages may need, so
// that parents still take turns, and few records are left incomplete, where a limit ends the run.
const limitShare = 4

// loadPages loads as many pages of a parent as its next batch may have.
func (l *loader) loadPages(
	ctx context.Context, p *parentTasks,
) (records []repo.Record, pages int, err error) {
	wanted := p.pages
	for wanted > 1 && !l.room(limitShare*int64(wanted)*p.pageRows) {
		wanted--
	}
	for full := true; full && pages < wanted; pages++ {
		page, err := l.database.LoadRecords(ctx, l.queue, repo.RecordPage{
			Parent: p.recorded, After: p.position, Limit: l.batchSize, Since: true,
			Queues: p.queues, Together: true, InHand: l.idsInHand(p, records),
		}, run.ReadLimits())
		if err != nil {
			return nil, 0, err
		}
		records, p.position, full = append(records, page.Records...), page.After, page.Full
	}
	return records, pages, nil
}

// idsInHand are the records of a parent with several queues that are loaded and not released.
func (l *loader) idsInHand(p *parentTasks, loaded []repo.Record) (ids []repo.RecordID) {
	if len(p.queues) < 2 {
		return nil
	}
	for b, taken := range l.inHand {
		if b.parentTasks == p {
			ids = append(ids, taken...)
		}
	}
	for _, r := range loaded {
		ids = append(ids, r.RecordID)
	}
	return ids
}

// restart begins the next walk, over the partitions that the queue has by now.
func (l *loader) restart(ctx context.Context) error {
	queue, err := l.database.DeletedRecords(ctx)
	if err != nil {
		return err
	}
	queue.At = l.queue.At
	l.queue = queue
	due, err := l.database.DueParents(ctx, queue, run.ReadLimits())
	if err == nil {
		l.begin(due)
	}
	return err
}

// checkPartitioned fails a run where a table of the queue has another shape: its records would not be
// seen.
func checkPartitioned(queue repo.DeletedRecords, database string) error {
	for _, t := range queue.Existing() {
		if !t.Partitioned {
			return &run.FailedError{Text: fmt.Sprintf("%s on %s is not partitioned: caretaker lfk lint says what it "+
				"should look like", t.Name, database)}
		}
	}
	return nil
}
