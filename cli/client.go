package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/config"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/server"
	"github.com/caretaker-go/caretaker/service"
)

// localFlag adds --local, for commands that print times.
func (out *terminal) localFlag(flags *pflag.FlagSet) {
	flags.BoolVar(&out.local, "local", false,
		"show times in this machine's time zone instead of UTC (not in JSON or YAML)")
}

// defaultAddress is the server's default address.
const defaultAddress = "127.0.0.1:50051"

// answerTimeout bounds a call that does not wait for a run.
const answerTimeout = 30 * time.Second

// api is the client of the API. Its methods, such as api.ListRuns, are arguments of call.
type api = pb.MaintenanceServiceClient

// call returns the body of a command that calls a method and prints the answer, with --watch again
// and again. It prints JSON, YAML, or the text of describe. The command's arguments and flags have
// already filled the request. It collects the pages of a list.
func call[Q, R proto.Message](
	a *app, method func(api, context.Context, Q, ...grpc.CallOption) (R, error), request Q,
	describe func(*terminal, R) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		limit, _ := c.Flags().GetInt("limit")
		return a.connect(c.Context(), func(ctx context.Context, client api) error {
			return a.repeat(ctx, c, func(ctx context.Context, wipe func()) error {
				answer, err := collect(request, limit, func() (R, error) {
					ctx, cancel := context.WithTimeout(ctx, answerTimeout)
					defer cancel()
					return method(client, ctx, request)
				})
				if err != nil {
					return err
				}
				wipe()
				return a.show(answer, func() error {
					defer noteMore(a.terminal, c.Annotations[moreKey], answer)
					return describe(a.terminal, answer)
				})
			})
		})
	}
}

// repeat calls show once, or with --watch until the command is interrupted. show calls its argument
// before it writes: that clears the terminal. An outage of the server does not end it.
func (a *app) repeat(ctx context.Context, c *cobra.Command, show func(ctx context.Context, wipe func()) error) error {
	interval, _ := c.Flags().GetDuration("watch")
	if interval <= 0 {
		return show(ctx, func() {})
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	wipe, shown := func() {}, false
	if isTerminal(a.std.Out) {
		wipe = func() { _, _ = io.WriteString(a.std.Out, "\x1b[H\x1b[2J") }
	}
	for ctx.Err() == nil {
		switch err := show(ctx, wipe); {
		case err == nil:
			shown = true
		case ctx.Err() != nil:
			return nil
		case !shown || status.Code(err) != codes.Unavailable:
			return err
		default:
			a.note("%s", a.client.explain(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
	return nil
}

// collect calls ask for the pages of a list until it has limit entries, 0 for all, and returns them
// in one answer. Other requests have one page.
func collect[Q, R proto.Message](request Q, limit int, ask func() (R, error)) (R, error) {
	asked := request.ProtoReflect()
	fields := asked.Descriptor().Fields()
	size, token := fields.ByName("page_size"), fields.ByName("page_token")
	if size == nil {
		return ask()
	}
	defer asked.Set(token, asked.Get(token))
	for all := *new(R); ; {
		pageSize := maxPageSize
		if limit > 0 {
			pageSize = min(pageSize, limit-entries(all))
		}
		asked.Set(size, protoreflect.ValueOfInt32(int32(pageSize)))
		answer, err := ask()
		if err != nil {
			return answer, err
		}
		merged := answer.ProtoReflect()
		next := merged.Get(merged.Descriptor().Fields().ByName("next_page_token"))
		if all.ProtoReflect().IsValid() {
			all.ProtoReflect().Clear(merged.Descriptor().Fields().ByName("next_page_token"))
			proto.Merge(all, answer)
		} else {
			all = answer
		}
		if next.String() == "" || limit > 0 && entries(all) >= limit {
			return all, nil
		}
		asked.Set(token, next)
	}
}

// entries returns the number of entries of a list.
func entries(answer proto.Message) (n int) {
	answer.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.IsList() {
			n = v.List().Len()
		}
		return true
	})
	return n
}

// ask calls connect with a context that ends after answerTimeout.
func (a *app) ask(ctx context.Context, do func(context.Context, api) error) error {
	return a.connect(ctx, func(ctx context.Context, client api) error {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		return do(ctx, client)
	})
}

// userName returns the user that the server records for runs and pauses. It returns "" if a header
// cannot carry the name.
func userName() string {
	u, err := user.Current()
	unprintable := func(r rune) bool { return r < ' ' || r > '~' }
	if err != nil || strings.ContainsFunc(u.Username, unprintable) {
		return ""
	}
	return u.Username
}

// connect calls do with a client. Its error has a message for the user and an exit code.
func (a *app) connect(ctx context.Context, do func(context.Context, api) error) error {
	// 1. Combine the flags with the profile and the server's configuration.
	configured, err := a.checkConfigFile()
	if err != nil {
		return err
	}
	known, err := a.std.Env.ReadClient(a.client.profile)
	if err != nil {
		return err
	}
	a.client.useServer(a.configFile, configured)
	a.client.complete(known)
	a.local = a.local || known.Local
	// 2. Check credentials and address before the first call.
	transport, err := a.client.credentials()
	if err != nil {
		return err
	}
	if err := a.client.checkAddress(); err != nil {
		return err
	}
	for _, mistake := range a.std.Env.Mistyped(&service.Config{}) {
		a.note("caretaker: warning: %s", mistake)
	}
	// 3. Prepare the client, which connects at its first call.
	conn, err := grpc.NewClient(a.client.address, grpc.WithTransportCredentials(transport),
		grpc.WithUnaryInterceptor(a.client.observe))
	if err != nil {
		return usage(fmt.Errorf("cannot connect to %s (%s): %w", a.client.address, a.client.from, err))
	}
	defer func() { _ = conn.Close() }()
	if name := userName(); name != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, server.UserHeader, name)
	}
	// 4. Add the token. A warning is printed if it would leave this machine unencrypted.
	token, err := a.client.bearer()
	if err != nil {
		return err
	}
	if token != "" {
		if !a.client.secure() && !a.client.nearby() {
			a.note("caretaker: warning: the token is sent to %s unencrypted: use --tls", a.client.address)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	err = a.client.explain(do(ctx, pb.NewMaintenanceServiceClient(conn)))
	if a.client.changed.Load() {
		a.note("(server %s)", a.client.server())
	}
	return err
}

// checkConfigFile reads the file of --config. It refuses a file that serve would refuse.
func (a *app) checkConfigFile() (*config.Config, error) {
	if a.configFile == "" {
		return &config.Config{}, nil
	}
	s, err := a.partialSettings()
	return s.Config, err
}

// explain turns the status of a call into a message and an exit code. It uses the server's reason
// if there is one, otherwise the status code.
func (c *connection) explain(err error) error {
	s, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		return err
	}
	reason, text := "", s.Message()
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = detail.GetReason()
		case *errdetails.BadRequest:
			text = asFlag(detail.GetFieldViolations()[0])
		}
	}
	switch reason {
	case "LEASE_HELD", "WORKER_PAUSED", "WORKER_NOT_CONFIGURED":
		return &exitError{exitSkipped, errors.New("skipped: " + text)}
	case "NOT_IN_USE":
		return &exitError{exitSkipped, errors.New(text)}
	case "INVALID_ARGUMENT", "UNKNOWN_WORKER", "UNKNOWN_DATABASE", "UNKNOWN_RUN", "UNKNOWN_JOB",
		"UNKNOWN_PROTECTION", "UNKNOWN_PATH", "UNKNOWN_FLAG", "UNKNOWN_TARGET", "UNKNOWN_CHILD":
		return &exitError{exitUsage, errors.New(text)}
	case "UNAUTHENTICATED":
		if c.tokenFile == "" && c.certFile == "" {
			text += " (use --token-file, or --tls-cert and --tls-key)"
		}
	case "":
		return c.explainTransport(s)
	}
	return errors.New(text)
}

// errorInfo returns the reason in the status of a call, nil if the error has none.
func errorInfo(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// explainTransport is explain for errors that the server did not write.
func (c *connection) explainTransport(s *status.Status) error {
	if s.Code() == codes.Unavailable {
		if text := c.wrongFlag(s.Message()); text != "" {
			return fmt.Errorf("%s (%s)", text, s.Message())
		}
		return fmt.Errorf("no answer from %s: start a server with `caretaker serve` or `caretaker dev`, or "+
			"set --address to the address of a running server (%s)", c.address, s.Message())
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer from %s within %s: check the address and the server's log, or "+
			"retry", c.address, answerTimeout)
	}
	return fmt.Errorf("%s: %s", s.Code(), s.Message())
}

// wrongFlag names the flag that caused a connection problem, "" for other problems. If the server
// refuses a certificate after the client has connected, the client only sees the connection end.
func (c *connection) wrongFlag(problem string) string {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(problem, t) })
	}
	ended := has("server preface", "EOF", "broken pipe", "connection reset")
	switch {
	case has("error reading from server"), ended && c.name.Load() != nil:
		// The client reads the server preface first, so the connection had been established.
		return "the connection to " + c.server() + " was lost during the call: once the server " +
			"answers, check the runs with `caretaker runs`"
	case has("not look like a TLS handshake"):
		return "the server at " + c.address + " does not use TLS: remove the TLS settings " +
			"from the flags, the environment and the profile"
	case ended && !c.secure():
		return "no gRPC server at " + c.address + ": if the server uses TLS, use --tls or --tls-ca"
	case has("signed by unknown authority"):
		return "the certificate of the server at " + c.address + " is signed by an authority that " +
			"this machine does not trust: use --tls-ca with the authority's certificate file"
	case has("expired or is not yet valid"):
		return "the certificate of the server at " + c.address + " has expired or is not yet valid: " +
			"replace it on the server, or correct the clock of this machine"
	case has("x509: "):
		return "the certificate of the server does not match the address " + c.address + ": use a name in the " +
			"certificate as the address, or replace the certificate by one that contains this address"
	case has("certificate required") && c.certFile == "":
		return "the server at " + c.address + " requires a client certificate: use --tls-cert and --tls-key"
	case ended && c.certFile == "":
		return "the server at " + c.address + " closed the connection: if the server requires a " +
			"client certificate, use --tls-cert and --tls-key"
	case c.certFile != "" && (ended || has("remote error: tls:")):
		return "the server at " + c.address + " rejected the client certificate: use a different " +
			"certificate with --tls-cert and --tls-key"
	case has("authentication handshake failed"):
		return "the TLS handshake with " + c.address + " failed: check that a caretaker server uses this address"
	}
	return ""
}

// asFlag returns the flag or argument for a field that the API refuses.
func asFlag(violation *errdetails.BadRequest_FieldViolation) string {
	name := violation.GetField()
	switch name {
	case "ttl":
		name = "--for"
	case "run_id":
		name = "--run"
	case "page_token":
		return "--page-token is invalid for this list with these filters: use the filters of the previous " +
			"page, with times instead of durations in --since and --until"
	case "page_size", "since", "until", "database", "reason", "kind", "state", "outcome", "expected_digest":
		name = "--" + strings.ReplaceAll(name, "_", "-")
	case "worker", "name":
		name = strings.ToUpper(name)
	}
	return name + ": " + violation.GetDescription()
}
