package ghostuser

import (
	"context"
	"log/slog"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// needs are what a run does, whoever its user is.
func (w *worker) needs(ctx context.Context) (all []*repo.Needs, err error) {
	p := &references{}
	by := map[*repo.Catalog]*repo.Needs{}
	for _, d := range w.Databases {
		n, err := d.Needs(ctx, wantedColumns())
		if err != nil {
			return nil, err
		}
		all, p.catalogs, by[n.Catalog] = append(all, n), append(p.catalogs, n.Catalog), n
	}
	var missing string
	if p.queue, missing = p.catalogs[0].GhostQueue(ctx); missing != "" {
		return nil, nil
	}
	p.complete(ctx, slog.New(slog.DiscardHandler))
	for _, s := range p.steps {
		s.addTo(by[s.catalog])
	}
	main := all[0]
	main.AddNamed(repo.MaySelect, "loose_foreign_keys_deleted_records")
	main.AddNamed(repo.ToRemove|repo.MayInsert, "users")
	main.Add(p.queue.Table(), repo.ToRemove)
	if p.namespaces {
		bulk.AddRemoval(main, p.catalogs[0].Table("namespaces").Table)
	}
	return all, nil
}

func (s *step) addTo(n *repo.Needs) {
	t := s.rowsOf(0).Table
	n.Find(repo.LookUp{Table: t, Columns: []string{s.column}})
	for _, action := range []action{s.normal, s.hard} {
		switch {
		case action == remove:
			bulk.AddRemoval(n, t)
		case action == give, action == nullify && !s.required:
			n.Add(t, repo.ToChange)
		default:
			n.Add(t, repo.ToRead)
		}
	}
}

// ListedColumns are the columns, as "table.column", that a foreign key to users may have without
// keeping them: those of the lists, and those that are dealt with when a user is deleted.
func ListedColumns() []string {
	all := []string{schedules + ".user_id", "namespaces.owner_id"}
	for table := range repo.GhostTables() {
		all = append(all, table+".user_id")
	}
	for table, columns := range listedColumns() {
		for _, column := range columns {
			all = append(all, table+"."+column)
		}
	}
	return all
}
