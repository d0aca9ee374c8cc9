package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caretaker-go/caretaker/service"
)

const (
	// planEvery is the age from which on a plan is made again.
	planEvery = 30 * time.Second
	// planTimeout bounds the making of a plan: it stops by itself after 20 seconds.
	planTimeout = 25 * time.Second
	// planRate is how many plans a client may ask for a second, planBurst how many at once, as of the
	// API.
	planRate, planBurst = 20, 200
	// maxClients is how many clients are counted before all are forgotten.
	maxClients = 1000
)

// rates count the plans that each client asks for.
type rates struct {
	mu      sync.Mutex
	clients map[string]*rate.Limiter
}

// allow counts a plan, and reports whether it may be made.
func (r *rates) allow(client string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.clients[client]
	if known == nil {
		if len(r.clients) >= maxClients {
			clear(r.clients)
		}
		known = rate.NewLimiter(planRate, planBurst)
		r.clients[client] = known
	}
	return known.Allow()
}

// clientOf is what the plans of a client are counted by: a name that is proven, else its host.
func (p *pages) clientOf(r *http.Request) string {
	if client, err := p.config.Access.ClientOf(r); err == nil && client.Name != "" {
		return "name " + client.Name
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return "host " + host
}

// planPage is the data of the page of a plan.
type planPage struct {
	*service.Plan
	// At is when it was made.
	At time.Time
}

// Takes is the estimate in words, "" if there is none.
func (p planPage) Takes() string {
	switch {
	case p.Estimate <= 0:
		return ""
	case p.Estimate < time.Second:
		return "less than a second"
	}
	return "about " + span(p.Estimate)
}

// plan shows what a deletion would do, as the API's PlanDeletion says.
func (p *pages) plan(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		p.sorry(w, r, http.StatusBadRequest, "The address of a plan is /plan/user/ID, /plan/group/ID "+
			"or /plan/placeholder/ID, with a number.")
		return
	}
	if !p.rates.allow(p.clientOf(r)) {
		w.Header().Set("Retry-After", "1")
		p.sorry(w, r, http.StatusTooManyRequests,
			fmt.Sprintf("More than %d plans a second: try again in a second.", planRate))
		return
	}
	found := readWithin(r.Context(), p.recent, fmt.Sprintf("plan %s %d", kind, id),
		times{planEvery, planTimeout}, func(ctx context.Context) (*service.Plan, error) {
			return p.config.Service.PlanDeletion(ctx, kind, id)
		})
	if found.Err != nil {
		p.noPlan(w, r, found.Err)
		return
	}
	p.write(w, r, http.StatusOK, "plan", frame{
		Title: fmt.Sprintf("plan of %s %d · caretaker", kind, id), Fixed: true,
		Body: planPage{found.Value, found.At},
	})
}

// noPlan writes why there is no plan.
func (p *pages) noPlan(w http.ResponseWriter, r *http.Request, err error) {
	if p.refused(w, r, err) {
		return
	}
	unknown, isUnknown := errors.AsType[*service.UnknownTargetError](err)
	missing, isMissing := errors.AsType[*service.NotConfiguredError](err)
	switch {
	case isUnknown:
		p.sorry(w, r, http.StatusNotFound, "It may be gone already: "+unknown.Error()+".")
	case isMissing:
		p.sorry(w, r, http.StatusConflict, missing.Error()+".")
	default:
		p.sorry(w, r, http.StatusServiceUnavailable,
			"A database does not answer, or not in time: there is no plan now.")
	}
}

// planned is the address of the plan of something, "" if there is none for its kind.
func planned(kind string, id int64) string {
	if !service.IsTarget(kind) {
		return ""
	}
	return fmt.Sprintf("/plan/%s/%d", kind, id)
}

// plannedBy is the address of the plan of what a job is to delete, "" once it has ended well.
func plannedBy(j service.Job) string {
	kind, id, ok := service.TargetOf(j)
	if !ok || j.State == "completed" {
		return ""
	}
	return planned(kind, id)
}
