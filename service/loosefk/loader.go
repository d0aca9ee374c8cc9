package loosefk

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/caretaker-go/caretaker/repo"
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
	// plans of all parents with definitions, by their names in the records.
	plans map[string]*plan

	mu       sync.Mutex
	released *sync.Cond
	// inHand are the batches that have been handed out and not released.
	inHand int
	// parents are those of the walk that have not come to their end, turn the one that is next.
	// found: the walk has found records.
	parents []*plan
	turn    int
	found   bool
}

func newLoader(
	database *repo.Database, queue repo.DeletedRecords, batchSize int, plans []*plan,
) *loader {
	l := &loader{database: database, queue: queue, batchSize: batchSize, plans: map[string]*plan{}}
	l.released = sync.NewCond(&l.mu)
	for _, p := range plans {
		l.plans[p.recorded] = p
	}
	return l
}

// begin begins a walk with the parents that have due records, in an order drawn at random.
func (l *loader) begin(ctx context.Context, limits repo.Limits) error {
	due, err := l.database.DueParents(ctx, l.queue, limits)
	if err != nil {
		return err
	}
	l.parents, l.turn, l.found = nil, 0, false
	for _, recorded := range due {
		if p := l.plans[recorded]; p != nil {
			p.position = repo.Position{}
			l.parents = append(l.parents, p)
		}
	}
	rand.Shuffle(len(l.parents), func(i, j int) {
		l.parents[i], l.parents[j] = l.parents[j], l.parents[i]
	})
	return nil
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
			l.inHand++
			l.found = true
			return b, nil
		case err != nil:
			return nil, err
		case l.inHand > 0:
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

// release gives back a batch that has been worked.
func (l *loader) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inHand--
	l.released.Broadcast()
}

// load takes a batch of the parent whose turn it is; nil: all have come to their end.
func (l *loader) load(ctx context.Context) (*batch, error) {
	for len(l.parents) > 0 {
		l.turn %= len(l.parents)
		p := l.parents[l.turn]
		page := repo.RecordPage{Parent: p.recorded, After: p.position, Limit: l.batchSize, Since: true}
		records, position, err := l.database.LoadRecords(ctx, l.queue, page, run.ReadLimits())
		if err != nil {
			return nil, err
		}
		if len(records) > 0 {
			p.position = position
			l.turn++
			return newBatch(p, records), nil
		}
		l.parents = append(l.parents[:l.turn:l.turn], l.parents[l.turn+1:]...)
	}
	return nil, nil
}

// restart begins the next walk, over the partitions that the queue has by now.
func (l *loader) restart(ctx context.Context) error {
	queue, err := l.database.DeletedRecords(ctx)
	if err != nil {
		return err
	}
	queue.At = l.queue.At
	l.queue = queue
	return l.begin(ctx, run.ReadLimits())
}
