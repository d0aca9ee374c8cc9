package service_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// documentedRights are those of docs/guides/managed-postgresql.md.
const documentedRights = `
GRANT USAGE ON SCHEMA public, gitlab_partitions_dynamic, maintenance TO {role};
GRANT ALL ON ALL TABLES IN SCHEMA maintenance TO {role};
GRANT ALL ON ALL SEQUENCES IN SCHEMA maintenance TO {role};
GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public, gitlab_partitions_dynamic TO {role};
GRANT INSERT ON loose_foreign_keys_deleted_records TO {role};
GRANT USAGE ON SEQUENCE loose_foreign_keys_deleted_records_id_seq TO {role};
`

// documentedRightsOnUsers are those that only main needs.
const documentedRightsOnUsers = `
GRANT INSERT ON users, ghost_user_migrations TO {role};
GRANT USAGE ON SEQUENCE users_id_seq, ghost_user_migrations_id_seq TO {role};
`

// asRole opens the databases of an estate as a new role, and returns its name. It first runs some
// SQL in each, with that name for {role}.
func asRole(e *servicetest.Estate, sql string) (role string) {
	e.T.Helper()
	role = "role_" + e.Value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
	e.Exec("main", `CREATE ROLE `+role)
	e.T.Cleanup(func() {
		for name := range e.URLs {
			e.Exec(name, `DROP OWNED BY `+role)
		}
		e.Exec("main", `DROP ROLE `+role)
	})
	for i, own := range e.Open {
		e.Exec(own.Name, strings.ReplaceAll(sql, "{role}", role))
		d := assert.Must(repo.Open(e.T.Context(), own.Name, e.URLs[own.Name]+"&options=-c%20role%3D"+role))(e.T)
		e.T.Cleanup(d.Close)
		e.Open[i] = d
	}
	return role
}

// They are all that is required, and TestNeeds works with that alone.
func TestPrivileges_TheDocumentedOnesAreEnough(t *testing.T) {
	e, s := needing(servicetest.Parallel(t))
	needs := needsOf(e, s)
	role := asRole(e, documentedRights)
	e.Exec("main", strings.ReplaceAll(documentedRightsOnUsers, "{role}", role))
	wantLacking(e, needs, "")
	wantLacking(e, needsOf(e, fullService(e)), "")
}

func TestPrivileges_OneThatIsMissingIsNotGuessed(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 3)
	role := asRole(e, documentedRights+`GRANT DELETE ON c TO {role}`)
	// Its name is in PostgreSQL's message about row-level security, and the role has no right on it.
	e.Exec("main", `CREATE TABLE level (id int)`)
	for broken, repair := range map[string]string{
		"DELETE ON c": "", "SELECT, DELETE ON c": "", "DELETE ON loose_foreign_keys_deleted_records": "", "SELECT ON loose_foreign_keys_deleted_records": "",
		"INSERT, UPDATE ON maintenance.runs": "", "SELECT ON maintenance.leases": "", "SELECT ON maintenance.pauses": "",
		"SELECT ON maintenance.queue_partitions": "", "USAGE ON SCHEMA maintenance": "", "UPDATE ON maintenance.leases": "",
		"ALTER TABLE c ENABLE ROW LEVEL SECURITY": "ALTER TABLE c DISABLE ROW LEVEL SECURITY",
	} {
		if repair == "" {
			broken, repair = `REVOKE `+broken+` FROM `+role, `GRANT `+broken+` TO `+role
		}
		e.Exec("main", broken+`; UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		r, err := e.Service(servicetest.OneChild).RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
		said := r.Error
		if err != nil {
			said, _ = fault.PrivilegeMissing(err)
		}
		assert.That(t, strings.Contains(said, " on main: 42501 insufficient_privilege (run `caretaker doctor`)"), "%s: %q (%v)", broken, said, err)
		for _, guess := range []string{"permission denied", "SQLSTATE", "GRANT", "level"} {
			assert.That(t, !strings.Contains(said, guess), "%s: %q has %q", broken, said, guess)
		}
		e.Exec("main", repair)
	}
}

func TestPrivileges_OneThatAJobLacksIsInItsErrors(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	m := &servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}}
	m.Candidates()
	asRole(e, documentedRights) // without INSERT on ghost_user_migrations
	s := m.Service()
	r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.InactiveTokens}))(t)
	servicetest.WantState(t, r, control.RunSucceeded)
	e.Work(s, "delete_user")
	e.Eventually("main", `SELECT count(*) > 0 FROM maintenance.river_job WHERE errors::text LIKE '%42501 insufficient_privilege (run _caretaker doctor_)%'`, "true")
}

func TestRunBatch_RunThatMustNotReadAnEssentialTableFailsAndNamesIt(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	role := asRole(e, documentedRights+documentedRightsOnUsers)
	for table, worker := range map[string]string{
		"personal_access_tokens": servicetest.InactiveTokens, "group_group_links": servicetest.AdjournedGroups, "ghost_user_migrations": servicetest.GhostUsers,
		"import_placeholder_user_details": "placeholder_user_cleanup",
	} {
		e.Exec("main", `REVOKE ALL ON `+table+` FROM `+role)
		s := e.Service("", e.WithQueue)
		for _, dry := range []bool{true, false} {
			r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: worker, DryRun: dry}))(t)
			servicetest.WantState(t, r, control.RunFailed)
			want := "table " + table + " on main: privilege missing: grant SELECT on the table to the role"
			assert.That(t, strings.Contains(r.Error, want), "dry run %t: %q, want %q", dry, r.Error, want)
		}
		e.Exec("main", `GRANT ALL ON `+table+` TO `+role)
		e.Want("main", `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
}

func TestApplicationSchema_WithoutOneEverythingSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"database main has no application schema: no schema in search_path (nowhere, away) exists, so set search_path for the role": documentedRights,
		"database main has no application schema: run GRANT USAGE ON SCHEMA public TO role_":                                        documentedRights + `REVOKE USAGE ON SCHEMA public FROM {role}, public`,
	} {
		t.Run(name, func(t *testing.T) {
			e := servicetest.New(servicetest.Parallel(t), "main", "main")
			if sql == documentedRights {
				e.Exec("main", `ALTER DATABASE `+e.Value("main", `SELECT current_database()`)+` SET search_path = nowhere, away`)
			}
			asRole(e, sql)
			s := e.Service(servicetest.OneChild, e.WithQueue)
			for _, worker := range []string{servicetest.InactiveTokens, servicetest.AdjournedGroups, servicetest.GhostUsers, servicetest.PlaceholderUsers} {
				_, err := s.RunBatch(t.Context(), run.Request{Worker: worker})
				missing, ok := errors.AsType[*fault.NotConfiguredError](err)
				assert.That(t, ok && strings.HasPrefix(missing.Missing, name), "%s: %v", worker, err)
				st := servicetest.StatusOf(t, s, worker)
				assert.That(t, st.Condition == status.ConditionNotConfigured && strings.HasPrefix(st.ConditionDetail, name), "%+v", st)
			}
			for _, dry := range []bool{true, false} {
				r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, DryRun: dry}))(t)
				assert.That(t, r.State == control.RunSkipped && strings.HasPrefix(r.Reason, name), "dry run %t: %s %q", dry, r.State, r.Reason)
			}
			r := fired(t, s, servicetest.LooseForeignKeys, time.Now().Truncate(time.Minute))
			assert.That(t, r.State == control.RunSkipped && strings.HasPrefix(r.Reason, name), "by its schedule: %s %q", r.State, r.Reason)
			lfk := admin.Admin{Databases: e.Open, Definitions: servicetest.Definitions(t, servicetest.OneChild)}
			_, lint := lfk.Lint(t.Context())
			_, install := lfk.Install(t.Context())
			_, track := lfk.Track(t.Context(), "users", "")
			_, untrack := lfk.Untrack(t.Context(), "users")
			for _, err := range []error{lint, install, track, untrack} {
				assert.That(t, err != nil && strings.HasPrefix(err.Error(), name), "%v", err)
			}
		})
	}
}

// needing is an estate with all tables of the application in main, ci and sec, and a service that has everything
// configured.
func needing(t *testing.T) (*servicetest.Estate, *service.Service) {
	t.Helper()
	e := servicetest.New(t, "main", "main")
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("ci")))
	e.Add("sec", servicetest.Databases.Clone(t, servicetest.Migrated("sec")))
	return e, fullService(e)
}

func fullService(e *servicetest.Estate) *service.Service {
	e.T.Helper()
	return e.Service("", e.WithQueue, func(c *service.Config) {
		service.Settings[lfk.Config](c).Definitions = servicetest.Definitions(e.T, devdb.Definitions())
	})
}

// needsOf are the rights that a service requires, by database.
func needsOf(e *servicetest.Estate, s *service.Service) map[string][]catalog.Grant {
	e.T.Helper()
	all := map[string][]catalog.Grant{}
	for _, d := range e.Open {
		needs := assert.Must(s.Needs(e.T.Context(), d))(e.T)
		all[d.Name] = assert.Must(needs.Grants(e.T.Context()))(e.T)
	}
	return all
}

// wantLacking fails the test unless of these rights exactly this grant is missing, "" for none, in these databases or in all.
func wantLacking(e *servicetest.Estate, needs map[string][]catalog.Grant, want string, databases ...string) {
	e.T.Helper()
	var got []string
	for _, d := range e.Open {
		if len(databases) > 0 && !slices.Contains(databases, d.Name) {
			continue
		}
		lacking := assert.Must(d.Schema.MissingGrants(e.T.Context(), needs[d.Name]))(e.T)
		for _, l := range lacking {
			got = append(got, l.To("{role}"))
		}
	}
	assert.Equal(e.T, strings.Join(got, "; "), want, "lacking")
}

func TestNeeds_ARoleWithTheseRightsAloneDoesEverythingAndEachThatIsMissingIsNamed(t *testing.T) {
	e, s := needing(servicetest.Parallel(t))
	grants := map[string][]string{}
	for name, needs := range needsOf(e, s) {
		for _, g := range needs {
			grants[name] = append(grants[name], g.To("{role}"))
		}
	}
	for name := range e.URLs {
		e.Exec(name, `REVOKE ALL ON SCHEMA public FROM public`)
	}
	role := asRole(e, "")
	for name, all := range grants {
		e.Exec(name, strings.ReplaceAll(strings.Join(all, ";"), "{role}", role))
	}
	s = fullService(e)
	needs, lines := needsOf(e, s), 0
	revoke := func(name, statement string) {
		e.Exec(name, strings.Replace(strings.Replace(statement, "GRANT", "REVOKE", 1), " TO "+role, " FROM "+role, 1))
	}
	for name, all := range grants {
		for _, grant := range all {
			switch {
			case strings.Contains(grant, "IN SCHEMA maintenance"), grant == "GRANT USAGE ON SCHEMA public TO {role}":
				continue
			}
			lines++
			statement := strings.ReplaceAll(grant, "{role}", role)
			revoke(name, statement)
			wantLacking(e, needs, grant, name)
			e.Exec(name, statement)
		}
	}
	assert.That(t, lines >= 80, "only %d grants", lines)
	wantLacking(e, needs, "")
	everyWork(&servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}})
	// The required rights do not depend on the granted ones.
	grant := grants["main"][slices.IndexFunc(grants["main"], func(g string) bool { return strings.Contains(g, " ON public.users TO ") })]
	revoke("main", strings.ReplaceAll(grant, "{role}", role))
	wantLacking(e, needsOf(e, s), grant)
}

// TestApplicationSchema_AShadowIsNamed: no message takes the tables of a new schema for the application's.
func TestApplicationSchema_AShadowIsNamed(t *testing.T) {
	t.Parallel()
	const moved = "loose_foreign_keys_deleted_records is in schema public, but schema shadow comes first"
	for _, sql := range []string{"", "; CREATE TABLE shadow.users (id bigint PRIMARY KEY)"} {
		e := servicetest.New(t, "main", "main")
		e.Exec("main", "CREATE SCHEMA shadow"+sql)
		e.Open[0] = servicetest.Open(t, e.URLs["main"]+"&search_path=shadow,public")
		s := e.Service(servicetest.OneChild, e.WithQueue)
		for _, worker := range []string{servicetest.InactiveTokens, servicetest.AdjournedGroups, servicetest.GhostUsers, servicetest.PlaceholderUsers} {
			_, err := s.RunBatch(t.Context(), run.Request{Worker: worker})
			servicetest.WantError(t, err, moved, "put schema public first in search_path")
		}
	}
}
