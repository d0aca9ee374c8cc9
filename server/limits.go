package server

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

// limits are those of connections and calls. They are far beyond what is of use, and keep a client
// that has gone wrong from taking the server with it.
type limits struct {
	// message is the greatest request in bytes, read the greatest that is read at all: what is
	// greater than that is refused by gRPC, which cannot say so with ErrorInfo.
	message, read int
	// streams is how many calls a connection may have at once; further ones wait at the client.
	streams uint32
	// handshake is how long a client may take to set up a connection, with TLS.
	handshake time.Duration
	// idle is after how long a connection without calls is closed; clients open another by
	// themselves.
	idle time.Duration
	// rate is how many calls of RunBatch, and as many of PlanDeletion, a client may make a second,
	// burst how many at once. A client is a name that is proven, else a host.
	rate  rate.Limit
	burst int
}

// usualLimits are those of every server.
func usualLimits() limits {
	return limits{
		message: 1 << 20, read: 8 << 20, streams: 250,
		handshake: 10 * time.Second, idle: 15 * time.Minute,
		rate: 20, burst: 200,
	}
}

const (
	// A client that waits for a run is pinged, so that one that has vanished is noticed.
	pingInterval, pingTimeout = time.Minute, 20 * time.Second
	// minClientPing is how often clients may ping.
	minClientPing = 10 * time.Second
)

// options are the limits that gRPC keeps.
func (l limits) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(l.read), grpc.MaxConcurrentStreams(l.streams),
		grpc.ConnectionTimeout(l.handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: l.idle, Time: pingInterval, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(
			keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	}
}

// tooLargeError is a request beyond the limit.
type tooLargeError struct{ size, limit int }

// Error has both sizes.
func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the request has %d bytes: at most %d", e.size, e.limit)
}

// fits refuses requests that are too large.
func (l limits) fits(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return nil
	}
	if size := proto.Size(message); size > l.message {
		return &tooLargeError{size, l.message}
	}
	return nil
}

// rateError is a call too many.
type rateError struct {
	rate rate.Limit
	wait time.Duration
}

// Error says when to try again.
func (e *rateError) Error() string {
	return fmt.Sprintf("more than %g such calls a second: try again in %s", float64(e.rate),
		e.wait.Round(time.Millisecond))
}

// rates count the calls of each client whose rate is limited.
type rates struct {
	limits
	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// maxBuckets is how many clients are counted before those are forgotten that have been quiet.
const maxBuckets = 1000

// take counts a call, and refuses it if there were too many.
func (r *rates) take(method, client string) error {
	if method != pb.MaintenanceService_RunBatch_FullMethodName &&
		method != pb.MaintenanceService_PlanDeletion_FullMethodName {
		return nil
	}
	// A reservation that is cancelled gives nothing back once another was made behind it.
	bucket := r.bucket(method + " " + client)
	if bucket.Allow() {
		return nil
	}
	missing := max(1-bucket.Tokens(), 0)
	wait := time.Duration(missing / float64(r.rate) * float64(time.Second))
	return &rateError{r.rate, max(wait, time.Millisecond)}
}

func (r *rates) bucket(key string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.buckets[key]; ok {
		return found
	}
	if len(r.buckets) >= maxBuckets {
		for k, b := range r.buckets {
			if b.Tokens() >= float64(r.burst) {
				delete(r.buckets, k)
			}
		}
	}
	made := rate.NewLimiter(r.rate, r.burst)
	r.buckets[key] = made
	return made
}
