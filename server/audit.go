package server

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/control"
)

// auditTime limits the write of an entry.
const auditTime = 2 * time.Second

// auditStarted is the outcome of an entry until its call ends.
const auditStarted = "STARTED"

// auditing is the audit entry of a call that may change something. It is stored before the call
// starts, so that it remains if the server dies during the call. Its outcome is added at the end.
// The call continues even if main does not store the entry, which then goes to the log.
type auditing struct {
	*Server
	control.AuditEntry
}

// entryOf returns the entry of a call, nil for a call that requires none.
func (s *Server) entryOf(
	ctx context.Context, client access.Client, method string, request any,
) *auditing {
	message, ok := request.(proto.Message)
	run, is := request.(*pb.RunBatchRequest)
	if !ok || !s.rules[method].changes || is && run.GetDryRun() {
		return nil
	}
	target, reason := described(message)
	if from, ok := localCaller(ctx); ok {
		reason = strings.TrimSpace(reason + " source=" + from.Source)
	}
	return &auditing{s, control.AuditEntry{
		By: s.nameOf(ctx, client), Address: addressOf(ctx), Role: client.Role.String(),
		Action: path.Base(method), Target: target, Reason: reason, Outcome: auditStarted,
	}}
}

// start stores the entry. If that fails, end stores it.
func (a *auditing) start(ctx context.Context) {
	if a == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	a.ID, _ = a.config.Service.Main.Audit.RecordAudit(ctx, a.AuditEntry)
}

// end adds the outcome to the entry.
func (a *auditing) end(ctx context.Context, response any, failed error) {
	if a == nil {
		return
	}
	// A failed call may also have started a run.
	if started, ok := response.(*pb.RunBatchResponse); ok && started.GetRun().GetId() != "" {
		a.Reason = strings.TrimSpace(a.Reason + " run=" + started.GetRun().GetId())
	}
	if cancelled, ok := response.(*pb.CancelRunResponse); ok && failed == nil {
		a.Target = cancelled.GetRun().GetId() // The request may have an abbreviated id.
	}
	a.Outcome = outcomeOf(ctx, failed)
	// The client may have disconnected, and the server may be about to stop.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	var err error
	if a.ID == 0 {
		_, err = a.config.Service.Main.Audit.RecordAudit(ctx, a.AuditEntry)
	} else {
		err = a.config.Service.Main.Audit.CompleteAudit(ctx, a.AuditEntry)
	}
	if err != nil {
		a.config.Logger.WarnContext(ctx, "audit entry not stored", "error", err.Error(),
			"by", a.By, "address", a.Address, "role", a.Role, "action", a.Action,
			"target", a.Target, "reason", a.Reason, "outcome", a.Outcome)
	}
}

// outcomeOf returns OK, or the code and the reason that the client gets.
func outcomeOf(ctx context.Context, err error) string {
	if err == nil {
		return code.Code_OK.String()
	}
	if s, ok := status.FromError(err); ok {
		return code.Code(s.Code()).String() //nolint:gosec // the same numbers
	}
	f := errorInfo(ctx, err)
	return code.Code(f.code).String() + " " + f.reason //nolint:gosec // the same numbers
}

// Limits of an entry's texts, in bytes: of the target, of one argument, of all arguments.
const (
	maxTarget   = 300
	maxArgument = 1 << 10
	maxReason   = 4 << 10
)

// described returns the target of a request in plain text, and its other arguments, the reason
// first. It quotes text that would look like another argument: outside quotes, the text before a =
// is an argument name. No request contains a secret.
func described(request proto.Message) (target, reason string) {
	var targets, reasons []string
	fields := request.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !request.ProtoReflect().Has(field) && field.Kind() != protoreflect.BoolKind {
			continue
		}
		text := cut(argument(request, field), maxArgument)
		switch name := string(field.Name()); name {
		case "worker", "kind", "id", "name", "table", "children":
			targets = append(targets, quoted(cut(text, maxTarget), name == "kind"))
		case "reason":
			reasons = append([]string{quoted(text, false)}, reasons...)
		default:
			reasons = append(reasons, name+"="+quoted(text, true))
		}
	}
	return strings.Join(targets, " "), cut(strings.Join(reasons, " "), maxReason)
}

// quoted quotes a text that could end an argument, begin another or contain unprintable characters.
// Spaces end an argument only if others follow it.
func quoted(text string, spaces bool) string {
	special := func(r rune) bool { return r == '"' || r == '=' || !unicode.IsPrint(r) }
	if strings.ContainsFunc(text, special) || spaces && strings.Contains(text, " ") {
		return strconv.Quote(text)
	}
	return text
}

// cut returns at most the given number of bytes of a text.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// argument formats the value of a field as a text in one line.
func argument(request proto.Message, field protoreflect.FieldDescriptor) string {
	value := request.ProtoReflect().Get(field)
	switch {
	case field.IsList():
		parts := make([]string, value.List().Len())
		for i := range parts {
			parts[i] = value.List().Get(i).String()
		}
		return strings.Join(parts, " ")
	case field.Message() != nil:
		// This formats durations as 3600s.
		text, err := protojson.Marshal(value.Message().Interface())
		if err != nil {
			return "?"
		}
		return strings.Trim(string(text), `"`)
	case field.Enum() != nil && field.Enum().Values().ByNumber(value.Enum()) != nil:
		return string(field.Enum().Values().ByNumber(value.Enum()).Name())
	}
	line := strings.Join(strings.Fields(value.String()), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, line)
}
