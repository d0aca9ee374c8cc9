package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

//go:embed templates static
var files embed.FS

// pages serves the pages.
type pages struct {
	config    Config
	templates map[string]*template.Template
	// assets has the addresses of the static files, by file name.
	assets map[string]string
	// recent caches what pages read, for all requests.
	recent  *recent
	forms   access.Forms
	signIns access.SignIns
	// streams are the open streams. They end with stopping.
	streams  streams
	stopping context.Context //nolint:containedctx // ends with the server, not with a call
}

// newPages parses all templates and hashes all assets once. An error names the page.
func newPages(c Config) (*pages, error) {
	p := &pages{
		config: c, templates: map[string]*template.Template{}, assets: map[string]string{},
		recent: &recent{known: map[string]*reading{}}, forms: access.NewForms(),
		streams: streams{of: map[string]int{}},
	}
	for _, name := range []string{"style.css", "refresh.js", "icon.svg"} {
		content, err := files.ReadFile("static/" + name)
		if err != nil {
			return nil, err
		}
		p.assets[name] = fmt.Sprintf("/static/%s?v=%x", name, crc32.ChecksumIEEE(content))
	}
	for _, name := range []string{
		"overview", "workers", "worker", "waiting", "runs", "run", "schedule", "jobs", "job", "plan",
		"leases", "decisions", "definitions", "receipts", "records", "audit", "databases", "error", "act", "signin", "docs",
	} {
		t, err := template.New("").Funcs(p.functions()).ParseFS(files,
			"templates/layout.html", "templates/parts.html", "templates/live.html", "templates/charts.html", "templates/"+name+".html")
		if err != nil {
			return nil, fmt.Errorf("page %s: %w", name, err)
		}
		p.templates[name] = t
	}
	return p, nil
}

// routes returns the handler of all paths. Without jobs, /jobs and /plan are 404.
func (p *pages) routes() http.Handler {
	mux, l := http.NewServeMux(), lists{p}
	mux.HandleFunc("GET /{$}", p.overview)
	mux.HandleFunc("GET /workers", p.workers)
	mux.HandleFunc("GET /workers/{name}", p.worker)
	mux.HandleFunc("GET /workers/{name}/dead", l.waiting)
	mux.HandleFunc("GET /workers/{name}/deferred", l.waiting)
	mux.HandleFunc("GET /workers/{name}/held", l.waiting)
	mux.HandleFunc("GET /runs", l.runList)
	mux.HandleFunc("GET /runs/{id}", p.run)
	mux.HandleFunc("GET /runs/{id}/events", p.events)
	mux.HandleFunc("GET /schedule", l.fireList)
	mux.HandleFunc("GET /leases", func(w http.ResponseWriter, r *http.Request) {
		p.show(w, r, "leases", "Leases · caretaker", p.statuses(r.Context()))
	})
	mux.HandleFunc("GET /decisions", l.decisions)
	mux.HandleFunc("GET /definitions", l.definitions)
	mux.HandleFunc("GET /receipts", l.receiptList)
	mux.HandleFunc("GET /records", l.recordList)
	mux.HandleFunc("GET /audit", l.auditList)
	mux.HandleFunc("GET /databases", l.databases)
	mux.HandleFunc("GET /search", l.search)
	if p.hasJobs() {
		mux.HandleFunc("GET /jobs", l.jobList)
		mux.HandleFunc("GET /jobs/{id}", p.job)
		mux.HandleFunc("GET /plan/{kind}/{id}", p.plan)
	}
	mux.HandleFunc("GET /act/{action}", p.act)
	mux.HandleFunc("POST /act/{action}", p.act)
	mux.HandleFunc("GET /docs/{path...}", p.documentation)
	mux.HandleFunc("GET /signin", p.signInForm)
	mux.HandleFunc("POST /signin", p.signIn)
	mux.HandleFunc("POST /signout", p.signOut)
	mux.HandleFunc("GET /static/{file}", p.asset)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		p.renderError(w, r, http.StatusNotFound, "Page not found: "+r.URL.Path+".")
	})
	return mux
}

// hasJobs reports whether jobs and plans exist. A configuration of loose foreign keys alone has neither.
func (p *pages) hasJobs() bool { return !p.config.Service.LooseForeignKeysOnly }

// asset serves a static file. Browsers keep it for a year: its address changes with its content.
func (p *pages) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	url, known := p.assets[name]
	if !known {
		p.renderError(w, r, http.StatusNotFound, "Page not found: "+r.URL.Path+".")
		return
	}
	if url == r.URL.RequestURI() {
		w.Header().Set("Cache-Control", "max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, files, "static/"+name) //nolint:gosec // files of the binary alone
}

// frame is the data of a page: the data of the layout, and Body.
type frame struct {
	Title, Version string
	Now            time.Time
	// Refresh is in seconds. 0 means never.
	Refresh int
	// Fixed means that the page reloads only on request. Form means that it reloads only with
	// JavaScript, which does not disturb the typing.
	Fixed, Form bool
	// Refreshing is the address of the page that reloads itself, Still of the one that does not.
	Refreshing, Still string
	// Nav has the pages of the bar. It is empty before the client has signed in.
	Nav []navLink
	// Client is the name and the role of a client that signed in, "" if no sign-in is required.
	Client string
	// Done is set on the page that follows an action.
	Done bool
	Body any
}

// navLink is a page in the bar. Count is the number of open decisions.
type navLink struct {
	Text, URL string
	Current   bool
	Count     int64
}

// nav returns the pages of the bar. It marks the one that a request belongs to.
func (p *pages) nav(r *http.Request) (links []navLink) {
	names := []string{"overview", "workers", "runs", "schedule", "jobs", "leases", "decisions", "definitions", "receipts", "audit", "databases"}
	section, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if section == "records" || section == "plan" {
		section = "decisions"
	}
	for _, name := range names {
		link := navLink{Text: name, URL: "/" + name, Current: section == name}
		switch {
		case name == "overview":
			link.URL, link.Current = "/", section == ""
		case name == "jobs" && !p.hasJobs():
			continue
		case name == "decisions":
			link.Count = p.openDecisions(r.Context())
		}
		links = append(links, link)
	}
	return links
}

// openDecisions returns the number of items on the page of decisions. A worker without a list of dead
// items counts failed jobs, which are counted below. The loose foreign keys are those of the last check.
func (p *pages) openDecisions(ctx context.Context) (n int64) {
	for _, w := range p.statuses(ctx).Value {
		if of, err := p.config.Service.Worker(w.Worker); err == nil && of.Waiting != nil {
			n += w.Backlog.Dead
		}
	}
	if p.hasJobs() {
		for _, c := range read(ctx, p.recent, "counts", readEvery, p.config.Service.JobCounts).Value {
			if c.State == "discarded" {
				n += c.Jobs
			}
		}
	}
	last, _ := p.recent.reading(looseForeignKeys).shown.Load().(part[service.LooseForeignKeys])
	keys := last.Value
	return n + int64(len(keys.Absent)+len(keys.Reused))
}

const (
	// refreshSeconds is how often a browser reloads the page.
	refreshSeconds = 5
	// maxForm is the maximum size of a form in bytes.
	maxForm = 64 << 10
)

// show renders the page of a template with a title.
func (p *pages) show(w http.ResponseWriter, r *http.Request, name, title string, body any) {
	p.write(w, r, http.StatusOK, name, frame{Title: title, Body: body})
}

// write renders a page with a status code. It renders into memory first, so that a failing
// template is a clean 500. ?refresh=off stops the reloading.
func (p *pages) write(w http.ResponseWriter, r *http.Request, code int, name string, f frame) {
	f.Version, f.Now, f.Refresh = p.config.Version, time.Now().UTC(), refreshSeconds
	query := r.URL.Query()
	if f.Fixed || query.Get("refresh") == "off" || r.Method == http.MethodPost {
		f.Refresh = 0
	}
	f.Done = query.Get("done") != ""
	query.Del("done")
	query.Del("refresh")
	f.Refreshing = r.URL.Path
	if len(query) > 0 {
		f.Refreshing += "?" + query.Encode()
	}
	query.Set("refresh", "off")
	f.Still = r.URL.Path + "?" + query.Encode()
	if clientOf(r).Role >= access.Viewer {
		f.Nav = p.nav(r)
	}
	if _, err := r.Cookie(access.SessionCookie); err == nil && f.Nav != nil {
		client := clientOf(r)
		f.Client = strings.TrimSpace(client.Name + " (" + client.Role.String() + ")")
	}
	var out bytes.Buffer
	if err := p.templates[name].ExecuteTemplate(&out, "layout", f); err != nil {
		p.config.Logger.ErrorContext(r.Context(), "page not rendered", "page", name, "error", err.Error())
		http.Error(w, "this page could not be rendered: see the server's log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(bytes.Map(printable, out.Bytes()))
}

// printable replaces misleading characters of names. It keeps the page's white space.
func printable(r rune) rune {
	if format.Misleading(r) && !(unicode.IsControl(r) && unicode.IsSpace(r)) {
		return ' '
	}
	return r
}

// renderError renders the error page, with a link to the documentation.
func (p *pages) renderError(w http.ResponseWriter, r *http.Request, code int, text string, reason ...string) {
	p.write(w, r, code, "error", frame{
		Title: http.StatusText(code) + " · caretaker", Fixed: true,
		Body: map[string]any{
			"Title": http.StatusText(code), "Text": text, "Code": code, "Reason": strings.Join(reason, ""),
			"Worker": r.FormValue("worker"),
		},
	})
}

// fail renders the error page with the cause.
func (p *pages) fail(w http.ResponseWriter, r *http.Request, err error) {
	if !p.refused(w, r, err) {
		p.renderError(w, r, http.StatusServiceUnavailable, cause(err))
	}
}

// refused renders the answer to a request that is invalid or finds nothing, and reports whether it
// did. An unreachable database is not such an error: the list itself shows it.
func (p *pages) refused(w http.ResponseWriter, r *http.Request, err error) bool {
	answer, text, reason := status.Convert(err), cause(err), ""
	if own, ok := errors.AsType[interface {
		error
		Details() (string, map[string]string)
	}](err); ok {
		text = own.Error() + "."
		reason, _ = own.Details()
	}
	for _, detail := range answer.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason = info.GetReason()
		}
	}
	code := httpCode(answer.Code())
	refused, isRefused := errors.AsType[*fault.RefusedError](err)
	switch {
	case reason == "INVALID_ARGUMENT":
		code = http.StatusBadRequest
	case reason == "WORKER_NOT_CONFIGURED":
		code = http.StatusConflict
	case strings.HasPrefix(reason, "UNKNOWN_"):
		code, text = http.StatusNotFound, sentence(text)
	case isRefused && refused.Retry == 0:
		code = http.StatusConflict
	case isRefused:
		code = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.Retry.Seconds()))))
	case code >= http.StatusInternalServerError:
		return false
	}
	p.renderError(w, r, code, text, reason)
	return true
}
