package service

// Processed returns how many of the due items in its worker's backlog a run has handled, with any
// outcome. known is false for a worker whose counts do not include that number. Clients call it
// too: it requires no service.
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
