package service_test

import (
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
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
		files := servicetest.Must(filepath.Glob(filepath.Join(folder, "*_test.go")))(t)
		held := false
		for _, file := range files {
			text := servicetest.Must(os.ReadFile(file))(t)
			held = held || strings.Contains(string(text), "servicetest.Contract(t, servicetest.Fixture{")
		}
		check(t, held, "%s: no test in service/%s calls servicetest.Contract with a fixture", key, folder)
	}
}

// TestWorkers_BearTheNamesOfTheList: settings, runs, leases and pages of a worker go by one name.
func TestWorkers_BearTheNamesOfTheList(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	all := servicetest.Must(e.Service("", servicetest.Audited).Status(t.Context(), ""))(t)
	names := servicetest.Workers()
	require(t, len(all) == len(names), "%d workers, the list has %q", len(all), names)
	for i, st := range all {
		equal(t, "a name on the list", st.Worker, names[i])
	}
}

// TestContributing_ShowsTheSixthWorkerAsItIs: tools/sixth_worker.sh builds what is shown.
func TestContributing_ShowsTheSixthWorkerAsItIs(t *testing.T) {
	t.Parallel()
	text := servicetest.Must(os.ReadFile("../CONTRIBUTING.md"))(t)
	script := servicetest.Must(os.ReadFile("../tools/sixth_worker.sh"))(t)
	sources := string(script)
	for _, pattern := range []string{"repo/*.go", "service/*/*.go"} {
		files := servicetest.Must(filepath.Glob("testdata/sixth_worker/" + pattern))(t)
		for _, file := range files {
			source := servicetest.Must(os.ReadFile(file))(t)
			sources += string(source)
		}
	}
	shown := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllSubmatch(text, -1)
	check(t, len(shown) >= 5, "%d pieces of Go are shown", len(shown))
	for _, piece := range shown {
		check(t, strings.Contains(sources, string(piece[1])), "this is not in testdata/sixth_worker:\n%s", piece[1])
	}
}
