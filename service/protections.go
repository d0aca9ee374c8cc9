package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// Protection keeps a user or group from being deleted.
type Protection = repo.Protection

// ErrUnknownProtection means that no protection has that kind and id.
var ErrUnknownProtection = errors.New("unknown protection")

// maxProtection bounds a protection's ttl. A longer protection is permanent.
const maxProtection = 10 * 365 * 24 * time.Hour

// AllowedProtection describes the valid ttl of a protection.
const AllowedProtection = "must be from 1s to 87600h (ten years): omit the duration to protect permanently"

// Protect keeps a user or group and every group above it from being deleted for ttl, or permanently
// if ttl is 0. See docs/guides/protect-and-audit.md. Only a longer protection replaces one in
// force. Otherwise Protect returns the protection in force. With mustExist it refuses an unknown
// target.
//
// Errors: [*fault.InvalidArgumentError], [*protection.DeletionStartedError], [*fault.RefusedError],
// [fault.ErrUnreachable].
func (s *Service) Protect(
	ctx context.Context, p Protection, ttl time.Duration, mustExist bool,
) (Protection, error) {
	p.Reason, p.By = strings.TrimSpace(p.Reason), run.TruncateActor(strings.TrimSpace(p.By))
	err := errors.Join(checkTarget(p.Kind, p.ID), run.CheckReason(p.Reason))
	if ttl != 0 && (ttl < minPause || ttl > maxProtection) {
		err = errors.Join(err, &fault.InvalidArgumentError{Field: "ttl", Description: AllowedProtection})
	}
	if err != nil {
		return Protection{}, err
	}
	protected, err := s.Main.Protections.Protect(ctx, p, ttl, mustExist)
	if refused, ok := errors.AsType[*dberr.Error](err); ok && refused.Class() == dberr.ClassLock {
		busy := &fault.RefusedError{
			Reason: fault.ReasonTargetBusy, Retry: time.Second, Metadata: map[string]string{"kind": p.Kind},
			Text: "another transaction is changing or deleting the " + p.Kind +
				": try again in a moment",
		}
		return Protection{}, errors.Join(busy, err)
	}
	if other, ok := errors.AsType[*protection.NotAGroupError](err); ok {
		err = &fault.InvalidArgumentError{Field: "id", Description: other.Error()}
	}
	if errors.Is(err, dberr.ErrNotFound) {
		err = plan.UnknownTarget(p.Kind, p.ID)
	}
	if err != nil {
		return Protection{}, err
	}
	s.Logger.InfoContext(ctx, "target protected",
		"kind", p.Kind, p.Kind+"_id", p.ID, "by", p.By, "reason", p.Reason, "ttl", ttl.String())
	return protected, nil
}

// Unprotect ends a protection and returns its previous state. by is for the log.
//
// Errors: [*fault.InvalidArgumentError], [ErrUnknownProtection], [fault.ErrUnreachable].
func (s *Service) Unprotect(
	ctx context.Context, kind string, id int64, by string,
) (Protection, error) {
	if err := checkTarget(kind, id); err != nil {
		return Protection{}, err
	}
	ended, err := s.Main.Protections.Unprotect(ctx, kind, id)
	if errors.Is(err, dberr.ErrNotFound) {
		return Protection{}, fault.Unknown(ErrUnknownProtection, "target", fmt.Sprintf("%s %d", kind, id),
			"no protection has this kind and id: check the list of protections")
	}
	if err != nil {
		return Protection{}, err
	}
	s.Logger.InfoContext(ctx, "target unprotected",
		"kind", kind, kind+"_id", id, "by", run.TruncateActor(strings.TrimSpace(by)))
	return ended, nil
}

// Protections returns the next limit protections in force after a given one, by kind and id. It
// lists one kind or, with "", all kinds.
func (s *Service) Protections(
	ctx context.Context, kind string, after Protection, limit int,
) ([]Protection, error) {
	if kind != "" {
		if err := checkKind(kind); err != nil {
			return nil, err
		}
	}
	return s.Main.Protections.Protections(ctx, kind, after, limit)
}

// checkKind returns an InvalidArgumentError unless kind is user or group.
func checkKind(kind string) error {
	if kind == control.KindUser || kind == control.KindGroup {
		return nil
	}
	return &fault.InvalidArgumentError{
		Field: "kind", Description: fmt.Sprintf("%q is neither user nor group", kind),
	}
}

// checkTarget is checkKind, and also requires a positive id.
func checkTarget(kind string, id int64) error {
	err := checkKind(kind)
	if err == nil && id < 1 {
		err = &fault.InvalidArgumentError{Field: "id", Description: "must be a positive number"}
	}
	return err
}
