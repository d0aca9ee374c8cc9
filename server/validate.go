package server

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/schedule"
)

// invalid returns an InvalidArgumentError for one field of a request.
func invalid(field, format string, args ...any) error {
	return &fault.InvalidArgumentError{Field: field, Description: fmt.Sprintf(format, args...)}
}

// required refuses an empty text, and a text that printable refuses.
func required(field, text string) error {
	if text == "" {
		return invalid(field, "is required")
	}
	return printable(field, text)
}

// printable refuses control characters, which neither log lines nor PostgreSQL accept.
func printable(field, text string) error {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return invalid(field, "must not contain control characters")
	}
	return nil
}

// fromTTL returns a duration, 0 for an unset TTL. allowed is the text of the error for 0 and for
// invalid durations.
func fromTTL(ttl *durationpb.Duration, allowed string) (time.Duration, error) {
	if ttl == nil {
		return 0, nil
	}
	if ttl.CheckValid() != nil || ttl.AsDuration() == 0 {
		return 0, invalid("ttl", "%s", allowed)
	}
	return ttl.AsDuration(), nil
}

// filter returns package service's term for an enum that filters a list, "" for UNSPECIFIED.
func filter(field, prefix string, value protoreflect.Enum) (string, error) {
	known := value.Descriptor().Values().ByNumber(value.Number())
	switch {
	case known == nil:
		return "", invalid(field, "%d is not a %s", value.Number(), value.Descriptor().Name())
	case value.Number() == 0:
		return "", nil
	}
	return strings.ToLower(strings.TrimPrefix(string(known.Name()), prefix)), nil
}

// jobState returns the state that filters jobs, from whichever of the two fields is set.
func jobState(r *pb.ListJobsRequest) (string, error) {
	state, err := filter("job_state", jobStatePrefix, r.GetJobState())
	switch {
	case err != nil || state == "":
		return r.GetState(), err
	case r.GetState() != "":
		return "", invalid("state", "set state or job_state, not both")
	}
	return state, nil
}

// fromTime returns the zero time for an unset time.
func fromTime(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if t.CheckValid() != nil {
		return time.Time{}, invalid(field, "must be in the years 1 to 9999, with nanos from 0 to 999999999")
	}
	return t.AsTime(), nil
}

// bounded is a request for the entries of a list between two times.
type bounded interface {
	GetSince() *timestamppb.Timestamp
	GetUntil() *timestamppb.Timestamp
}

// bounds returns the times of a request, zero for an unset time.
func bounds(r bounded) (since, until time.Time, err error) {
	since, sinceErr := fromTime("since", r.GetSince())
	until, untilErr := fromTime("until", r.GetUntil())
	if !until.IsZero() && until.Before(since) {
		untilErr = cmp.Or(untilErr, invalid("until", "is before since"))
	}
	return since, until, cmp.Or(sinceErr, untilErr)
}

// times returns the bounds of a list in the form of its filters, none if no bound is set.
func times(r bounded) []string {
	if r.GetSince() == nil && r.GetUntil() == nil {
		return nil
	}
	return []string{r.GetSince().String(), r.GetUntil().String()}
}

// The default and maximum numbers of entries on a page.
const defaultPage, maxPage = 50, 1000

// page is the part of a list that a client requests. Its token is opaque to clients. It has a hash
// of the list and its filters, so that no other list accepts it, and the key of the last entry.
type page struct {
	size  int
	list  string
	after string
}

// newPage reads the size and the token of a request for a kind of list. filters must contain every
// filter of the request: else the token of a list with other filters would be accepted.
func newPage(kind string, request interface {
	GetPageSize() int32
	GetPageToken() string
}, filters ...string,
) (page, error) {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%q", append(filters, kind))
	p := page{size: int(request.GetPageSize()), list: fmt.Sprintf("%016x", hash.Sum64())}
	switch {
	case p.size < 0:
		return p, invalid("page_size", "must be from 1 to %d, or 0 for the default of %d", maxPage, defaultPage)
	case p.size == 0:
		p.size = defaultPage
	}
	p.size = min(p.size, maxPage)
	if request.GetPageToken() == "" {
		return p, nil
	}
	content, err := base64.RawURLEncoding.DecodeString(request.GetPageToken())
	list, after, found := strings.Cut(string(content), "\n")
	if err != nil || !found || list != p.list || after == "" || printable("", after) != nil {
		return p, errForeignToken()
	}
	p.after = after
	return p, nil
}

// errForeignToken returns the error of a page token that is malformed, or belongs to another list
// or filter.
func errForeignToken() error {
	return invalid("page_token", "is not the next_page_token of a list with the same filters")
}

// next returns the token of the page after the entry with this key.
func (p page) next(after string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.list + "\n" + after))
}

// afterNumber returns the key of a list by number, 0 for the first page.
func (p page) afterNumber() (int64, error) {
	if p.after == "" {
		return 0, nil
	}
	after, err := strconv.ParseInt(p.after, 10, 64)
	if err != nil {
		return 0, errForeignToken()
	}
	return after, nil
}

// timedKey returns the key of a list by time. key distinguishes entries with equal times.
func timedKey(at time.Time, key string) string {
	return at.UTC().Format(time.RFC3339Nano) + " " + key
}

// fireKey returns the key of the list of scheduled runs: time and worker.
func fireKey(f *schedule.Fire) string { return timedKey(f.Time, f.Worker) }

// auditKey returns the key of the audit: time and ID.
func auditKey(e *control.AuditEntry) string { return timedKey(e.At, strconv.FormatInt(e.ID, 10)) }

// afterTime returns the key of a list by time, zero for the first page.
func (p page) afterTime() (at time.Time, key string, err error) {
	if p.after == "" {
		return time.Time{}, "", nil
	}
	text, key, _ := strings.Cut(p.after, " ")
	if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return time.Time{}, "", errForeignToken()
	}
	return at, key, nil
}

// maxAnswer limits a page's entries, in bytes. Clients receive at most 4 MiB by default.
const maxAnswer = 3 << 20

// fill converts as many entries as fit to a page. If more entries exist, next is the token of the
// next page. The caller therefore requests one entry more than the page may have.
func fill[T any, M proto.Message](
	p page, found []T, convert func(*T) M, key func(*T) string,
) (entries []M, next string) {
	size := 0
	for i := range found {
		entry := convert(&found[i])
		size += proto.Size(entry)
		if len(entries) == p.size || size > maxAnswer && i > 0 {
			return entries, p.next(key(&found[i-1]))
		}
		entries = append(entries, entry)
	}
	return entries, ""
}
