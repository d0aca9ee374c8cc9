package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// OutsidePath is what a deleted row has left outside the database.
type OutsidePath = repo.OutsidePath

// OutsideFilter selects such paths.
type OutsideFilter = repo.OutsideFilter

// ErrUnknownPath means that there is no path outside with one of the ids.
var ErrUnknownPath = errors.New("unknown path")

// MaxAck is how many paths one call marks as done.
const MaxAck = 1000

// Outside lists what deleted rows have left outside the database, the oldest first. Errors:
// [ErrUnreachable].
func (s *Service) Outside(ctx context.Context, f OutsideFilter) ([]OutsidePath, error) {
	if err := s.inUse(outsidePaths); err != nil {
		return nil, err
	}
	return s.engine.Main.ListOutside(ctx, f)
}

// AckOutside marks up to [MaxAck] paths as done, and returns them by id: whoever removes repositories
// says so that nothing is left there. Those that are done already stay as they were. by is who asks.
//
// Errors: [*InvalidArgumentError]; [ErrUnknownPath], with nothing marked; [ErrUnreachable].
func (s *Service) AckOutside(ctx context.Context, ids []int64, by string) ([]OutsidePath, error) {
	if err := s.inUse(outsidePaths); err != nil {
		return nil, err
	}
	if len(ids) == 0 || len(ids) > MaxAck {
		text := fmt.Sprintf("from 1 to %d of them; ListOutside has them", MaxAck)
		return nil, &run.InvalidArgumentError{Field: "ids", Description: text}
	}
	by = run.TruncateActor(strings.TrimSpace(by))
	done, unknown, err := s.engine.Main.AckOutside(ctx, ids, by)
	switch {
	case err != nil:
		return nil, err
	case len(unknown) > 0:
		return nil, unknownPaths(unknown)
	}
	s.engine.Logger.InfoContext(ctx, "paths outside marked as done", "paths", len(done), "by", by)
	return done, nil
}

func unknownPaths(ids []int64) error {
	words := make([]string, len(ids))
	for i, id := range slices.Sorted(slices.Values(ids)) {
		words[i] = strconv.FormatInt(id, 10)
	}
	name := strings.Join(words, ",")
	return &run.UnknownError{
		What: ErrUnknownPath, Name: name, Text: fmt.Sprintf("%s %s", ErrUnknownPath, name),
	}
}
