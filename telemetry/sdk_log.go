package telemetry

import (
	"errors"
	"fmt"

	"github.com/go-logr/logr"
)

// sdkLog is what the SDK of OpenTelemetry has for a log: it says there what it does not hand to the error handler, such as
// variables that it cannot read. Without it that would go to the standard error as it is.
//
// Keys and values are left out: they may be headers and addresses with passwords.
type sdkLog struct{ lost *lost }

// Levels of the SDK: 0 is an error, 1 a warning; the others are for those who develop it.
const sdkWarning = 1

// Init is part of logr.LogSink.
func (sdkLog) Init(logr.RuntimeInfo) {}

// Enabled for warnings.
func (sdkLog) Enabled(level int) bool { return level <= sdkWarning }

// Info says a warning.
func (l sdkLog) Info(_ int, message string, _ ...any) { l.lost.Handle(errors.New(message)) }

// Error says an error.
func (l sdkLog) Error(err error, message string, _ ...any) {
	l.lost.Handle(fmt.Errorf("%s: %w", message, err))
}

// WithValues is part of logr.LogSink.
func (l sdkLog) WithValues(...any) logr.LogSink { return l }

// WithName is part of logr.LogSink.
func (l sdkLog) WithName(string) logr.LogSink { return l }
