package service_test

import (
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// TestWorkers_EachIsHeldToTheContract: a worker's fixture is among the tests of its package, where the suite runs.
func TestWorkers_EachIsHeldToTheContract(t *testing.T) {
	t.Parallel()
	for key, settings := range new(service.Config).Sections() {
		folder := path.Base(reflect.TypeOf(settings).Elem().PkgPath())
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		held := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			held = held || strings.Contains(string(text), "servicetest.Contract(t, servicetest.Fixture{")
		}
		if !held {
			t.Errorf("%s: no test in service/%s calls servicetest.Contract with a fixture", key, folder)
		}
	}
}

// TestWorkers_BearTheNamesOfTheList: settings, runs, leases and pages of a worker go by one name.
func TestWorkers_BearTheNamesOfTheList(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	all, err := e.Service("").Status(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	names := servicetest.Workers()
	if len(all) != len(names) {
		t.Fatalf("%d workers, the list has %q", len(all), names)
	}
	for i, st := range all {
		if st.Worker != names[i] {
			t.Errorf("%s is %s on the list", st.Worker, names[i])
		}
	}
}
