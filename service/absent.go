package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// MaxAbsent is the maximum number of child tables in one call.
const MaxAbsent = 100

// AcceptAbsent accepts child tables as absent from all databases, or as gone from some: see
// [admin.Admin.AcceptAbsent]. It accepts all of them or none. by names the caller.
//
// Errors: [*fault.InvalidArgumentError], [*fault.NotConfiguredError], [admin.ErrUnknownChild],
// [*fault.RefusedError] for a table that is not absent, [fault.ErrUnreachable].
func (s *Service) AcceptAbsent(
	ctx context.Context, children []string, by string,
) ([]admin.AcceptedChild, error) {
	if len(children) == 0 || len(children) > MaxAbsent {
		text := fmt.Sprintf("must name 1 to %d child tables: run `caretaker lfk lint` to list the missing child "+
			"tables", MaxAbsent)
		return nil, &fault.InvalidArgumentError{Field: "children", Description: text}
	}
	keys := s.looseForeignKeys()
	if len(keys) == 0 {
		return nil, &fault.NotConfiguredError{
			Worker: lfk.Name, Missing: "set workers." + lfk.Name + ".definitions to a file",
		}
	}
	by = run.TruncateActor(strings.TrimSpace(by))
	a := admin.Admin{Databases: s.Databases, Definitions: &lfk.Definitions{Keys: keys}}
	done, err := a.AcceptAbsent(ctx, children, by)
	if err == nil {
		s.Logger.InfoContext(ctx, "child tables accepted as absent",
			"tables", strings.Join(children, ", "), "by", by)
	}
	return done, err
}
