package server

import (
	"context"
	"fmt"
	"path"
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
	"github.com/caretaker-go/caretaker/service"
)

// auditTime bounds the writing of an entry.
const auditTime = 2 * time.Second

// audit records a call that was to change something, with its outcome. The call is done whatever
// becomes of the entry: one that main does not take is in the log.
func (s *Server) audit(
	ctx context.Context, client access.Client, method string, request, response any, failed error,
) {
	message, ok := request.(proto.Message)
	run, is := request.(*pb.RunBatchRequest)
	if !ok || !s.rules[method].changes || is && run.GetDryRun() {
		return
	}
	target, reason := described(message)
	if started, ok := response.(*pb.RunBatchResponse); ok && failed == nil {
		reason = strings.TrimSpace(reason + " run=" + started.GetRun().GetId())
	}
	entry := service.AuditEntry{
		By: nameIn(ctx, client), Address: addressOf(ctx), Role: client.Role.String(),
		Action: path.Base(method), Target: target, Reason: reason, Outcome: outcomeOf(ctx, failed),
	}
	// The client may have gone, and the server be about to stop.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	if err := s.config.Service.RecordAudit(ctx, entry); err != nil {
		s.config.Logger.WarnContext(ctx, "audit entry not stored, it is here alone", "error", err.Error(),
			"by", entry.By, "address", entry.Address, "role", entry.Role, "action", entry.Action,
			"target", entry.Target, "reason", entry.Reason, "outcome", entry.Outcome)
	}
}

// outcomeOf is OK, or the code and the reason that the client gets.
func outcomeOf(ctx context.Context, err error) string {
	if err == nil {
		return code.Code_OK.String()
	}
	if s, ok := status.FromError(err); ok {
		return code.Code(s.Code()).String() //nolint:gosec // the same numbers
	}
	f := find(ctx, err)
	return code.Code(f.code).String() + " " + f.reason //nolint:gosec // the same numbers
}

// Limits of the texts of an entry, in bytes.
const (
	maxTarget = 300
	maxReason = 4 << 10
)

// described says in words what a request is about, and gives its other arguments, the reason first.
// No request has a secret.
func described(request proto.Message) (target, reason string) {
	var targets, reasons []string
	fields := request.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !request.ProtoReflect().Has(field) && field.Kind() != protoreflect.BoolKind {
			continue
		}
		text := argument(request, field)
		switch name := string(field.Name()); name {
		case "worker", "kind", "id", "name":
			targets = append(targets, text)
		case "reason":
			reasons = append([]string{text}, reasons...)
		default:
			reasons = append(reasons, name+"="+text)
		}
	}
	return cut(strings.Join(targets, " "), maxTarget), cut(strings.Join(reasons, " "), maxReason)
}

// cut is a text of at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// argument is the value of a field as a text in one line.
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
		// Durations: as 3600s.
		text, err := protojson.Marshal(value.Message().Interface())
		if err != nil {
			return "?"
		}
		return strings.Trim(string(text), `"`)
	case field.Enum() != nil:
		return fmt.Sprint(value.Enum())
	}
	line := strings.Join(strings.Fields(value.String()), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, line)
}
