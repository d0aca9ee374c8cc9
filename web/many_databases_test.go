package web

import (
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/service"
)

// lease is the i-th of a worker.
func lease(i int, held bool) service.Lease {
	l := service.Lease{Expired: !held}
	l.Name = fmt.Sprintf("w/%02d", i)
	return l
}

func TestLeases_ThoseHeldAreAllShownAndOthersAsLongAsThereIsRoom(t *testing.T) {
	t.Parallel()
	var w service.WorkerStatus
	for i := range 30 {
		w.Leases = append(w.Leases, lease(i, i%15 == 0))
	}
	page := &workerPage{Status: w}
	shown := page.Leases()
	if len(shown) != 12 || shown[0].Name != "w/00" || shown[1].Name != "w/15" || shown[2].Name != "w/01" ||
		page.OtherLeases() != "18 more, free; caretaker leases lists them all." {
		t.Errorf("%q: %+v", page.OtherLeases(), shown)
	}
	for i := range w.Leases {
		w.Leases[i].Expired = false
	}
	if page = (&workerPage{Status: w}); len(page.Leases()) != 30 || page.OtherLeases() != "" {
		t.Errorf("%q: %d", page.OtherLeases(), len(page.Leases()))
	}
}

func TestDatabases_WhatIsNotShownIsSummedUp(t *testing.T) {
	t.Parallel()
	w := service.WorkerStatus{Worker: "w"}
	for i := range 30 {
		d := service.DatabaseStatus{Name: fmt.Sprint(i), Known: true}
		d.Backlog.Due = int64(i)
		w.Databases = append(w.Databases, d)
	}
	page := &workerPage{Status: w}
	const want = "18 more, with 369 due; caretaker status w lists them all."
	if len(page.Databases()) != 12 || page.OtherDatabases() != want {
		t.Errorf("%d, %q", len(page.Databases()), page.OtherDatabases())
	}
	page.Status.Databases = w.Databases[:3]
	if len(page.Databases()) != 3 || page.OtherDatabases() != "" {
		t.Errorf("%d, %q", len(page.Databases()), page.OtherDatabases())
	}
}
