package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/caretaker-go/caretaker/access"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// rule defines which clients may call an RPC.
type rule struct {
	role access.Role
	// changes reports that the call changes something. Such calls are audited. An operator
	// restricted to workers may make them only for these workers.
	changes bool
	// everything is the role for a call that covers all workers, if it differs from role.
	everything access.Role
	// gitlab names the subject of a call that does not exist with use: loose_foreign_keys.
	gitlab string
}

// of returns the rule for a subject that exists only with use: gitlab.
func (r rule) of(gitlab string) rule {
	r.gitlab = gitlab
	return r
}

// rules returns the table of permissions by full method name. Unlisted methods are refused. Health
// checks bypass the table because they require no client.
func rules() map[string]rule {
	const service = "/" + "maintenance.v1.MaintenanceService" + "/"
	view := rule{role: access.Viewer}
	operate := rule{role: access.Operator, changes: true}
	govern := rule{role: access.Admin, changes: true}
	// This call is the kill switch of all workers.
	pause := rule{role: access.Operator, changes: true, everything: access.Admin}
	const jobs, protections, outside = "jobs", "protections", "paths outside the database"
	return map[string]rule{
		service + "GetStatus":        view,
		service + "ListLeases":       view,
		service + "GetRun":           view,
		service + "ListRuns":         view,
		service + "WatchRun":         view,
		service + "ListFires":        view,
		service + "GetJob":           view.of(jobs),
		service + "ListJobs":         view.of(jobs),
		service + "PlanDeletion":     view.of("deletion plans"),
		service + "ListProtected":    view.of(protections),
		service + "ListOutside":      view.of(outside),
		service + "ListReceipts":     view,
		service + "ListRecords":      view,
		service + "ListAudit":        view,
		service + "ListFeatureFlags": view,
		service + "RunBatch":         operate,
		service + "CancelRun":        operate,
		service + "PauseWorker":      pause,
		service + "ResumeWorker":     pause,
		service + "RetryJob":         operate.of(jobs),
		service + "CancelJob":        operate.of(jobs),
		service + "AckOutside":       operate.of(outside),
		service + "AcceptAbsent":     operate,
		service + "DecideRecords":    operate,
		service + "ProtectTarget":    operate.of(protections),
		service + "UnprotectTarget":  govern.of(protections),
		service + "SetFeatureFlag":   govern,

		reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      view,
		reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: view,
	}
}

// Changes reports whether the method with this full name changes something.
func Changes(method string) bool { return rules()[method].changes }

// needed returns the role that a call requires.
func (r rule) needed(request any) access.Role {
	if of, ok := request.(interface{ GetWorker() string }); ok && r.everything > r.role &&
		strings.TrimSpace(of.GetWorker()) == fault.AllWorkers {
		return r.everything
	}
	return r.role
}

// allowed returns an error unless the client may make the call.
func (s *Server) allowed(ctx context.Context, c access.Client, method string, request any) error {
	r, known := s.rules[method]
	if !known {
		text := "no role may call this RPC: report this bug"
		return &fault.RefusedError{Reason: "NO_ROLE_FOR_RPC", Text: text}
	}
	if needed := r.needed(request); c.Role < needed {
		return tooLow(c.Role, needed)
	}
	if r.gitlab != "" && s.config.Service.LooseForeignKeysOnly {
		return notInUse(r.gitlab)
	}
	if !r.changes || len(c.Workers) == 0 {
		return nil
	}
	// The lookup and its error contain the texts of the request.
	if err := s.limits.fits(request); err != nil {
		return err
	}
	worker, err := s.workerOf(ctx, request)
	if err != nil || slices.Contains(c.Workers, worker) {
		return err
	}
	about := cmp.Or(cut(worker, maxTarget), "more than one worker")
	text := "your token is limited to " + strings.Join(c.Workers, ", ") + ", but this call " +
		"affects " + about + ": use a token that allows each affected worker"
	return &fault.RefusedError{Reason: "WORKER_NOT_ALLOWED", Text: text, Metadata: map[string]string{
		"worker": cut(worker, maxTarget), "workers": strings.Join(c.Workers, ","),
	}}
}

// workerOf returns the worker that a change affects: the worker of the request, the run or the job.
// It returns "" for a change that affects no worker or several workers.
func (s *Server) workerOf(ctx context.Context, request any) (string, error) {
	switch r := request.(type) {
	case interface{ GetWorker() string }:
		return strings.TrimSpace(r.GetWorker()), nil
	case *pb.AcceptAbsentRequest, *pb.DecideRecordsRequest:
		return lfk.Name, nil
	case *pb.CancelRunRequest:
		run, err := s.config.Service.Run(ctx, r.GetId())
		return run.Worker, err
	case *pb.CancelJobRequest:
		return s.config.Service.JobWorker(ctx, r.GetId())
	case *pb.RetryJobRequest:
		return s.config.Service.JobWorker(ctx, r.GetId())
	}
	return "", nil
}

// notInUse returns the error NOT_IN_USE for methods and workers that need a GitLab database.
func notInUse(what string) error {
	return &fault.RefusedError{
		Reason: "NOT_IN_USE", Metadata: map[string]string{"what": what},
		Text: fmt.Sprintf("%s are not available with `use: %s`: for a GitLab database, set "+
			"`use: %s` in the configuration, run `caretaker migrate` and restart the servers",
			what, service.UseLooseForeignKeys, service.UseGitLab),
	}
}

// tooLow returns the error ROLE_TOO_LOW, with both roles in its metadata. A certificate without
// any role gets advice of its own.
func tooLow(role, needed access.Role) error {
	has, remedy := "you have the role "+role.String(), ": use a token or certificate with the required role"
	if role == access.None {
		has, remedy = "your certificate has no role", ": assign a role in auth.certificates"
	}
	return &fault.RefusedError{
		Reason: "ROLE_TOO_LOW",
		Text:   "this call requires the role " + needed.String() + ", but " + has + remedy,
		Metadata: map[string]string{
			"role": role.String(), "needed": needed.String(),
		},
	}
}
