package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// SetFeatureFlag switches a flag, which runs read at their start. A flag that no worker reads and
// that was never set is probably a typo: [ErrUnknownFlag].
func (s *Service) SetFeatureFlag(ctx context.Context, name string, enabled bool) error {
	if len(name) > 128 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || strings.TrimLeft(name, "0123456789_") != name || name == "" {
		return &fault.InvalidArgumentError{Field: "name", Description: "must have at most 128 lower-case letters, " +
			"digits and underscores, and start with a letter"}
	}
	known, err := s.FeatureFlags(ctx)
	if err != nil {
		return err
	}
	if _, is := known[name]; !is {
		var read []string
		for _, w := range s.Workers {
			read = append(read, w.Flags...)
		}
		slices.Sort(read)
		text := fmt.Sprintf("%s %q: known flags are %s", fault.ErrUnknownFlag, name, format.List(read))
		return fault.Unknown(fault.ErrUnknownFlag, "flag", name, text)
	}
	if err := s.Main.Flags.SetFeatureFlag(ctx, name, enabled); err != nil {
		return err
	}
	reads := func(w *run.Worker) bool { return slices.Contains(w.Flags, name) }
	if !slices.ContainsFunc(s.Workers, reads) {
		s.Logger.WarnContext(ctx, "feature flag set, but no worker reads it", "flag", name)
	}
	return nil
}

// FeatureFlags returns the flags that caretaker knows, off unless set, and all other set flags.
func (s *Service) FeatureFlags(ctx context.Context) (map[string]bool, error) {
	set, err := s.Main.Flags.FeatureFlags(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range s.Workers {
		for _, flag := range w.Flags {
			if _, known := set[flag]; !known {
				set[flag] = false
			}
		}
	}
	return set, nil
}
