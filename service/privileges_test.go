package service_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestRunBatch_RunThatMustNotReadAnEssentialTableFailsAndNamesIt(t *testing.T) {
	t.Parallel()
	for table, worker := range map[string]string{
		"personal_access_tokens": tokenWorker, "group_group_links": groupWorker, "ghost_user_migrations": ghostWorker,
		"import_placeholder_user_details": "placeholder_user_cleanup",
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			e := tokenEstate(t)
			role := "without_" + worker[:3] + e.value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
			e.exec("main", `CREATE ROLE `+role)
			t.Cleanup(func() { e.exec("main", `DROP OWNED BY `+role+`; DROP ROLE `+role) })
			e.exec("main", `GRANT USAGE ON SCHEMA public, maintenance TO `+role+`; GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO `+role+`;
				GRANT ALL ON ALL SEQUENCES IN SCHEMA public, maintenance TO `+role+`; REVOKE ALL ON `+table+` FROM `+role)
			d, err := repo.Open(context.Background(), "main", e.urls["main"]+"&options=-c%20role%3D"+role)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(d.Close)
			s := e.service("", e.withQueue, func(c *service.Config) { c.Databases = []*repo.Database{d} })
			for _, dry := range []bool{true, false} {
				r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: worker, DryRun: dry})
				if err != nil {
					t.Fatal(err)
				}
				wantState(t, r, repo.RunFailed)
				if want := fmt.Sprintf("table %s on main: no SELECT privilege, GRANT SELECT, UPDATE, DELETE on it: privilege missing", table); r.Error != want {
					t.Errorf("dry run %t: %q, want %q", dry, r.Error, want)
				}
			}
			e.want("main", `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
		})
	}
}
