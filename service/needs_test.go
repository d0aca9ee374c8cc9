package service_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
		service.Settings[loosefk.Config](c).Definitions = servicetest.Definitions(e.T, devdb.Definitions())
	})
}

// grantsTo are the statements of a service's needs, by database.
func grantsTo(e *servicetest.Estate, s *service.Service, role string) map[string][]string {
	e.T.Helper()
	all := map[string][]string{}
	for name, needs := range needsOf(e, s) {
		for _, g := range needs {
			all[name] = append(all[name], g.To(role))
		}
	}
	return all
}

func TestNeeds_ARoleWithTheseRightsAloneDoesEverything(t *testing.T) {
	t.Parallel()
	e, s := needing(t)
	grants := grantsTo(e, s, "{role}")
	for name := range e.URLs {
		e.Exec(name, `REVOKE ALL ON SCHEMA public FROM public`)
	}
	role := asRole(e, "")
	for name, all := range grants {
		e.Exec(name, strings.ReplaceAll(strings.Join(all, ";"), "{role}", role))
	}
	wantLacking(e, needsOf(e, fullService(e)), "")
	everyWork(&servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}})
}

// needsOf are the rights that a service requires, by database.
func needsOf(e *servicetest.Estate, s *service.Service) map[string][]repo.Grant {
	e.T.Helper()
	all := map[string][]repo.Grant{}
	for _, d := range e.Open {
		needs := servicetest.Must(s.Needs(e.T.Context(), d))(e.T)
		all[d.Name] = needs.Grants
	}
	return all
}

// wantLacking fails the test unless of these rights exactly this grant is missing, "" for none, in these databases or in all.
func wantLacking(e *servicetest.Estate, needs map[string][]repo.Grant, want string, databases ...string) {
	e.T.Helper()
	var got []string
	for _, d := range e.Open {
		if len(databases) > 0 && !slices.Contains(databases, d.Name) {
			continue
		}
		lacking := servicetest.Must(d.Lacking(e.T.Context(), needs[d.Name]))(e.T)
		for _, l := range lacking {
			got = append(got, l.To("{role}"))
		}
	}
	if text := strings.Join(got, "; "); text != want {
		e.T.Errorf("lacking: %q, want %q", text, want)
	}
}

func TestNeeds_EachRightThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	e, s := needing(t)
	grants := grantsTo(e, s, "{role}")
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
	if lines < 80 {
		t.Errorf("only %d grants", lines)
	}
	wantLacking(e, needs, "")
	// What is required does not depend on what is granted.
	grant := grants["main"][slices.IndexFunc(grants["main"], func(g string) bool { return strings.Contains(g, " ON public.users TO ") })]
	revoke("main", strings.ReplaceAll(grant, "{role}", role))
	wantLacking(e, needsOf(e, s), grant)
}
