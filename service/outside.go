package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// ErrUnknownPath means that no path outside the database has one of the ids.
var ErrUnknownPath = errors.New("unknown path")

// MaxAck is the maximum number of paths in one call.
const MaxAck = 1000

// AckOutside marks up to [MaxAck] paths as done, and returns them by id. The client that removes
// repositories calls it once nothing is left at these paths. Paths that are already done do not
// change. by names the caller.
//
// Errors: [*fault.InvalidArgumentError], [fault.ErrUnreachable], [ErrUnknownPath] with nothing
// marked.
func (s *Service) AckOutside(ctx context.Context, ids []int64, by string) ([]rowset.OutsidePath, error) {
	if len(ids) == 0 || len(ids) > MaxAck {
		text := fmt.Sprintf("must contain 1 to %d ids: run `caretaker jobs outside` to list the IDs", MaxAck)
		return nil, &fault.InvalidArgumentError{Field: "ids", Description: text}
	}
	by = run.TruncateActor(strings.TrimSpace(by))
	done, unknown, err := s.Main.Outside.AckOutside(ctx, ids, by)
	switch {
	case err != nil:
		return nil, err
	case len(unknown) > 0:
		return nil, unknownPaths(unknown)
	}
	s.Logger.InfoContext(ctx, "paths marked as done", "paths", len(done), "by", by)
	return done, nil
}

// unknownPaths returns the error for ids that were not found, in ascending order. It wraps
// ErrUnknownPath.
func unknownPaths(ids []int64) error {
	texts := make([]string, len(ids))
	for i, id := range slices.Sorted(slices.Values(ids)) {
		texts[i] = strconv.FormatInt(id, 10)
	}
	name := strings.Join(texts, ",")
	text := "unknown path " + format.List(texts) + ", so no path was marked: run `caretaker jobs outside` to list the IDs"
	return fault.Unknown(ErrUnknownPath, "ids", name, text)
}
