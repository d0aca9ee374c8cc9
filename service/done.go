package service

// Processed is how many of the things that its worker's backlog has as due a run has dealt with, in
// whatever way, by its counts; known is false for a worker whose counts do not say. Clients ask it,
// too: it needs no service.
func Processed(worker string, counts map[string]int64) (n int64, known bool) {
	for _, line := range new(Config).list() {
		if line.name != worker {
			continue
		}
		var names []string
		if settings, ok := line.settings.(interface{ DoneCounts() []string }); ok {
			names = settings.DoneCounts()
		}
		for _, name := range names {
			n += counts[name]
		}
		return n, len(names) > 0
	}
	return 0, false
}
