package repo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMustDiffer_OfTwoNamesOfADatabaseTheLaterIsRefused(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, servicetest.Migrated(""))
	named := func(name, url string) *repo.Database {
		d := servicetest.Must(repo.Open(t.Context(), name, url))(t)
		t.Cleanup(d.Close)
		return d
	}
	main, ci, sec := named("main", url), named("ci", url+"&application_name=second"), named("sec", databases.Clone(t, servicetest.Migrated("")))
	repo.MustDiffer([]*repo.Database{main, ci, sec})
	// The second name is known to be the second as soon as the first has a connection, though it has been there before.
	for _, d := range []*repo.Database{ci, sec, main} {
		if err := d.Ping(t.Context()); err != nil {
			t.Fatal(d.Name, err)
		}
	}
	for range 2 {
		_, err := ci.ListLeases(t.Context(), nil)
		same, ok := errors.AsType[*repo.SameDatabaseError](err)
		if !ok || !errors.Is(err, repo.ErrUnreachable) || same.First != "main" {
			t.Fatalf("ci: %v", err)
		}
		if text := same.Error(); !strings.Contains(text, "databases.main.url") || !strings.Contains(text, "leave databases.ci.url out") {
			t.Error(text)
		}
		for _, d := range []*repo.Database{main, sec} {
			if _, err := d.ListLeases(t.Context(), nil); err != nil {
				t.Error(d.Name, err)
			}
		}
	}
}
