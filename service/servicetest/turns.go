package servicetest

import (
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// InTurn is [Estate.InTurn], with an empty log and the service that the groups have at first.
func (g *Groups) InTurn(t *testing.T) {
	t.Helper()
	s := g.Service
	t.Cleanup(func() { g.Service = s })
	g.Log.Reset()
	g.Estate.InTurn(t)
}

// InTurn is [Estate.InTurn], with an empty log.
func (g *Ghosts) InTurn(t *testing.T) {
	t.Helper()
	g.Log.Reset()
	g.Estate.InTurn(t)
}

// fixture is databases on which tests take turns.
type fixture interface{ InTurn(t *testing.T) }

// Turns runs tests in their order on the same databases, as subtests of their names.
func Turns[F fixture](t *testing.T, f F, tests ...func(F)) {
	t.Helper()
	for _, test := range tests {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		Cases(t, f, map[string]func(F){name[strings.LastIndex(name, ".")+1:]: test})
	}
}

// Cases runs tests in the order of their names on the same databases, as subtests.
func Cases[F fixture](t *testing.T, f F, tests map[string]func(F)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			f.InTurn(t)
			tests[name](f)
		})
	}
}
