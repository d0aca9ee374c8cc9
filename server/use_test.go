package server

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
)

func TestErrors_WhatIsNotUsedHereSaysSo(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t}
	s := f.failure(clientError(t.Context(), &service.NotInUseError{What: "jobs"}),
		codes.FailedPrecondition, "NOT_IN_USE")
	assert.Contains(t, s.Message(), "use: gitlab")
}
