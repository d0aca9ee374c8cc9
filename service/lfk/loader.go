package lfk

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/run"
)

// loader issues the batches of a run: parents take turns, one batch each.
//
// It walks the records of each parent by key, oldest first. A walk misses records committed after
// it passed. These have an earlier time or a lower id, or belong to parents that had none at its
// start. Batches in progress may record more, too. So once all parents are at their end and no
// batch is in progress, the next walk starts. A walk that finds no record is the last.
type loader struct {
	database *repo.Database
	// queue as it was at the start of the walk, except its At: the start of the run.
	queue     lfk.DeletedRecords
	batchSize int
	// byName has the tasks of all parents with definitions, by their names in the records.
	byName map[string]*parentTasks
	budget *budget

	mu       sync.Mutex
	released *sync.Cond
	// inHand are the batches issued and not released. For a parent with several queues it has their
	// records: those of the same keys are loaded together, ahead of their turn.
	inHand map[*batch][]lfk.RecordID
	// parents are those of the walk that are not at their end, turn is the next one. found: the
	// walk has found records.
	parents []*parentTasks
	turn    int
	found   bool
}

// newLoader returns a loader for the records of these parents, by recorded table name. It loads a
// second batch only while more than half of the run's limits is free.
func newLoader(c *cleanup, parents []*parentTasks) *loader {
	l := &loader{
		database: c.x.Database, queue: c.queue, batchSize: c.config.BatchSize,
		byName: map[string]*parentTasks{}, inHand: map[*batch][]lfk.RecordID{},
		budget: c.budget,
	}
	l.released = sync.NewCond(&l.mu)
	for _, p := range parents {
		l.byName[p.recorded] = p
	}
	return l
}

// begin starts a walk with the parents that have due records, in random order.
func (l *loader) begin(due []lfk.QueuedParent) {
	l.parents, l.turn, l.found = nil, 0, false
	for _, parent := range due {
		if p := l.byName[parent.Name]; p != nil {
			p.position, p.queues = lfk.Position{}, parent.Queues
			l.parents = append(l.parents, p)
		}
	}
	rand.Shuffle(len(l.parents), func(i, j int) {
		l.parents[i], l.parents[j] = l.parents[j], l.parents[i]
	})
}

// next issues a batch, which must be released. nil means none is left, or stop. It waits while
// batches in progress may record more.
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

// release ends a batch.
func (l *loader) release(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.fits = maxRecords
	for task, t := range b.taskRuns {
		if t.changed > 0 {
			rows := min(t.rows()*3/4, l.budget.left(task)/4)
			b.fits = min(b.fits, int(rows*int64(len(b.keys))/t.changed))
		}
	}
	delete(l.inHand, b)
	l.released.Broadcast()
}

// load loads a batch of the parent whose turn it is. nil means all are at their end.
func (l *loader) load(ctx context.Context) (*batch, error) {
	for len(l.parents) > 0 {
		l.turn %= len(l.parents)
		p := l.parents[l.turn]
		page, err := l.database.Queue.LoadRecords(ctx, l.queue, lfk.RecordPage{
			Parent: p.recorded, After: p.position, Limit: l.size(p), Since: true,
			Queues: p.queues, Together: true, InHand: l.idsInHand(p),
		}, run.ReadLimits())
		if err != nil {
			return nil, err
		}
		if p.position = page.After; len(page.Records) > 0 {
			l.turn++
			return newBatch(p, page.Records), nil
		}
		l.parents = append(l.parents[:l.turn:l.turn], l.parents[l.turn+1:]...)
	}
	return nil, nil
}

// maxRecords is the maximum number of records in a batch of a parent with few children. A batch
// costs a statement per definition, however few rows that finds, but a failing record delays the
// others of its batch. A batch_size below minRecords keeps statements small.
const maxRecords, minRecords = 2000, 500

// size returns the maximum number of records in the next batch of a parent.
func (l *loader) size(p *parentTasks) int {
	if l.batchSize < minRecords || !l.budget.free() {
		return l.batchSize
	}
	return max(l.batchSize, p.fits)
}

// idsInHand returns the issued and not released records of a parent with several queues.
func (l *loader) idsInHand(p *parentTasks) (ids []lfk.RecordID) {
	if len(p.queues) < 2 {
		return nil
	}
	for b, taken := range l.inHand {
		if b.parentTasks == p {
			ids = append(ids, taken...)
		}
	}
	return ids
}

// restart starts the next walk, over the current partitions of the queue.
func (l *loader) restart(ctx context.Context) error {
	queue, err := l.database.Queue.DeletedRecords(ctx)
	if err != nil {
		return err
	}
	queue.At = l.queue.At
	l.queue = queue
	due, err := l.database.Queue.DueParents(ctx, queue, run.ReadLimits())
	if err == nil {
		l.begin(due)
	}
	return err
}
